//! The commands of the house: `cargo xtask check` while writing, `cargo xtask ci` before anything is shared,
//! `cargo xtask setup` on a new machine, `cargo xtask bench` for the bars that must hold, `cargo xtask tour` to see it work.
//!
//! Nothing here ships. Everything that a check needs is called from here, so that a person and the machine that
//! runs `.ci/run` do exactly the same.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "xtask drives cargo and the benched programs, and takes their time"
)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "xtask talks to the person who called it")]

mod bench;
mod ci;
mod clients;
mod house;
mod setup;
mod smoke;
mod stall;
mod steps;
mod tidy;
mod tour;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run the checks and benches of the house.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check format, lints and unit tests: seconds, for while you write.
    Check,
    /// Run every check there is, cheap ones first; the last line is the test runner's summary.
    Ci,
    /// Install what the checks need on a fresh Debian machine (as root where packages are missing).
    Setup,
    /// Look for what must not be in the repository: long files, leftovers, paths of one machine.
    Tidy,
    /// Play a script of A2E messages to a real host and show both sides.
    Tour(tour::Options),
    /// Run the tests of a client that stops reading, with a long pause.
    Stall(stall::Options),
    /// Run the examples of README.md against a release build.
    Readme,
    /// Measure the bars of the design against their baselines and print a table.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Check => ci::check(),
        Command::Ci => ci::ci(),
        Command::Setup => setup::setup(),
        Command::Tidy => tidy::tidy(),
        Command::Tour(options) => tour::tour(options),
        Command::Stall(options) => stall::stall(options),
        Command::Readme => smoke::built_readme(),
        Command::Bench(options) => bench::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

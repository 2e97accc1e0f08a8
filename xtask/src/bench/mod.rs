//! The bars of the design, measured. Each bench runs what it measures and its baseline in turns, takes medians and
//! hands back rows for one table; a bar that is missed is reported and nothing else happens.
//!
//! The A2E host is driven from outside, as a client would: the release binary as a child, its stdin and stdout as
//! the wire. Every run has a limit in time, after which the host is killed, and every process that was started is
//! ended by its pid. Times and CPU are only ever printed here, never asserted in a test.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any message that a bench did not ask for is the same one error"
)]

mod baseline;
mod host;
mod http;
mod idle;
mod lines;
mod loss;
mod messages;
mod numbered;
mod process;
mod round_trip;
mod sampler;
mod shell;
mod spawn;
mod stop;
mod stream;
mod table;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::house;
use baseline::Programs;
use table::{Row, Table};

/// What `cargo xtask bench` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Benches to run; all when none is named.
    #[arg(value_name = "NAME", value_parser = NAMES.map(|(name, _)| name))]
    names: Vec<String>,
    /// How often each pair of runs is repeated; the medians count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Write the table to FILE as JSON too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure this A2E host instead of the release build of this tree; started as FILE a2e --stdio.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// What every bench gets.
#[derive(Debug)]
struct Bench {
    rounds: usize,
    binary: PathBuf,
    programs: Programs,
}

type Run = fn(&Bench) -> Result<Vec<Row>>;

/// The benches by name, in the order in which they run.
const NAMES: [(&str, Run); 15] = [
    ("spawn_core", spawn::core),
    ("spawn_cgroup", spawn::cgroup),
    ("rss2g", spawn::large_host),
    ("spawn_a2e", spawn::a2e),
    ("stream", stream::stream),
    ("memory", stream::memory),
    ("loss", loss::loss),
    ("round_trip", round_trip::round_trip),
    ("idle", idle::idle),
    ("stop", stop::stop),
    ("http_spawn", spawn::http),
    ("http_stream", stream::http),
    ("shell_call", shell::call),
    ("shell_calls", shell::calls),
    ("shell_gigabyte", shell::gigabyte),
];

/// Builds what is measured, runs the benches, prints the table. An error means that something could not be
/// measured; a missed bar is none.
pub(crate) fn run(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) {
        return run_optimised(options);
    }
    if options.binary.is_none() {
        house::build_release()?;
    }
    let binary = options.binary.clone().unwrap_or_else(house::release_binary);
    let binary = binary.canonicalize().with_context(|| format!("failed to find {}", binary.display()))?;
    let bench = Bench { rounds: usize::from(options.rounds), binary, programs: Programs::build()? };
    let mut table = Table::default();
    for (name, run) in NAMES {
        if options.names.is_empty() || options.names.iter().any(|wanted| wanted == name) {
            eprintln!("--- {name}");
            table.add(name, run(&bench));
        }
    }
    println!("{table}");
    if let Some(file) = &options.json {
        let text =
            serde_json::to_string_pretty(&table.to_json()).context("failed to write the table as JSON")?;
        std::fs::write(file, text + "\n").with_context(|| format!("failed to write {}", file.display()))?;
    }
    ensure!(!table.has_errors(), "not everything could be measured");
    Ok(())
}

/// The reader that checks the stream must not be what is slow: an unoptimised xtask hands over to an optimised one.
fn run_optimised(options: &Options) -> Result<()> {
    house::run(&mut house::cargo(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "xtask",
        "--bin",
        "xtask",
    ]))?;
    let mut command = Command::new(house::target().join("release").join("xtask"));
    command.arg("bench").args(&options.names).arg("--rounds").arg(options.rounds.to_string());
    for (flag, file) in [("--json", &options.json), ("--binary", &options.binary)] {
        if let Some(file) = file {
            command.arg(flag).arg(file);
        }
    }
    house::run(&mut command)
}

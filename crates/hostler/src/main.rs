//! The `hostler` program: arguments and configuration in, one of its faces out.
//!
//! Standard output carries data or a protocol, standard error everything else, through [`logging`], which never waits
//! for a reader.

mod a2e;
mod cli;
mod config;
mod doctor;
mod exit;
mod house;
mod logging;
mod mcp;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use hostler_core::sys::signal::block_sigxfsz;

use cli::{Cli, Command, ConfigCommand, Transport};
use config::Sources;
use exit::{Failure, Status};
use logging::Stderr;

/// How long the end of the program waits for the last words to be read.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // Nursery and keepers are this program too; they must not do anything of what follows.
    hostler_core::run_if_helper();
    // Before there are threads, which inherit it: no limit of file sizes may end the host.
    block_sigxfsz();
    let stderr = Stderr::new();
    logging::report_panics(&stderr);
    let code = match catch_unwind(AssertUnwindSafe(|| run(&stderr))) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => finish(&failure, &stderr),
        Err(_reported) => Status::Failed.into(),
    };
    stderr.flush(FLUSH_LIMIT);
    code
}

fn run(stderr: &Stderr) -> Result<ExitCode, Failure> {
    let cli = Cli::parse_arguments().map_err(Failure::Arguments)?;
    if let Command::Config(args) = &cli.command
        && let ConfigCommand::Default = args.command
    {
        // The way out of a broken configuration, so it must not need a good one.
        return print(config::DEFAULT_FILE);
    }
    let sources = Sources {
        variables: std::env::vars_os().collect(),
        file: cli.config_file(),
        sdk_file: cli.sdk_file(),
        flags: cli.settings()?,
    };
    let loaded = config::load(&sources)?;
    logging::init(loaded.config.log, stderr);
    tracing::debug!(files = ?loaded.files, "configuration read");
    match &cli.command {
        Command::A2e(args) => {
            loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            let inherited = config::without_secrets(&sources.variables);
            let config = loaded.config;
            if config.a2e.auth_token.is_some() || config.a2e.http.bearer_token.is_some() {
                hide_memory()?;
            }
            match args.transport(loaded.sdk_transport)? {
                Transport::Stdio => a2e::a2e_stdio(config, inherited),
                Transport::Http(address) => a2e::a2e_http(config, inherited, &address, args.clear_text()),
            }
        }
        Command::Mcp(args) => {
            loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            mcp::mcp_stdio(&loaded.config, config::without_secrets(&sources.variables), &args.workspace())
        }
        Command::Config(_) => print(&loaded.to_toml().context("failed to write the configuration as TOML")?),
        Command::Doctor(args) => {
            let report = doctor::examine(&loaded, &sources.variables);
            let code = print(&if args.json { report.to_json() } else { report.to_text() })?;
            let lacking = report.lacking();
            if lacking.is_empty() { Ok(code) } else { Err(Failure::Machine(lacking)) }
        }
    }
}

/// Keeps other processes of the same user from reading a secret out of this one's environment and memory.
fn hide_memory() -> anyhow::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context("failed to protect the token in memory")
}

fn finish(failure: &Failure, stderr: &Stderr) -> ExitCode {
    let text = failure.report();
    match failure.status() {
        // Help and version are data.
        Status::Done => print(&text).unwrap_or_else(|failure| finish(&failure, stderr)),
        status @ (Status::Failed | Status::Unusable) => {
            stderr.send(text.into_bytes());
            status.into()
        }
    }
}

/// Writes data to standard output. A reader that has left, as `head` does, is no failure.
fn print(text: &str) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        Ok(()) | Err(_) => Ok(Status::Done.into()),
    }
}

//! Messages: `tracing` to standard error, quiet by default, never waiting for whoever reads it.
//!
//! [`Stderr`] owns the descriptor and the queue; this file turns events and panics into lines for it.

mod stderr;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

use crate::config::{Log, LogFormat, LogLevel};
pub(crate) use stderr::Stderr;

/// Starts to write messages as the configuration says. Called once; before it, messages go nowhere.
pub(crate) fn init(log: Log, stderr: &Stderr) {
    stderr.set_format(log.format);
    let writer = stderr.clone();
    let builder =
        tracing_subscriber::fmt().with_max_level(level_filter(log.level)).with_writer(move || writer.clone());
    match log.format {
        LogFormat::Text => builder.with_ansi(wants_colour()).init(),
        LogFormat::Json => builder.json().init(),
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// See <https://no-color.org>.
fn wants_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Sends panics through the queue as well: the standard hook would wait for a full standard error, and keep its lock.
pub(crate) fn report_panics(stderr: &Stderr) {
    let stderr = stderr.clone();
    std::panic::set_hook(Box::new(move |info| {
        stderr.send_note(&info.to_string());
        // Taken only where RUST_BACKTRACE asks for it.
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            stderr.send_note(&backtrace.to_string());
        }
    }));
}

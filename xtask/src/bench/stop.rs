//! The end of a session with 2,000 processes: from the close of stdin until all are dead and the host is gone.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Bench;
use super::baseline::number;
use super::host::{Host, Setup};
use super::idle::Crowd;
use super::table::{Bound, Row, interleave};

const PROCESSES: u32 = 2000;

/// Against a loop in C that sends SIGTERM to as many, reads their pipes to the end and reaps them.
pub(crate) fn stop(bench: &Bench) -> Result<Vec<Row>> {
    let child = bench.programs.text("one_line")?;
    let baseline = || {
        let mut command = Command::new(bench.programs.path("kill_loop"));
        number(command.arg(&child).arg(PROCESSES.to_string()), "seconds")
    };
    let pair = interleave(bench.rounds, baseline, || session_end(bench, &child))?;
    Ok(vec![Row {
        bar: "session end with 2,000 processes",
        measured: pair.ratio(),
        bound: Bound::AtMost(3.0),
        unit: "x",
        note: pair.note("s"),
    }])
}

fn session_end(bench: &Bench, child: &str) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let setup = Setup { allow: &[child], max_processes: PROCESSES + 10, open_files: None, limit };
    let mut host = Host::start(bench, &setup)?;
    let refusal = Crowd::default().grow(&mut host, child, u64::from(PROCESSES))?;
    ensure!(refusal.is_none(), "refused before there were {PROCESSES}: {refusal:?}");
    Ok(host.end()?.as_secs_f64())
}

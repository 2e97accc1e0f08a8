//! How long it takes until what was written to a process comes back as an event.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::Bench;
use super::baseline::number;
use super::host::{Host, Setup};
use super::messages::{self, Event, Message};
use super::process::on_one_core;
use super::table::{Bound, Row, interleave, median};

const ROUND_TRIPS: usize = 2000;
const WRITTEN: &[u8] = br#"{"type":"proc/write/resp","#;

/// write -> event through A2E against six bytes through the pipes of the same program.
pub(crate) fn round_trip(bench: &Bench) -> Result<Vec<Row>> {
    let baseline = || {
        let mut command = Command::new(bench.programs.path("ping_pong"));
        number(command.arg("/bin/cat").arg(ROUND_TRIPS.to_string()), "median_us")
    };
    let pair = interleave(bench.rounds, || on_one_core(baseline), || on_one_core(|| through_host(bench)))?;
    Ok(vec![Row {
        bar: "write to event, median",
        measured: pair.ratio(),
        bound: Bound::AtMost(5.0),
        unit: "x",
        note: format!("{}, on one core", pair.note("µs")),
    }])
}

fn through_host(bench: &Bench) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let mut host =
        Host::start(bench, &Setup { allow: &["cat"], max_processes: 64, open_files: None, limit })?;
    let (_, process) = host.spawn(&["cat"])?;
    let mut took = Vec::with_capacity(ROUND_TRIPS);
    for number in 0..=ROUND_TRIPS {
        let text = format!("{:05}\n", number % 100_000);
        let fields = json!({"proc_id": process.proc_id, "data": text, "eof": false});
        let line = messages::request("proc/write/req", &format!("w{number}"), fields) + "\n";
        let before = Instant::now();
        host.send_line(line.as_bytes())?;
        let arrived = wait_for_echo(&mut host, &text)?;
        // The first one waits for the program to start.
        if number > 0 {
            took.push(arrived.duration_since(before).as_secs_f64() * 1e6);
        }
    }
    host.end()?;
    Ok(median(&took))
}

/// Waits for the echo and for the reply to the write, which may come in either order; when the echo came.
fn wait_for_echo(host: &mut Host, text: &str) -> Result<Instant> {
    let (mut arrived, mut replied) = (None, false);
    while arrived.is_none() || !replied {
        let line = host.line()?;
        let at = Instant::now();
        // The answer mostly comes first: reading it as JSON would be counted as the host's time.
        if line.starts_with(WRITTEN) && memchr::memmem::find(line, br#""ok":true"#).is_some() {
            replied = true;
            continue;
        }
        match messages::parse(line)? {
            Message::Event { what: Event::Stdout(echo), .. } => {
                ensure!(echo == text && arrived.is_none(), "{text:?} came back as {echo:?}");
                arrived = Some(at);
            }
            Message::Written { refused: None } => replied = true,
            other => bail!("unexpected {other:?}"),
        }
    }
    arrived.context("no echo")
}

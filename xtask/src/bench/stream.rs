//! A process that prints as fast as it can: what an event costs the host, how many come through, and that memory and
//! disk stay bounded, with a client that reads and with one that has stopped reading.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::host::{Host, Setup};
use super::lines::Lines;
use super::messages::{Event, Message, Process};
use super::numbered::{Events, Numbered, Seen};
use super::process::cpu_ns;
use super::sampler::{Sampler, Samples};
use super::table::{Bound, Row, interleave, median};

/// Lines of one timed run: 160 MB of output.
const LINES: u64 = 2_000_000;

/// How long the endless producer is read, and how long it is not.
const READING: Duration = Duration::from_secs(10);
const STALLED: Duration = Duration::from_secs(10);
const AROUND_STALL: Duration = Duration::from_secs(1);

/// The relay quota of a process, by default.
const QUOTA_MIB: f64 = 16.0;

/// "Flat" means at most this much more than after the first tenth.
const FLAT_MIB: f64 = 32.0;

const LIMIT: Duration = Duration::from_secs(120);

/// What an event costs the host, and how many lines a second come through it.
pub(crate) fn stream(bench: &Bench) -> Result<Vec<Row>> {
    let mut cpu = Vec::new();
    let ours = || {
        let (lines_per_s, ns_per_event) = through_host(bench, Host::start)?;
        cpu.push(ns_per_event);
        Ok(lines_per_s)
    };
    let pair = interleave(bench.rounds, || bare(bench), ours)?;
    let cost = Row {
        bar: "host CPU of an event",
        measured: median(&cpu),
        bound: Bound::AtMost(330.0),
        unit: "ns",
        note: format!("{LINES} lines of 80 bytes, {} rounds", cpu.len()),
    };
    let wall = Row {
        bar: "lines a second against a bare pipe",
        measured: pair.ratio(),
        bound: Bound::AtLeast(0.25),
        unit: "x",
        note: pair.note("lines/s"),
    };
    Ok(vec![cost, wall])
}

/// Lines a second from the producer's pipe straight into the checking reader.
fn bare(bench: &Bench) -> Result<f64> {
    let before = Instant::now();
    let mut producer = Command::new(bench.programs.path("producer"));
    let mut producer =
        producer.arg(LINES.to_string()).stdout(Stdio::piped()).spawn().context("no producer")?;
    let mut lines = Lines::new(producer.stdout.take().context("a producer without stdout")?);
    let mut numbered = Numbered::new();
    while let Some(line) = lines.next().context("failed to read from the producer")? {
        if let Err(error) = numbered.take(line) {
            producer.kill().context("failed to end the producer")?;
            producer.wait().context("failed to wait for the producer")?;
            return Err(error);
        }
    }
    let took = before.elapsed();
    let status = producer.wait().context("failed to wait for the producer")?;
    ensure!(status.success() && numbered.count() == LINES, "{} lines, {status}", numbered.count());
    Ok(LINES as f64 / took.as_secs_f64())
}

/// Events a second over HTTP against standard output, with the same reader.
pub(crate) fn http(bench: &Bench) -> Result<Vec<Row>> {
    let mut cpu = Vec::new();
    let over_http = || {
        let (lines_per_s, ns_per_event) = through_host(bench, Host::start_http)?;
        cpu.push(ns_per_event);
        Ok(lines_per_s)
    };
    let over_stdio = || Ok(through_host(bench, Host::start)?.0);
    let pair = interleave(bench.rounds, over_stdio, over_http)?;
    Ok(vec![Row {
        bar: "events a second over HTTP against stdio",
        measured: pair.ratio(),
        bound: Bound::AtLeast(0.5),
        unit: "x",
        note: format!("{}; host CPU {:.0} ns an event", pair.note("events/s"), median(&cpu)),
    }])
}

/// How a host is started, and its messages come and go.
type Start = fn(&Bench, &Setup<'_>) -> Result<Host>;

fn start(bench: &Bench, start: Start) -> Result<Host> {
    let producer = bench.programs.text("producer")?;
    start(bench, &Setup { allow: &[&producer], max_processes: 64, open_files: None, limit: LIMIT })
}

/// Starts the producer with these arguments, and what must come of it.
fn produce(bench: &Bench, host: &mut Host, arguments: &[&str]) -> Result<(Process, Events)> {
    let producer = bench.programs.text("producer")?;
    let cmd: Vec<&str> = [producer.as_str()].into_iter().chain(arguments.iter().copied()).collect();
    let (asked, process) = host.spawn(&cmd)?;
    let events = Events::of(&process, &asked);
    Ok((process, events))
}

/// Lines a second and CPU in nanoseconds for each event, from the request to the terminal event.
fn through_host(bench: &Bench, with: Start) -> Result<(f64, f64)> {
    let mut host = start(bench, with)?;
    // A producer of nothing first: the start of the session's keeper is not the stream's cost.
    let (_, mut nothing) = produce(bench, &mut host, &["0"])?;
    let last = read_to_terminal(&mut host, &mut nothing)?;
    ensure!(last == Event::Exited(0), "a producer of nothing ended with {last:?}");
    let cpu_before = cpu_ns(&host.own()?)?;
    let before = Instant::now();
    let (_, mut events) = produce(bench, &mut host, &[&LINES.to_string()])?;
    let last = read_to_terminal(&mut host, &mut events)?;
    let took = before.elapsed();
    let cpu = cpu_ns(&host.own()?)?.saturating_sub(cpu_before);
    ensure!(last == Event::Exited(0) && events.count() == LINES, "{} lines, {last:?}", events.count());
    nothing_more(&mut host)?;
    host.end()?;
    Ok((LINES as f64 / took.as_secs_f64(), cpu as f64 / (LINES + 1) as f64))
}

fn read_to_terminal(host: &mut Host, events: &mut Events) -> Result<Event> {
    loop {
        if let Seen::Terminal(last) = events.take(host.line()?)? {
            return Ok(last);
        }
    }
}

/// The terminal event is the last one of its process.
fn nothing_more(host: &mut Host) -> Result<()> {
    host.settle(|message| {
        ensure!(!matches!(message, Message::Event { .. }), "{message:?} after the terminal event");
        Ok(())
    })
}

/// Memory and disk of the host while a producer writes without end.
pub(crate) fn memory(bench: &Bench) -> Result<Vec<Row>> {
    let read = endless(bench, Client::Reading)?;
    let stalled = endless(bench, Client::Stalling)?;
    let disk = Row {
        bar: "spool on disk under a stalled client",
        measured: stalled.disk_mib(),
        bound: Bound::AtMost(QUOTA_MIB),
        unit: "MiB",
        note: format!("{} s without a read", STALLED.as_secs()),
    };
    Ok(vec![
        flat("memory under an endless writer", &read),
        flat("memory under a stalled client", &stalled),
        disk,
    ])
}

fn flat(bar: &'static str, samples: &Samples) -> Row {
    Row {
        bar,
        measured: samples.growth_mib(),
        bound: Bound::AtMost(FLAT_MIB),
        unit: "MiB",
        note: format!("peak {:.1} MiB", samples.peak_mib()),
    }
}

/// What the client does with an endless stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Reads all the time.
    Reading,
    /// Reads, stops for a while, reads on.
    Stalling,
}

/// Looks at the host while a producer writes without end; every line that is read is checked.
fn endless(bench: &Bench, client: Client) -> Result<Samples> {
    let mut host = start(bench, Host::start)?;
    let (process, mut events) = produce(bench, &mut host, &[])?;
    let sampler = Sampler::start(host.pid(), host.state());
    match client {
        Client::Reading => read_for(&mut host, &mut events, READING)?,
        Client::Stalling => {
            read_for(&mut host, &mut events, AROUND_STALL)?;
            // A stalled client is one that does nothing: there is no fact to wait for.
            thread::sleep(STALLED);
            read_for(&mut host, &mut events, AROUND_STALL)?;
        }
    }
    let samples = sampler.stop()?;
    host.ask_to_kill(&process)?;
    let last = read_to_terminal(&mut host, &mut events)?;
    ensure!(last == Event::Killed, "killed, and yet it ended with {last:?}");
    nothing_more(&mut host)?;
    host.end()?;
    Ok(samples)
}

fn read_for(host: &mut Host, events: &mut Events, time: Duration) -> Result<()> {
    let before = Instant::now();
    while before.elapsed() < time {
        // The clock is looked at once for many lines.
        for _ in 0..256 {
            let seen = events.take(host.line()?)?;
            ensure!(seen == Seen::Line, "an endless writer sent {seen:?}");
        }
    }
    Ok(())
}

//! What it costs to start a process: through the core's public API in CPU time, through A2E in processes a second.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bench;
use super::baseline::number;
use super::host::{Host, Setup};
use super::messages::Message;
use super::process::on_one_core;
use super::table::{Bound, Row, interleave, median};
use crate::house;

const CPU: &str = "cpu_us_per_spawn";
const RATE: &str = "spawns_per_s";

/// Spawns of one run with a child that only exits.
const STATIC_SPAWNS: &str = "3000";

/// Spawns of one run with a child that loads its libraries first.
const DYNAMIC_SPAWNS: usize = 1500;
const DYNAMIC: &str = "/bin/true";
/// Spawns of a run that takes the time of each.
const ONE_AT_A_TIME: usize = 500;
const IN_FLIGHT: usize = 8;

/// The program that starts processes through hostler-core: `bench_spawn PROGRAM COUNT [--cgroup] [--ballast-mib N]`.
/// It prints what `spawn_loop` prints.
fn core_program() -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "--package", "xtask", "--bin", "bench_spawn"];
    house::run(&mut house::cargo(&build))?;
    Ok(house::target().join("release").join("bench_spawn"))
}

/// CPU of a spawn through the core, with pipes read to the end, against posix_spawn.
pub(crate) fn core(bench: &Bench) -> Result<Vec<Row>> {
    core_against_c(bench, "CPU of a spawn through the core", &[], Bound::AtMost(1.0))
}

/// The same with a cgroup leaf for each process.
pub(crate) fn cgroup(bench: &Bench) -> Result<Vec<Row>> {
    core_against_c(bench, "CPU of a spawn with a cgroup leaf", &["--cgroup"], Bound::AtMost(1.25))
}

fn core_against_c(bench: &Bench, bar: &'static str, flags: &[&str], bound: Bound) -> Result<Vec<Row>> {
    let program = core_program()?;
    let child = bench.programs.path("exit_only");
    let baseline = || {
        let mut command = Command::new(bench.programs.path("spawn_loop"));
        number(command.arg(&child).args([STATIC_SPAWNS, "1"]), CPU)
    };
    let ours = || number(Command::new(&program).arg(&child).arg(STATIC_SPAWNS).args(flags), CPU);
    let pair = interleave(bench.rounds, || on_one_core(baseline), || on_one_core(ours))?;
    let note = format!("{}, on one core", pair.note("µs"));
    Ok(vec![Row { bar, measured: pair.ratio(), bound, unit: "x", note }])
}

/// Spawns a second of a host that holds 2 GiB against those of a small one.
pub(crate) fn large_host(bench: &Bench) -> Result<Vec<Row>> {
    let program = core_program()?;
    let child = bench.programs.path("exit_only");
    let rate = |ballast: &str| {
        let mut command = Command::new(&program);
        number(command.arg(&child).args([STATIC_SPAWNS, "--ballast-mib", ballast]), RATE)
    };
    let pair = interleave(bench.rounds, || rate("0"), || rate("2048"))?;
    Ok(vec![Row {
        bar: "spawn rate of a host with 2 GiB in memory",
        measured: pair.ratio(),
        bound: Bound::AtLeast(0.95),
        unit: "x",
        note: pair.note("spawns/s"),
    }])
}

/// Spawns a second through A2E with eight in flight against eight threads that call posix_spawn.
pub(crate) fn a2e(bench: &Bench) -> Result<Vec<Row>> {
    let baseline = || {
        let mut command = Command::new(bench.programs.path("spawn_loop"));
        number(command.args([DYNAMIC, &DYNAMIC_SPAWNS.to_string(), &IN_FLIGHT.to_string()]), RATE)
    };
    let pair = interleave(bench.rounds, baseline, || a2e_rate(bench))?;
    Ok(vec![Row {
        bar: "spawn rate through A2E, 8 in flight",
        measured: pair.ratio(),
        bound: Bound::AtLeast(0.7),
        unit: "x",
        note: pair.note("spawns/s"),
    }])
}

/// From a spawn request to the terminal event, one at a time, over HTTP against standard input and output.
pub(crate) fn http(bench: &Bench) -> Result<Vec<Row>> {
    let pair = interleave(
        bench.rounds,
        || median_spawn(bench, Host::start),
        || median_spawn(bench, Host::start_http),
    )?;
    Ok(vec![Row {
        bar: "spawn over HTTP against stdio, median",
        measured: pair.ratio(),
        bound: Bound::AtMost(3.0),
        unit: "x",
        note: pair.note("µs"),
    }])
}

fn median_spawn(bench: &Bench, start: fn(&Bench, &Setup<'_>) -> Result<Host>) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let mut host = start(bench, &Setup { allow: &[DYNAMIC], max_processes: 64, open_files: None, limit })?;
    spawn_and_wait(&mut host, IN_FLIGHT)?;
    let mut took = Vec::with_capacity(ONE_AT_A_TIME);
    for _ in 0..ONE_AT_A_TIME {
        let before = Instant::now();
        spawn_and_wait(&mut host, 1)?;
        took.push(before.elapsed().as_secs_f64() * 1e6);
    }
    host.end()?;
    Ok(median(&took))
}

fn a2e_rate(bench: &Bench) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let setup = Setup { allow: &[DYNAMIC], max_processes: 64, open_files: None, limit };
    let mut host = Host::start(bench, &setup)?;
    // The first ones start the session's keeper and fill caches.
    spawn_and_wait(&mut host, IN_FLIGHT)?;
    let before = Instant::now();
    spawn_and_wait(&mut host, DYNAMIC_SPAWNS)?;
    let took = before.elapsed();
    host.end()?;
    Ok(DYNAMIC_SPAWNS as f64 / took.as_secs_f64())
}

/// Starts `count` processes, never more than eight at once, each counted at its terminal event.
fn spawn_and_wait(host: &mut Host, count: usize) -> Result<()> {
    let (mut asked, mut ended) = (0, 0);
    while ended < count {
        while asked < count && asked - ended < IN_FLIGHT {
            host.ask_to_spawn(&[DYNAMIC])?;
            asked += 1;
        }
        match host.next()? {
            Message::Event { what, .. } => ended += usize::from(what.is_terminal()),
            Message::Spawned { outcome, .. } => {
                ensure!(outcome.is_ok(), "{DYNAMIC} was refused: {outcome:?}");
            }
            other => anyhow::bail!("unexpected {other:?}"),
        }
    }
    Ok(())
}

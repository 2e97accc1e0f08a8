//! `bench_spawn PROGRAM COUNT [--cgroup] [--ballast-mib N]`: starts PROGRAM through hostler-core COUNT times, one after
//! the other, each from `spawn` to its reported end, with three pipes read to their ends.
//!
//! Prints CPU time a spawn (host, nursery, keepers and children, by getrusage(2)) and spawns a second. What a host costs
//! before its first process is measured by a host that starts one, and taken off.
#![expect(clippy::print_stdout, reason = "the result is its output")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hostler_core::{
    CgroupUse, HelperProgram, Host, HostOptions, Nursery, Outcome, Session, SessionOptions, SpawnSpec,
    outcome,
};

#[derive(Debug)]
struct Arguments {
    program: String,
    count: u32,
    cgroup: CgroupUse,
    ballast_mib: usize,
}

fn arguments() -> Result<Arguments> {
    let mut words = std::env::args().skip(1);
    let program = words.next().context("PROGRAM is missing")?;
    let count = words.next().context("COUNT is missing")?.parse()?;
    let mut arguments = Arguments { program, count, cgroup: CgroupUse::Off, ballast_mib: 0 };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cgroup" => arguments.cgroup = CgroupUse::Auto,
            "--ballast-mib" => {
                arguments.ballast_mib = words.next().context("a number is missing")?.parse()?
            }
            other => bail!("unknown argument {other}"),
        }
    }
    Ok(arguments)
}

fn main() -> Result<()> {
    hostler_core::run_if_helper();
    let arguments = arguments()?;
    let ballast = vec![1_u8; arguments.ballast_mib << 20];
    let before = cpu();
    run(&arguments, 1)?;
    let fixed = cpu() - before;
    let before = cpu();
    let wall = run(&arguments, arguments.count + 1)?;
    let used = (cpu() - before).saturating_sub(fixed);
    println!("cpu_us_per_spawn {:.3}", used.as_secs_f64() * 1e6 / f64::from(arguments.count));
    println!("spawns_per_s {:.3}", f64::from(arguments.count) / wall.as_secs_f64());
    std::hint::black_box(&ballast);
    Ok(())
}

/// Runs a host from its start to the end of its helpers. Returns the time of all spawns but the first.
fn run(arguments: &Arguments, count: u32) -> Result<Duration> {
    let nursery = Nursery::start(HelperProgram::CurrentExe)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wall = runtime.block_on(async {
        let options = HostOptions { cgroup: arguments.cgroup, ..HostOptions::default() };
        let host = Host::start(nursery, options)?;
        let session = host.open_session(SessionOptions::relay());
        // The first starts the session's keeper.
        spawn(&session, &arguments.program).await?;
        let before = now();
        for _ in 1..count {
            spawn(&session, &arguments.program).await?;
        }
        let wall = before.elapsed();
        session.close(Duration::ZERO).await;
        drop(session);
        host.shutdown().await;
        anyhow::Ok(wall)
    })?;
    Ok(wall)
}

async fn spawn(session: &Session, program: &str) -> Result<()> {
    let process = session.spawn(SpawnSpec::new([program])).await?;
    let end = process.finished().await;
    if outcome(end) != Some(Outcome::Completed) {
        bail!("{program} ended as {end:?}");
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// CPU time of this process and of all that it has waited for, with what those waited for.
fn cpu() -> Duration {
    hostler_core::sys::limits::cpu_with_children()
}

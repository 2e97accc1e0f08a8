//! Thousands of processes that have printed one line and now do nothing: what each costs the host, how many fit, and
//! how the host says that no more do.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::process::{Resource, getrlimit};

use super::Bench;
use super::host::{Host, Setup};
use super::messages::{Event, Message};
use super::process::{open_files, pss_kib};
use super::table::{Bound, Row, median};

/// Processes that must fit.
const WANTED: u64 = 4900;

/// The limit of open files under which they must fit.
const OPEN_FILES: u64 = 20_000;

/// The configured limit: so high that open files are what runs out.
const CONFIGURED: u32 = 10_000;

/// Requests under way at a time.
const WINDOW: usize = 32;

/// One fill is enough for memory and descriptors; what differs from run to run is small.
const MOST_ROUNDS: usize = 3;

/// One host filled to its limit.
#[derive(Debug)]
struct Filled {
    processes: u64,
    kib_per_process: f64,
    files_per_process: f64,
    refusal: String,
}

/// Memory, descriptors, how many fit, and the refusal after that.
pub(crate) fn idle(bench: &Bench) -> Result<Vec<Row>> {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    ensure!(hard >= OPEN_FILES, "needs a hard limit of {OPEN_FILES} open files; here it is {hard}");
    let rounds = bench.rounds.min(MOST_ROUNDS);
    let filled = (0..rounds).map(|_| fill(bench)).collect::<Result<Vec<Filled>>>()?;
    let of = |number: fn(&Filled) -> f64| median(&filled.iter().map(number).collect::<Vec<_>>());
    let clean = filled.iter().filter(|one| is_clean(&one.refusal)).count();
    let refusal = filled.first().map(|one| one.refusal.clone()).unwrap_or_default();
    let row = |bar, measured, bound, unit, note| Row { bar, measured, bound, unit, note };
    let note = format!("{rounds} rounds, at {} processes", of(|one| one.processes as f64));
    Ok(vec![
        row(
            "memory of an idle process",
            of(|one| one.kib_per_process),
            Bound::AtMost(6.0),
            "KiB",
            note.clone(),
        ),
        row(
            "descriptors of an idle process",
            of(|one| one.files_per_process),
            Bound::AtMost(4.0),
            "fds",
            note,
        ),
        row(
            "processes at 20,000 open files",
            of(|one| one.processes as f64),
            Bound::AtLeast(WANTED as f64),
            "",
            format!("configured for {CONFIGURED}"),
        ),
        row("refusals that say proc_limit", clean as f64, Bound::AtLeast(rounds as f64), "", refusal),
    ])
}

fn is_clean(refusal: &str) -> bool {
    refusal == "proc_limit" || refusal.starts_with("proc_limit:")
}

/// Starts processes until the host refuses one, then looks at it, makes room for one and fills it again.
fn fill(bench: &Bench) -> Result<Filled> {
    let child = bench.programs.text("one_line")?;
    let limit = Duration::from_secs(120);
    let setup = Setup { allow: &[&child], max_processes: CONFIGURED, open_files: Some(OPEN_FILES), limit };
    let mut host = Host::start(bench, &setup)?;
    // The first process starts the session's keeper; it counts as the host's own, not as a cost of each process.
    let mut crowd = Crowd::default();
    crowd.grow(&mut host, &child, 1)?;
    let (files_before, memory_before) = (open_files(host.pid())?, pss_kib(&host.own()?)?);
    let refusal = crowd.grow(&mut host, &child, u64::from(CONFIGURED))?;
    let (files, memory) = (open_files(host.pid())?, pss_kib(&host.own()?)?);
    let processes = crowd.ready.len() as u64;
    let grown = processes.saturating_sub(1).max(1) as f64;
    crowd.replace_one(&mut host, &child)?;
    host.end()?;
    Ok(Filled {
        processes,
        kib_per_process: memory.saturating_sub(memory_before) as f64 / grown,
        files_per_process: files.saturating_sub(files_before) as f64 / grown,
        refusal: refusal.unwrap_or_else(|| "none".to_owned()),
    })
}

/// Processes that run, by their id; those in `ready` have printed their line.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    ready: HashSet<String>,
}

impl Crowd {
    /// Starts processes until there are `wanted` that have printed their line, or until the host refuses one; then
    /// what it said.
    pub(crate) fn grow(&mut self, host: &mut Host, child: &str, wanted: u64) -> Result<Option<String>> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let (mut replies_due, mut lines_due, mut refusal) = (0, 0, None);
        loop {
            let under_way = replies_due + lines_due;
            if refusal.is_none() && under_way < WINDOW && self.ready.len() + under_way < wanted {
                host.ask_to_spawn(&[child])?;
                replies_due += 1;
                continue;
            }
            if under_way == 0 {
                return Ok(refusal);
            }
            match host.next()? {
                Message::Spawned { outcome: Ok(_), .. } => {
                    replies_due -= 1;
                    lines_due += 1;
                }
                Message::Spawned { outcome: Err(error), .. } => {
                    replies_due -= 1;
                    refusal = Some(error);
                }
                Message::Event { proc_id, what: Event::Stdout(_) } => {
                    lines_due -= 1;
                    self.ready.insert(proc_id);
                }
                other => bail!("unexpected {other:?} with {} processes", self.ready.len()),
            }
        }
    }

    /// A full host goes on: one process is killed, and one more fits.
    fn replace_one(&mut self, host: &mut Host, child: &str) -> Result<()> {
        let Some(victim) = self.ready.iter().next().cloned() else { bail!("no process was started") };
        self.ready.remove(&victim);
        host.send("proc/kill/req", serde_json::json!({"proc_id": victim, "signal": "SIGKILL"}))?;
        let (mut replied, mut ended) = (false, false);
        while !(replied && ended) {
            match host.next()? {
                Message::Killed => replied = true,
                Message::Event { proc_id, what: Event::Killed } if proc_id == victim => ended = true,
                other => bail!("unexpected {other:?} after a kill"),
            }
        }
        let before = self.ready.len() as u64;
        let refusal = self.grow(host, child, before + 1)?;
        ensure!(refusal.is_none(), "a place that became free was refused: {refusal:?}");
        Ok(())
    }
}

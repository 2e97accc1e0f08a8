//! What /proc says about the host: which processes are its own, their CPU time, memory and descriptors.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The host itself and those below it that run the same program: nursery and keepers, not what they started.
pub(crate) fn own_processes(host: u32) -> Result<Vec<u32>> {
    let program = program(host).with_context(|| format!("the host, pid {host}, is gone"))?;
    let mut own = vec![host];
    let mut next = 0;
    while let Some(&pid) = own.get(next) {
        let children = children(pid);
        own.extend(children.into_iter().filter(|child| self::program(*child).as_ref() == Some(&program)));
        next += 1;
    }
    Ok(own)
}

/// The file that a process runs; nothing once it is gone.
pub(crate) fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

fn children(pid: u32) -> Vec<u32> {
    let lists = tasks(pid).into_iter().filter_map(|task| fs::read_to_string(task.join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn tasks(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

/// User and system time of the processes in nanoseconds, without what their children used. The scheduler's own
/// count is exact but forgets threads that ended; the count of the whole process forgets nothing but has coarse
/// steps; the larger one is the better one.
pub(crate) fn cpu_ns(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|&pid| Ok(of_threads(pid).max(of_process(pid)?))).sum()
}

fn of_threads(pid: u32) -> u64 {
    let counts = tasks(pid).into_iter().filter_map(|task| fs::read_to_string(task.join("schedstat")).ok());
    counts.filter_map(|count| count.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

fn of_process(pid: u32) -> Result<u64> {
    let stat = read(pid, "stat")?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("no CPU time in {stat}"))?;
    Ok(ticks.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second())
}

/// utime and stime of a stat line; the name of the program may hold blanks and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Memory of the processes in KiB, each shared page counted by its share.
pub(crate) fn pss_kib(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|&pid| pss_of(&read(pid, "smaps_rollup")?).context("no Pss in smaps_rollup")).sum()
}

fn pss_of(rollup: &str) -> Option<u64> {
    rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()
}

/// Resident memory of the processes in KiB; one that is gone has none.
pub(crate) fn rss_kib(pids: &[u32]) -> u64 {
    let page = rustix::param::page_size() as u64 / 1024;
    let pages = |pid: &u32| read(*pid, "statm").ok()?.split_whitespace().nth(1)?.parse::<u64>().ok();
    pids.iter().filter_map(pages).sum::<u64>() * page
}

/// How many descriptors a process has open.
pub(crate) fn open_files(pid: u32) -> Result<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    Ok(entries.with_context(|| format!("failed to list the descriptors of pid {pid}"))?.count() as u64)
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
}

/// Kills a process if it still runs a program of this folder. The descriptor is taken before the look, so a pid that
/// was given to somebody else in between is never hit.
pub(crate) fn kill_if_of(folder: &Path, pid: u32) {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { return };
    if program(pid).is_some_and(|program| program.starts_with(folder)) {
        // It may have ended by itself; then there is nothing to do.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

/// Runs `work`, and all that it starts, on one core.
///
/// For what hands a small thing from process to process: waking an idle core costs more than the work itself on a
/// virtual machine, and whether the scheduler wakes one differs from run to run. On one core both sides of a ratio pay
/// for the same: system calls and switches.
pub(crate) fn on_one_core<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let all = sched_getaffinity(None).context("failed to read the cores that may be used")?;
    let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).context("no core may be used")?;
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).context("failed to stay on one core")?;
    let result = work();
    sched_setaffinity(None, &all).context("failed to use all cores again")?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_brackets() {
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 7 7 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("12 (a) S 1"), None);
    }

    #[test]
    fn the_share_of_memory_is_found() {
        assert_eq!(pss_of("55d-7ff ---p 0 00:00 0 [rollup]\nRss:  1200 kB\nPss:   345 kB\n"), Some(345));
    }

    #[test]
    fn this_process_is_its_own_host_and_its_children_are_not() {
        let me = std::process::id();
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().expect("cat starts");
        // Until exec has happened the child still looks like us.
        while program(child.id()) == program(me) {
            std::thread::yield_now();
        }
        let own = own_processes(me).expect("we are alive");
        drop(child.stdin.take());
        child.wait().expect("cat ends with its input");
        assert!(own.contains(&me) && !own.contains(&child.id()), "{own:?}");
        assert!(
            cpu_ns(&own).expect("readable") > 0
                && rss_kib(&own) > 0
                && open_files(me).expect("readable") >= 3
        );
    }
}

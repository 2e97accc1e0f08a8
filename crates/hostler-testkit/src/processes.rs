//! What `/proc` says about a process at this moment. Every answer may be old when it arrives: use these with
//! [`wait_until`](crate::wait_until).
//!
//! Source: proc_pid_stat(5), proc_pid_status(5), proc_pid_cmdline(5).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

/// A process as a failure message shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: i32,
    /// State letter of proc_pid_stat(5): `R`, `S`, `Z`, …
    pub state: char,
    /// Parent's process id.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// Command line, its arguments joined by blanks; empty for a zombie or a kernel thread.
    pub cmdline: String,
}

impl ProcessInfo {
    /// What is known about `pid`, zombies included; `None` when there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let mut info = Self::from_stat(pid, &String::from_utf8_lossy(&text))?;
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline);
        info.cmdline = cmdline.trim_end_matches('\0').replace('\0', " ");
        Some(info)
    }

    /// A program's name in the stat line may hold blanks and parentheses: the fields begin after the last one.
    fn from_stat(pid: i32, stat: &str) -> Option<Self> {
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        Some(Self { pid, state, parent, group, session, cmdline: String::new() })
    }

    /// Neither a zombie nor just being removed.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

impl fmt::Display for ProcessInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, state, parent, group, session, cmdline } = self;
        write!(f, "pid {pid} state {state} parent {parent} group {group} session {session}: {cmdline}")
    }
}

/// Every process id that `/proc` lists, zombies included.
pub fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Children of `pid`, zombies included, lowest pid first.
pub fn children_of(pid: i32) -> Vec<i32> {
    children_by_parent().remove(&pid).unwrap_or_default()
}

/// Children of `pid`, their children and so on, zombies included; a parent stands before its children.
///
/// One pass over `/proc`: a process that is re-parented during the pass may be missed.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut by_parent = children_by_parent();
    let mut found = by_parent.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let children = by_parent.remove(parent).unwrap_or_default();
        found.extend(children);
        next += 1;
    }
    found
}

/// Whether `pid` exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    ProcessInfo::of(pid).is_some_and(|process| process.is_alive())
}

/// Resident memory of `pid` in KiB (`VmRSS`); `None` without such a process and for zombies.
pub fn rss_kib(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// Number of open file descriptors of `pid`; `None` without such a process or without the right to look. A process
/// that looks at itself counts the one through which it looks.
pub fn fd_count(pid: i32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

fn children_by_parent() -> BTreeMap<i32, Vec<i32>> {
    let mut by_parent = BTreeMap::<i32, Vec<i32>>::new();
    for pid in all_pids() {
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        let Some(process) = ProcessInfo::from_stat(pid, &String::from_utf8_lossy(&stat)) else { continue };
        by_parent.entry(process.parent).or_default().push(pid);
    }
    for children in by_parent.values_mut() {
        children.sort_unstable();
    }
    by_parent
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::{read_line, wait_until};

    const MAX: Duration = Duration::from_secs(10);

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn a_stat_line_is_read_from_its_last_parenthesis() {
        let process = ProcessInfo::from_stat(7, "7 (a) b (c)) S 1 5 4 0 -1 4194304").unwrap();
        let expected =
            ProcessInfo { pid: 7, state: 'S', parent: 1, group: 5, session: 4, cmdline: String::new() };
        assert_eq!(process, expected);
        assert_eq!(ProcessInfo::from_stat(7, "7 (a) S 1"), None);
    }

    #[test]
    fn a_child_is_seen_alive_then_as_a_zombie_then_not_at_all() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(is_alive(pid));
        assert!(children_of(own_pid()).contains(&pid));
        assert!(descendants(own_pid()).contains(&pid));
        wait_until("the exec", MAX, || ProcessInfo::of(pid).is_some_and(|cat| cat.cmdline == "cat"));
        assert!(rss_kib(pid).unwrap() > 0);
        drop(child.stdin.take());
        wait_until("a zombie", MAX, || ProcessInfo::of(pid).is_some_and(|cat| cat.state == 'Z'));
        assert!(!is_alive(pid));
        assert!(children_of(own_pid()).contains(&pid), "a zombie is still a child");
        assert_eq!(rss_kib(pid), None);
        child.wait().unwrap();
        assert_eq!(ProcessInfo::of(pid), None);
        assert!(!is_alive(pid));
    }

    #[test]
    fn descendants_hold_grandchildren_after_their_parents() {
        let script = "sh -c 'cat; true'; true";
        let mut shell = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(shell.id()).unwrap();
        let (inner, cat) = wait_until("inner shell and cat", MAX, || match descendants(pid).as_slice() {
            &[inner, cat] => Ok((inner, cat)),
            other => Err(other.to_vec()),
        });
        assert_eq!(children_of(pid), [inner]);
        assert_eq!(children_of(inner), [cat]);
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        assert_eq!(descendants(pid), []);
    }

    #[test]
    fn descriptors_are_counted_until_the_process_is_gone() {
        let count = |script: &str| {
            let mut cat = Command::new("sh");
            cat.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut cat = cat.spawn().unwrap();
            let pid = i32::try_from(cat.id()).unwrap();
            // Once it copies, the loader has closed the libraries.
            cat.stdin.as_ref().unwrap().write_all(b"here\n").unwrap();
            assert_eq!(read_line(cat.stdout.as_ref().unwrap(), MAX), "here");
            let found = fd_count(pid).unwrap();
            drop(cat.stdin.take());
            cat.wait().unwrap();
            assert_eq!(fd_count(pid), None);
            found
        };
        // What the test itself inherited is open in both.
        assert_eq!(count("exec cat 7</dev/null 8</dev/null"), count("exec cat 7<&- 8<&-") + 2);
    }
}

//! What /proc says of processes: children, and the few fields of `stat` that tell who belongs to whom.
//!
//! Sources: proc_pid_stat(5), proc_pid_task(5) (`children` needs `CONFIG_PROC_CHILDREN`; without it the whole of
//! /proc is read instead).

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::sync::OnceLock;

/// The fields of `/proc/PID/stat` that identify and place a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// State letter, `Z` for a zombie.
    pub state: u8,
    /// Parent.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// The kernel's flags of the main thread.
    pub flags: u32,
    /// Threads that are not gone; a leader that has ended while others run is a zombie and counts.
    pub threads: u32,
    /// Start time in clock ticks since boot: with the pid it names one process for ever.
    pub start_time: u64,
}

/// `PF_EXITING` of the kernel: set on the way out, before memory and descriptors are given back.
const EXITING: u32 = 0x4;

impl Stat {
    /// Whether the process has ended and waits to be reaped. A main thread may end alone and look like it.
    pub fn is_dead(&self) -> bool {
        self.main_thread_has_ended() && self.threads <= 1
    }

    /// Whether it is ending: it shows neither environment nor descriptors any more, but still has its children. A new
    /// one it cannot have.
    pub fn is_dying(&self) -> bool {
        self.flags & EXITING != 0 && !self.main_thread_has_ended()
    }

    fn main_thread_has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

fn read_small(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(512);
    fs::File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
pub fn stat(pid: i32) -> Option<Stat> {
    parse_stat(pid, &read_small(&format!("/proc/{pid}/stat")).ok()?)
}

/// The command name may hold spaces and brackets, so the fields are counted from the last bracket.
fn parse_stat(pid: i32, text: &[u8]) -> Option<Stat> {
    let end = memchr::memrchr(b')', text)?;
    let rest = std::str::from_utf8(text.get(end + 2..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Of the fields of the page, the session was 6; the flags are 9, the number of threads is 20, the start time 22.
    let flags = fields.nth(2)?.parse().ok()?;
    let threads = fields.nth(10)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    Some(Stat { pid, state, parent, group, session, flags, threads, start_time })
}

/// Pids separated by white space.
pub fn parse_pids(text: &[u8]) -> Vec<i32> {
    let words = text.split(u8::is_ascii_whitespace);
    words.filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect()
}

fn has_children_files() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| fs::metadata("/proc/thread-self/children").is_ok())
}

/// The direct children of a process, those of all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    if !has_children_files() {
        found.extend(all_stats().into_iter().filter(|s| s.parent == pid).map(|s| s.pid));
        return found;
    }
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for task in tasks.flatten() {
        let Ok(task) = task.file_name().into_string() else { continue };
        if let Ok(text) = read_small(&format!("/proc/{pid}/task/{task}/children")) {
            found.extend(parse_pids(&text));
        }
    }
    found
}

/// All processes that can be seen.
fn all_stats() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

/// Adds every descendant of `roots` to `found`, the roots themselves not included, parents before children.
pub fn descendants(roots: &[i32], found: &mut Vec<i32>) {
    if has_children_files() {
        let mut open: Vec<i32> = roots.to_vec();
        while let Some(pid) = open.pop() {
            let kids = children(pid);
            found.extend(&kids);
            open.extend(kids);
        }
        return;
    }
    let mut by_parent: HashMap<i32, Vec<i32>> = HashMap::new();
    for s in all_stats() {
        by_parent.entry(s.parent).or_default().push(s.pid);
    }
    let mut open: Vec<i32> = roots.to_vec();
    while let Some(pid) = open.pop() {
        let kids = by_parent.remove(&pid).unwrap_or_default();
        found.extend(&kids);
        open.extend(kids);
    }
}

/// The value of a variable in the environment that the process was started with.
///
/// `None` as well when it cannot be read (another user's process, or one that made itself unreadable).
pub fn environ_value(pid: i32, name: &str) -> Option<String> {
    let text = read_small(&format!("/proc/{pid}/environ")).ok()?;
    let value =
        text.split(|b| *b == 0).find_map(|item| item.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.to_vec()).ok()
}

/// Inodes of the pipes that the process can write to.
pub fn written_pipes(pid: i32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()?;
        is_writable_link(&entry.path()).then_some(inode)
    };
    entries.flatten().filter_map(inode).collect()
}

/// The links of /proc/PID/fd carry the mode that the descriptor was opened with.
fn is_writable_link(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::symlink_metadata(path).is_ok_and(|m| m.permissions().mode() & 0o200 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_are_counted_from_the_last_bracket() {
        let text = b"42 (a) b (c)) S 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        assert_eq!(
            parse_stat(42, text),
            Some(Stat {
                pid: 42,
                state: b'S',
                parent: 7,
                group: 8,
                session: 9,
                flags: 4_194_304,
                threads: 1,
                start_time: 987_654
            })
        );
        assert_eq!(parse_stat(42, b"42 (x) S 7"), None);
        assert_eq!(parse_stat(42, b""), None);
    }

    #[test]
    fn who_is_dying_is_not_dead_and_whose_main_thread_ended_alone_is_neither() {
        let own = stat(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        let seen = |state: u8, flags: u32, threads: u32| {
            let stat = Stat { state, flags, threads, ..own };
            (stat.is_dying(), stat.is_dead())
        };
        assert_eq!(seen(b'S', 0, 1), (false, false));
        assert_eq!(seen(b'R', EXITING, 1), (true, false));
        assert_eq!(seen(b'Z', EXITING, 1), (false, true));
        assert_eq!(seen(b'Z', EXITING, 2), (false, false));
    }

    #[test]
    fn own_stat_names_this_process_and_its_parent() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let own = stat(pid).unwrap();
        assert_eq!(own.pid, pid);
        assert!(!own.is_dead() && own.start_time > 0);
        assert!(children(own.parent).contains(&pid));
    }
}

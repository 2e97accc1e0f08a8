//! What /proc says of processes: children, and the few fields of `stat` that tell who belongs to whom.
//!
//! What cannot be read is an error and never "not there": only ENOENT and ESRCH mean that a process is gone, and not even
//! they where the kernel still knows its pid, for /proc may hide it (`hidepid=2`) or may not be mounted.
//!
//! Sources: proc_pid_stat(5), proc_pid_task(5) (`children` needs `CONFIG_PROC_CHILDREN`; without it the whole of
//! /proc is read instead).

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::OnceLock;

use super::signal;

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
///
/// # Errors
/// Whatever keeps it from being read; EACCES when /proc does not show a process that is there.
pub fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match read_small(&format!("/proc/{pid}/stat")) {
        Ok(text) => parse_stat(pid, &text).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) => absence(pid, error).map(|()| None),
    }
}

/// Takes the error of a look at a process for its absence, if it is that.
fn absence(pid: i32, error: io::Error) -> io::Result<()> {
    if !means_gone(&error) {
        return Err(error);
    }
    if signal::is_known(pid) { Err(io::Error::from_raw_os_error(libc::EACCES)) } else { Ok(()) }
}

fn means_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// What a process keeps to itself, one of another user or one that made itself unreadable, is no sign of anything.
pub(super) fn unless_withheld<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if means_gone(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
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

/// The direct children of a process, those of all its threads. None of one that is gone.
///
/// # Errors
/// As [`stat`].
pub fn children(pid: i32) -> io::Result<Vec<i32>> {
    if !has_children_files() {
        return Ok(all_stats()?.into_iter().filter(|s| s.parent == pid).map(|s| s.pid).collect());
    }
    let mut found = Vec::new();
    let tasks = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(tasks) => tasks,
        Err(error) => return absence(pid, error).map(|()| found),
    };
    for task in tasks {
        let task = match task {
            Ok(task) => task.file_name(),
            Err(error) => return absence(pid, error).map(|()| found),
        };
        match read_small(&format!("/proc/{pid}/task/{}/children", task.display())) {
            Ok(text) => found.extend(parse_pids(&text)),
            // The thread has ended: whatever it had started is another thread's child now.
            Err(error) if means_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The children of the thread that made this, read through a file that stays open: neither a process that has run out
/// of descriptors nor a /proc that is covered by another mount hides them.
#[derive(Debug)]
pub struct OwnChildren(Option<fs::File>);

impl OwnChildren {
    /// To be made by the thread whose children they are. Where the kernel has no such file, those of the whole process
    /// are read instead.
    pub fn open() -> Self {
        Self(fs::File::open("/proc/thread-self/children").ok())
    }

    /// Whether it is those of the thread alone.
    pub fn are_of_one_thread(&self) -> bool {
        self.0.is_some()
    }

    /// Who they are now.
    ///
    /// # Errors
    /// What read(2) says, or [`children`].
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let Some(file) = &self.0 else { return children(rustix::process::getpid().as_raw_nonzero().get()) };
        let mut text = [0_u8; 4096];
        let mut all = Vec::new();
        // To the end: the kernel gives whole pids alone, so a read that is not full says nothing.
        loop {
            match file.read_at(&mut text, all.len() as u64)? {
                0 => return Ok(parse_pids(&all)),
                n => all.extend_from_slice(&text[..n]),
            }
        }
    }
}

/// All processes that can be seen. Without ourselves it is no list of processes.
fn all_stats() -> io::Result<Vec<Stat>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.extend(stat(pid)?);
        }
    }
    if found.iter().any(|stat| stat.pid == own) {
        Ok(found)
    } else {
        Err(io::Error::from_raw_os_error(libc::EACCES))
    }
}

/// Adds every descendant of `roots` to `found`, the roots themselves not included, parents before children.
///
/// # Errors
/// As [`stat`]; whoever can be seen is added all the same.
pub fn descendants(roots: &[i32], found: &mut Vec<i32>) -> io::Result<()> {
    let mut open: Vec<i32> = roots.to_vec();
    if !has_children_files() && !roots.is_empty() {
        let mut by_parent: HashMap<i32, Vec<i32>> = HashMap::new();
        for s in all_stats()? {
            by_parent.entry(s.parent).or_default().push(s.pid);
        }
        while let Some(pid) = open.pop() {
            let kids = by_parent.remove(&pid).unwrap_or_default();
            found.extend(&kids);
            open.extend(kids);
        }
        return Ok(());
    }
    let mut first_failure = Ok(());
    while let Some(pid) = open.pop() {
        match children(pid) {
            Ok(kids) => {
                found.extend(&kids);
                open.extend(kids);
            }
            Err(error) => first_failure = first_failure.and(Err(error)),
        }
    }
    first_failure
}

/// The value of a variable in the environment that the process was started with; `None` as well when the process keeps
/// it to itself.
///
/// # Errors
/// When it cannot be read for another reason.
pub fn environ_value(pid: i32, name: &str) -> io::Result<Option<String>> {
    let Some(text) = unless_withheld(read_small(&format!("/proc/{pid}/environ")))? else { return Ok(None) };
    let value =
        text.split(|b| *b == 0).find_map(|item| item.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    Ok(value.and_then(|value| String::from_utf8(value.to_vec()).ok()))
}

/// Inodes of the pipes that the process can write to; none as well when it keeps them to itself.
///
/// # Errors
/// When they cannot be read for another reason.
pub fn written_pipes(pid: i32) -> io::Result<Vec<u64>> {
    let Some(entries) = unless_withheld(fs::read_dir(format!("/proc/{pid}/fd")))? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let Some(entry) = unless_withheld(entry)? else { break };
        let Some(target) = unless_withheld(fs::read_link(entry.path()))? else { continue };
        let inode = |target: &str| target.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok();
        if let Some(inode) = target.to_str().and_then(inode)
            && is_writable_link(&entry.path())?
        {
            found.push(inode);
        }
    }
    Ok(found)
}

/// The links of /proc/PID/fd carry the mode that the descriptor was opened with.
fn is_writable_link(path: &std::path::Path) -> io::Result<bool> {
    let link = unless_withheld(fs::symlink_metadata(path))?;
    Ok(link.is_some_and(|link| link.permissions().mode() & 0o200 != 0))
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
        let own = stat(rustix::process::getpid().as_raw_nonzero().get()).unwrap().unwrap();
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
        let own = stat(pid).unwrap().unwrap();
        assert_eq!(own.pid, pid);
        assert!(!own.is_dead() && own.start_time > 0);
        if own.parent > 0 {
            assert!(children(own.parent).unwrap().contains(&pid));
        }
    }

    #[test]
    fn only_a_pid_that_the_kernel_does_not_know_is_gone() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        // No pid is that large, see pid_max in proc_sys_kernel(5).
        let nobody = i32::MAX;
        let look =
            |pid, errno| absence(pid, io::Error::from_raw_os_error(errno)).map_err(|e| e.raw_os_error());
        for gone in [libc::ENOENT, libc::ESRCH] {
            assert_eq!(look(nobody, gone), Ok(()));
            assert_eq!(look(own, gone), Err(Some(libc::EACCES)));
        }
        for failure in [libc::EACCES, libc::EPERM, libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(look(nobody, failure), Err(Some(failure)));
        }
        assert_eq!((stat(nobody).unwrap(), children(nobody).unwrap()), (None, vec![]));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "there must be children to be listed")]
    fn more_children_than_one_read_brings_are_all_listed() {
        let own = OwnChildren::open();
        let sleeper = || std::process::Command::new("sleep").arg("300").spawn().unwrap();
        // At least six bytes each, in reads of 4096.
        let mut children: Vec<_> = (0..1000).map(|_| sleeper()).collect();
        let listed: std::collections::HashSet<i32> = own.pids().unwrap().into_iter().collect();
        let missing = children.iter().filter(|child| !listed.contains(&(child.id() as i32))).count();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(missing, 0);
    }
}

//! Limits of open files (getrlimit(2)): the host raises its own, its children get back the original one.

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Soft and hard limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NofileLimit {
    /// What the kernel enforces.
    pub soft: u64,
    /// How far the soft limit may be raised.
    pub hard: u64,
}

fn from_rlimit(limit: Rlimit) -> NofileLimit {
    NofileLimit { soft: limit.current.unwrap_or(u64::MAX), hard: limit.maximum.unwrap_or(u64::MAX) }
}

/// The limit of this process.
pub fn nofile() -> NofileLimit {
    from_rlimit(getrlimit(Resource::Nofile))
}

/// Raises the soft limit to the hard one and says what it was before: before the first time, where nobody has changed it
/// since. A refusal changes nothing.
pub fn raise_nofile() -> NofileLimit {
    static BEFORE: Mutex<Option<NofileLimit>> = Mutex::new(None);
    let mut before = BEFORE.lock();
    let original = original(*before, nofile());
    let raised = getrlimit(Resource::Nofile).maximum;
    // Nothing to do about a refusal: the limit stays, and running into it is reported where it happens.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: raised });
    *before = Some(original);
    original
}

/// What was before the first raise, unless what is found is not what that has made of it.
fn original(before: Option<NofileLimit>, found: NofileLimit) -> NofileLimit {
    before.filter(|before| found == NofileLimit { soft: before.hard, ..*before }).unwrap_or(found)
}

/// About how many bytes execve(2) takes for arguments and environment together: a quarter of the stack limit, at
/// most 6 MiB.
pub fn exec_bytes() -> u64 {
    const MOST: u64 = 6 * 1024 * 1024;
    getrlimit(Resource::Stack).current.map_or(MOST, |stack| (stack / 4).min(MOST))
}

/// CPU time of this process and of all descendants that have been waited for, from getrusage(2).
pub fn cpu_with_children() -> std::time::Duration {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].into_iter().map(super::wait::cpu_of).sum()
}

/// Closes every descriptor from `first` on, for a process that has just been executed and owns none of them: what the
/// host was started with, or an embedder did not mark as closed on exec, must not reach programs.
pub fn close_from(first: u32) {
    // SAFETY: nothing in this process owns these descriptors yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } == 0;
    if done {
        return;
    }
    // Kernels before 5.9. The folder is read to its end before anything is closed, its own descriptor included.
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| i64::from(*fd) >= i64::from(first)) {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_the_first_raise_is_known_after_the_second() {
        let limit = |soft| NofileLimit { soft, hard: 4096 };
        assert_eq!(original(None, limit(1024)), limit(1024));
        assert_eq!(original(Some(limit(1024)), limit(4096)), limit(1024));
        // Somebody else has changed it meanwhile.
        assert_eq!(original(Some(limit(1024)), limit(512)), limit(512));
        let lowered = NofileLimit { soft: 512, hard: 512 };
        assert_eq!(original(Some(limit(1024)), lowered), lowered);
    }
}

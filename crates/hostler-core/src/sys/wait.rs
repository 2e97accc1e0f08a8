//! Waiting for children with waitid(2): asking without reaping, then reaping with what was used.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::lifecycle::ExitStatus;

/// CPU time and memory that a process and its waited-for children used, from getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// Largest resident set, in KiB.
    pub max_rss_kib: u64,
}

/// The answer to "has a child ended?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This one has, and is still a zombie.
    Child(i32),
    /// There are children, none has ended.
    NotYet,
    /// There are no children at all.
    NoChildren,
}

fn waitid(
    id_type: libc::idtype_t,
    id: i32,
    options: i32,
    usage: Option<&mut libc::rusage>,
) -> io::Result<(i32, i32, i32)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let usage = usage.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: `info` and `usage` are valid for writing or null; the raw call takes a fifth argument for the usage.
    let ret = unsafe { libc::syscall(libc::SYS_waitid, id_type, id, info.as_mut_ptr(), options, usage) };
    if ret != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before and filled by the kernel; for a child's end the pid and status fields are the ones set.
    let (pid, status, code) = unsafe {
        let info = info.assume_init();
        (info.si_pid(), info.si_status(), info.si_code)
    };
    Ok((pid, status, code))
}

/// Looks for an ended child and leaves it as it is.
pub fn peek_any() -> Ended {
    match waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT, None) {
        Ok((0, ..)) => Ended::NotYet,
        Ok((pid, ..)) => Ended::Child(pid),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ended::NoChildren,
        Err(_) => Ended::NotYet,
    }
}

/// A child that was stopped since this was last asked, by SIGSTOP or its kin; `None` when there is none.
pub fn stopped_child() -> Option<i32> {
    match waitid(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOHANG, None) {
        Ok((pid, ..)) if pid > 0 => Some(pid),
        Ok(_) | Err(_) => None,
    }
}

/// Reaps a child that is nobody's root if it has ended, and says whether it had. It does not wait.
pub fn reap_ended(pid: i32) -> bool {
    waitid(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG, None).is_ok_and(|(found, ..)| found == pid)
}

fn duration(t: libc::timeval) -> Duration {
    Duration::from_secs(t.tv_sec.try_into().unwrap_or(0))
        + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
}

/// User and system time of this process (`RUSAGE_SELF`) or of what it has waited for (`RUSAGE_CHILDREN`).
pub(super) fn cpu_of(who: i32) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: all-zero bytes are a valid rusage, and the kernel writes one.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

/// Reaps an ended child: its pid may be given to another process from here on.
///
/// Returns `None` when this is no ended child of ours.
pub fn reap(pid: i32) -> Option<(ExitStatus, Usage)> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: all-zero bytes are a valid rusage.
    let usage = unsafe { usage.assume_init_mut() };
    let (found, status, code) = loop {
        match waitid(libc::P_PID, pid, libc::WEXITED, Some(usage)) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => return None,
            Ok(found) => break found,
        }
    };
    if found != pid {
        return None;
    }
    let status = match code {
        libc::CLD_EXITED => ExitStatus::Code(status),
        libc::CLD_DUMPED => ExitStatus::Signal { number: status, core_dumped: true },
        _ => ExitStatus::Signal { number: status, core_dumped: false },
    };
    let usage = Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss.try_into().unwrap_or(0),
    };
    Some((status, usage))
}

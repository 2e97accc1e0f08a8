//! Signal masks and dispositions, and signals through descriptors.
//!
//! Sources: sigprocmask(2), sigaction(2), signalfd(2), pidfd_send_signal(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A signal that may be sent to a process: names instead of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGINT: interrupt, as from a terminal's ^C.
    Int,
    /// SIGTERM: asks to end.
    Term,
    /// SIGKILL: ends, cannot be caught.
    Kill,
}

impl Signal {
    /// The number, see signal(7).
    pub fn number(self) -> i32 {
        match self {
            Self::Int => libc::SIGINT,
            Self::Term => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
        }
    }

    /// The signal with this number, if it is one of ours.
    pub fn from_number(number: i32) -> Option<Self> {
        [Self::Int, Self::Term, Self::Kill].into_iter().find(|s| s.number() == number)
    }

    /// The name as in signal(7).
    pub fn name(self) -> &'static str {
        match self {
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
            Self::Kill => "SIGKILL",
        }
    }
}

/// A set without signals.
pub(crate) fn empty_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn full_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the whole set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Whether this process ignores a signal, as whoever started it may have asked for (nohup(1), a shell's background).
pub fn is_ignored(number: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the action is valid for writing, all zero is a value of it, and none is set.
    unsafe {
        libc::sigaction(number, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Puts every signal back to its default and blocks all of them in this thread and in those that it starts.
///
/// For keepers and the nursery, whose children then start with nothing ignored: a blocked signal is unblocked by
/// one call before exec, an ignored one would be inherited.
pub fn default_and_block_all() {
    for number in 1..=64 {
        set_default(number);
    }
    // SAFETY: the set is initialised; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &full_set(), ptr::null_mut()) };
}

/// By the raw call: libc's own refuses the two signals that it keeps for itself, and those can be inherited as ignored
/// like any other.
fn set_default(number: i32) {
    /// The kernel's struct is smaller than this on every machine; all zero is SIG_DFL without flags.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_BYTES: usize = 8;
    // SAFETY: the kernel reads a struct of zeros; the old action is not asked for. SIGKILL and SIGSTOP fail harmlessly.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, number, DEFAULT.as_ptr(), ptr::null_mut::<u64>(), SET_BYTES);
    }
}

/// A descriptor that is readable when SIGCHLD is pending. SIGCHLD must be blocked.
pub fn child_signal_fd() -> io::Result<OwnedFd> {
    let mut set = empty_set();
    // SAFETY: the set is initialised; signalfd makes a descriptor that nobody else owns.
    unsafe {
        libc::sigaddset(&mut set, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Takes the pending signals off such a descriptor.
pub fn drain_signal_fd(fd: BorrowedFd<'_>) {
    let mut buffer = [0_u8; 8 * size_of::<libc::signalfd_siginfo>()];
    // SAFETY: the buffer is valid for its length.
    while unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) }
        == buffer.len() as isize
    {}
}

/// Blocks SIGXFSZ in the calling thread, once: a write past the file size limit then fails with EFBIG instead of
/// ending the process.
pub fn block_sigxfsz() {
    thread_local!(static BLOCKED: () = {
        let mut set = empty_set();
        // SAFETY: the set is initialised; only this thread's mask changes.
        unsafe {
            libc::sigaddset(&mut set, libc::SIGXFSZ);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
        }
    });
    BLOCKED.with(|()| {});
}

/// Lets these signals reach the calling thread, whatever its mask was inherited from.
pub fn unblock(numbers: &[i32]) {
    let mut set = empty_set();
    // SAFETY: the set is initialised; only this thread's mask changes.
    unsafe {
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

/// Sends a signal by number to the process that the descriptor stands for.
///
/// # Errors
/// `ESRCH` when it has ended and been waited for.
pub fn send_pidfd(pidfd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: a plain system call; no siginfo is passed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            number,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to a direct child that has not been waited for, so its pid cannot belong to anybody else.
///
/// Pids below 2 are refused: 0, 1 and -1 mean something else to kill(2).
pub fn send_child(pid: i32, number: i32) -> io::Result<()> {
    if pid < 2 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a plain system call.
    if unsafe { libc::kill(pid, number) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to the parent, if there still is the one that there was when this was called.
pub fn send_parent(number: i32) {
    use rustix::process::{PidfdFlags, getppid, pidfd_open};
    let Some(parent) = getppid() else { return };
    if let Ok(pidfd) = pidfd_open(parent, PidfdFlags::empty())
        && getppid() == Some(parent)
    {
        // One that has ended meanwhile needs nothing.
        let _ = send_pidfd(pidfd.as_fd(), number);
    }
}

/// Whether there is a process with this pid, also one that may not be signalled; a zombie is one.
pub fn is_known(pid: i32) -> bool {
    let asked = rustix::process::Pid::from_raw(pid).map(rustix::process::test_kill_process);
    asked.is_some_and(|answer| answer != Err(rustix::io::Errno::SRCH))
}

/// Sends a signal to the process group that a direct child leads, while the child has not been waited for.
pub fn send_child_group(leader: i32, number: i32) -> io::Result<()> {
    if leader < 2 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a plain system call.
    if unsafe { libc::kill(-leader, number) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

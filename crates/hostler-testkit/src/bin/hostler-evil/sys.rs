//! System calls, all unsafe code but the entry point among them. The program has one thread, so forking is safe
//! everywhere.

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use hostler_testkit::counter::FILE_BYTES;
use rustix::process::Signal;

use crate::{FUSE, FUSE_STATUS, Failure, Outcome};

/// Writes all bytes to a descriptor.
pub(crate) fn write_all(fd: RawFd, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        // SAFETY: the pointer and the length are those of a live slice.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(count) => bytes = &bytes[count..],
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(Failure::Call { what: "write", source: error });
                }
            }
        }
    }
    Ok(())
}

/// The first line of every mode.
pub(crate) fn say_ready() -> Result<(), Failure> {
    write_all(1, b"ready\n")
}

/// Says something on standard error, if that is still there.
pub(crate) fn complain(text: &str) {
    drop(write_all(2, format!("hostler-evil: {text}\n").as_bytes()));
}

/// getpgrp(2): 0 when the leader of the group is outside the pid namespace, which rustix takes for impossible.
pub(crate) fn own_group() -> libc::pid_t {
    // SAFETY: it takes nothing and touches no memory.
    unsafe { libc::getpgrp() }
}

/// getsid(2) of this process: 0 when the leader is outside the pid namespace, as for [`own_group`].
pub(crate) fn own_session() -> libc::pid_t {
    // SAFETY: it touches no memory.
    unsafe { libc::getsid(0) }
}

/// Closes a descriptor of this process; a closed one stays closed.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: no value of this program owns descriptors 0, 1 and 2, and callers pass no others.
    unsafe { libc::close(fd) };
}

/// Closes every descriptor there is, `last` as the last one.
pub(crate) fn close_all(last: OwnedFd) {
    let number = u32::try_from(last.as_raw_fd()).unwrap_or(0);
    for (from, to) in [(0, number.checked_sub(1)), (number + 1, Some(u32::MAX))] {
        let Some(to) = to else { continue };
        // SAFETY: nothing of this program but `last` owns a descriptor when it calls this, and none is used later.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    }
    drop(last);
}

/// Takes over a descriptor whose number came in the arguments.
pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the process that ran this program opened it for it alone; a wrong number only fails later calls.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// One of two processes after a fork.
#[derive(Clone, Copy)]
pub(crate) enum Fork {
    Child,
    Parent(libc::pid_t),
}

/// fork(2).
pub(crate) fn fork() -> Result<Fork, Failure> {
    // SAFETY: there is one thread, so the child may do all that the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::Call { what: "fork", source: io::Error::last_os_error() }),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// clone(2) with CLONE_PARENT: the new process is a child of this one's parent.
pub(crate) fn fork_sibling() -> Result<Fork, Failure> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without CLONE_VM this is a fork with another parent; there is one thread, so the child may do all that
    // this process may.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(Failure::Call { what: "clone", source: io::Error::last_os_error() }),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid as libc::pid_t)),
    }
}

/// Ends this process without any clean-up.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: it only ends the process.
    unsafe { libc::_exit(status) }
}

/// Waits for the end of a child and reaps it.
pub(crate) fn reap(child: libc::pid_t) {
    // SAFETY: no status is asked for, so no pointer is passed.
    while unsafe { libc::waitpid(child, ptr::null_mut(), 0) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// What a program gets as its environment.
#[derive(Clone, Copy)]
pub(crate) enum Environment {
    Inherited,
    Empty,
}

/// Becomes this program with other arguments; returns only on failure.
pub(crate) fn exec_self(arguments: &[&str], environment: Environment) -> Failure {
    let arguments: Vec<CString> =
        ["hostler-evil"].iter().chain(arguments).filter_map(|text| CString::new(*text).ok()).collect();
    let mut pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).collect();
    pointers.push(ptr::null());
    let program = c"/proc/self/exe".as_ptr();
    match environment {
        // SAFETY: both arguments are null-terminated and live until the call returns or the program is replaced.
        Environment::Inherited => unsafe { libc::execv(program, pointers.as_ptr()) },
        // SAFETY: as above; the environment is an array that ends at once.
        Environment::Empty => unsafe { libc::execve(program, pointers.as_ptr(), [ptr::null()].as_ptr()) },
    };
    Failure::Call { what: "execute itself", source: io::Error::last_os_error() }
}

/// Becomes another program, for which and for whose descendants clone3(2) fails with ENOSYS; returns only on failure.
pub(crate) fn become_without_clone3(command: &[&str]) -> Failure {
    let instruction = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        // The number of the call, the first member of seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_clone3 as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives until the call returns, by when the kernel has a copy of it.
    let filtered = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if !filtered {
        return Failure::Call { what: "filter system calls", source: io::Error::last_os_error() };
    }
    let arguments: Vec<CString> = command.iter().filter_map(|text| CString::new(*text).ok()).collect();
    let mut pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).collect();
    pointers.push(ptr::null());
    if pointers[0].is_null() {
        return Failure::Usage;
    }
    // SAFETY: the array is null-terminated and lives until the call returns or the program is replaced.
    unsafe { libc::execv(pointers[0], pointers.as_ptr()) };
    Failure::Call { what: "execute the program", source: io::Error::last_os_error() }
}

/// Ignores a signal from now on; forks and the programs they execute ignore it too.
pub(crate) fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN is no handler, so no code runs in signal context.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Number of a signal given by name, with or without `SIG`, or by number.
pub(crate) fn signal_number(text: &str) -> Option<c_int> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let known = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("ABRT", Signal::ABORT),
        ("KILL", Signal::KILL),
        ("SEGV", Signal::SEGV),
        ("PIPE", Signal::PIPE),
        ("ALRM", Signal::ALARM),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("CHLD", Signal::CHILD),
        ("CONT", Signal::CONT),
        ("STOP", Signal::STOP),
    ];
    let by_name = known.iter().find(|(known, _)| *known == name).map(|(_, signal)| signal.as_raw());
    by_name.or_else(|| text.parse().ok().filter(|number| (1..=64).contains(number)))
}

/// Sends a signal to this process, which meets its default disposition.
pub(crate) fn signal_self(signal: c_int) -> Outcome {
    // SAFETY: SIG_DFL is no handler; the set is made by sigemptyset before it is used; the pid is our own.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
    Ok(0)
}

/// Does nothing until the fuse is burnt down, and returns the status for that.
pub(crate) fn stay() -> i32 {
    thread::sleep(FUSE);
    FUSE_STATUS
}

/// When a mode without an end has to end.
#[derive(Clone, Copy)]
pub(crate) struct Fuse(Instant);

impl Fuse {
    pub(crate) fn lit() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn is_burnt(self) -> bool {
        self.0.elapsed() >= FUSE
    }
}

/// A count and a stop mark in memory that all forks share.
#[derive(Clone, Copy)]
pub(crate) struct Shared(&'static [AtomicU64; 2]);

impl Shared {
    /// The file of a `SharedCounter`.
    pub(crate) fn of_file(path: &str) -> Result<Self, Failure> {
        let open = || {
            let file = File::options().read(true).write(true).open(path)?;
            if file.metadata()?.len() < FILE_BYTES as u64 {
                return Err(io::Error::other("the file is too short"));
            }
            Ok(file)
        };
        let file = open().map_err(Failure::of("open the counter"))?;
        Self::map(libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Memory without a file.
    pub(crate) fn anonymous() -> Result<Self, Failure> {
        Self::map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn map(flags: c_int, fd: RawFd) -> Result<Self, Failure> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes; it touches no memory that is in use.
        let memory = unsafe { libc::mmap(ptr::null_mut(), FILE_BYTES, protection, flags, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(Failure::Call { what: "map the counter", source: io::Error::last_os_error() });
        }
        // SAFETY: a page-aligned mapping of two u64 that is never unmapped and only used by atomic operations here.
        Ok(Self(unsafe { &*memory.cast() }))
    }

    /// Adds one and returns the new count.
    pub(crate) fn count(self) -> u64 {
        self.0[0].fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Takes one back.
    pub(crate) fn uncount(self) {
        self.0[0].fetch_sub(1, Ordering::SeqCst);
    }

    /// The count.
    pub(crate) fn value(self) -> u64 {
        self.0[0].load(Ordering::SeqCst)
    }

    /// Whether the test asked to stop.
    pub(crate) fn is_stopped(self) -> bool {
        self.0[1].load(Ordering::SeqCst) != 0
    }
}

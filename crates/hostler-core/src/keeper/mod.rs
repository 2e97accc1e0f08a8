//! Nursery and keepers: the small processes that start, signal, reap and finally kill for the host. Both ends of the
//! protocol are here.
//!
//! ```text
//! host ──┬── nursery ──┬── keeper (session 1) ──┬── root ── …
//!        │             │                        └── root ── …
//!        │             └── keeper (spare)
//!        └── two sockets to each keeper: spawn requests, and control with all answers
//! ```
//!
//! The host makes the sockets and asks the nursery for a keeper at one end of them. A keeper has two threads: the
//! *spawner* is stopped by vfork while a program is being executed, the *watcher* reaps, kills and watches the host.
//! Both are child subreapers, so no descendant can leave. Invariants, each with a test:
//!
//! - A signal is never sent to a pid that may have been reaped: only the watcher reaps, and it signals direct children
//!   under the lock under which it reaps; all others are pinned by a pidfd and told apart by their start time.
//! - The answer `Spawned` comes before `Exited` of the same process.
//! - Host gone (end of socket, or its pidfd) means: everything below is killed, then the helper ends. So does a keeper
//!   whose spawning thread has ended: to a host that is there it is lost.
//! - A keeper gone means: the nursery inherits what was below it and kills that.
//!
//! Why it is so: `docs/design/keepers.md`. Sources: prctl(2) `PR_SET_CHILD_SUBREAPER`, unix(7), pidfd_open(2).

mod books;
mod family;
mod hunt;
pub(crate) mod link;
mod nursery;
pub(crate) mod nursery_link;
mod nursery_socket;
mod outbox;
mod outgoing;
pub mod protocol;
mod reap;
pub(crate) mod receipt;
pub(crate) mod respawn;
mod spawner;
mod watcher;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use rustix::process::{Pid, set_child_subreaper};

use crate::sys::cgroup::SessionGroup;
use crate::sys::clone::Attempt;
use crate::sys::procfs::OwnChildren;
use crate::sys::signal;

/// The variable in every process's environment that holds its id.
pub const PROCESS_ID_VARIABLE: &str = "HOSTLER_PROCESS_ID";

/// First argument of a nursery.
pub(crate) const NURSERY_ARGUMENT: &str = "__hostler-nursery";
/// First argument of a keeper.
pub(crate) const KEEPER_ARGUMENT: &str = "__hostler-keeper";

/// What the two threads of a keeper share.
#[derive(Debug)]
struct Shared {
    books: Mutex<books::Books>,
    attempt: Attempt,
    /// The spawning thread has something to start or to say: the keeper must not end under it.
    busy: AtomicBool,
    /// The spawning thread is there no more: nothing can be started.
    spawner_ended: AtomicBool,
    control: OwnedFd,
    wake: OwnedFd,
    /// Those of the spawning thread: roots, and what a program made a child of its own parent by CLONE_PARENT.
    spawners_children: Arc<OnceLock<OwnChildren>>,
    /// Where control groups can be used.
    group: OnceLock<SessionGroup>,
    /// What the session keeps from others, and must not be there after it.
    private_folder: OnceLock<PathBuf>,
}

impl Shared {
    /// Makes the watching thread look at its children again.
    fn wake_watcher(&self) {
        // A full counter wakes it just as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Held by the spawning thread: its end is seen whatever it ends by, a panic too.
struct SpawnerEnd(Arc<Shared>);

impl Drop for SpawnerEnd {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
        self.0.spawner_ended.store(true, Ordering::SeqCst);
        self.0.wake_watcher();
    }
}

/// Becomes a nursery or a keeper when this process was started as one, and then never returns; returns at once
/// otherwise.
///
/// Call it first thing in `main`, before any thread is started and before arguments are read. Programs that embed
/// the library and do not call it name another binary that does, see [`HelperProgram`](crate::HelperProgram).
pub fn run_if_helper() {
    let mut args = std::env::args_os().skip(1);
    let Some(first) = args.next() else { return };
    let helper: fn() -> io::Result<()> = if first == OsStr::from_bytes(NURSERY_ARGUMENT.as_bytes()) {
        run_nursery
    } else if first == OsStr::from_bytes(KEEPER_ARGUMENT.as_bytes()) {
        run_keeper
    } else {
        return;
    };
    let code = match helper() {
        Ok(()) => 0,
        Err(error) => {
            let _ = rustix::io::write(
                rustix::stdio::stderr(),
                format!("error: {error}\nhint: hostler starts this helper itself; it is of no use by hand\n")
                    .as_bytes(),
            );
            2
        }
    };
    #[expect(clippy::exit, reason = "a helper ends here: the caller's main is not its own")]
    std::process::exit(code);
}

/// Whether this process was started as a nursery or a keeper.
fn is_meant_as_helper() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| names_helper(&word))
}

fn names_helper(word: &OsStr) -> bool {
    [NURSERY_ARGUMENT, KEEPER_ARGUMENT].iter().any(|known| word.as_bytes() == known.as_bytes())
}

/// Moves a descriptor that the parent put at 0, 1 or 2 out of the way and closes it on exec.
fn inherited(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(fd, 3)?)
}

fn inherited_socket(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let kind = rustix::net::sockopt::socket_type(fd).ok();
    if kind != Some(rustix::net::SocketType::SEQPACKET) {
        return Err(io::Error::other("this is an internal helper of hostler, started without its socket"));
    }
    inherited(fd)
}

/// Puts /dev/null at 0, 1 and 2, so that nothing of the host is held open and no child finds one of them free.
fn detach_stdio() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn become_helper(name: &std::ffi::CStr) -> io::Result<()> {
    signal::default_and_block_all();
    set_child_subreaper(Pid::from_raw(1))?;
    let _ = rustix::thread::set_name(name);
    // The working directory of the host must not be held.
    let _ = rustix::process::chdir("/");
    detach_stdio()
}

fn run_nursery() -> io::Result<()> {
    crate::sys::limits::close_from(3);
    let socket = inherited_socket(rustix::stdio::stdin())?;
    // Out of the host's process group: a signal to that is the host's business.
    let _ = rustix::process::setsid();
    become_helper(c"hostler-nursery")?;
    nursery::Nursery::new(socket)?.run();
    Ok(())
}

fn run_keeper() -> io::Result<()> {
    crate::sys::limits::close_from(3);
    let requests = inherited_socket(rustix::stdio::stdin())?;
    let control = inherited_socket(rustix::stdio::stdout())?;
    let host = if fcntl_getfd(rustix::stdio::stderr()).is_ok_and(|f| f == FdFlags::empty()) {
        Some(inherited(rustix::stdio::stderr())?)
    } else {
        None
    };
    become_helper(c"hostler-keeper")?;
    let _ = crate::sys::limits::raise_nofile();
    let wake = rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )?;
    let shared = Arc::new(Shared {
        books: Mutex::default(),
        attempt: Attempt::default(),
        busy: AtomicBool::new(false),
        spawner_ended: AtomicBool::new(false),
        control,
        wake,
        spawners_children: Arc::default(),
        group: OnceLock::new(),
        private_folder: OnceLock::new(),
    });
    let watcher = watcher::Watcher::new(Arc::clone(&shared), host)?;
    let end = SpawnerEnd(Arc::clone(&shared));
    let spawner = spawner::Spawner::new(requests, Arc::clone(&shared))?;
    std::thread::Builder::new().name("spawner".to_owned()).stack_size(256 * 1024).spawn(move || {
        let _end = end;
        spawner.run();
    })?;
    watcher.run();
    // Nobody is left who could write into it. It may be gone, or have been moved away.
    if let Some(folder) = shared.private_folder.get() {
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_started_as_a_helper_is_told_by_its_first_argument() {
        assert!(names_helper(OsStr::new(NURSERY_ARGUMENT)) && names_helper(OsStr::new(KEEPER_ARGUMENT)));
        assert!(!names_helper(OsStr::new("a2e")) && !names_helper(OsStr::new("")));
        // Or no test of this program could start a nursery.
        assert!(!is_meant_as_helper());
    }
}

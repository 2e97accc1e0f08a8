//! What both descriptors have in common, whatever they are.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hostler_core::sys::reactor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Between two looks at an end that the reactor keeps reporting.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Chunks that a waiting thread may be ahead.
pub(super) const THREAD_CHUNKS: usize = 4;

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Pipe(Arc<AsyncFd<OwnedFd>>),
    Socket(Arc<AsyncFd<OwnedFd>>),
}

impl Kind {
    pub(super) fn ready(&self) -> &AsyncFd<OwnedFd> {
        match self {
            Self::Pipe(fd) | Self::Socket(fd) => fd,
        }
    }
}

/// `None` for what the reactor does not take.
pub(super) fn open(fd: &OwnedFd, flags: OFlags, interest: Interest) -> io::Result<Option<Kind>> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    match kind {
        // A description of our own: the flags of the one we got are shared with whoever else holds it.
        FileType::Fifo => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let own = rustix::fs::open(
                path,
                flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY,
                Mode::empty(),
            );
            Ok(own
                .ok()
                .map(|own| reactor::register(own, interest))
                .transpose()?
                .map(|fd| Kind::Pipe(Arc::new(fd))))
        }
        FileType::Socket => Ok(Some(Kind::Socket(Arc::new(reactor::register(fd.try_clone()?, interest)?)))),
        FileType::RegularFile
        | FileType::Directory
        | FileType::Symlink
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Ok(None),
    }
}

pub(super) fn look(fd: &OwnedFd, wanted: PollFlags) -> io::Result<PollFlags> {
    let mut state = [PollFd::new(fd, wanted)];
    poll(&mut state, Some(&Timespec::default()))?;
    Ok(state[0].revents())
}

/// Whether what failed can be tried again, for a thread that may wait. Whoever shares the open file may have made it
/// non-blocking; then this waits until it is ready.
pub(super) fn may_go_on(file: &std::fs::File, error: &io::Error, wanted: PollFlags) -> bool {
    let kind = error.kind();
    let is_ready =
        || matches!(poll(&mut [PollFd::new(file, wanted)], None), Ok(_) | Err(rustix::io::Errno::INTR));
    kind == io::ErrorKind::Interrupted || (kind == io::ErrorKind::WouldBlock && is_ready())
}

/// Whether an error of a read or write means that the other side is gone.
pub(super) fn is_departure(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | HostUnreachable | TimedOut)
}

/// A terminal whose other side is gone says EIO, as a broken disk does.
pub(super) fn of_terminal(file: &std::fs::File, error: io::Error) -> io::Error {
    let hung_up = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) && is_terminal(file);
    if hung_up { io::ErrorKind::BrokenPipe.into() } else { error }
}

/// isatty(3) says no as soon as the other side is gone, so the kind of the file has to do.
fn is_terminal(file: &std::fs::File) -> bool {
    rustix::fs::fstat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

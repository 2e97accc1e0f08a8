//! Descriptors in tokio's reactor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Types that own the descriptor that they name, for as long as they live and without ever changing it.
pub trait OwnsFd: AsRawFd {}

impl OwnsFd for OwnedFd {}
impl OwnsFd for Arc<OwnedFd> {}

/// Registers a descriptor. It must be in non-blocking mode, or only be used by calls that do not wait.
///
/// # Errors
/// What epoll_ctl(2) says: for files that cannot be polled, or when there is no room.
pub fn register<T: OwnsFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `OwnsFd` promises that the descriptor stays open and the same while the value lives, and `AsyncFd`
    // deregisters it before it drops the value.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}

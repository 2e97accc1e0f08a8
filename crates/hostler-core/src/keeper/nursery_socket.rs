//! The host's way to one nursery: requests for keepers, and what the nursery says.
//!
//! Requests never wait: what the socket has no room for is sent while the nursery is listened to. As many of them wait as
//! sessions have asked, and one for a spare keeper: a session asks once, until that keeper is lost. They go with the nursery.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::link::unless_it_may_pass;
use super::protocol::StartKeeper;
use crate::sys::packet::{self, Fds, Wait};
use crate::sys::reactor;
use crate::sys::signal;

/// A keeper that is asked for.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) serial: u64,
    /// The keeper's ends of its sockets.
    pub(super) spawn: OwnedFd,
    pub(super) control: OwnedFd,
}

/// See the module.
#[derive(Debug)]
pub(super) struct NurserySocket {
    /// Registered for reading alone, as a keeper's is.
    socket: AsyncFd<OwnedFd>,
    /// This process, as every keeper is told.
    host: Arc<OwnedFd>,
    /// The nursery itself, if it could be had.
    nursery: Option<OwnedFd>,
    waiting: Mutex<VecDeque<Request>>,
    /// Something waits.
    nudge: Notify,
}

impl NurserySocket {
    pub(super) fn register(
        socket: OwnedFd,
        host: Arc<OwnedFd>,
        nursery: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let socket = reactor::register(socket, Interest::READABLE)?;
        Ok(Self { socket, host, nursery, waiting: Mutex::default(), nudge: Notify::new() })
    }

    /// Lets a nursery go on that somebody has stopped; to one that runs it is nothing.
    fn wake(&self) {
        if let Some(nursery) = &self.nursery {
            // One that has ended is found to have by other means.
            let _ = signal::send_pidfd(nursery.as_fd(), libc::SIGCONT);
        }
    }

    /// Asks, or sees to it that somebody will.
    pub(super) fn ask(&self, request: Request) -> io::Result<()> {
        self.wake();
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            match self.send(self.socket.get_ref().as_fd(), &request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        waiting.push_back(request);
        drop(waiting);
        self.nudge.notify_one();
        Ok(())
    }

    /// The next packet, `None` at the end; sends what waits meanwhile.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Fds)>> {
        loop {
            let waits = !self.waiting.lock().is_empty();
            tokio::select! {
                received = self.socket.async_io(Interest::READABLE, |fd| {
                    packet::receive(fd.as_fd(), buffer, Wait::Never)
                }) => return received,
                sent = self.drain(), if waits => sent?,
                () = self.nudge.notified() => {}
            }
        }
    }

    /// Ends the way for whoever holds it.
    pub(super) fn shut_down(&self) {
        let _ = rustix::net::shutdown(self.socket.get_ref(), Shutdown::Both);
    }

    async fn drain(&self) -> io::Result<()> {
        unless_it_may_pass(self.send_waiting().await).await
    }

    /// The descriptor is watched for room only meanwhile.
    async fn send_waiting(&self) -> io::Result<()> {
        let socket = reactor::register(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        socket
            .async_io(Interest::WRITABLE, |fd| {
                let mut waiting = self.waiting.lock();
                while let Some(request) = waiting.front() {
                    self.send(fd.as_fd(), request)?;
                    waiting.pop_front();
                }
                Ok(())
            })
            .await
    }

    fn send(&self, socket: BorrowedFd<'_>, request: &Request) -> io::Result<()> {
        let bytes = StartKeeper { serial: request.serial }.encode();
        let fds = [request.spawn.as_fd(), request.control.as_fd(), self.host.as_fd()];
        packet::send(socket, &[IoSlice::new(&bytes)], &fds, Wait::Never)
    }
}

impl Drop for NurserySocket {
    fn drop(&mut self) {
        // So that it sees that it is not needed any more.
        self.wake();
    }
}

//! What the host sends to a keeper: packets, and memory files for what no packet takes.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};

use super::protocol::{Control, MAX_PACKET, SpawnRequest};
use crate::id::ProcessId;
use crate::sys::packet::{self, Wait};

/// What to do when the socket does not take the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TooLarge {
    /// They are put into a file.
    Move,
    /// Nothing: a control request, or one that is in a file, and always small.
    Fail,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    id: Option<ProcessId>,
    too_large: TooLarge,
}

impl Packet {
    pub(super) fn control(request: &Control) -> Self {
        Self { bytes: request.encode(), fds: Vec::new(), id: None, too_large: TooLarge::Fail }
    }

    /// The request as a packet, or in a memory file when it is larger than any packet.
    pub(super) fn spawn(request: &SpawnRequest<'_>, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let bytes = request.encode();
        let mut packet = Self { bytes, fds, id: request.id(), too_large: TooLarge::Move };
        if packet.bytes.len() > MAX_PACKET {
            packet.move_to_file()?;
        }
        Ok(packet)
    }

    /// The process that it asks for, who is told when it cannot be sent.
    pub(super) fn id(&self) -> Option<ProcessId> {
        self.id
    }

    /// Sends it without waiting. The socket may take less than a packet of ours (`net.core.wmem_default`): what it never will take
    /// goes by file.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match self.try_send(socket) {
            Err(error)
                if error.raw_os_error() == Some(libc::EMSGSIZE) && self.too_large == TooLarge::Move =>
            {
                self.move_to_file()?;
                self.try_send(socket)
            }
            done => done,
        }
    }

    fn try_send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        packet::send(socket, &[IoSlice::new(&self.bytes)], &fds, Wait::Never)
    }

    fn move_to_file(&mut self) -> io::Result<()> {
        // The lengths of its parts are written in 32 bits; the kernel takes far less than that as well.
        if u32::try_from(self.bytes.len()).is_err() {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut file = File::from(memfd_create("hostler-request", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.bytes)?;
        self.fds.push(file.into());
        self.bytes = SpawnRequest::by_file(self.id, self.bytes.len() as u64);
        self.too_large = TooLarge::Fail;
        Ok(())
    }
}

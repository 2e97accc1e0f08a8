//! Packets over SEQPACKET sockets, with descriptors riding on them (unix(7), SCM_RIGHTS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The most descriptors that one packet carries.
pub const MAX_FDS: usize = 4;

/// Makes a connected pair, both ends closed on exec and blocking.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it can be done: for room in the socket, and for memory.
    Block,
    /// `WouldBlock` instead of waiting.
    Never,
}

/// How long to wait for memory before it is tried again.
const MEMORY_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Whether a failure means that the peer is not there any more. No other does.
pub fn means_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN))
}

/// Whether a failure says nothing about the packet or its peer: it is for want of memory, descriptors or room in epoll(7),
/// or because too many descriptors are in flight, and may have passed at the next try.
pub fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::ETOOMANYREFS | libc::EMFILE | libc::ENFILE)
    )
}

/// Sends one packet made of `parts`, with `fds`.
///
/// # Errors
/// `WouldBlock` with [`Wait::Never`] when the socket is full, `BrokenPipe` when the peer is gone, `EMSGSIZE` when the
/// packet is larger than the socket takes; see [`means_gone`] and [`may_pass`].
pub fn send(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let flags = match wait {
        Wait::Block => SendFlags::NOSIGNAL,
        Wait::Never => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    loop {
        match sendmsg(socket, parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::NOMEM | Errno::NOBUFS) if wait == Wait::Block => {
                let _ = rustix::thread::nanosleep(&MEMORY_PAUSE);
            }
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Descriptors that came with a packet, in order.
#[derive(Debug, Default)]
pub struct Fds {
    fds: [Option<OwnedFd>; MAX_FDS],
    taken: usize,
}

impl Fds {
    /// The next one.
    pub fn take(&mut self) -> Option<OwnedFd> {
        let fd = self.fds.get_mut(self.taken)?.take();
        self.taken += 1;
        fd
    }
}

/// Receives one packet into `buffer`. `None` when the peer has closed its end.
///
/// # Errors
/// `WouldBlock` with [`Wait::Never`] when there is none, `InvalidData` when the packet was larger than the buffer.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: Wait) -> io::Result<Option<(usize, Fds)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = match wait {
        Wait::Block => RecvFlags::CMSG_CLOEXEC,
        Wait::Never => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    };
    let message = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno.into()),
            Ok(message) => break message,
        }
    };
    let mut fds = Fds::default();
    let received = control.drain().flat_map(|message| {
        if let RecvAncillaryMessage::ScmRights(rights) = message { rights.collect() } else { Vec::new() }
    });
    for (slot, fd) in fds.fds.iter_mut().zip(received) {
        *slot = Some(fd);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet is larger than the buffer"));
    }
    Ok(if message.bytes == 0 { None } else { Some((message.bytes, fds)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_arrives_whole_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let (r, w) = rustix::pipe::pipe().unwrap();
        send(a.as_fd(), &[IoSlice::new(b"he"), IoSlice::new(b"llo")], &[r.as_fd(), w.as_fd()], Wait::Block)
            .unwrap();
        let mut buffer = [0; 16];
        let (n, mut fds) = receive(b.as_fd(), &mut buffer, Wait::Never).unwrap().unwrap();
        assert_eq!(&buffer[..n], b"hello");
        assert!(fds.take().is_some() && fds.take().is_some() && fds.take().is_none());
    }

    #[test]
    fn only_a_peer_that_is_gone_is_gone() {
        let (a, b) = pair().unwrap();
        drop(b);
        let error = send(a.as_fd(), &[IoSlice::new(b"x")], &[], Wait::Never).unwrap_err();
        assert!(means_gone(&error) && !may_pass(&error), "{error:?}");
        for errno in [libc::ENOMEM, libc::ENOBUFS, libc::ETOOMANYREFS, libc::EMFILE, libc::ENFILE] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(!means_gone(&error) && may_pass(&error), "{error:?}");
        }
        for errno in [libc::EMSGSIZE, libc::EAGAIN] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(!means_gone(&error) && !may_pass(&error), "{error:?}");
        }
    }

    #[test]
    fn an_empty_socket_would_block_and_a_closed_one_ends() {
        let (a, b) = pair().unwrap();
        let mut buffer = [0; 4];
        let error = receive(b.as_fd(), &mut buffer, Wait::Never).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        send(a.as_fd(), &[IoSlice::new(b"12345")], &[], Wait::Never).unwrap();
        let error = receive(b.as_fd(), &mut buffer, Wait::Never).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(a);
        assert!(receive(b.as_fd(), &mut buffer, Wait::Never).unwrap().is_none());
    }
}

//! Where requests come from.

use std::io::{self, Read};
use std::os::fd::OwnedFd;

use hostler_core::sys::clock;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::net::RecvFlags;
use tokio::io::{Interest, Ready};
use tokio::sync::mpsc;

use super::ends::{Kind, LOOK_AGAIN, THREAD_CHUNKS, look, may_go_on, of_terminal, open};

/// The most that one read of the waiting thread takes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Where requests come from.
#[derive(Debug)]
pub struct Input(Source);

#[derive(Debug)]
enum Source {
    Polled(Kind),
    Thread {
        chunks: mpsc::Receiver<io::Result<Vec<u8>>>,
        rest: Vec<u8>,
        /// The same descriptor, to look at it without reading.
        fd: OwnedFd,
    },
}

impl Input {
    /// Takes a descriptor.
    ///
    /// # Errors
    /// When it cannot be looked at or registered.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        if let Some(kind) = open(&fd, OFlags::RDONLY, Interest::READABLE)? {
            return Ok(Self(Source::Polled(kind)));
        }
        let (sender, chunks) = mpsc::channel(THREAD_CHUNKS);
        let theirs = fd.try_clone()?;
        std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read_all(theirs, &sender))?;
        Ok(Self(Source::Thread { chunks, rest: Vec::new(), fd }))
    }

    /// Reads what there is, at least one byte; 0 is the end. Cancel-safe.
    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Source::Polled(kind) => {
                loop {
                    let mut ready = kind.ready().ready(Interest::READABLE).await?;
                    match read_now(kind, buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                        // A short read has emptied it; what comes later is news to the reactor.
                        Ok(n) if n > 0 && n < buffer.len() => {
                            ready.clear_ready_matching(Ready::READABLE);
                            return Ok(n);
                        }
                        read => return read,
                    }
                }
            }
            Source::Thread { chunks, rest, .. } => {
                if rest.is_empty() {
                    match chunks.recv().await {
                        Some(chunk) => *rest = chunk?,
                        None => return Ok(0),
                    }
                }
                let n = rest.len().min(buffer.len());
                buffer[..n].copy_from_slice(&rest[..n]);
                rest.drain(..n);
                Ok(n)
            }
        }
    }

    /// Completes when nobody can write any more, whatever is left to read. Files have no such end.
    pub(super) async fn hung_up(&self) {
        let fd = match &self.0 {
            Source::Polled(kind) => kind.ready().get_ref(),
            Source::Thread { fd, .. } => fd,
        };
        // The reactor tells of the end together with what is there to read, and that is always.
        while !nobody_writes(fd).unwrap_or(true) {
            tokio::time::sleep_until((clock::now() + LOOK_AGAIN).into()).await;
        }
    }
}

fn nobody_writes(fd: &OwnedFd) -> io::Result<bool> {
    Ok(look(fd, PollFlags::RDHUP)?.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR))
}

fn read_now(kind: &Kind, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let read = match kind {
            Kind::Socket(fd) => {
                rustix::net::recv(fd.get_ref(), &mut *buffer, RecvFlags::DONTWAIT).map(|(_, n)| n)
            }
            Kind::Pipe(fd) => rustix::io::read(fd.get_ref(), &mut *buffer),
        };
        match read {
            Err(rustix::io::Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

fn read_all(fd: OwnedFd, sender: &mpsc::Sender<io::Result<Vec<u8>>>) {
    let mut file = std::fs::File::from(fd);
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        match file.read(&mut chunk) {
            Ok(0) => return,
            Ok(n) => {
                chunk.truncate(n);
                if sender.blocking_send(Ok(chunk)).is_err() {
                    return;
                }
            }
            Err(error) if may_go_on(&file, &error, PollFlags::IN) => {}
            Err(error) => {
                // Nobody listens any more, or this is the last word.
                let _ = sender.blocking_send(Err(of_terminal(&file, error)));
                return;
            }
        }
    }
}

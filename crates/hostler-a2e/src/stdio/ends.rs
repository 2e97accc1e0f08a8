//! The two descriptors, whatever they are.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hostler_core::sys::{clock, reactor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::{mpsc, oneshot};

/// Between two looks at an end that the reactor keeps reporting.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Chunks that a waiting thread may be ahead.
const THREAD_CHUNKS: usize = 4;
/// The most that one of them holds on the way out.
const THREAD_CHUNK_BYTES: usize = 256 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug)]
enum Kind {
    Pipe(Arc<AsyncFd<OwnedFd>>),
    Socket(Arc<AsyncFd<OwnedFd>>),
}

impl Kind {
    fn ready(&self) -> &AsyncFd<OwnedFd> {
        match self {
            Self::Pipe(fd) | Self::Socket(fd) => fd,
        }
    }
}

/// `None` for what the reactor does not take.
fn open(fd: &OwnedFd, flags: OFlags, interest: Interest) -> io::Result<Option<Kind>> {
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

/// Where requests come from.
#[derive(Debug)]
pub struct Input(Source);

#[derive(Debug)]
enum Source {
    Polled(Kind),
    Thread { chunks: mpsc::Receiver<io::Result<Vec<u8>>>, rest: Vec<u8> },
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
        std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read_all(fd, &sender))?;
        Ok(Self(Source::Thread { chunks, rest: Vec::new() }))
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
            Source::Thread { chunks, rest } => {
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
}

impl Input {
    /// Completes when nobody can write any more, whatever is left to read. Never for what a thread waits for: files have
    /// no other end, and a terminal tells of its own by the read alone.
    pub(super) async fn hung_up(&self) {
        let Source::Polled(kind) = &self.0 else { return std::future::pending().await };
        // The reactor tells of the end together with what is there to read, and that is always.
        while !nobody_writes(kind.ready().get_ref()).unwrap_or(true) {
            tokio::time::sleep_until((clock::now() + LOOK_AGAIN).into()).await;
        }
    }
}

fn nobody_writes(fd: &OwnedFd) -> io::Result<bool> {
    Ok(look(fd, PollFlags::RDHUP)?.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR))
}

fn look(fd: &OwnedFd, wanted: PollFlags) -> io::Result<PollFlags> {
    let mut state = [PollFd::new(fd, wanted)];
    poll(&mut state, Some(&Timespec::default()))?;
    Ok(state[0].revents())
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
        let read = file.read(&mut chunk).map(|n| {
            chunk.truncate(n);
            chunk
        });
        let last = !matches!(&read, Ok(chunk) if !chunk.is_empty());
        let interrupted = matches!(&read, Err(error) if error.kind() == io::ErrorKind::Interrupted);
        if interrupted {
            continue;
        }
        let read = read.map_err(|error| of_terminal(&file, error));
        if matches!(&read, Ok(chunk) if chunk.is_empty()) || sender.blocking_send(read).is_err() || last {
            return;
        }
    }
}

/// Whether an error of a read or write means that the other side is gone.
pub(super) fn is_departure(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | HostUnreachable | TimedOut)
}

/// A terminal whose other side is gone says EIO, as a broken disk does.
fn of_terminal(file: &std::fs::File, error: io::Error) -> io::Error {
    let hung_up = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) && is_terminal(file);
    if hung_up { io::ErrorKind::BrokenPipe.into() } else { error }
}

/// isatty(3) says no as soon as the other side is gone, so the kind of the file has to do.
fn is_terminal(file: &std::fs::File) -> bool {
    rustix::fs::fstat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// Why a thread has stopped to write, once it has.
#[derive(Debug, Default)]
struct Failure(OnceLock<io::Error>);

impl Failure {
    fn tell(&self, file: &std::fs::File, error: io::Error) {
        // The thread ends with its first error.
        let _ = self.0.set(of_terminal(file, error));
    }

    fn get(&self) -> Option<io::Error> {
        let error = self.0.get()?;
        Some(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error))
    }

    /// The same, where it is known that the thread has ended.
    fn broken(&self) -> io::Error {
        self.get().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

/// Where messages go: a buffer, and a descriptor that takes it as fast as the client reads.
#[derive(Debug)]
pub struct Output {
    buffer: Vec<u8>,
    written: usize,
    /// Bytes that the descriptor took before those of the buffer.
    written_before: u64,
    /// Takes what is said while answers are dropped.
    dropped: Option<Vec<u8>>,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Polled(Kind),
    Thread {
        chunks: mpsc::Sender<Vec<u8>>,
        /// Nothing is ever sent on it: it closes when the thread has ended.
        done: oneshot::Receiver<()>,
        failure: Arc<Failure>,
    },
}

impl Output {
    /// Takes a descriptor.
    ///
    /// # Errors
    /// When it cannot be looked at or registered.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::ERROR;
        let sink = match open(&fd, OFlags::WRONLY, interest)? {
            Some(kind) => Sink::Polled(kind),
            None => {
                let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(THREAD_CHUNKS);
                let (ended, done) = oneshot::channel();
                let failure = Arc::new(Failure::default());
                let told = Arc::clone(&failure);
                let mut file = std::fs::File::from(fd);
                std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
                    let _ended: oneshot::Sender<()> = ended;
                    while let Some(chunk) = chunks.blocking_recv() {
                        if let Err(error) = file.write_all(&chunk) {
                            told.tell(&file, error);
                            // The end of the channel is how the other side hears of it.
                            return;
                        }
                    }
                })?;
                Sink::Thread { chunks: sender, done, failure }
            }
        };
        Ok(Self { buffer: Vec::new(), written: 0, written_before: 0, dropped: None, sink })
    }

    /// Messages are appended here.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        match &mut self.dropped {
            None => &mut self.buffer,
            Some(dropped) => {
                dropped.clear();
                dropped
            }
        }
    }

    /// From now on, what is said is said to nobody. What waits already still waits.
    pub(super) fn drop_answers(&mut self) {
        self.dropped = Some(Vec::new());
    }

    /// From now on, what is said is written again.
    pub(super) fn keep_answers(&mut self) {
        self.dropped = None;
    }

    pub(super) fn drops_answers(&self) -> bool {
        self.dropped.is_some()
    }

    /// Bytes that the descriptor has taken in all.
    pub(super) fn taken(&self) -> u64 {
        self.written_before + self.written as u64
    }

    /// Bytes that wait.
    pub(super) fn pending(&self) -> usize {
        self.buffer.len() - self.written
    }

    /// Writes what the descriptor takes at once.
    ///
    /// # Errors
    /// When the client is gone.
    pub(super) fn write_now(&mut self) -> io::Result<()> {
        let Sink::Polled(kind) = &self.sink else { return Ok(()) };
        while self.written < self.buffer.len() {
            match write_some(kind, &self.buffer[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.tidy();
        Ok(())
    }

    /// Writes until at most so many bytes wait. Cancel-safe.
    ///
    /// # Errors
    /// When the client is gone.
    pub(super) async fn flush(&mut self, keep: usize) -> io::Result<()> {
        let (buffer, written) = (&self.buffer, &mut self.written);
        match &self.sink {
            Sink::Polled(kind) => {
                let write = |_: &OwnedFd| {
                    while buffer.len() - *written > keep {
                        *written += write_some(kind, &buffer[*written..])?;
                    }
                    Ok(())
                };
                kind.ready().async_io(Interest::WRITABLE, write).await?;
            }
            Sink::Thread { chunks, failure, .. } => {
                while buffer.len() - *written > keep {
                    let place = chunks.reserve().await.map_err(|_| failure.broken())?;
                    let rest = &buffer[*written..];
                    let chunk = &rest[..rest.len().min(THREAD_CHUNK_BYTES)];
                    place.send(chunk.to_vec());
                    *written += chunk.len();
                }
            }
        }
        self.tidy();
        Ok(())
    }

    /// Completes when nothing can be written any more, without anything being written: the client has closed its end, or
    /// a thread has met an error.
    pub(super) fn gone(&self) -> impl Future<Output = io::Error> + Send + use<> {
        enum Watch {
            Polled(Kind),
            Thread(mpsc::WeakSender<Vec<u8>>, Arc<Failure>),
        }
        let watch = match &self.sink {
            Sink::Polled(kind) => Watch::Polled(kind.clone()),
            Sink::Thread { chunks, failure, .. } => Watch::Thread(chunks.downgrade(), Arc::clone(failure)),
        };
        async move {
            match watch {
                Watch::Polled(kind) => {
                    closed(&kind).await;
                    io::ErrorKind::BrokenPipe.into()
                }
                Watch::Thread(chunks, failure) => {
                    if let Some(chunks) = chunks.upgrade() {
                        chunks.closed().await;
                    }
                    failure.broken()
                }
            }
        }
    }

    /// Waits until what was handed to a thread is written.
    ///
    /// # Errors
    /// When it could not be.
    pub(super) async fn finish(self) -> io::Result<()> {
        let Sink::Thread { chunks, done, failure } = self.sink else { return Ok(()) };
        drop(chunks);
        // An error is how the end of the thread is seen.
        let _ = done.await;
        failure.get().map_or(Ok(()), Err)
    }

    /// Frees what was written: at once when that is all, and otherwise when it is at least as much as what is left to
    /// move. A client that always reads a little less than there is must not make the buffer grow.
    fn tidy(&mut self) {
        const KEPT: usize = 2 << 20;
        if self.written == self.buffer.len() {
            self.buffer.clear();
        } else if self.written >= self.pending() {
            self.buffer.drain(..self.written);
        } else {
            return;
        }
        self.written_before += self.written as u64;
        self.written = 0;
        // Large buffers go back to the allocator once they have done their work.
        if self.buffer.len() <= KEPT && self.buffer.capacity() > KEPT {
            self.buffer.shrink_to(KEPT);
        }
    }
}

/// Until nobody reads the other end. What the reactor says is a hint: it may be about something else, or old.
async fn closed(kind: &Kind) {
    let interest = match kind {
        Kind::Pipe(_) => Interest::ERROR,
        // The end of a socket's peer is told as something to read.
        Kind::Socket(_) => Interest::READABLE | Interest::ERROR,
    };
    loop {
        let Ok(mut ready) = kind.ready().ready(interest).await else { return };
        if nobody_reads(kind.ready().get_ref()).unwrap_or(true) {
            return;
        }
        ready.clear_ready();
        // A peer that has closed only its own direction stays readable for ever.
        tokio::time::sleep_until((clock::now() + LOOK_AGAIN).into()).await;
    }
}

fn nobody_reads(fd: &OwnedFd) -> io::Result<bool> {
    Ok(look(fd, PollFlags::empty())?.intersects(PollFlags::HUP | PollFlags::ERR))
}

fn write_some(kind: &Kind, bytes: &[u8]) -> io::Result<usize> {
    loop {
        let wrote = match kind {
            Kind::Socket(fd) => {
                rustix::net::send(fd.get_ref(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Kind::Pipe(fd) => rustix::io::write(fd.get_ref(), bytes),
        };
        match wrote {
            Err(rustix::io::Errno::INTR) => {}
            wrote => return Ok(wrote?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_always_a_little_behind_costs_no_memory() {
        const PIECE: usize = 32 * 1024;
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (mut reader, writer) = io::pipe().unwrap();
            let mut output = Output::open(writer.into()).unwrap();
            let (mut next, mut expected) = (0_u8, 0_u8);
            for round in 0..1000 {
                output.buffer().extend((0..PIECE).map(|_| {
                    next = next.wrapping_add(1);
                    next
                }));
                output.write_now().unwrap();
                // Never so much that nothing is left.
                if round > 10 {
                    let mut piece = vec![0; PIECE];
                    reader.read_exact(&mut piece).unwrap();
                    piece.iter().for_each(|byte| {
                        expected = expected.wrapping_add(1);
                        assert_eq!(*byte, expected);
                    });
                    assert!(output.pending() > 0);
                }
                assert!(output.buffer.len() <= 1 << 20, "{} bytes in round {round}", output.buffer.len());
            }
        });
    }
}

//! Where messages go.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use hostler_core::sys::clock;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};

use super::ends::{Kind, LOOK_AGAIN, THREAD_CHUNKS, look, may_go_on, of_terminal, open};

/// The most that a chunk for the waiting thread holds.
const THREAD_CHUNK_BYTES: usize = 256 * 1024;

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
                        if let Err(error) = write_fully(&mut file, &chunk) {
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

fn write_fully(file: &mut std::fs::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if may_go_on(file, &error, PollFlags::OUT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    use std::io::Read;

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

//! A process's standard input: exact bytes, in order, without anybody waiting for a full pipe but the writer.
//!
//! A write goes into the pipe at once as far as it fits; only what does not fit is copied and handed to a pump task
//! that exists while the pipe is full. Invariants: bytes of one process arrive in the order of the calls; a write is
//! answered once, when all of it is in the pipe or none of the rest can ever be; what waits is bounded, for each process and
//! for its session.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use crate::sys::reactor;

/// The most bytes that wait for the process to read, over all writes.
pub const MAX_WAITING: usize = 64 * 1024 * 1024;

/// The same over all processes of a session.
pub const MAX_WAITING_IN_SESSION: usize = 256 * 1024 * 1024;

/// A write that could not be done. What had gone into the pipe before stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// It was started without one.
    #[error("the process has no standard input: it was started with /dev/null")]
    NoStdin,
    /// An earlier call closed it.
    #[error("standard input was closed by an earlier end of file")]
    Closed,
    /// The process closed its end; it runs on.
    #[error("the process has closed its standard input")]
    ClosedByProcess,
    /// The process has ended.
    #[error("the process has ended")]
    Ended,
    /// The pipe is full and cannot be waited for, so it was closed. The process may still read what is in it.
    #[error(
        "the system cannot watch one more pipe, so standard input was closed: raise fs.epoll.max_user_watches"
    )]
    Unwatched,
    /// Too much waits already.
    #[error(
        "{waiting} bytes wait for the process to read, at most {MAX_WAITING} may: wait for those writes first"
    )]
    Full {
        /// Bytes that wait now.
        waiting: usize,
    },
    /// Too much waits already for all processes of the session together.
    #[error(
        "{waiting} bytes wait for processes of this session to read, at most {limit} may: wait for those writes first, or \
         stop a process that does not read"
    )]
    SessionFull {
        /// Bytes that wait now.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
}

/// What waits for the processes of one session.
#[derive(Debug)]
pub(crate) struct StdinAccount {
    bytes: AtomicUsize,
    limit: usize,
}

impl StdinAccount {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), limit })
    }

    fn hold(self: &Arc<Self>, bytes: usize) -> Result<Held, WriteError> {
        let limit = self.limit;
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Held { account: Arc::clone(self), bytes }),
            Err(waiting) => Err(WriteError::SessionFull { waiting, limit }),
        }
    }
}

/// Bytes of an account, given back when dropped: with the memory that they are in, not as they are read.
#[derive(Debug)]
struct Held {
    account: Arc<StdinAccount>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Whether a write is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More may follow.
    KeepOpen,
    /// Close standard input after it.
    Close,
}

#[derive(Debug)]
struct Waiting {
    /// Which write, of those of this process.
    number: u64,
    bytes: Vec<u8>,
    _held: Held,
    written: usize,
    then: Then,
    done: Option<oneshot::Sender<Result<(), WriteError>>>,
}

#[derive(Debug)]
enum Pipe {
    Open(Arc<OwnedFd>),
    Shut(WriteError),
}

#[derive(Debug)]
struct State {
    pipe: Pipe,
    queue: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// The number of the next write that has to wait.
    next_number: u64,
    /// The last write in the queue closes it: no further one is taken.
    closing: bool,
    /// A pump task exists. Only one may: the reactor takes a descriptor once.
    pumping: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stdin {
    state: Mutex<State>,
    shut: Notify,
    account: Arc<StdinAccount>,
}

/// The answer to a write; dropping it does not take the write back.
#[derive(Debug)]
#[must_use = "the write may fail"]
pub struct Writing(Answer);

#[derive(Debug)]
enum Answer {
    Now(Result<(), WriteError>),
    Later(Later),
}

#[derive(Debug)]
struct Later {
    answer: oneshot::Receiver<Result<(), WriteError>>,
    stdin: Arc<Stdin>,
    number: u64,
    /// Bytes that went into the pipe before the rest had to wait.
    begun: usize,
}

/// What has become of a write that nobody waits for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// It was done, or failed, just before.
    Answered(Result<(), WriteError>),
    /// So many of its bytes are in the pipe, the rest never will be.
    Partly {
        /// Bytes.
        written: usize,
    },
}

impl Writing {
    /// Waits until all bytes are in the pipe.
    ///
    /// # Errors
    /// [`WriteError`]; `Ended` when the process ends before it has read enough.
    pub async fn done(self) -> Result<(), WriteError> {
        match self.0 {
            Answer::Now(result) => result,
            Answer::Later(later) => later.answer.await.unwrap_or(Err(WriteError::Ended)),
        }
    }

    /// Waits as [`done`](Self::done) does, but no longer than `patience`: what is not in the pipe by then is taken back, also
    /// the end of file that was to follow it.
    pub async fn done_within(self, patience: Duration) -> Withdrawn {
        let mut later = match self.0 {
            Answer::Now(result) => return Withdrawn::Answered(result),
            Answer::Later(later) => later,
        };
        match tokio::time::timeout(patience, &mut later.answer).await {
            Ok(answer) => Withdrawn::Answered(answer.unwrap_or(Err(WriteError::Ended))),
            Err(_) => later.withdraw(),
        }
    }

    /// The answer, if it is there already.
    pub fn now(&self) -> Option<Result<(), WriteError>> {
        match &self.0 {
            Answer::Now(result) => Some(*result),
            Answer::Later(_) => None,
        }
    }
}

impl Later {
    fn withdraw(mut self) -> Withdrawn {
        let mut state = self.stdin.state.lock();
        let at = state.queue.iter().position(|waiting| waiting.number == self.number);
        let Some(waiting) = at.and_then(|at| state.queue.remove(at)) else {
            drop(state);
            return Withdrawn::Answered(self.answer.try_recv().unwrap_or(Err(WriteError::Ended)));
        };
        state.waiting_bytes -= waiting.bytes.len() - waiting.written;
        // Only the last one may close.
        state.closing &= waiting.then != Then::Close;
        Withdrawn::Partly { written: self.begun + waiting.written }
    }
}

impl Stdin {
    /// Takes the write end of a pipe, which must be non-blocking, and the account of its session.
    pub(crate) fn open(pipe: OwnedFd, account: &Arc<StdinAccount>) -> Arc<Self> {
        Arc::new(Self::with(Pipe::Open(Arc::new(pipe)), account))
    }

    pub(crate) fn none(account: &Arc<StdinAccount>) -> Arc<Self> {
        Arc::new(Self::with(Pipe::Shut(WriteError::NoStdin), account))
    }

    fn with(pipe: Pipe, account: &Arc<StdinAccount>) -> Self {
        let state = State {
            pipe,
            queue: VecDeque::new(),
            waiting_bytes: 0,
            next_number: 0,
            closing: false,
            pumping: false,
        };
        Self { state: Mutex::new(state), shut: Notify::new(), account: Arc::clone(account) }
    }

    /// Writes, in order after all earlier calls.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8], then: Then) -> Writing {
        let mut state = self.state.lock();
        let pipe = match &state.pipe {
            Pipe::Open(pipe) => Arc::clone(pipe),
            Pipe::Shut(why) => return Writing(Answer::Now(Err(*why))),
        };
        if state.closing {
            return Writing(Answer::Now(Err(WriteError::Closed)));
        }
        let mut written = 0;
        if state.queue.is_empty() {
            match write_some(&pipe, bytes) {
                Ok(n) => written = n,
                Err(why) => return Writing(Answer::Now(Err(self.shut_with(state, why)))),
            }
            if written == bytes.len() {
                if then == Then::Close {
                    self.shut_with(state, WriteError::Closed);
                }
                return Writing(Answer::Now(Ok(())));
            }
        }
        let rest = &bytes[written..];
        if state.waiting_bytes + rest.len() > MAX_WAITING {
            return Writing(Answer::Now(Err(WriteError::Full { waiting: state.waiting_bytes })));
        }
        let held = match self.account.hold(rest.len()) {
            Ok(held) => held,
            Err(full) => return Writing(Answer::Now(Err(full))),
        };
        let (sender, receiver) = oneshot::channel();
        let needs_pump = !std::mem::replace(&mut state.pumping, true);
        state.waiting_bytes += rest.len();
        state.closing = then == Then::Close;
        let number = state.next_number;
        state.next_number += 1;
        state.queue.push_back(Waiting {
            number,
            bytes: rest.to_vec(),
            _held: held,
            written: 0,
            then,
            done: Some(sender),
        });
        drop(state);
        if needs_pump {
            tokio::spawn(Arc::clone(self).pump(pipe));
        }
        Writing(Answer::Later(Later { answer: receiver, stdin: Arc::clone(self), number, begun: written }))
    }

    /// The process has ended: nothing that waits will be read.
    pub(crate) fn end(&self) {
        let state = self.state.lock();
        self.shut_with(state, WriteError::Ended);
    }

    /// Closes the pipe for this reason, which later calls are told, and answers everything that waits.
    fn shut_with(&self, mut state: parking_lot::MutexGuard<'_, State>, why: WriteError) -> WriteError {
        if matches!(state.pipe, Pipe::Open(_)) || why == WriteError::Ended {
            state.pipe = Pipe::Shut(why);
        }
        let waiting = std::mem::take(&mut state.queue);
        state.waiting_bytes = 0;
        drop(state);
        for done in waiting.into_iter().filter_map(|w| w.done) {
            // Whoever wrote may have stopped waiting.
            let _ = done.send(Err(why));
        }
        self.shut.notify_one();
        why
    }

    async fn pump(self: Arc<Self>, pipe: Arc<OwnedFd>) {
        loop {
            let Ok(ready) = reactor::register(Arc::clone(&pipe), Interest::WRITABLE) else {
                // The reactor takes no more descriptors: nobody would say when the pipe has room.
                let state = self.state.lock();
                self.shut_with(state, WriteError::Unwatched);
                return;
            };
            let shut = self.pump_queue(&ready).await;
            drop(ready);
            let mut state = self.state.lock();
            if shut || state.queue.is_empty() {
                state.pumping = false;
                return;
            }
        }
    }

    /// Until the queue is empty, or the pipe is shut (`true`).
    async fn pump_queue(&self, ready: &AsyncFd<Arc<OwnedFd>>) -> bool {
        loop {
            let more = tokio::select! {
                () = self.shut.notified() => return true,
                more = ready.async_io(Interest::WRITABLE, |pipe| self.pump_some(pipe)) => more,
            };
            match more {
                Ok(true) => {}
                Ok(false) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Writes what fits. `Ok(false)` when nothing is left to do.
    fn pump_some(&self, pipe: &OwnedFd) -> io::Result<bool> {
        let mut state = self.state.lock();
        let Some(front) = state.queue.front_mut() else { return Ok(false) };
        let n = match write_some(pipe, &front.bytes[front.written..]) {
            Ok(0) if front.written < front.bytes.len() => return Err(io::ErrorKind::WouldBlock.into()),
            Ok(n) => n,
            Err(why) => {
                self.shut_with(state, why);
                return Ok(false);
            }
        };
        front.written += n;
        let finished = front.written == front.bytes.len();
        state.waiting_bytes -= n;
        if !finished {
            return Ok(true);
        }
        let Some(write) = state.queue.pop_front() else { return Ok(false) };
        let more = !state.queue.is_empty();
        if write.then == Then::Close {
            self.shut_with(state, WriteError::Closed);
        }
        if let Some(done) = write.done {
            let _ = done.send(Ok(()));
        }
        Ok(more)
    }
}

/// Writes what the pipe takes now, which may be nothing.
fn write_some(pipe: &OwnedFd, bytes: &[u8]) -> Result<usize, WriteError> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(pipe.as_fd(), &bytes[written..]) {
            Ok(n) => written += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => break,
            // EPIPE, and whatever else a pipe can say, means that nobody reads it.
            Err(_) => return Err(WriteError::ClosedByProcess),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests;

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
mod tests {
    use std::io::Read;

    use proptest::prelude::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn pair() -> (std::fs::File, Arc<Stdin>) {
        pair_of(&StdinAccount::new(MAX_WAITING_IN_SESSION))
    }

    fn pair_of(account: &Arc<StdinAccount>) -> (std::fs::File, Arc<Stdin>) {
        let (r, w) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&w, true).unwrap();
        (r.into(), Stdin::open(w, account))
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_the_pipe_is_closed_after_the_last() {
        let (mut pipe, stdin) = pair();
        let big = vec![b'x'; 3_000_000];
        let first = stdin.write(&big, Then::KeepOpen);
        assert_eq!(first.now(), None);
        let second = stdin.write(b"end", Then::Close);
        assert_eq!(stdin.write(b"late", Then::KeepOpen).now(), Some(Err(WriteError::Closed)));
        let reader = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).unwrap();
            all
        });
        assert_eq!(first.done().await, Ok(()));
        assert_eq!(second.done().await, Ok(()));
        let all = reader.await.unwrap();
        assert_eq!(all.len(), big.len() + 3);
        assert!(all.ends_with(b"xend"));
        assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Closed)));
    }

    #[tokio::test]
    async fn a_blocked_write_is_answered_when_the_process_ends() {
        let (_pipe, stdin) = pair();
        let blocked = stdin.write(&vec![0; 1_000_000], Then::KeepOpen);
        stdin.end();
        assert_eq!(blocked.done().await, Err(WriteError::Ended));
        assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Ended)));
    }

    #[tokio::test]
    async fn a_write_that_is_not_waited_for_any_longer_is_taken_back_to_the_byte() {
        let (mut pipe, stdin) = pair();
        let first = vec![b'a'; 1_000_000];
        let late = stdin.write(&first, Then::Close).done_within(Duration::from_millis(20)).await;
        let Withdrawn::Partly { written } = late else { panic!("{late:?}") };
        assert!(0 < written && written < first.len(), "{written}");
        // It was the one that closes; others come after what is in the pipe.
        let second = stdin.write(b"b", Then::Close);
        let reader = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).unwrap();
            all
        });
        assert_eq!(second.done_within(Duration::from_secs(60)).await, Withdrawn::Answered(Ok(())));
        let all = reader.await.unwrap();
        assert_eq!((all.len(), all.last()), (written + 1, Some(&b'b')));
    }

    #[tokio::test]
    async fn a_closed_reader_is_told_from_an_end() {
        let (pipe, stdin) = pair();
        drop(pipe);
        assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::ClosedByProcess)));
        assert_eq!(
            Stdin::none(&StdinAccount::new(1)).write(b"x", Then::KeepOpen).now(),
            Some(Err(WriteError::NoStdin))
        );
    }

    #[tokio::test]
    async fn a_pipe_that_cannot_be_watched_is_told_from_one_that_the_process_closed() {
        let (_pipe, stdin) = pair();
        let taken = match &stdin.state.lock().pipe {
            // The reactor takes a descriptor once.
            Pipe::Open(fd) => reactor::register(Arc::clone(fd), Interest::WRITABLE),
            Pipe::Shut(why) => panic!("{why}"),
        };
        assert!(taken.is_ok());
        let blocked = stdin.write(&vec![b'x'; 1_000_000], Then::KeepOpen);
        assert_eq!(blocked.done().await, Err(WriteError::Unwatched));
        assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Unwatched)));
    }

    #[tokio::test]
    async fn what_waits_is_bounded() {
        let (_pipe, stdin) = pair();
        let _first = stdin.write(&vec![0; MAX_WAITING], Then::KeepOpen);
        let more = stdin.write(&vec![0; 200_000], Then::KeepOpen);
        assert!(matches!(more.now(), Some(Err(WriteError::Full { .. }))));
    }

    #[tokio::test]
    async fn what_waits_for_all_processes_of_a_session_is_bounded_and_room_comes_back() {
        const LIMIT: usize = 1_000_000;
        let account = StdinAccount::new(LIMIT);
        let ((_first_pipe, first), (mut second_pipe, second)) = (pair_of(&account), pair_of(&account));
        let some = vec![0; LIMIT * 3 / 4];
        let blocked = [first.write(&some, Then::KeepOpen), first.write(&[0; 1000], Then::KeepOpen)];
        let refused = second.write(&some, Then::KeepOpen).now();
        assert!(matches!(refused, Some(Err(WriteError::SessionFull { limit: LIMIT, .. }))), "{refused:?}");
        let small = second.write(&[0; 1000], Then::KeepOpen);
        assert_eq!(small.now(), None, "what finds room waits");
        first.end();
        for blocked in blocked {
            assert_eq!(blocked.done().await, Err(WriteError::Ended));
        }
        let waits = second.write(&some, Then::Close);
        assert_eq!(waits.now(), None);
        let reader =
            tokio::task::spawn_blocking(move || std::io::copy(&mut second_pipe, &mut std::io::sink()));
        assert_eq!(waits.done().await, Ok(()));
        reader.await.unwrap().unwrap();
        assert_eq!(account.bytes.load(Ordering::Acquire), 0);
    }

    /// Bytes that show a loss, a repetition or a change of order.
    fn pattern(from: usize, length: usize) -> Vec<u8> {
        (from..from + length).map(|at| (at / 251 + at) as u8).collect()
    }

    /// Reads in pieces of these sizes, in turn, up to `most` bytes or the end, and then closes its end.
    fn read_up_to(mut pipe: std::fs::File, sizes: &[usize], most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for size in sizes.iter().cycle() {
            let mut piece = vec![0; (*size).min(most - all.len())];
            match pipe.read(&mut piece).unwrap() {
                0 => break,
                n => all.extend_from_slice(&piece[..n]),
            }
        }
        all
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn sizes(most: usize) -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(prop_oneof![0..10_usize, 4000..4200_usize, 0..most], 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn writes_of_any_sizes_arrive_whole_and_in_order_at_any_reader(writes in sizes(150_000), reads in sizes(70_000)) {
            let reads: Vec<usize> = reads.into_iter().map(|size| size + 1).collect();
            let all = runtime().block_on(async {
                let (pipe, stdin) = pair();
                let mut at = 0;
                let mut answers = Vec::new();
                for length in &writes {
                    answers.push(stdin.write(&pattern(at, *length), Then::KeepOpen));
                    at += length;
                }
                answers.push(stdin.write(&[], Then::Close));
                let reader = tokio::task::spawn_blocking(move || read_up_to(pipe, &reads, usize::MAX));
                for answer in answers {
                    assert_eq!(answer.done().await, Ok(()));
                }
                reader.await.unwrap()
            });
            prop_assert!(all == pattern(0, writes.iter().sum()));
        }

        #[test]
        fn when_the_reader_goes_every_write_is_answered_and_what_arrived_is_a_prefix(
            writes in sizes(150_000),
            most in 0..300_000_usize,
            ends in prop::bool::ANY,
        ) {
            let (all, answers) = runtime().block_on(async {
                let (pipe, stdin) = pair();
                let mut at = 0;
                let mut answers = Vec::new();
                for length in &writes {
                    answers.push(stdin.write(&pattern(at, *length), Then::KeepOpen));
                    at += length;
                }
                // Nobody writes any more: what is there to read, and then the end of it.
                let last = stdin.write(&[], Then::Close);
                let reader = tokio::task::spawn_blocking(move || read_up_to(pipe, &[4096], most));
                let all = reader.await.unwrap();
                if ends {
                    stdin.end();
                }
                let mut results = Vec::new();
                for answer in answers.into_iter().chain([last]) {
                    results.push(answer.done().await);
                }
                (all, results)
            });
            prop_assert!(all == pattern(0, all.len()));
            let done = answers.iter().take_while(|answer| answer.is_ok()).count();
            let refused = |answer: &Result<(), WriteError>| {
                matches!(answer, Err(WriteError::ClosedByProcess)) || (ends && *answer == Err(WriteError::Ended))
            };
            prop_assert!(answers[done..].iter().all(refused), "{answers:?}");
            let total: usize = writes.iter().sum();
            prop_assert_eq!(all.len(), most.min(total));
            prop_assert!(most < total || done == answers.len(), "all was read, but not all is done: {answers:?}");
        }
    }
}

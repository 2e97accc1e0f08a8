//! The task that owns a process's pipes: reads them into the logs, decides when the output is complete, and watches
//! the process's deadlines.
//!
//! It collects one event at a time and handles it without waiting. It ends when the end is reported *and* nothing
//! holds the pipes any more.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::{Inner, Process};
use crate::capture::{SeqCounter, Stream};
use crate::cursor::SharedLog;
use crate::drain::{Drain, DrainLimits, DrainReason, Drainer, Pending};
use crate::lifecycle::{Input, Remains, StopCause};
use crate::sys::{clock, reactor};

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// Bytes that one process may read before others get their turn.
const TURN_BYTES: usize = 256 * 1024;
/// What a lingerer may have written and nobody has taken when its time is over, and is delivered nonetheless: as much as a
/// pipe holds. A slow reader loses nothing of one that prints now and then, and is not kept busy by a flood.
const LINGERING_BYTES: u64 = 64 * 1024;

thread_local! {
    /// Reads go through one buffer a thread: a process that is silent costs none.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// What others tell the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mail {
    /// The program executes.
    Started,
    /// The root has ended.
    Exited,
    /// The end is reported.
    Finished,
    /// Nothing that it started lives any more.
    Gone,
    /// Nobody is left who could read its output, unless somebody does already.
    NoReader,
    /// The deadline has changed.
    Deadline,
    /// The session's reader has taken something of what the drain waits for.
    Taken,
}

/// The reading ends, non-blocking.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
}

#[derive(Debug)]
struct Reading {
    stream: Stream,
    pipe: Pipe,
    paused: bool,
}

impl Reading {
    fn is_unwatched(&self) -> bool {
        matches!(self.pipe, Pipe::Unwatched(_))
    }
}

#[derive(Debug)]
enum Pipe {
    /// Not in the reactor: the program does not run yet, or its end was heard together with its start.
    Unwatched(OwnedFd),
    Watched(AsyncFd<OwnedFd>),
}

impl Pipe {
    fn fd(&self) -> &OwnedFd {
        match self {
            Self::Unwatched(fd) => fd,
            Self::Watched(fd) => fd.get_ref(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pump {
    process: Arc<Inner>,
    inbox: mpsc::UnboundedReceiver<Mail>,
    stdout: Option<Reading>,
    stderr: Option<Reading>,
    seq: SeqCounter,
    drainer: Drainer,
    timeout_at: Option<Instant>,
    /// Bytes read since others last got their turn.
    turn: usize,
    exited: bool,
    drained: bool,
    finished: bool,
}

#[derive(Debug)]
enum Event {
    Mail(Mail),
    /// A pipe can be read, or has room again.
    Ready(Stream),
    Deadline,
}

impl Pump {
    pub(crate) fn new(
        process: Arc<Inner>,
        inbox: mpsc::UnboundedReceiver<Mail>,
        pipes: Pipes,
        timeout_at: Option<Instant>,
    ) -> Self {
        let reading = |stream, pipe| Reading { stream, pipe: Pipe::Unwatched(pipe), paused: false };
        let stdout = Some(reading(Stream::Stdout, pipes.stdout));
        let stderr = pipes.stderr.map(|pipe| reading(Stream::Stderr, pipe));
        let streams: &[Stream] =
            if stderr.is_some() { &[Stream::Stdout, Stream::Stderr] } else { &[Stream::Stdout] };
        Self {
            process,
            inbox,
            stdout,
            stderr,
            seq: SeqCounter::default(),
            drainer: Drainer::new(DrainLimits::default(), streams),
            timeout_at,
            turn: 0,
            exited: false,
            drained: false,
            finished: false,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            let event = self.next_event().await;
            self.handle(event);
            // The reactor takes nothing from a task's budget: a pipe that is filled as fast as it is read, and a reader
            // that makes room as fast, would keep the thread for ever.
            if self.turn >= TURN_BYTES {
                self.turn = 0;
                tokio::task::yield_now().await;
            }
        }
        self.process.stdout.idle();
        if let Some(log) = &self.process.stderr {
            log.idle();
        }
    }

    fn is_over(&self) -> bool {
        self.finished && self.stdout.is_none() && self.stderr.is_none() && self.process.is_closed()
    }

    fn deadline(&self) -> Option<Instant> {
        let stop = self.process.deadline();
        let drain = self.drainer.deadline().filter(|_| !self.drained);
        // The time is over for the whole tree: what lives on after the root dies then.
        [stop, self.timeout_at, drain].into_iter().flatten().min()
    }

    async fn next_event(&mut self) -> Event {
        let deadline = self.deadline();
        // A deadline that has come goes before reading: streams that are always readable must not outrun it.
        if deadline.is_some_and(|at| at <= clock::now()) {
            return Event::Deadline;
        }
        let process = &self.process;
        tokio::select! {
            biased;
            mail = self.inbox.recv() => match mail {
                Some(mail) => Event::Mail(mail),
                None => std::future::pending().await,
            },
            () = readable(self.stdout.as_ref(), process) => Event::Ready(Stream::Stdout),
            () = readable(self.stderr.as_ref(), process) => Event::Ready(Stream::Stderr),
            () = until(deadline) => Event::Deadline,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Mail(Mail::Started) => self.started(),
            Event::Mail(Mail::Exited) => self.exited(),
            Event::Mail(Mail::Finished) => self.finished(),
            Event::Mail(Mail::NoReader) => self.process.close_unless_read(),
            Event::Mail(Mail::Gone | Mail::Deadline) => {}
            Event::Mail(Mail::Taken) => self.look_at_reader(),
            Event::Ready(stream) => {
                self.read(stream);
                // Streams mostly end together: the other one is looked at without being told.
                if self.slot(stream).is_none() {
                    self.read(other(stream));
                }
            }
            Event::Deadline => self.deadline_passed(),
        }
    }

    fn slot(&mut self, stream: Stream) -> &mut Option<Reading> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Watches the pipes, unless the process has ended by now: then they are read out at once.
    fn started(&mut self) {
        if self.process.has_exited() {
            return;
        }
        self.watch(Stream::Stdout);
        self.watch(Stream::Stderr);
    }

    fn watch(&mut self, stream: Stream) {
        let Some(Reading { stream, pipe: Pipe::Unwatched(fd), paused }) =
            self.slot(stream).take_if(|r| r.is_unwatched())
        else {
            return;
        };
        match reactor::register(fd, Interest::READABLE) {
            Ok(fd) => *self.slot(stream) = Some(Reading { stream, pipe: Pipe::Watched(fd), paused }),
            Err(error) => {
                // The kernel has no room for one more watch: output that cannot be read must not hold the process.
                tracing::error!(%error, "a process's output cannot be watched, the process is killed");
                let _ = self
                    .process
                    .step(Input::Stop { cause: StopCause::Cancel, grace: std::time::Duration::ZERO });
                self.stream_ended(stream);
            }
        }
    }

    fn exited(&mut self) {
        self.exited = true;
        let pending = Pending { stdout: unread(self.stdout.as_ref()), stderr: unread(self.stderr.as_ref()) };
        let drain = self.drainer.exited(clock::now(), pending);
        self.check(drain);
        // Most processes have closed their pipes by now: look at once instead of waiting for the reactor to say so.
        self.read(Stream::Stdout);
        self.read(Stream::Stderr);
        // What is still open is held by somebody else.
        self.watch(Stream::Stdout);
        self.watch(Stream::Stderr);
    }

    fn deadline_passed(&mut self) {
        let now = clock::now();
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.timeout_at = None;
            let stop = Input::Stop { cause: StopCause::Timeout, grace: self.process.grace };
            Process(Arc::clone(&self.process)).see_to(self.process.step(stop));
        }
        Process(Arc::clone(&self.process)).see_to(self.process.step(Input::Tick));
        if self.exited && !self.drained {
            let drain = self.drainer.tick(now);
            self.check(drain);
        }
    }

    fn check(&mut self, drain: Drain) {
        match drain {
            Drain::Done(reason) if !self.drained && self.exited => self.end_logs(reason),
            Drain::Done(_) | Drain::Reading | Drain::RootBytes { .. } | Drain::Grace { .. } => return,
        }
        self.drained = true;
        let held = self.stdout.is_some() || self.stderr.is_some();
        self.process.drained(if held { Remains::Lingerers } else { Remains::Nothing });
    }

    /// No byte more is in time. What a lingerer has written until its time was over is more than anybody may ever read.
    fn end_logs(&mut self, reason: DrainReason) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let Some(log) = self.process.log(stream) else { continue };
            match (reason, self.drainer.root_end(stream)) {
                (DrainReason::Limit, Some(root_end)) => log.end_at(root_end, root_end + LINGERING_BYTES),
                (DrainReason::Limit | DrainReason::Eof | DrainReason::Silence, _) => log.end(),
            }
        }
    }

    /// Tells the drain how far the session's reader is: bytes of the root that it has not taken stop the clock, those of a
    /// lingerer do not.
    fn look_at_reader(&mut self) {
        if !self.exited || self.drained {
            return;
        }
        // Before looking: what is taken from here on is told.
        self.process.tell_of_takes();
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(log) = self.process.log(stream) {
                let drain = self.drainer.taken(stream, log.taken(), clock::now());
                self.check(drain);
            }
        }
    }

    /// The end is reported, by us or because the program never ran.
    fn finished(&mut self) {
        self.finished = true;
        if !self.exited {
            self.stdout = None;
            self.stderr = None;
            self.process.stdout.end();
            if let Some(log) = &self.process.stderr {
                log.end();
            }
        }
        self.process.wake_consumer();
    }

    fn read(&mut self, stream: Stream) {
        let mut left = TURN_BYTES;
        while left > 0 {
            match self.read_some(stream) {
                Outcome::Read { bytes, dry } => {
                    left = left.saturating_sub(bytes);
                    self.turn += bytes;
                    let drain = self.drainer.read(stream, bytes as u64, clock::now());
                    self.check(drain);
                    if dry {
                        return;
                    }
                }
                Outcome::Dry => return,
                Outcome::NoRoom => return self.pause(stream),
                Outcome::Ended => return self.stream_ended(stream),
            }
        }
    }

    fn read_some(&mut self, stream: Stream) -> Outcome {
        let process = Arc::clone(&self.process);
        let Some(log) = process.log(stream) else { return Outcome::Dry };
        let timing = if self.drained { Timing::Late } else { Timing::InTime };
        let Some(reading) = self.slot(stream).as_mut() else { return Outcome::Dry };
        let granted = match timing {
            Timing::Late => READ_BYTES,
            Timing::InTime => log.begin_read(READ_BYTES),
        };
        if granted == 0 {
            return Outcome::NoRoom;
        }
        if std::mem::take(&mut reading.paused) {
            let drain = self.drainer.resumed(stream, clock::now());
            self.check(drain);
        }
        let slot = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        slot.as_ref().map_or(Outcome::Dry, |reading| read_once(reading, log, granted, &self.seq, timing))
    }

    fn pause(&mut self, stream: Stream) {
        self.look_at_reader();
        let Some(reading) = self.slot(stream).as_mut() else { return };
        if !std::mem::replace(&mut reading.paused, true) {
            let drain = self.drainer.paused(stream, clock::now());
            self.check(drain);
        }
    }

    fn stream_ended(&mut self, stream: Stream) {
        *self.slot(stream) = None;
        if let Some(log) = self.process.log(stream) {
            if !self.drained {
                log.end();
            }
            log.idle();
        }
        let drain = self.drainer.ended(stream, clock::now());
        self.check(drain);
        if self.drained && self.stdout.is_none() && self.stderr.is_none() && !self.process.has_survivors() {
            let _ = self.process.step(Input::Gone);
        }
    }
}

/// Whether what is read belongs to the output that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    InTime,
    /// It came after the end was reported.
    Late,
}

fn other(stream: Stream) -> Stream {
    match stream {
        Stream::Stdout => Stream::Stderr,
        Stream::Stderr => Stream::Stdout,
    }
}

#[derive(Debug)]
enum Outcome {
    /// So many bytes; `dry` when there are no more for now.
    Read {
        bytes: usize,
        dry: bool,
    },
    Dry,
    /// The quota is used up.
    NoRoom,
    Ended,
}

fn read_once(
    reading: &Reading,
    log: &SharedLog,
    granted: usize,
    seq: &SeqCounter,
    timing: Timing,
) -> Outcome {
    SCRATCH.with_borrow_mut(|scratch| {
        let scratch = &mut scratch[..granted.min(READ_BYTES)];
        let (read, dry) = match &reading.pipe {
            Pipe::Watched(pipe) => read_pipe(pipe, scratch),
            Pipe::Unwatched(pipe) => read_fd(pipe, scratch),
        };
        match read {
            Ok(0) => Outcome::Ended,
            Ok(bytes) if timing == Timing::Late => {
                log.append_late(seq.next(), &scratch[..bytes]);
                Outcome::Read { bytes, dry }
            }
            Ok(bytes) => {
                log.append(seq.next(), &scratch[..bytes]);
                Outcome::Read { bytes, dry }
            }
            Err(Errno::AGAIN) => {
                if timing == Timing::InTime {
                    // The grant goes back.
                    log.append(seq.next(), &[]);
                }
                Outcome::Dry
            }
            Err(error) => {
                tracing::warn!(%error, "reading a process's output has failed");
                Outcome::Ended
            }
        }
    })
}

/// Reads once, and says whether there is nothing more for now. A short read shows that the pipe is empty: the
/// readiness is cleared then and there, without another read that could only say so. What comes later is a new
/// edge for the reactor.
fn read_pipe(pipe: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> (Result<usize, Errno>, bool) {
    let mut outcome = None;
    let _ = pipe.try_io(Interest::READABLE, |fd| {
        let (_, dry) = outcome.insert(read_fd(fd, buffer));
        if *dry { Err(io::ErrorKind::WouldBlock.into()) } else { io::Result::Ok(()) }
    });
    // The reactor may not have said anything yet: after an exit that is not waited for.
    outcome.unwrap_or_else(|| read_fd(pipe.get_ref(), buffer))
}

fn read_fd(fd: &OwnedFd, buffer: &mut [u8]) -> (Result<usize, Errno>, bool) {
    let wanted = buffer.len();
    let read = loop {
        match rustix::io::read(fd, &mut *buffer) {
            Err(Errno::INTR) => {}
            read => break read,
        }
    };
    (read, !matches!(read, Ok(n) if n == wanted || n == 0))
}

/// Bytes that lie in the pipe.
fn unread(reading: Option<&Reading>) -> u64 {
    reading.map_or(0, |r| rustix::io::ioctl_fionread(r.pipe.fd()).unwrap_or(0))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Until the pipe can be read and there is room for what comes, or for ever without a pipe.
async fn readable(reading: Option<&Reading>, process: &Inner) {
    let Some(reading) = reading else { return std::future::pending().await };
    if reading.paused {
        let Some(log) = process.log(reading.stream) else { return std::future::pending().await };
        return room(log).await;
    }
    // The readiness is cleared by whoever reads less than was asked for, see `read_once`.
    let Pipe::Watched(pipe) = &reading.pipe else { return std::future::pending().await };
    match pipe.readable().await {
        Ok(mut guard) => guard.retain_ready(),
        Err(_) => std::future::pending().await,
    }
}

/// Until a read is granted room; the read then asks again for the same.
async fn room(log: &SharedLog) {
    poll_fn(|cx| {
        log.set_room_waker(cx.waker());
        if log.begin_read(READ_BYTES) > 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

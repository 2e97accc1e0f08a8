//! Exit against end of output, as a pure state machine: when has everything been read that belongs to a process?
//!
//! An exit is not the end of output. The bytes that the root wrote may still lie in the pipes, and a descendant may
//! hold the pipes open for hours. So the driver asks at the exit how much lies in each pipe (FIONREAD); what was
//! read before plus that is exactly what the root and its tree had written by then, and all of it is read before
//! the final event, however long the reader takes. After that comes a short grace for what descendants still write.
//!
//! The grace has two clocks. Silence is a sign only while somebody listens, so its clock stands still while reading is
//! held back. The clock of the whole stands still with it, but only while the reader has not taken all that the root
//! wrote: what a descendant adds can be held back for ever by its own flood, and keeps no end from being told.
//!
//! Owns the count of bytes and the grace. It leaves reading, pausing and the final event to the driver and reads no
//! clock: `now` is passed in, and [`Drainer::deadline`] says when to call [`Drainer::tick`].
//!
//! Invariants, each with a test of the same words:
//! - It is done at once when every stream has ended, and never before the root has exited.
//! - It is never done before every byte of the root was read, except where the stream itself ended.
//! - The clocks stand still while reading is paused and bytes of the root are not taken; from then on silence alone
//!   does. No clock runs backwards.
//! - There is a deadline only while the grace is running.
//! - A read that is answered by `Done` is late: it came after the final event. No read finishes a drain.
//!
//! Why it is so: `docs/design/exit.md`.

use std::time::{Duration, Instant};

use crate::capture::Stream;

/// A limit that is longer counts as this long, so that no configuration can make clock arithmetic overflow.
const LONGEST_WAIT: Duration = Duration::from_hours(24 * 365);

/// How long the streams may stay open once every byte of the root was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// This long without a byte ends the wait.
    pub silence: Duration,
    /// This long in all ends the wait, also while bytes keep coming.
    pub total: Duration,
}

impl Default for DrainLimits {
    fn default() -> Self {
        Self { silence: Duration::from_millis(250), total: Duration::from_secs(1) }
    }
}

/// Why the output counts as read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DrainReason {
    /// Every stream has ended.
    Eof,
    /// Somebody holds a stream open and has written nothing for the time allowed.
    Silence,
    /// Somebody holds a stream open and kept writing until the time was over.
    Limit,
}

/// How far the drain is.
#[must_use = "after `Done` the final event is due, and what is read then is late"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The root has not exited.
    Reading,
    /// The root has exited and so many of its bytes are not read yet.
    RootBytes {
        /// Sum over the open streams, at least 1.
        left: u64,
    },
    /// Every byte of the root was read, a descendant may still write.
    Grace {
        /// When the wait is over if nothing more comes; `None` while reading is paused over bytes of the root.
        until: Option<Instant>,
    },
    /// Everything that counts was read.
    Done(DrainReason),
}

/// Bytes that lie unread in the pipes when the root exits, from FIONREAD. Zero for a stream that is not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// What can happen to the reading end of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    /// The process has no such stream, or it has ended.
    Ended,
    Open,
    /// Open, but reading is held back because nobody takes what was read.
    Paused,
}

/// The two streams of one process from its start to the end of its output.
#[derive(Clone, Debug)]
pub struct Drainer {
    limits: DrainLimits,
    stdout: Flow,
    stderr: Flow,
    phase: Phase,
    /// The latest time heard of: an earlier one counts as this.
    now: Option<Instant>,
    /// Since when the clock of silence stands still.
    silence_stopped: Option<Instant>,
    /// Since when that of the whole does.
    limit_stopped: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    pipe: Pipe,
    /// Bytes read so far.
    read: u64,
    /// Bytes read before the exit plus those in the pipe at the exit.
    root_end: u64,
    /// Bytes that the reader has taken of those.
    taken: u64,
}

impl Flow {
    fn new(stream: Stream, streams: &[Stream]) -> Self {
        let pipe = if streams.contains(&stream) { Pipe::Open } else { Pipe::Ended };
        Self { pipe, read: 0, root_end: 0, taken: 0 }
    }

    fn left(&self) -> u64 {
        match self.pipe {
            Pipe::Ended => 0,
            Pipe::Open | Pipe::Paused => self.root_end.saturating_sub(self.read),
        }
    }

    /// Whether the reader has all that the root wrote, as far as that was read.
    fn is_taken(&self) -> bool {
        self.taken >= self.root_end.min(self.read)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reading,
    Root,
    Grace { silent_at: Instant, limit_at: Instant },
    Done(DrainReason),
}

impl Drainer {
    /// A process that was just started with these streams captured; none is possible.
    pub fn new(limits: DrainLimits, streams: &[Stream]) -> Self {
        Self {
            limits,
            stdout: Flow::new(Stream::Stdout, streams),
            stderr: Flow::new(Stream::Stderr, streams),
            phase: Phase::Reading,
            now: None,
            silence_stopped: None,
            limit_stopped: None,
        }
    }

    /// The root has exited, and so much lies in the pipes. Only the first exit counts.
    pub fn exited(&mut self, now: Instant, pending: Pending) -> Drain {
        let now = self.at(now);
        if self.phase == Phase::Reading {
            self.stdout.root_end = self.stdout.read.saturating_add(pending.stdout);
            self.stderr.root_end = self.stderr.read.saturating_add(pending.stderr);
            self.phase = Phase::Root;
        }
        self.advance(now)
    }

    /// So many bytes were read. Answered by `Done`, they came after the end of output; otherwise they belong to it.
    pub fn read(&mut self, stream: Stream, bytes: u64, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        flow.read = flow.read.saturating_add(bytes);
        if let Phase::Grace { limit_at, .. } = self.phase
            && bytes > 0
        {
            let silent_at = after(self.silence_stopped.unwrap_or(now), self.limits.silence);
            self.phase = Phase::Grace { silent_at, limit_at };
        }
        self.advance(now)
    }

    /// The stream has ended, or reading it has failed for good.
    pub fn ended(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        self.flow(stream).pipe = Pipe::Ended;
        self.set_clocks(now);
        self.advance(now)
    }

    /// The reader has taken everything of the stream before `upto`. Only what was said of this when reading is paused
    /// counts: a driver need not say it at any other time.
    pub fn taken(&mut self, stream: Stream, upto: u64, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        flow.taken = flow.taken.max(upto);
        self.set_clocks(now);
        self.advance(now)
    }

    /// Reading of an open stream is held back, because the reader has not taken what was read.
    pub fn paused(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        if flow.pipe == Pipe::Open {
            flow.pipe = Pipe::Paused;
            self.set_clocks(now);
        }
        self.advance(now)
    }

    /// Reading goes on: the clocks too, unless the other stream is paused.
    pub fn resumed(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        if flow.pipe == Pipe::Paused {
            flow.pipe = Pipe::Open;
            self.set_clocks(now);
        }
        self.advance(now)
    }

    /// Time has passed. The only call that ends the grace.
    pub fn tick(&mut self, now: Instant) -> Drain {
        let now = self.at(now);
        if let Phase::Grace { silent_at, limit_at } = self.phase {
            if self.silence_stopped.is_none() && silent_at <= limit_at && silent_at <= now {
                self.phase = Phase::Done(DrainReason::Silence);
            } else if self.limit_stopped.is_none() && limit_at <= now {
                self.phase = Phase::Done(DrainReason::Limit);
            }
        }
        self.advance(now)
    }

    /// When [`Drainer::tick`] is due. A driver whose streams are always readable must look at this between reads.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Grace { silent_at, limit_at } => {
                let silent_at = self.silence_stopped.is_none().then_some(silent_at);
                let limit_at = self.limit_stopped.is_none().then_some(limit_at);
                silent_at.into_iter().chain(limit_at).min()
            }
            Phase::Reading | Phase::Root | Phase::Done(_) => None,
        }
    }

    /// How far it is.
    pub fn state(&self) -> Drain {
        match self.phase {
            Phase::Reading => Drain::Reading,
            Phase::Root => Drain::RootBytes { left: self.left() },
            Phase::Grace { .. } => Drain::Grace { until: self.deadline() },
            Phase::Done(reason) => Drain::Done(reason),
        }
    }

    /// Whether every stream has ended: after `Done` by silence or limit this comes when the last lingerer lets go.
    pub fn has_ended(&self) -> bool {
        (self.stdout.pipe, self.stderr.pipe) == (Pipe::Ended, Pipe::Ended)
    }

    /// Offset in the stream behind the last byte that was written before the root exited; `None` before the exit.
    pub fn root_end(&self, stream: Stream) -> Option<u64> {
        let flow = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        match self.phase {
            Phase::Reading => None,
            Phase::Root | Phase::Grace { .. } | Phase::Done(_) => Some(flow.root_end),
        }
    }

    /// Moves on as far as the facts allow without time passing.
    fn advance(&mut self, now: Instant) -> Drain {
        match self.phase {
            Phase::Root | Phase::Grace { .. } if self.has_ended() => {
                self.phase = Phase::Done(DrainReason::Eof)
            }
            Phase::Root if self.left() == 0 => self.start_grace(now),
            Phase::Reading | Phase::Root | Phase::Grace { .. } | Phase::Done(_) => {}
        }
        self.state()
    }

    fn start_grace(&mut self, now: Instant) {
        // A pause that began earlier must not be added to a grace that begins now.
        self.silence_stopped = None;
        self.limit_stopped = None;
        self.set_clocks(now);
        self.phase = Phase::Grace {
            silent_at: after(now, self.limits.silence),
            limit_at: after(now, self.limits.total),
        };
    }

    /// Stops the clocks that have to stand still, and lets the others run: what was due moves by the length of the stop.
    fn set_clocks(&mut self, now: Instant) {
        let paused = self.stdout.pipe == Pipe::Paused || self.stderr.pipe == Pipe::Paused;
        let held = paused && !(self.stdout.is_taken() && self.stderr.is_taken());
        if paused {
            self.silence_stopped.get_or_insert(now);
        }
        if held {
            self.limit_stopped.get_or_insert(now);
        }
        let stood_still = |since: Option<Instant>| since.map_or(Duration::ZERO, |at| now - at);
        let silence_stop = stood_still(self.silence_stopped.take_if(|_| !paused));
        let limit_stop = stood_still(self.limit_stopped.take_if(|_| !held));
        if let Phase::Grace { silent_at, limit_at } = &mut self.phase {
            *silent_at = after(*silent_at, silence_stop);
            *limit_at = after(*limit_at, limit_stop);
        }
    }

    fn at(&mut self, now: Instant) -> Instant {
        let latest = self.now.map_or(now, |before| before.max(now));
        self.now = Some(latest);
        latest
    }

    fn left(&self) -> u64 {
        self.stdout.left().saturating_add(self.stderr.left())
    }

    fn flow(&mut self, stream: Stream) -> &mut Flow {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

fn after(start: Instant, wait: Duration) -> Instant {
    start + wait.min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests;

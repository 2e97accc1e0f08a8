//! Exit against end of output, as a pure state machine: when has everything been read that belongs to a process?
//!
//! An exit is not the end of output. The bytes that the root wrote may still lie in the pipes, and a descendant may
//! hold the pipes open for hours. So the driver asks at the exit how much lies in each pipe (FIONREAD); what was
//! read before plus that is exactly what the root and its tree had written by then, and all of it is read before
//! the final event, however long the reader takes. After that comes a short grace for what descendants still write.
//!
//! Owns the count of bytes and the grace. It leaves reading, pausing and the final event to the driver and reads no
//! clock: `now` is passed in, and [`Drainer::deadline`] says when to call [`Drainer::tick`].
//!
//! Invariants, each with a test of the same words:
//! - It is done at once when every stream has ended, and never before the root has exited.
//! - It is never done before every byte of the root was read, except where the stream itself ended.
//! - The clock stands still while reading is paused, and never runs backwards.
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
        /// When the wait is over if nothing more comes; `None` while reading is paused.
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
    /// Since when the clock stands still.
    paused_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    pipe: Pipe,
    /// Bytes read so far.
    read: u64,
    /// Bytes read before the exit plus those in the pipe at the exit.
    root_end: u64,
}

impl Flow {
    fn new(stream: Stream, streams: &[Stream]) -> Self {
        let pipe = if streams.contains(&stream) { Pipe::Open } else { Pipe::Ended };
        Self { pipe, read: 0, root_end: 0 }
    }

    fn left(&self) -> u64 {
        match self.pipe {
            Pipe::Ended => 0,
            Pipe::Open | Pipe::Paused => self.root_end.saturating_sub(self.read),
        }
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
            paused_at: None,
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
            self.phase = Phase::Grace { silent_at: after(self.clock(now), self.limits.silence), limit_at };
        }
        self.advance(now)
    }

    /// The stream has ended, or reading it has failed for good.
    pub fn ended(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        self.flow(stream).pipe = Pipe::Ended;
        self.resume_clock(now);
        self.advance(now)
    }

    /// Reading of an open stream is held back: the clock stands still from here.
    pub fn paused(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        if flow.pipe == Pipe::Open {
            flow.pipe = Pipe::Paused;
            self.paused_at.get_or_insert(now);
        }
        self.advance(now)
    }

    /// Reading goes on: the clock too, unless the other stream is paused.
    pub fn resumed(&mut self, stream: Stream, now: Instant) -> Drain {
        let now = self.at(now);
        let flow = self.flow(stream);
        if flow.pipe == Pipe::Paused {
            flow.pipe = Pipe::Open;
            self.resume_clock(now);
        }
        self.advance(now)
    }

    /// Time has passed. The only call that ends the grace.
    pub fn tick(&mut self, now: Instant) -> Drain {
        let now = self.at(now);
        if let Phase::Grace { silent_at, limit_at } = self.phase
            && self.paused_at.is_none()
        {
            if silent_at <= limit_at && silent_at <= now {
                self.phase = Phase::Done(DrainReason::Silence);
            } else if limit_at <= now {
                self.phase = Phase::Done(DrainReason::Limit);
            }
        }
        self.advance(now)
    }

    /// When [`Drainer::tick`] is due. A driver whose streams are always readable must look at this between reads.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Grace { silent_at, limit_at } if self.paused_at.is_none() => Some(silent_at.min(limit_at)),
            Phase::Reading | Phase::Root | Phase::Grace { .. } | Phase::Done(_) => None,
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
        self.paused_at = self.paused_at.map(|_| now);
        self.phase = Phase::Grace {
            silent_at: after(now, self.limits.silence),
            limit_at: after(now, self.limits.total),
        };
    }

    /// Lets the clock run again if nothing is paused any more: what was due moves by the length of the pause.
    fn resume_clock(&mut self, now: Instant) {
        if self.stdout.pipe == Pipe::Paused || self.stderr.pipe == Pipe::Paused {
            return;
        }
        let Some(paused_at) = self.paused_at.take() else { return };
        if let Phase::Grace { silent_at, limit_at } = self.phase {
            let pause = now.saturating_duration_since(paused_at);
            self.phase =
                Phase::Grace { silent_at: after(silent_at, pause), limit_at: after(limit_at, pause) };
        }
    }

    /// The time on the clock that a pause stops.
    fn clock(&self, now: Instant) -> Instant {
        self.paused_at.unwrap_or(now)
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

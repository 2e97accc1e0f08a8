//! One stream of one process: what is kept of it, where, and how much is missing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;

use super::budget::Budget;
use super::disk::Disk;
use super::index::{Index, Run};
use super::record::Record;
use super::relay::Relay;
use super::ring::{BufferPool, Ring};
use super::{CaptureState, Dropped, Seq, Stream, Totals, count_lines};

/// What a log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Keep everything up to the quota, then head and tail.
    Record,
    /// Lose nothing: what the owner has not taken holds the process back at the quota.
    Relay,
}

/// How to make a log.
#[derive(Debug)]
pub struct LogOptions {
    /// Which stream.
    pub stream: Stream,
    /// Which policy.
    pub policy: Policy,
    /// Bytes of the ring, at most.
    pub buffer_bytes: usize,
    /// Where the ring's buffers come from and go to.
    pub pool: Arc<BufferPool>,
    /// The process's account; both of its streams share it.
    pub account: Arc<Budget>,
    /// Where spool files lie; `None`: nowhere, the ring is all there is.
    pub disk: Option<Arc<dyn Disk>>,
    /// The file's name in that folder, unique there; a relay adds a dot and a number for each of its files.
    pub name: String,
}

/// The captured output of one stream.
///
/// Dropping it removes its files and gives its quota back: whoever promises an artifact keeps the log.
#[derive(Debug)]
pub struct Log {
    stream: Stream,
    core: Core,
    policy: Inner,
}

#[derive(Debug)]
enum Inner {
    Record(Record),
    Relay(Relay),
}

/// What both policies have.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) ring: Ring,
    pub(super) index: Index,
    /// Offset after the last byte.
    pub(super) end: u64,
    pub(super) lines: u64,
    /// Offset after the last newline.
    line_end: u64,
    late_bytes: u64,
    ended: bool,
    pub(super) account: Arc<Budget>,
    /// Bytes reserved in the account.
    pub(super) reserved: u64,
    pub(super) room_waker: Waker,
}

impl Core {
    /// Counts bytes in. Returns how many bytes the index has grown.
    pub(super) fn count(&mut self, seq: Seq, bytes: &[u8]) -> u64 {
        if let Some(at) = memchr::memrchr(b'\n', bytes) {
            self.line_end = self.end + at as u64 + 1;
            self.lines += count_lines(&bytes[..=at]);
        }
        self.end += bytes.len() as u64;
        self.index.push(seq, self.end)
    }

    /// Newlines in the ring.
    pub(super) fn ring_lines(&self) -> u64 {
        let (a, b) = self.ring.slices(self.ring.start(), self.ring.end());
        count_lines(a) + count_lines(b)
    }

    /// Makes the account hold no more than `needed` bytes for this log.
    pub(super) fn settle(&mut self, needed: u64) {
        debug_assert!(self.reserved >= needed, "held without a reservation");
        let excess = self.reserved.saturating_sub(needed);
        self.reserved -= excess;
        self.account.release(excess);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.settle(0);
    }
}

/// What a log looks like at the moment, cheap to get and to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Offset after the last byte.
    pub end: u64,
    /// Offset after the last newline: a reader of lines beyond it has nothing to do unless `full` or `ended`.
    pub line_end: u64,
    /// No byte will come any more.
    pub ended: bool,
    /// Relay: reading is paused, so a line that is not complete will not become so; send it in pieces.
    pub full: bool,
}

/// A slice of a log, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum View<T> {
    /// Bytes from the asked offset on, never none: a slice, or how many were copied.
    Bytes(T),
    /// The asked offset is not kept any more, or cannot be read any more.
    Hole(Hole),
    /// Nothing yet.
    Pending,
    /// Nothing more.
    End,
}

/// Bytes that a reader cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The offset at which reading can go on.
    pub to: u64,
    /// Newlines from the beginning of the stream up to there, when that is known: always in a record.
    pub lines_before: Option<u64>,
}

/// Bytes that are there could not be read now; they are not lost and may be asked for again.
#[derive(Debug, thiserror::Error)]
#[error("failed to read back captured output")]
pub struct ReadError(#[from] io::Error);

/// What the files could give.
#[derive(Debug)]
pub(super) enum Stored {
    /// So many bytes.
    Bytes(usize),
    /// Nothing up to this offset.
    Hole { to: u64 },
}

impl Log {
    /// A log without bytes. Nothing is allocated in memory or on disk before the first byte.
    pub fn new(options: LogOptions) -> Self {
        let LogOptions { stream, policy, buffer_bytes, pool, account, disk, name } = options;
        let policy = match policy {
            Policy::Record => Inner::Record(Record::new(disk, name)),
            Policy::Relay => Inner::Relay(Relay::new(disk, name, account.limit())),
        };
        let core = Core {
            ring: Ring::new(buffer_bytes, pool),
            index: Index::default(),
            end: 0,
            lines: 0,
            line_end: 0,
            late_bytes: 0,
            ended: false,
            account,
            reserved: 0,
            room_waker: Waker::noop().clone(),
        };
        Self { stream, core, policy }
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// `waker` is called when room comes up after [`begin_read`](Self::begin_read) has said 0. It may be called while
    /// a log is locked, so it must only schedule, as the wakers of every runtime do.
    pub fn set_room_waker(&mut self, waker: &Waker) {
        self.core.room_waker.clone_from(waker);
        if let Inner::Relay(relay) = &self.policy {
            relay.set_room_waker(waker);
        }
    }

    /// Asks for room before a read of at most `max` bytes; returns how many bytes may be read. 0 means: read
    /// nothing until the room waker is called. A record never says 0.
    #[must_use]
    pub fn begin_read(&mut self, max: usize) -> usize {
        match &mut self.policy {
            Inner::Record(_) => max,
            Inner::Relay(_) if self.core.ended => 0,
            Inner::Relay(relay) if relay.is_closed() => max,
            Inner::Relay(relay) => relay.begin_read(&mut self.core, max),
        }
    }

    /// Appends what was read; room that was granted and not used goes back. An empty slice: the read brought
    /// nothing. Returns how many bytes were taken: all, or in a relay at most as many as were granted, and none once it
    /// is closed.
    pub fn append(&mut self, seq: Seq, bytes: &[u8]) -> usize {
        match &mut self.policy {
            Inner::Record(record) => record.append(&mut self.core, seq, bytes),
            Inner::Relay(relay) => relay.append(&mut self.core, seq, bytes),
        }
    }

    /// What a process's leftovers print after its final event: a record keeps it, a relay counts and drops it.
    pub fn append_late(&mut self, seq: Seq, bytes: &[u8]) {
        self.core.late_bytes += bytes.len() as u64;
        match &mut self.policy {
            Inner::Record(record) => {
                record.append(&mut self.core, seq, bytes);
            }
            Inner::Relay(relay) => relay.discard(bytes),
        }
    }

    /// The stream has ended.
    pub fn end(&mut self) {
        self.core.ended = true;
        match &mut self.policy {
            Inner::Record(_) => {}
            Inner::Relay(relay) => relay.end(&mut self.core),
        }
    }

    /// Relay: the owner has everything before `upto`; the space is given back.
    pub fn take(&mut self, upto: u64) {
        match &mut self.policy {
            Inner::Record(_) => {}
            Inner::Relay(relay) => relay.take(&mut self.core, upto),
        }
    }

    /// The owner has everything before this offset; of a record it is never asked to take anything.
    pub fn taken(&self) -> u64 {
        match &self.policy {
            Inner::Record(_) => self.core.end,
            Inner::Relay(relay) => relay.taken(),
        }
    }

    /// Relay: drops what the owner has not taken beyond `least`, but for what is before `most` up to the last line end
    /// there. Whatever is dropped is counted, and nothing may be appended any more.
    pub fn cut(&mut self, least: u64, most: u64) {
        let (least, most) = (least.max(self.taken()), most.max(self.taken()));
        if most >= self.core.end {
            return;
        }
        // What cannot be read to find that out is found to be lost by whoever reads it.
        let Some(line_end) = self.last_line_end(most) else { return };
        let at = if line_end > least { line_end } else { most };
        match &mut self.policy {
            Inner::Record(_) => return,
            Inner::Relay(relay) => relay.forget_from(&mut self.core, at),
        }
        self.core.line_end = line_end;
    }

    /// The offset after the last newline before `upto` that is not taken; without one, what is taken ends there.
    fn last_line_end(&mut self, upto: u64) -> Option<u64> {
        let taken = self.taken();
        let mut piece = vec![0; 65_536];
        let mut end = upto;
        while end > taken {
            let start = end.saturating_sub(piece.len() as u64).max(taken);
            let bytes = &mut piece[..usize::try_from(end - start).unwrap_or(0)];
            match self.fill(start, bytes) {
                Ok(Stored::Bytes(n)) if n == bytes.len() => {}
                Ok(_) | Err(_) => return None,
            }
            if let Some(at) = memchr::memrchr(b'\n', bytes) {
                return Some(start + at as u64 + 1);
            }
            end = start;
        }
        Some(taken)
    }

    /// Nothing to read or write for now: drops memory that holds nothing that is needed.
    pub fn idle(&mut self) {
        self.core.index.shrink();
        match &mut self.policy {
            Inner::Record(record) => record.idle(&mut self.core),
            Inner::Relay(relay) => relay.idle(&mut self.core),
        }
    }

    /// The owner has gone for good. A record has none and goes on. A relay holds nothing back any more: what it held and
    /// what still comes is counted as dropped.
    pub fn close(&mut self) {
        match &mut self.policy {
            Inner::Record(_) => {}
            Inner::Relay(relay) => {
                relay.close(&mut self.core);
                self.idle();
            }
        }
    }

    /// Where the log stands.
    pub fn status(&self) -> Status {
        let full = match &self.policy {
            Inner::Record(_) => false,
            Inner::Relay(relay) => relay.is_full(&self.core),
        };
        Status { end: self.core.end, line_end: self.core.line_end, ended: self.core.ended, full }
    }

    /// Relay: whether another process waits for room in an account that this log has bytes in. An owner that has
    /// taken all complete lines of its logs then sends the incomplete ones in pieces, or that process waits for
    /// theirs to end.
    pub fn holds_others_back(&self) -> bool {
        match &self.policy {
            Inner::Record(_) => false,
            Inner::Relay(_) => self.core.reserved > 0 && self.core.account.is_contended(),
        }
    }

    /// The run of reads that brought the byte at `offset`; `None` when it is not there or not kept any more.
    /// Among the logs of a process, the smaller number was read first.
    pub fn run_at(&self, offset: u64) -> Option<Run> {
        let head = match &self.policy {
            Inner::Record(record) => record.head_run_at(offset),
            Inner::Relay(_) => None,
        };
        head.or_else(|| self.core.index.at(offset))
    }

    /// The counts so far.
    pub fn totals(&self) -> Totals {
        let (mut dropped, discarded) = match &self.policy {
            Inner::Record(record) => (record.dropped(&self.core), Dropped::NOTHING),
            Inner::Relay(relay) => (relay.dropped(), relay.discarded()),
        };
        dropped.add(discarded.bytes, discarded.lines);
        Totals {
            bytes: self.core.end + discarded.bytes,
            lines: self.core.lines + discarded.lines.unwrap_or(0),
            dropped,
            late_bytes: self.core.late_bytes,
            state: self.state(),
        }
    }

    /// The verdict alone, without counting.
    pub fn state(&self) -> CaptureState {
        match &self.policy {
            Inner::Record(record) => record.state(),
            Inner::Relay(relay) => relay.state(),
        }
    }

    /// Record: the file that holds the head of the output, once there is one.
    pub fn artifact_path(&self) -> Option<PathBuf> {
        match &self.policy {
            Inner::Record(record) => record.path(),
            Inner::Relay(_) => None,
        }
    }

    /// The bytes from `from` on, `max` at most (0 counts as 1) and as many as there are without a hole, in one
    /// slice: lent from the ring when they lie there in one piece, otherwise copied into `scratch`, which only grows.
    ///
    /// # Errors
    /// When bytes that are on the disk cannot be read now; ask again later.
    pub fn view<'a>(
        &'a mut self,
        from: u64,
        max: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<View<&'a [u8]>, ReadError> {
        if from >= self.core.end {
            return Ok(if self.core.ended { View::End } else { View::Pending });
        }
        if let Some(to) = self.broken_at(from) {
            return Ok(View::Hole(self.hole(to)));
        }
        let want = usize::try_from(self.core.end - from).unwrap_or(usize::MAX).min(max.max(1));
        if from >= self.core.ring.start() && self.core.ring.slices(from, from + want as u64).1.is_empty() {
            return Ok(View::Bytes(self.core.ring.slices(from, from + want as u64).0));
        }
        if scratch.len() < want {
            scratch.resize(want, 0);
        }
        let filled = self.fill(from, &mut scratch[..want])?;
        Ok(match filled {
            Stored::Bytes(n) => View::Bytes(&scratch[..n]),
            Stored::Hole { to } => View::Hole(self.hole(to)),
        })
    }

    /// As [`view`](Self::view), copied into `buffer`, which must not be empty.
    ///
    /// # Errors
    /// As `view`.
    pub fn copy(&mut self, from: u64, buffer: &mut [u8]) -> Result<View<usize>, ReadError> {
        if from >= self.core.end {
            return Ok(if self.core.ended { View::End } else { View::Pending });
        }
        if let Some(to) = self.broken_at(from) {
            return Ok(View::Hole(self.hole(to)));
        }
        let want = usize::try_from(self.core.end - from).unwrap_or(usize::MAX).min(buffer.len());
        Ok(match self.fill(from, &mut buffer[..want])? {
            Stored::Bytes(n) => View::Bytes(n),
            Stored::Hole { to } => View::Hole(self.hole(to)),
        })
    }

    /// Bytes of memory that the ring uses.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.core.ring.memory()
    }

    /// Bytes of memory that the index of the ring's bytes uses.
    #[cfg(test)]
    pub(super) fn index_memory(&self) -> u64 {
        self.core.index.len() as u64 * super::RUN_BYTES
    }

    fn broken_at(&self, offset: u64) -> Option<u64> {
        match &self.policy {
            Inner::Record(_) => None,
            Inner::Relay(relay) => relay.broken_at(offset),
        }
    }

    fn hole(&self, to: u64) -> Hole {
        let lines_before = match &self.policy {
            Inner::Record(_) if to == self.core.ring.start() => {
                Some(self.core.lines - self.core.ring_lines())
            }
            Inner::Record(_) | Inner::Relay(_) => None,
        };
        Hole { to, lines_before }
    }

    /// Fills `bytes`, which end at or before the log's end, from the files and the ring.
    fn fill(&mut self, from: u64, bytes: &mut [u8]) -> Result<Stored, ReadError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let at = from + filled as u64;
            let rest = &mut bytes[filled..];
            if at >= self.core.ring.start() {
                let (a, b) = self.core.ring.slices(at, at + rest.len() as u64);
                rest[..a.len()].copy_from_slice(a);
                rest[a.len()..].copy_from_slice(b);
                return Ok(Stored::Bytes(bytes.len()));
            }
            let stored = match &mut self.policy {
                Inner::Record(record) => record.read(&mut self.core, at, rest),
                Inner::Relay(relay) => relay.read(&self.core, at, rest),
            };
            match stored {
                Ok(Stored::Bytes(n)) if n > 0 => filled += n,
                // What was read before is handed out first; the next call meets this again.
                Ok(_) | Err(_) if filled > 0 => return Ok(Stored::Bytes(filled)),
                Ok(Stored::Bytes(_)) => return Ok(Stored::Hole { to: self.core.ring.start() }),
                Ok(Stored::Hole { to }) => return Ok(Stored::Hole { to }),
                Err(error) => return Err(ReadError(error)),
            }
        }
        Ok(Stored::Bytes(filled))
    }
}

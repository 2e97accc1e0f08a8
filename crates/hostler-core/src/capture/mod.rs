//! Capture: what a process prints, from the pipe to its readers.
//!
//! Each stream of a process has one [`Log`]. A log owns a small ring of the newest bytes, a [spool](Disk) of files
//! for what the ring cannot hold, an index of reads, and the exact counts of what came in and what was dropped. It
//! never reads a pipe, never waits and reads no clock: the driver of the process asks for room, reads, appends;
//! readers ask for slices by offset ([`SharedLog`](crate::SharedLog) shares a log among them).
//!
//! Two [policies](Policy), never mixed:
//! - **Record** keeps every byte in one file until the quota, then the head in the file, the tail in the ring, and
//!   counts the middle to the byte and to the line. It never holds a process back.
//! - **Relay** loses nothing: room is granted before a read, and what is not granted stays in the pipe. The quota
//!   counts what the owner has not taken; taken bytes are given back, by whole segment files.
//!
//! Invariants, each with a test of the same wording:
//! - bytes in = bytes delivered + bytes counted as dropped, in order, whatever the disk does;
//! - relay never holds more than its quota, and a reader that keeps up costs no disk;
//! - head + gap + tail of a record are its input;
//! - an account never exceeds its limit and never leaks.
//!
//! Why it is so: `docs/design/relay.md`.

mod budget;
mod disk;
mod index;
mod log;
mod record;
mod relay;
mod ring;
mod segments;
mod spool;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

pub use budget::{Budget, Claim, Claimed};
pub use disk::{Disk, DiskFile, FolderDisk};
pub use index::Run;
pub use log::{Hole, Log, LogOptions, Policy, ReadError, Status, View};
pub use ring::BufferPool;
pub use spool::{Spool, SpoolView};

/// Bytes of quota that one entry of the index of reads costs: its memory.
pub const RUN_BYTES: u64 = 16;

/// One of the two output streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// File descriptor 1, and 2 as well when they are merged.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// The number of one read of a process's output, over both of its streams: smaller means earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The number as such; the first read of a process is 0.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Hands out [`Seq`]s; one counter for each process.
#[derive(Debug, Default)]
pub struct SeqCounter(AtomicU64);

impl SeqCounter {
    /// The number of the next read.
    pub fn next(&self) -> Seq {
        Seq(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// How whole the output is that a log has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureState {
    /// Nothing was dropped, and a disk stands behind the ring.
    Complete,
    /// Record: a quota was reached; the file holds the head.
    Limited,
    /// The disk was full or failed; record: the file holds the head; relay: bytes on the disk became unreadable.
    Failed,
    /// No folder can be written on this machine: the ring is all there is.
    RingOnly,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Bytes.
    pub bytes: u64,
    /// Newlines among these bytes. `None` when they were on a disk that can no longer be read, or when a relay was
    /// closed, or cut, over bytes that nobody had taken.
    pub lines: Option<u64>,
}

impl Dropped {
    /// Nothing was dropped.
    pub const NOTHING: Self = Self { bytes: 0, lines: Some(0) };

    fn add(&mut self, bytes: u64, lines: Option<u64>) {
        self.bytes += bytes;
        self.lines = self.lines.zip(lines).map(|(a, b)| a + b);
    }
}

/// The counts of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that came in, late ones included.
    pub bytes: u64,
    /// Newlines among them.
    pub lines: u64,
    /// Those that no reader can have any more and the owner has not taken.
    pub dropped: Dropped,
    /// Bytes that came after the process's final event, from what it left behind.
    pub late_bytes: u64,
    /// The verdict.
    pub state: CaptureState,
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

//! The policy that loses nothing: room is granted before a read, and space behind the owner is given back.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use super::budget::{Claim, Claimed};
use super::disk::Disk;
use super::log::{Core, Stored};
use super::segments::{SegmentRead, Segments};
use super::{CaptureState, Dropped, RUN_BYTES, Seq, count_lines};

/// A segment file is a sixteenth of the process's quota, so that space comes back in good time, within these bounds.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 65_536..=1_048_576;

/// The file side of a relay.
///
/// Every byte that the owner has not taken is in the ring or in a segment; `append` never needs the disk, because
/// `begin_read` has moved the ring's content there before it grants room.
#[derive(Debug)]
pub(super) struct Relay {
    segments: Segments,
    /// The owner has everything before this offset.
    taken: u64,
    /// Room promised to the read that is going on.
    granted: usize,
    pause: Option<Pause>,
    dropped: Dropped,
    /// What came and was never held: after the final event, or after the owner had gone.
    discarded: Dropped,
    /// The owner has gone.
    closed: bool,
    /// Bytes on the disk could not be read.
    failed: bool,
    /// The latest write to the disk failed; said once in the log until one works again.
    disk_is_down: bool,
}

/// Why reading is paused.
#[derive(Debug)]
enum Pause {
    /// An account is full.
    Account(Claim),
    /// The ring is full and the disk takes nothing.
    Ring,
}

impl Relay {
    pub(super) fn new(disk: Option<Arc<dyn Disk>>, name: String, quota: u64) -> Self {
        let segment_bytes = (quota / 16).clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
        Self {
            segments: Segments::new(disk, name, segment_bytes),
            taken: 0,
            granted: 0,
            pause: None,
            dropped: Dropped::NOTHING,
            discarded: Dropped::NOTHING,
            closed: false,
            failed: false,
            disk_is_down: false,
        }
    }

    pub(super) fn set_room_waker(&self, waker: &Waker) {
        if let Some(Pause::Account(claim)) = &self.pause {
            claim.set_waker(waker);
        }
    }

    pub(super) fn begin_read(&mut self, core: &mut Core, max: usize) -> usize {
        if max == 0 {
            self.take_back_grant(core);
            return 0;
        }
        // Given back for a moment, it would go to whoever waits. The two streams of a process, each asking once when it
        // has room and once more when it reads, would hand it to and fro for ever and never read.
        if self.granted > 0 {
            return self.granted.min(max);
        }
        let want = max as u64 + RUN_BYTES;
        let reserved = match self.pause.take() {
            Some(Pause::Account(claim)) => match claim.settle() {
                Ok(granted) => granted + core.account.reserve(want.saturating_sub(granted)),
                Err(claim) => {
                    self.pause = Some(Pause::Account(claim));
                    return 0;
                }
            },
            Some(Pause::Ring) | None => match core.account.claim(want, RUN_BYTES + 1, &core.room_waker) {
                Claimed::Now(granted) => granted,
                Claimed::Waiting(claim) => {
                    self.pause = Some(Pause::Account(claim));
                    return 0;
                }
            },
        };
        core.reserved += reserved;
        let usable = usize::try_from(reserved - RUN_BYTES).unwrap_or(usize::MAX).min(max);
        self.granted = usable.min(self.make_room(core, usable));
        if self.granted == 0 {
            self.pause = Some(Pause::Ring);
        }
        self.settle(core);
        self.granted
    }

    pub(super) fn append(&mut self, core: &mut Core, seq: Seq, bytes: &[u8]) -> usize {
        if self.closed {
            self.discard(bytes);
            return 0;
        }
        let bytes = &bytes[..bytes.len().min(self.granted)];
        self.granted = 0;
        if !bytes.is_empty() {
            let nothing_is_held = self.unsaved(core) == 0;
            core.count(seq, bytes);
            if nothing_is_held {
                core.ring.push_afresh(bytes);
            } else {
                core.ring.push(bytes);
            }
        }
        self.settle(core);
        bytes.len()
    }

    pub(super) fn discard(&mut self, bytes: &[u8]) {
        self.discarded.add(bytes.len() as u64, Some(count_lines(bytes)));
    }

    pub(super) fn end(&mut self, core: &mut Core) {
        self.pause = None;
        self.take_back_grant(core);
    }

    pub(super) fn take(&mut self, core: &mut Core, upto: u64) {
        let upto = upto.min(core.end);
        if upto <= self.taken {
            return;
        }
        self.taken = upto;
        self.segments.release_before(upto);
        core.index.forget_before(upto);
        self.settle(core);
        if self.pause.take_if(|pause| matches!(pause, Pause::Ring)).is_some() {
            core.room_waker.wake_by_ref();
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn idle(&mut self, core: &mut Core) {
        self.segments.idle();
        if self.unsaved(core) == 0 {
            core.ring.clear();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn close(&mut self, core: &mut Core) {
        self.closed = true;
        self.take_back_grant(core);
        if self.pause.take().is_some() {
            core.room_waker.wake_by_ref();
        }
        let left = core.end - self.taken;
        if left > 0 {
            // Bytes that were counted as unreadable before are not counted twice.
            let unreadable = self.segments.unreadable_from(self.taken);
            self.dropped.add(left - unreadable, None);
            self.take(core, core.end);
        }
    }

    /// Drops the bytes from `at` on, which nobody has taken.
    pub(super) fn forget_from(&mut self, core: &mut Core, at: u64) {
        let unreadable = self.segments.unreadable_from(at);
        self.dropped.add(core.end - at - unreadable, None);
        core.ring.forget_from(at);
        self.segments.forget_from(at);
        // The rest of what they are in may have been taken long ago.
        self.segments.release_before(self.taken);
        core.index = core.index.split_before(at);
        core.index.forget_before(self.taken);
        core.end = at;
        self.settle(core);
    }

    /// Reads bytes before the ring's start.
    pub(super) fn read(&mut self, core: &Core, from: u64, bytes: &mut [u8]) -> io::Result<Stored> {
        let first = self.segments.start().unwrap_or(u64::MAX).min(core.ring.start());
        if from < first {
            return Ok(Stored::Hole { to: first });
        }
        match self.segments.read(from, bytes)? {
            SegmentRead::Bytes(n) => Ok(Stored::Bytes(n)),
            SegmentRead::Broken { to } => Ok(Stored::Hole { to }),
            SegmentRead::NewlyBroken { to, error } => {
                tracing::warn!(%error, from, to, "failed to read back spooled output; it is lost");
                self.failed = true;
                self.dropped.add(to - from.max(self.taken).min(to), None);
                Ok(Stored::Hole { to })
            }
        }
    }

    /// Where the unreadable bytes around this offset end. They count as dropped, so nobody gets them from the ring
    /// either, where the end of them may still be.
    pub(super) fn broken_at(&self, offset: u64) -> Option<u64> {
        if self.failed { self.segments.broken_at(offset) } else { None }
    }

    /// Whether the process waits for the owner to take something.
    pub(super) fn is_full(&self, core: &Core) -> bool {
        match &self.pause {
            Some(Pause::Account(claim)) => !claim.is_granted(),
            Some(Pause::Ring) => self.unsaved(core) >= core.ring.max(),
            None => false,
        }
    }

    pub(super) fn dropped(&self) -> Dropped {
        self.dropped
    }

    pub(super) fn discarded(&self) -> Dropped {
        self.discarded
    }

    pub(super) fn state(&self) -> CaptureState {
        if self.failed {
            CaptureState::Failed
        } else if self.segments.has_disk() {
            CaptureState::Complete
        } else {
            CaptureState::RingOnly
        }
    }

    /// Bytes for which the ring is the only place.
    fn unsaved(&self, core: &Core) -> usize {
        (core.end - self.taken.max(self.segments.end())) as usize
    }

    /// Bytes that may be appended to the ring; moves its content to the disk when there would be few.
    fn make_room(&mut self, core: &Core, want: usize) -> usize {
        let max = core.ring.max();
        if max - self.unsaved(core) < want.min((max / 4).max(1)) {
            self.spill(core);
        }
        max - self.unsaved(core)
    }

    fn spill(&mut self, core: &Core) {
        if !self.segments.has_disk() {
            return;
        }
        let from = self.taken.max(self.segments.end());
        let (a, b) = core.ring.slices(from, core.end);
        let spilled =
            self.segments.append(from, a).and_then(|()| self.segments.append(from + a.len() as u64, b));
        if let Some(error) = spilled.as_ref().err().filter(|_| !self.disk_is_down) {
            tracing::warn!(%error, "failed to spool output; a process with a slow reader waits until this works again");
        }
        self.disk_is_down = spilled.is_err();
    }

    fn take_back_grant(&mut self, core: &mut Core) {
        if self.granted > 0 {
            self.granted = 0;
            self.settle(core);
        }
    }

    /// The account holds: what the owner has not taken, from the start of the oldest file on; the index; the grant.
    fn settle(&self, core: &mut Core) {
        let held_from = self.segments.start().unwrap_or(self.taken).min(self.taken);
        let grant = if self.granted > 0 { self.granted as u64 + RUN_BYTES } else { 0 };
        core.settle(core.end - held_from + core.index.len() as u64 * RUN_BYTES + grant);
    }
}

//! The spool of a relay: bytes that wait for their reader, in files that are removed behind it.
//!
//! A segment keeps the descriptor that made its file for as long as it holds bytes: what becomes of the name, the folder
//! or the mount meanwhile is nothing to the bytes. A log that nobody waits for has no segment.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, is_cut, is_passing, read_some, write_all};

/// A queue of files that holds the bytes `[start, end)` of a log.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Option<Arc<dyn Disk>>,
    name: String,
    segment_bytes: u64,
    live: VecDeque<Segment>,
    next_number: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    file: Box<dyn DiskFile>,
    start: u64,
    len: u64,
    /// From this offset on its bytes cannot be read.
    broken_from: Option<u64>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// What a read from the segments gave.
#[derive(Debug)]
pub(super) enum SegmentRead {
    /// So many bytes.
    Bytes(usize),
    /// The bytes up to this offset cannot be read, as was found before.
    Broken { to: u64 },
    /// The same, found now.
    NewlyBroken { to: u64, error: io::Error },
}

impl Segments {
    pub(super) fn new(disk: Option<Arc<dyn Disk>>, name: String, segment_bytes: u64) -> Self {
        let segment_bytes = segment_bytes.max(1);
        Self { disk, name, segment_bytes, live: VecDeque::new(), next_number: 0 }
    }

    /// Whether there is a disk at all.
    pub(super) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// The first byte on the disk; `None` when there is none.
    pub(super) fn start(&self) -> Option<u64> {
        self.live.front().map(|segment| segment.start)
    }

    /// The offset after the last byte on the disk; 0 when there is none.
    pub(super) fn end(&self) -> u64 {
        self.live.back().map_or(0, Segment::end)
    }

    /// Appends bytes of the log that begin at `offset`, which is `end()` unless nothing is on the disk.
    ///
    /// # Errors
    /// What stopped it; `end()` says how far it came.
    pub(super) fn append(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            self.make_writable(offset + written as u64)?;
            let Some(segment) = self.live.back_mut() else { break };
            let rest = &bytes[written..];
            let room = usize::try_from(self.segment_bytes - segment.len).unwrap_or(usize::MAX);
            let piece = &rest[..rest.len().min(room)];
            let (n, error) = write_all(segment.file.as_ref(), piece, segment.len);
            segment.len += n as u64;
            written += n;
            error.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Makes sure that the last segment has room, and ends with its last byte.
    fn make_writable(&mut self, offset: u64) -> io::Result<()> {
        let has_room = |last: &Segment| {
            last.len < self.segment_bytes
                && last.broken_from.is_none()
                && !is_cut(last.file.as_ref(), last.len)
        };
        if self.live.back().is_some_and(has_room) {
            return Ok(());
        }
        let Some(disk) = &self.disk else { return Err(io::ErrorKind::StorageFull.into()) };
        let number = self.next_number;
        // A name is used once, also when making the file fails half-way.
        self.next_number += 1;
        let file = disk.create(&self.file_name(number))?;
        self.live.push_back(Segment { number, file, start: offset, len: 0, broken_from: None });
        Ok(())
    }

    /// Fills `bytes` from `offset` on, which must be on the disk, as far as one segment goes.
    ///
    /// # Errors
    /// Only when it may work later.
    pub(super) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<SegmentRead> {
        let place = self.live.partition_point(|segment| segment.end() <= offset);
        let Some(segment) = self.live.get_mut(place) else { return Ok(SegmentRead::Bytes(0)) };
        let end = segment.end();
        let readable = segment.broken_from.unwrap_or(end);
        if offset >= readable {
            return Ok(SegmentRead::Broken { to: end });
        }
        let want = usize::try_from(readable - offset).unwrap_or(usize::MAX).min(bytes.len());
        match read_some(segment.file.as_ref(), &mut bytes[..want], offset - segment.start) {
            Ok(n) => Ok(SegmentRead::Bytes(n)),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => {
                segment.broken_from = Some(offset);
                Ok(SegmentRead::NewlyBroken { to: end, error })
            }
        }
    }

    /// The end of the segment that is known to be unreadable at this offset.
    pub(super) fn broken_at(&self, offset: u64) -> Option<u64> {
        let is_broken = |s: &&Segment| s.broken_from.is_some_and(|from| from <= offset) && offset < s.end();
        self.live.iter().find(is_broken).map(Segment::end)
    }

    /// How many of the bytes from `offset` on are known to be unreadable.
    pub(super) fn unreadable_from(&self, offset: u64) -> u64 {
        let broken = |segment: &Segment| {
            segment.broken_from.map_or(0, |from| segment.end().saturating_sub(from.max(offset)))
        };
        self.live.iter().map(broken).sum()
    }

    /// Removes the segments that end at or before `offset`.
    pub(super) fn release_before(&mut self, offset: u64) {
        while let Some(segment) = self.live.pop_front_if(|segment| segment.end() <= offset) {
            self.remove(segment.number);
        }
    }

    /// Removes the bytes from `offset` on.
    pub(super) fn forget_from(&mut self, offset: u64) {
        while let Some(segment) = self.live.pop_back_if(|segment| segment.start >= offset) {
            self.remove(segment.number);
        }
        if let Some(last) = self.live.back_mut() {
            last.len = last.len.min(offset - last.start);
            // A file that nobody can read behind a place, as far as it counts, ends before it.
            last.broken_from = last.broken_from.filter(|from| *from < offset);
        }
    }

    /// Gives back memory that holds nothing.
    pub(super) fn idle(&mut self) {
        self.live.shrink_to_fit();
    }

    fn remove(&self, number: u64) {
        let Some(disk) = &self.disk else { return };
        let name = self.file_name(number);
        if let Err(error) = disk.remove(&name) {
            tracing::warn!(file = %disk.path(&name).display(), %error, "failed to remove a spool file");
        }
    }

    fn file_name(&self, number: u64) -> String {
        format!("{}.{number}", self.name)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.release_before(u64::MAX);
    }
}

//! The policy that keeps: head in a file, tail in the ring, the middle counted.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, is_cut, is_passing, read_some, write_all};
use super::index::{Index, Run};
use super::log::{Core, Stored};
use super::{CaptureState, Dropped, RUN_BYTES, Seq, count_lines};

/// The file side of a record.
#[derive(Debug)]
pub(super) struct Record {
    artifact: Artifact,
    /// Set for good once the file takes no more bytes: nothing may follow a gap in it.
    head: Option<Head>,
}

/// The part of the output that the file holds, once that is decided.
#[derive(Debug)]
struct Head {
    end: u64,
    lines: u64,
    index: Index,
    why: CaptureState,
}

impl Record {
    pub(super) fn new(disk: Option<Arc<dyn Disk>>, name: String) -> Self {
        let head = match disk {
            Some(_) => None,
            None => Some(Head { end: 0, lines: 0, index: Index::default(), why: CaptureState::RingOnly }),
        };
        Self { artifact: Artifact { disk, name, file: None, len: 0 }, head }
    }

    pub(super) fn append(&mut self, core: &mut Core, seq: Seq, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let (start, lines) = (core.end, core.lines);
        let index_bytes = core.count(seq, bytes);
        if self.head.is_none() {
            let (written, why) = self.save(core, bytes, index_bytes);
            if let Some(why) = why {
                let end = start + written as u64;
                let index = core.index.split_before(end);
                self.head = Some(Head { end, lines: lines + count_lines(&bytes[..written]), index, why });
            }
        }
        core.ring.push(bytes);
        if self.head.is_some() {
            bound_tail_index(core);
        }
        bytes.len()
    }

    /// Writes as many bytes as the quota and the disk allow. Says why when that is not all.
    fn save(&mut self, core: &mut Core, bytes: &[u8], index_bytes: u64) -> (usize, Option<CaptureState>) {
        let granted = core.account.reserve(bytes.len() as u64 + index_bytes);
        core.reserved += granted;
        let room =
            usize::try_from(granted.saturating_sub(index_bytes)).unwrap_or(usize::MAX).min(bytes.len());
        let (written, error) = self.artifact.append(&bytes[..room]);
        core.settle(core.reserved - (room - written) as u64);
        if let Some(error) = error {
            let file = self.artifact.path();
            tracing::warn!(file = ?file, %error, "failed to write an artifact; the tail of the output is kept in memory");
            return (written, Some(CaptureState::Failed));
        }
        (written, (written < bytes.len()).then_some(CaptureState::Limited))
    }

    /// Reads bytes before the ring's start.
    pub(super) fn read(&mut self, core: &mut Core, from: u64, bytes: &mut [u8]) -> io::Result<Stored> {
        let head_end = self.head.as_ref().map_or(self.artifact.len, |head| head.end);
        if from >= head_end {
            return Ok(Stored::Hole { to: core.ring.start() });
        }
        let want = usize::try_from(head_end - from).unwrap_or(usize::MAX).min(bytes.len());
        match self.artifact.read(from, &mut bytes[..want]) {
            Ok(n) => Ok(Stored::Bytes(n)),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => {
                let file = self.artifact.path();
                tracing::warn!(file = ?file, %error, from, "failed to read an artifact; the rest of it is lost");
                self.cut(core, from);
                Ok(Stored::Hole { to: core.ring.start() })
            }
        }
    }

    /// The file cannot be read from this offset on: from now on it counts as ending there.
    fn cut(&mut self, core: &mut Core, from: u64) {
        let (end, lines) = self.artifact.count_lines(from);
        let index = match self.head.take() {
            Some(head) => head.index,
            None => core.index.split_before(end),
        };
        self.head = Some(Head { end, lines, index, why: CaptureState::Failed });
    }

    pub(super) fn idle(&mut self, core: &mut Core) {
        if self.head.is_none() {
            core.ring.clear();
        }
    }

    pub(super) fn head_run_at(&self, offset: u64) -> Option<Run> {
        self.head.as_ref().filter(|head| offset < head.end).and_then(|head| head.index.at(offset))
    }

    pub(super) fn dropped(&self, core: &Core) -> Dropped {
        let Some(head) = &self.head else { return Dropped::NOTHING };
        let bytes = core.ring.start().saturating_sub(head.end);
        let lines = if bytes == 0 { 0 } else { core.lines - core.ring_lines() - head.lines };
        Dropped { bytes, lines: Some(lines) }
    }

    pub(super) fn state(&self) -> CaptureState {
        self.head.as_ref().map_or(CaptureState::Complete, |head| head.why)
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        self.artifact.path()
    }
}

/// The index of a tail costs at most about as much memory as the tail: what exceeds this goes, with its bytes.
fn bound_tail_index(core: &mut Core) {
    let most = core.ring.max() / RUN_BYTES as usize + 1;
    if let Some(end) = core.index.len().checked_sub(most + 1).and_then(|place| core.index.end_of(place)) {
        core.ring.forget_before(end);
    }
    core.index.forget_before(core.ring.start());
}

/// One file, written from its beginning without gaps.
#[derive(Debug)]
struct Artifact {
    disk: Option<Arc<dyn Disk>>,
    name: String,
    /// The descriptor that made it, for as long as it holds bytes: they stay readable whatever becomes of the name.
    file: Option<Box<dyn DiskFile>>,
    len: u64,
}

impl Artifact {
    fn append(&mut self, bytes: &[u8]) -> (usize, Option<io::Error>) {
        if bytes.is_empty() {
            return (0, None);
        }
        let len = self.len;
        match self.file() {
            Ok(file) if is_cut(file, len) => (0, Some(io::ErrorKind::UnexpectedEof.into())),
            Ok(file) => {
                let (written, error) = write_all(file, bytes, len);
                self.len += written as u64;
                if self.len == 0 {
                    self.remove();
                }
                (written, error)
            }
            Err(error) => (0, Some(error)),
        }
    }

    fn read(&mut self, from: u64, bytes: &mut [u8]) -> io::Result<usize> {
        read_some(self.file()?, bytes, from)
    }

    /// Newlines before `upto`, or before the first byte that cannot be read, which is returned too.
    fn count_lines(&mut self, upto: u64) -> (u64, u64) {
        let mut lines = 0;
        let mut at = 0;
        let mut piece = vec![0; 65_536];
        while at < upto {
            let want = usize::try_from(upto - at).unwrap_or(usize::MAX).min(piece.len());
            let Ok(n) = self.read(at, &mut piece[..want]) else { break };
            lines += count_lines(&piece[..n]);
            at += n as u64;
        }
        (at, lines)
    }

    fn file(&mut self) -> io::Result<&dyn DiskFile> {
        let file = match (self.file.take(), &self.disk) {
            (Some(file), _) => file,
            (None, Some(disk)) => disk.create(&self.name)?,
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(&**self.file.insert(file))
    }

    fn path(&self) -> Option<PathBuf> {
        self.disk.as_ref().filter(|_| self.len > 0).map(|disk| disk.path(&self.name))
    }

    fn remove(&mut self) {
        self.file = None;
        let Some(disk) = &self.disk else { return };
        if let Err(error) = disk.remove(&self.name) {
            tracing::warn!(file = %disk.path(&self.name).display(), %error, "failed to remove an artifact");
        }
    }
}

impl Drop for Artifact {
    fn drop(&mut self) {
        if self.len > 0 {
            self.remove();
        }
    }
}

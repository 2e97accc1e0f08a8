//! Bytes that an adapter has said and may have to say again: the newest in memory, older ones in a file.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, is_cut, is_passing, read_some, write_all};

/// Memory for bytes that may also lie in the file: so many stay, up to twice as many are there before they are moved.
const MEMORY_BYTES: usize = 128 * 1024;

/// The bytes `[start, end)` of a stream that has no end.
///
/// It knows no reader: its owner says what may go to the file ([`store_before`](Self::store_before)), which is written over
/// from its beginning when it is full, so that the oldest bytes go. Invariants:
/// - what was not given over to the file is in memory, so no disk can lose it;
/// - of what was given over, at least `capacity` bytes are kept while the disk takes them, and 256 KiB are in memory;
/// - without a disk, or when it fails, older bytes than these are let go: the memory is bounded in any case.
///
/// [`Session::spool`](crate::Session::spool) makes one in the session's folder; its file goes with it.
#[derive(Debug)]
pub struct Spool {
    store: Store,
    /// What is not in the file: `[tail_start, end)`.
    tail: VecDeque<u8>,
    tail_start: u64,
    /// Everything before was let go.
    start: u64,
}

/// What there is in a [`Spool`] at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoolView<'a> {
    /// So many bytes as lie together, none only at the end.
    Bytes(&'a [u8]),
    /// The bytes before this offset are there no more: they were let go, or the disk does not give them back.
    Gone {
        /// Where to go on.
        to: u64,
    },
}

impl Spool {
    /// An empty spool whose file is called `name` and holds `capacity` bytes, or without any.
    pub fn new(disk: Option<Arc<dyn Disk>>, name: String, capacity: u64) -> Self {
        let store = Store { disk, name, capacity, file: None, base: 0, start: 0, is_down: false };
        Self { store, tail: VecDeque::new(), tail_start: 0, start: 0 }
    }

    /// The offset of the first byte that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    /// Appends bytes, in memory.
    pub fn append(&mut self, bytes: &[u8]) {
        self.tail.extend(bytes);
    }

    /// Lets bytes before `offset` go to the file when there are many of them in memory.
    pub fn store_before(&mut self, offset: u64) {
        let storable = self.in_tail(offset);
        if storable < 2 * MEMORY_BYTES {
            return;
        }
        let moved = storable - MEMORY_BYTES;
        let (first, second) = self.tail.as_slices();
        let (first, second) =
            (&first[..first.len().min(moved)], &second[..moved.saturating_sub(first.len())]);
        self.store.push(self.tail_start, first);
        self.store.push(self.tail_start + first.len() as u64, second);
        self.tail.drain(..moved);
        self.tail_start += moved as u64;
        self.start = self.start.max(self.store.start);
    }

    /// Lets bytes before `offset` go.
    pub fn release_before(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end()));
    }

    /// Gives back memory that holds nothing, for the time in which nothing comes.
    pub fn idle(&mut self) {
        self.tail.shrink_to_fit();
    }

    /// At most `most` bytes from offset `at` on: from memory, or read into `scratch`.
    ///
    /// # Errors
    /// When bytes on the disk cannot be read now, and may be later.
    pub fn view<'a>(
        &'a mut self,
        at: u64,
        most: usize,
        scratch: &'a mut Vec<u8>,
    ) -> io::Result<SpoolView<'a>> {
        if at < self.start {
            return Ok(SpoolView::Gone { to: self.start });
        }
        if at < self.tail_start {
            let want = usize::try_from(self.tail_start - at).unwrap_or(usize::MAX).min(most);
            if scratch.len() < want {
                scratch.resize(want, 0);
            }
            let read = self.store.read(at, &mut scratch[..want])?;
            if read == 0 {
                self.start = self.tail_start;
                return Ok(SpoolView::Gone { to: self.start });
            }
            return Ok(SpoolView::Bytes(&scratch[..read]));
        }
        let (first, second) = self.tail.as_slices();
        let from = self.in_tail(at);
        let rest = first.get(from..).filter(|rest| !rest.is_empty());
        let rest = rest.unwrap_or_else(|| &second[from - first.len()..]);
        Ok(SpoolView::Bytes(&rest[..rest.len().min(most)]))
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.tail.capacity()
    }

    /// How many bytes of memory lie before `offset`.
    fn in_tail(&self, offset: u64) -> usize {
        let before = offset.saturating_sub(self.tail_start);
        usize::try_from(before).unwrap_or(usize::MAX).min(self.tail.len())
    }
}

/// A file that is written round and round: the byte at offset `n` lies at `(n - base) % capacity`.
///
/// The same pages are written again and again, which costs half of what new files cost that go when they are full.
#[derive(Debug)]
struct Store {
    disk: Option<Arc<dyn Disk>>,
    name: String,
    capacity: u64,
    file: Option<Box<dyn DiskFile>>,
    /// The offset with which the file began.
    base: u64,
    /// The first byte that it holds.
    start: u64,
    /// The latest write failed; said once in the log until one works again.
    is_down: bool,
}

impl Store {
    /// Takes bytes that begin at `offset`, right behind those that it has. It has none before its start afterwards.
    fn push(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.capacity > 0 {
            if self.file.is_none() {
                self.base = offset;
            }
            let (at, room) = self.place(offset);
            let (piece, rest) = bytes.split_at(bytes.len().min(room));
            if let Err(error) = self.write(at, piece) {
                self.fail(&error);
                break;
            }
            self.is_down = false;
            (offset, bytes) = (offset + piece.len() as u64, rest);
            self.start = self.start.max(offset.saturating_sub(self.capacity));
        }
        if !bytes.is_empty() {
            self.start = offset + bytes.len() as u64;
        }
    }

    /// Where a byte lies, and how many lie together from there on.
    fn place(&self, offset: u64) -> (u64, usize) {
        let at = (offset - self.base) % self.capacity;
        (at, usize::try_from(self.capacity - at).unwrap_or(usize::MAX))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            let Some(disk) = &self.disk else { return Err(io::ErrorKind::StorageFull.into()) };
            // What an earlier one was left by is nobody's.
            let _ = disk.remove(&self.name);
            self.file = Some(disk.create(&self.name)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        // Behind a cut, zeros would be read back before what is written now.
        if is_cut(file.as_ref(), at) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all(file.as_ref(), bytes, at).1.map_or(Ok(()), Err)
    }

    /// What is in the file is given up with it.
    fn fail(&mut self, error: &io::Error) {
        if self.disk.is_some() && !std::mem::replace(&mut self.is_down, true) {
            tracing::warn!(%error, "failed to spool what a client may ask for again; less is kept until this works");
        }
        self.remove();
    }

    /// Reads bytes that it should have; none when they are lost.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let (Some(file), true) = (&self.file, offset >= self.start) else { return Ok(0) };
        let (at, room) = self.place(offset);
        let want = bytes.len().min(room);
        match read_some(file.as_ref(), &mut bytes[..want], at) {
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "failed to read back what a client asks for again");
                Ok(0)
            }
            Ok(read) => Ok(read),
        }
    }

    fn remove(&mut self) {
        let (Some(_), Some(disk)) = (self.file.take(), &self.disk) else { return };
        if let Err(error) = disk.remove(&self.name) {
            tracing::warn!(file = %disk.path(&self.name).display(), %error, "failed to remove a spool file");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.remove();
    }
}

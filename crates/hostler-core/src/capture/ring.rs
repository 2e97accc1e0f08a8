//! The newest bytes of a log, in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The first buffer of a ring; it doubles from here.
const SMALLEST: usize = 4096;

/// Buffers of rings that went idle, kept for the next ones, up to a number of bytes in all.
pub struct BufferPool {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: usize,
    by_size: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl BufferPool {
    /// A pool that keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, kept: Mutex::default() })
    }

    /// Bytes kept at the moment.
    pub fn kept_bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    fn take(&self, size: usize) -> Vec<u8> {
        let mut kept = self.kept.lock();
        if let Some(buffer) = kept.by_size.get_mut(&size).and_then(Vec::pop) {
            kept.bytes -= size;
            return buffer;
        }
        drop(kept);
        vec![0; size]
    }

    fn put(&self, buffer: Vec<u8>) {
        let size = buffer.len();
        let mut kept = self.kept.lock();
        if size > 0 && kept.bytes + size <= self.limit {
            kept.bytes += size;
            kept.by_size.entry(size).or_default().push(buffer);
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("limit", &self.limit)
            .field("kept_bytes", &self.kept_bytes())
            .finish()
    }
}

/// The bytes `[start, end)` of a log, at most `max` of them, in a buffer that is as large as it had to become.
pub(super) struct Ring {
    buffer: Vec<u8>,
    /// Where in the buffer the oldest byte lies.
    first: usize,
    len: usize,
    end: u64,
    max: usize,
    pool: Arc<BufferPool>,
}

impl Ring {
    pub(super) fn new(max: usize, pool: Arc<BufferPool>) -> Self {
        Self { buffer: Vec::new(), first: 0, len: 0, end: 0, max: max.max(1), pool }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn start(&self) -> u64 {
        self.end - self.len as u64
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.buffer.len()
    }

    /// Appends; the oldest bytes make room.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(self.max)..];
        if tail.is_empty() {
            return;
        }
        self.make_room(tail.len());
        let mut at = self.first + self.len;
        if at >= self.buffer.len() {
            at -= self.buffer.len();
        }
        let before_wrap = tail.len().min(self.buffer.len() - at);
        self.buffer[at..at + before_wrap].copy_from_slice(&tail[..before_wrap]);
        self.buffer[..tail.len() - before_wrap].copy_from_slice(&tail[before_wrap..]);
        self.len += tail.len();
        self.end += bytes.len() as u64;
    }

    /// As `push`, but starts at the front of the buffer when the bytes would not fit in one piece before its end.
    /// What is in the ring is dropped then: for a caller that needs none of it any more.
    pub(super) fn push_afresh(&mut self, bytes: &[u8]) {
        let wraps = self.first + self.len + bytes.len() > self.buffer.len();
        if wraps && bytes.len() >= self.max / 4 {
            self.first = 0;
            self.len = 0;
        }
        self.push(bytes);
    }

    /// Drops the bytes before `offset`.
    pub(super) fn forget_before(&mut self, offset: u64) {
        let gone = offset.saturating_sub(self.start()).min(self.len as u64) as usize;
        self.len -= gone;
        self.first += gone;
        if self.first >= self.buffer.len() {
            self.first -= self.buffer.len();
        }
        if self.len == 0 {
            self.first = 0;
        }
    }

    /// Drops the bytes from `offset` on.
    pub(super) fn forget_from(&mut self, offset: u64) {
        let gone = self.end.saturating_sub(offset);
        self.len -= gone.min(self.len as u64) as usize;
        self.end -= gone;
    }

    /// Drops everything and hands the buffer to the pool.
    pub(super) fn clear(&mut self) {
        self.first = 0;
        self.len = 0;
        self.pool.put(std::mem::take(&mut self.buffer));
    }

    /// The bytes from `from` to `to`, which must lie in the ring; in two pieces when they go over its end.
    pub(super) fn slices(&self, from: u64, to: u64) -> (&[u8], &[u8]) {
        debug_assert!(self.start() <= from && from <= to && to <= self.end, "outside of the ring");
        let len = (to - from) as usize;
        let mut at = self.first + (from - self.start()) as usize;
        if at >= self.buffer.len() {
            at -= self.buffer.len();
        }
        let before_wrap = len.min(self.buffer.len() - at);
        (&self.buffer[at..at + before_wrap], &self.buffer[..len - before_wrap])
    }

    fn make_room(&mut self, need: usize) {
        if self.len + need > self.buffer.len() && self.buffer.len() < self.max {
            self.grow((self.len + need).min(self.max));
        }
        let over = (self.len + need).saturating_sub(self.buffer.len());
        self.len -= over;
        self.first += over;
        if self.first >= self.buffer.len() {
            self.first -= self.buffer.len();
        }
    }

    fn grow(&mut self, need: usize) {
        let size = need.next_power_of_two().max(SMALLEST).min(self.max);
        let mut larger = self.pool.take(size);
        let before_wrap = self.len.min(self.buffer.len() - self.first);
        larger[..before_wrap].copy_from_slice(&self.buffer[self.first..self.first + before_wrap]);
        larger[before_wrap..self.len].copy_from_slice(&self.buffer[..self.len - before_wrap]);
        self.first = 0;
        self.pool.put(std::mem::replace(&mut self.buffer, larger));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffer, first: _, len, end, max, pool: _ } = self;
        let start = end - *len as u64;
        f.debug_struct("Ring")
            .field("start", &start)
            .field("end", end)
            .field("memory", &buffer.len())
            .field("max", max)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Push(usize),
        Afresh(usize),
        Forget(u64),
        Clear,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0..9000_usize).prop_map(Op::Push),
            4 => (0..300_usize).prop_map(Op::Push),
            2 => (0..9000_usize).prop_map(Op::Afresh),
            3 => (0..9000_u64).prop_map(Op::Forget),
            1 => Just(Op::Clear),
        ]
    }

    proptest! {
        #[test]
        fn the_ring_equals_a_queue_that_drops_its_front(
            max in prop_oneof![1..50_usize, 4000..20_000_usize],
            ops in prop::collection::vec(op(), 0..60),
        ) {
            let mut ring = Ring::new(max, BufferPool::new(1 << 20));
            let mut model: VecDeque<u8> = VecDeque::new();
            let (mut end, mut next) = (0_u64, 0_u8);
            for op in ops {
                match op {
                    Op::Push(n) | Op::Afresh(n) => {
                        let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(7); next }).collect();
                        if let Op::Afresh(_) = op {
                            let memory = ring.memory();
                            let start = ring.start();
                            ring.push_afresh(&bytes);
                            if ring.start() > start && n >= max / 4 && memory == ring.memory() {
                                model.clear();
                            }
                            if ring.start() == end && n > 0 {
                                model.clear();
                            }
                        } else {
                            ring.push(&bytes);
                        }
                        model.extend(&bytes);
                        end += n as u64;
                        while model.len() > max.min((end - ring.start()) as usize) && model.len() > max {
                            model.pop_front();
                        }
                        if let Op::Afresh(_) = op {
                            let kept = (end - ring.start()) as usize;
                            prop_assert!(kept >= n.min(max), "the new bytes are there");
                            while model.len() > kept { model.pop_front(); }
                        }
                    }
                    Op::Forget(n) => {
                        let upto = ring.start() + n;
                        ring.forget_before(upto);
                        model.drain(..(n as usize).min(model.len()));
                    }
                    Op::Clear => {
                        ring.clear();
                        model.clear();
                        prop_assert_eq!(ring.memory(), 0);
                    }
                }
                prop_assert_eq!(ring.end(), end);
                let (a, b) = ring.slices(ring.start(), end);
                let content: Vec<u8> = a.iter().chain(b).copied().collect();
                prop_assert_eq!(content, Vec::from(model.clone()));
                prop_assert!(ring.memory() <= max.max(1));
            }
        }
    }

    #[test]
    fn a_ring_starts_small_doubles_and_reuses_buffers() {
        let pool = BufferPool::new(20_000);
        let mut ring = Ring::new(65_536, Arc::clone(&pool));
        assert_eq!(ring.memory(), 0, "nothing before the first byte");
        ring.push(b"x");
        assert_eq!(ring.memory(), 4096);
        ring.push(&[0; 4096]);
        assert_eq!(ring.memory(), 8192);
        assert_eq!(pool.kept_bytes(), 4096);
        ring.clear();
        assert_eq!(pool.kept_bytes(), 12_288);
        let mut next = Ring::new(65_536, Arc::clone(&pool));
        next.push(b"y");
        assert_eq!(pool.kept_bytes(), 8192);
        next.push(&[0; 60_000]);
        drop(next);
        assert_eq!(pool.kept_bytes(), 12_288, "a buffer above the limit is not kept");
    }
}

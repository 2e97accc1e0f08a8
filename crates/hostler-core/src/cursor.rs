//! Readers of captured output.
//!
//! A [`SharedLog`] is a [`Log`] under a lock, with wake-ups: one hook for the consumer that owns a session's output
//! and waits for many logs at once, and a notification for any number of [`Cursor`]s. A cursor has an offset of
//! its own and pulls at its own pace; it holds nothing back, and where bytes have gone it is told how many before it
//! gets the next ones.
//!
//! Invariants, each with a test: a consumer that armed its hook is woken once for whatever comes next, and not again
//! before it arms again; no wake-up is lost between looking and arming; a dropped `next` loses nothing.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::capture::{CaptureState, Log, LogOptions, ReadError, Run, Seq, Status, Totals, View};

/// A log that a driver fills and others read.
#[derive(Debug)]
pub struct SharedLog {
    shared: Mutex<Shared>,
    changed: Notify,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    consumer: Option<Waker>,
    armed: bool,
    /// A cursor waits for `changed`.
    cursors_wait: bool,
}

/// The answer to [`SharedLog::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Nothing has changed; the waker is called once when something does.
    Waiting,
    /// The log has changed since; the waker is not armed.
    Changed(Status),
}

impl SharedLog {
    /// Shares a new log.
    pub fn new(options: LogOptions) -> Arc<Self> {
        let shared = Shared { log: Log::new(options), consumer: None, armed: false, cursors_wait: false };
        Arc::new(Self { shared: Mutex::new(shared), changed: Notify::new() })
    }

    /// The waker of the one consumer that owns this log's output; it is armed at once. It is called without locks.
    pub fn set_consumer(&self, waker: Waker) {
        let mut shared = self.shared.lock();
        shared.consumer = Some(waker);
        shared.armed = true;
    }

    /// Arms the consumer's waker again, unless the log no longer looks as the consumer has seen it.
    pub fn arm(&self, seen: &Status) -> Armed {
        let mut shared = self.shared.lock();
        let status = shared.log.status();
        shared.armed = status == *seen;
        if shared.armed { Armed::Waiting } else { Armed::Changed(status) }
    }

    /// See [`Log::set_room_waker`].
    pub fn set_room_waker(&self, waker: &Waker) {
        self.shared.lock().log.set_room_waker(waker);
    }

    /// See [`Log::begin_read`]. When it says 0 the consumer is woken: it may have to take part of a line.
    #[must_use]
    pub fn begin_read(&self, max: usize) -> usize {
        let mut shared = self.shared.lock();
        let granted = shared.log.begin_read(max);
        if granted == 0 {
            let consumer = shared.fire();
            drop(shared);
            wake(consumer);
        }
        granted
    }

    /// See [`Log::append`].
    pub fn append(&self, seq: Seq, bytes: &[u8]) -> usize {
        self.change(|log| log.append(seq, bytes), |&taken| taken > 0)
    }

    /// See [`Log::append_late`].
    pub fn append_late(&self, seq: Seq, bytes: &[u8]) {
        self.change(|log| log.append_late(seq, bytes), |()| true);
    }

    /// See [`Log::end`].
    pub fn end(&self) {
        self.change(Log::end, |()| true);
    }

    /// See [`Log::cut`]; the stream has ended with that.
    pub fn end_at(&self, least: u64, most: u64) {
        let cut = |log: &mut Log| {
            log.cut(least, most);
            log.end();
        };
        self.change(cut, |()| true);
    }

    /// See [`Log::close`].
    pub fn close(&self) {
        self.change(Log::close, |()| true);
    }

    /// See [`Log::take`].
    pub fn take(&self, upto: u64) {
        self.shared.lock().log.take(upto);
    }

    /// See [`Log::taken`].
    pub fn taken(&self) -> u64 {
        self.shared.lock().log.taken()
    }

    /// See [`Log::idle`].
    pub fn idle(&self) {
        self.shared.lock().log.idle();
    }

    /// See [`Log::status`].
    pub fn status(&self) -> Status {
        self.shared.lock().log.status()
    }

    /// See [`Log::holds_others_back`].
    pub fn holds_others_back(&self) -> bool {
        self.shared.lock().log.holds_others_back()
    }

    /// See [`Log::run_at`].
    pub fn run_at(&self, offset: u64) -> Option<Run> {
        self.shared.lock().log.run_at(offset)
    }

    /// See [`Log::totals`].
    pub fn totals(&self) -> Totals {
        self.shared.lock().log.totals()
    }

    /// See [`Log::state`].
    pub fn state(&self) -> CaptureState {
        self.shared.lock().log.state()
    }

    /// See [`Log::artifact_path`].
    pub fn artifact_path(&self) -> Option<PathBuf> {
        self.shared.lock().log.artifact_path()
    }

    /// Looks at the log under its lock, as an owner does that encodes straight from the ring and then takes.
    /// Appending waits meanwhile.
    pub fn read_with<R>(&self, read: impl FnOnce(&mut LogReader<'_>) -> R) -> R {
        read(&mut LogReader(&mut self.shared.lock().log))
    }

    fn change<R>(&self, change: impl FnOnce(&mut Log) -> R, is_news: impl FnOnce(&R) -> bool) -> R {
        let mut shared = self.shared.lock();
        let result = change(&mut shared.log);
        if !is_news(&result) {
            return result;
        }
        let consumer = shared.fire();
        let cursors_wait = std::mem::take(&mut shared.cursors_wait);
        drop(shared);
        wake(consumer);
        if cursors_wait {
            self.changed.notify_waiters();
        }
        result
    }
}

impl Shared {
    /// The waker to call, if it is armed.
    fn fire(&mut self) -> Option<Waker> {
        if std::mem::take(&mut self.armed) { self.consumer.clone() } else { None }
    }
}

fn wake(consumer: Option<Waker>) {
    if let Some(waker) = consumer {
        waker.wake();
    }
}

/// The part of a locked log that a reader needs; what changes it goes through [`SharedLog`], which wakes others.
#[derive(Debug)]
pub struct LogReader<'a>(&'a mut Log);

impl LogReader<'_> {
    /// See [`Log::status`].
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// See [`Log::state`].
    pub fn state(&self) -> CaptureState {
        self.0.state()
    }

    /// See [`Log::run_at`].
    pub fn run_at(&self, offset: u64) -> Option<Run> {
        self.0.run_at(offset)
    }

    /// See [`Log::view`].
    ///
    /// # Errors
    /// As there.
    pub fn view<'a>(
        &'a mut self,
        from: u64,
        max: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<View<&'a [u8]>, ReadError> {
        self.0.view(from, max, scratch)
    }

    /// See [`Log::take`].
    pub fn take(&mut self, upto: u64) {
        self.0.take(upto);
    }
}

/// What a [`Cursor`] got. The crate exports it as `CursorRead`, beside which `std::io::Read` keeps its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes are in the buffer.
    Chunk(usize),
    /// These bytes are gone for this reader; what comes next lies behind them.
    Gap(Gap),
    /// Nothing yet.
    Pending,
    /// Nothing more.
    End,
}

/// Bytes that a reader could not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How many.
    pub bytes: u64,
    /// Newlines among them. Always known for a record that is read from its beginning; `None` where a relay gave
    /// the bytes back to their owner.
    pub lines: Option<u64>,
}

/// A reader with an offset of its own. A clone reads on from the same place: to look without moving.
#[derive(Clone, Debug)]
pub struct Cursor {
    log: Arc<SharedLog>,
    offset: u64,
    /// Newlines before the offset, while they are known.
    lines: Option<u64>,
}

impl Cursor {
    /// A reader from the first byte of the stream.
    pub fn from_start(log: Arc<SharedLog>) -> Self {
        Self { log, offset: 0, lines: Some(0) }
    }

    /// Moves behind the last byte that is there: what is read comes later.
    pub fn go_to_end(&mut self) {
        (self.offset, self.lines) = (self.log.status().end, None);
    }

    /// Offset of the next byte to read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The log.
    pub fn log(&self) -> &Arc<SharedLog> {
        &self.log
    }

    /// Reads what there is, without waiting, into a buffer that must not be empty.
    ///
    /// # Errors
    /// When bytes on the disk cannot be read now; the cursor has not moved, ask again later.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Read, ReadError> {
        let log = Arc::clone(&self.log);
        let view = log.shared.lock().log.copy(self.offset, buffer)?;
        Ok(self.follow(view, buffer))
    }

    /// As `read`, but waits while there is nothing; never `Pending`. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As `read`.
    pub async fn next(&mut self, buffer: &mut [u8]) -> Result<Read, ReadError> {
        let log = Arc::clone(&self.log);
        loop {
            // Enabled before looking: what comes between looking and waiting is not missed.
            let mut changed = pin!(log.changed.notified());
            changed.as_mut().enable();
            let view = {
                let mut shared = log.shared.lock();
                let view = shared.log.copy(self.offset, buffer)?;
                shared.cursors_wait |= view == View::Pending;
                view
            };
            match self.follow(view, buffer) {
                Read::Pending => changed.await,
                read @ (Read::Chunk(_) | Read::Gap(_) | Read::End) => return Ok(read),
            }
        }
    }

    fn follow(&mut self, view: View<usize>, buffer: &[u8]) -> Read {
        match view {
            View::Bytes(n) => {
                let newlines = memchr::memchr_iter(b'\n', &buffer[..n]).count() as u64;
                self.offset += n as u64;
                self.lines = self.lines.map(|lines| lines + newlines);
                Read::Chunk(n)
            }
            View::Hole(hole) => {
                let lines =
                    self.lines.zip(hole.lines_before).and_then(|(before, after)| after.checked_sub(before));
                let gap = Gap { bytes: hole.to - self.offset, lines };
                self.offset = hole.to;
                self.lines = hole.lines_before;
                Read::Gap(gap)
            }
            View::Pending => Read::Pending,
            View::End => Read::End,
        }
    }
}

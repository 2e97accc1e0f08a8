//! What a session has said, for streams that come and go.
//!
//! It owns the messages of a session from the moment that they are said until they are too old to be asked for again, and
//! the place up to which they have reached the client. It does no I/O but that of its spool, and reads no clock. Offsets
//! count the bytes of all lines; the id of a message on a stream is the offset behind it ([`crate::sse`]).
//!
//! Invariants:
//! - a stream gets what it asks for in order, each message once: from an id on, or from where the one before had come;
//! - there is one stream at a time, and the newest wins;
//! - what no stream has taken is in memory, whatever the disk does; its bound is the driver's, which asks for
//!   [`untaken`](Mailbox::untaken) before it says more;
//! - of what was taken, the last `replay_bytes` can be had again, and of the replies before that the last
//!   `replay_replies`, up to [`OLD_REPLIES_BYTES`].

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hostler_core::{Spool, SpoolView};
use memchr::{memchr, memrchr};

use crate::sse;
use crate::wire::{MessageIds, Reply, Timestamp};

/// Bytes of lines that one read of the spool brings.
const READ_BYTES: usize = 128 * 1024;
/// Memory for frames that a stream keeps between them.
const KEPT_BYTES: usize = 4 * READ_BYTES;
/// Bytes of replies that are kept when they are older than what can be had again.
const OLD_REPLIES_BYTES: usize = 1 << 20;

/// How much can be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayWindow {
    /// Bytes of messages that a stream has taken.
    pub bytes: u64,
    /// How many of the replies before these, 1 MiB of them at most.
    pub replies: usize,
}

/// What a message is to those who may have missed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody waits for it.
    Reply,
    /// Output.
    Event,
}

/// One of the streams that a mailbox has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId(u64);

/// An id that no message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownId;

/// What a stream is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send these frames.
    Frames(Bytes),
    /// End: nothing will come any more, or another stream has taken over.
    End,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mailbox {
    spool: Spool,
    ids: MessageIds,
    window: ReplayWindow,
    /// Up to here the latest stream has taken everything.
    taken: u64,
    /// Up to here any stream has. Only what lies before it may go to a disk, or go.
    ever_taken: u64,
    stream: Option<Stream>,
    streams: u64,
    /// Where the replies of the spool lie, the oldest first.
    replies: VecDeque<std::ops::Range<u64>>,
    old_replies: OldReplies,
    closed: bool,
    /// Frames are made here, again and again in the same memory once their connection has taken them.
    frames: BytesMut,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// Up to here frames were handed out.
    at: u64,
    /// What comes before the frame at `at`: why older ones do not come, and the replies among these.
    preface: BytesMut,
    waker: Option<Waker>,
}

/// Replies that the spool has let go.
#[derive(Debug, Default)]
struct OldReplies {
    lines: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

impl Mailbox {
    /// An empty one.
    pub(crate) fn new(spool: Spool, ids: MessageIds, window: ReplayWindow) -> Self {
        Self {
            spool,
            ids,
            window,
            taken: 0,
            ever_taken: 0,
            stream: None,
            streams: 0,
            replies: VecDeque::new(),
            old_replies: OldReplies::default(),
            closed: false,
            frames: BytesMut::new(),
            scratch: Vec::new(),
        }
    }

    /// Takes whole lines that are all of one kind.
    pub(crate) fn say(&mut self, lines: &[u8], kind: Kind) {
        if lines.is_empty() {
            return;
        }
        if kind == Kind::Reply {
            let mut start = self.spool.end();
            for end in memchr::memchr_iter(b'\n', lines).map(|at| self.spool.end() + at as u64 + 1) {
                self.replies.push_back(start..end);
                start = end;
            }
            while self.replies.len() > self.window.replies {
                self.replies.pop_front();
            }
        }
        self.spool.append(lines);
        self.wake();
    }

    /// Nothing more will be said.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    /// Bytes that no stream has ever taken: what is held in memory.
    pub(crate) fn untaken(&self) -> u64 {
        self.spool.end() - self.ever_taken
    }

    /// Bytes that the stream was not given yet; `None` when there is no stream.
    pub(crate) fn waiting(&self) -> Option<u64> {
        self.stream.as_ref().map(|stream| self.spool.end() - stream.at)
    }

    /// Up to where any stream has taken everything: it only grows.
    pub(crate) fn ever_taken(&self) -> u64 {
        self.ever_taken
    }

    /// Begins a stream that gets what comes behind the message with this id, or what no stream has taken. One that there
    /// was has ended with this: its [`gone`](Self::gone) must have been told first.
    ///
    /// # Errors
    /// When no message has that id, as far as can be seen. Nothing has happened then.
    pub(crate) fn open(&mut self, after: Option<u64>, now: Timestamp) -> Result<StreamId, UnknownId> {
        let mut preface = BytesMut::new();
        let at = match after {
            None => self.taken,
            Some(id) => {
                self.knows(id)?;
                self.resume(id, now, &mut preface)
            }
        };
        self.wake();
        self.streams += 1;
        let id = StreamId(self.streams);
        self.taken = at;
        self.stream = Some(Stream { id, at, preface, waker: None });
        Ok(id)
    }

    /// Waits for the next frames of a stream; everything handed out before was taken.
    ///
    /// # Errors
    /// When what was said before cannot be read back now; ask again later.
    pub(crate) fn poll_next(
        &mut self,
        stream: StreamId,
        now: Timestamp,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Next>> {
        let Some(current) = self.stream.as_mut().filter(|current| current.id == stream) else {
            return Poll::Ready(Ok(Next::End));
        };
        self.taken = current.at;
        let preface = std::mem::take(&mut current.preface);
        current.waker = None;
        self.settle();
        let mut frames = std::mem::take(&mut self.frames);
        frames.extend_from_slice(&preface);
        let read = self.read(stream, now, &mut frames);
        let next = frames.split().freeze();
        self.frames = frames;
        if !next.is_empty() {
            return Poll::Ready(Ok(Next::Frames(next)));
        }
        read?;
        if self.closed {
            self.stream = None;
            return Poll::Ready(Ok(Next::End));
        }
        if let Some(current) = &mut self.stream {
            current.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes back the memory of frames that are needed no more.
    pub(crate) fn recycle(&mut self, frames: Bytes) {
        if let Ok(mut frames) = frames.try_into_mut()
            && frames.capacity() <= KEPT_BYTES
        {
            frames.clear();
            self.frames = frames;
        }
    }

    /// Ends a stream, of whose last frames its connection has taken these, whole ones and the beginning of another.
    pub(crate) fn gone(&mut self, stream: StreamId, taken: &[u8]) {
        if self.stream.take_if(|current| current.id == stream).is_some() {
            self.taken = sse::last_id(taken).unwrap_or(self.taken);
            self.settle();
            self.idle();
        }
    }

    /// Whether a stream may ask for what comes behind the message with this id.
    ///
    /// # Errors
    /// When no message has it, as far as can be seen.
    pub(crate) fn knows(&mut self, id: u64) -> Result<(), UnknownId> {
        if id > self.spool.end() {
            return Err(UnknownId);
        }
        // The byte before the first one that is kept is gone, and with it the proof that a message ends there.
        if id <= self.spool.start() {
            return Ok(());
        }
        match self.spool.view(id - 1, 1, &mut self.scratch) {
            Ok(SpoolView::Bytes(before)) if before != b"\n" => Err(UnknownId),
            // What cannot be read is said where it is read.
            Ok(SpoolView::Bytes(_) | SpoolView::Gone { .. }) | Err(_) => Ok(()),
        }
    }

    /// Where a stream begins that wants what comes behind `id`.
    fn resume(&mut self, id: u64, now: Timestamp, preface: &mut BytesMut) -> u64 {
        let start = self.spool.start();
        if id > start || id == 0 && start == 0 {
            return id;
        }
        let from = self.first_message(start);
        self.push_gap(id, from, now, preface);
        from
    }

    /// Says why messages do not come, and those of them that are replies.
    fn push_gap(&mut self, after: u64, from: u64, now: Timestamp, frames: &mut BytesMut) {
        let mut line = Vec::new();
        Reply::replay_gap(after, from).push_line(&mut self.ids, now, &mut line);
        sse::push_unnumbered(&line, frames);
        for (end, line) in self.old_replies.lines.iter().filter(|(end, _)| *end > after && *end <= from) {
            sse::push_frames(line, end - line.len() as u64, frames);
        }
    }

    /// The offset of the first message that begins at or behind `at`, where one may not.
    fn first_message(&mut self, mut at: u64) -> u64 {
        while at < self.spool.end() {
            match self.spool.view(at, READ_BYTES, &mut self.scratch) {
                Ok(SpoolView::Bytes(bytes)) => match memchr(b'\n', bytes) {
                    Some(end) => return at + end as u64 + 1,
                    None => at += bytes.len() as u64,
                },
                Ok(SpoolView::Gone { to }) => at = to,
                // Said where it is read again.
                Err(_) => return at,
            }
        }
        at
    }

    /// Appends the frames of the next lines that the stream was not given.
    fn read(&mut self, stream: StreamId, now: Timestamp, frames: &mut BytesMut) -> io::Result<()> {
        let Some(mut at) = self.stream.as_ref().filter(|s| s.id == stream).map(|s| s.at) else {
            return Ok(());
        };
        let read = self.push_lines(&mut at, now, frames);
        if let Some(current) = &mut self.stream {
            current.at = at;
        }
        read
    }

    /// Appends the frames of the lines from `at` on, about [`READ_BYTES`] of them, and moves it behind these.
    fn push_lines(&mut self, at: &mut u64, now: Timestamp, frames: &mut BytesMut) -> io::Result<()> {
        let enough = *at + READ_BYTES as u64;
        while *at < enough {
            match self.spool.view(*at, READ_BYTES, &mut self.scratch)? {
                SpoolView::Bytes([]) => break,
                SpoolView::Bytes(bytes) => {
                    let Some(end) = memrchr(b'\n', bytes) else { return self.push_long_line(at, frames) };
                    sse::push_frames(&bytes[..=end], *at, frames);
                    *at += end as u64 + 1;
                }
                SpoolView::Gone { to } => {
                    let from = self.first_message(to);
                    self.push_gap(*at, from, now, frames);
                    *at = from;
                }
            }
        }
        Ok(())
    }

    /// Appends the frame of a line that lies in several places. One of whose end is gone gives none, and is read again.
    fn push_long_line(&mut self, at: &mut u64, frames: &mut BytesMut) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            let next = *at + line.len() as u64;
            match self.spool.view(next, READ_BYTES, &mut self.scratch)? {
                SpoolView::Bytes([]) => return Ok(()),
                SpoolView::Bytes(bytes) => match memchr(b'\n', bytes) {
                    None => line.extend_from_slice(bytes),
                    Some(end) => {
                        line.extend_from_slice(&bytes[..=end]);
                        sse::push_frames(&line, *at, frames);
                        *at += line.len() as u64;
                        return Ok(());
                    }
                },
                SpoolView::Gone { .. } => {
                    // The hole is found where the reading goes on, with its messages.
                    *at = next;
                    return Ok(());
                }
            }
        }
    }

    /// Lets go what is too old, and gives the disk what is only kept to be had again.
    fn settle(&mut self) {
        self.ever_taken = self.ever_taken.max(self.taken);
        let oldest = self.ever_taken.saturating_sub(self.window.bytes);
        self.keep_replies_before(oldest);
        self.spool.release_before(oldest);
        self.spool.store_before(self.ever_taken);
    }

    fn keep_replies_before(&mut self, oldest: u64) {
        while let Some(reply) = self.replies.pop_front_if(|reply| reply.start < oldest) {
            let mut line = Vec::new();
            let length = usize::try_from(reply.end - reply.start).unwrap_or(usize::MAX);
            while line.len() < length {
                let at = reply.start + line.len() as u64;
                match self.spool.view(at, length - line.len(), &mut self.scratch) {
                    Ok(SpoolView::Bytes(bytes)) if !bytes.is_empty() => line.extend_from_slice(bytes),
                    // It had been sent once, and there is no other copy.
                    Ok(SpoolView::Bytes(_) | SpoolView::Gone { .. }) | Err(_) => break,
                }
            }
            if line.len() == length {
                self.old_replies.keep(reply.end, line.into(), self.window.replies);
            }
        }
    }

    /// Gives back memory, for the time in which nothing is said.
    pub(crate) fn idle(&mut self) {
        self.spool.idle();
        (self.frames, self.scratch) = (BytesMut::new(), Vec::new());
    }

    fn wake(&mut self) {
        if let Some(waker) = self.stream.as_mut().and_then(|stream| stream.waker.take()) {
            waker.wake();
        }
    }
}

impl OldReplies {
    fn keep(&mut self, end: u64, line: Box<[u8]>, most: usize) {
        self.bytes += line.len();
        self.lines.push_back((end, line));
        while self.lines.len() > most || self.bytes > OLD_REPLIES_BYTES {
            let Some((_, line)) = self.lines.pop_front() else { return };
            self.bytes -= line.len();
        }
    }
}

#[cfg(test)]
mod tests;

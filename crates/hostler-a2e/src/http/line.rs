//! What stands between a session and its streams: its mailbox, and the connection that takes from it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hostler_core::sys::clock;
use hostler_http::{Delivery, Source};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Sleep;

use crate::mailbox::{Kind, Mailbox, Next, StreamId, UnknownId};
use crate::session::{Wanted, now};
use crate::sse;

/// Output is taken from processes while a stream was not given so much yet.
const BATCH_BYTES: u64 = 256 * 1024;
/// Replies may wait up to this much for a stream before requests are refused: room for some 100,000.
const ANSWERS_BYTES: u64 = 16 << 20;
/// How long a stream says nothing before it says that it is alive: proxies and NAT forget what is silent for a minute.
const SILENCE: Duration = Duration::from_secs(15);
/// Between two tries to read back what was said.
const READ_RETRY: Duration = Duration::from_millis(200);

/// Whether a client listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// It does.
    Open,
    /// It does not.
    None,
}

/// See the module. The session says, a stream takes; neither waits for the other.
#[derive(Debug)]
pub(super) struct Line {
    state: Mutex<State>,
    /// A stream has come, gone or taken something.
    news: Notify,
}

#[derive(Debug)]
struct State {
    mailbox: Mailbox,
    delivery: Option<(StreamId, Delivery)>,
}

impl Line {
    pub(super) fn new(mailbox: Mailbox) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { mailbox, delivery: None }), news: Notify::new() })
    }

    pub(super) fn say(&self, lines: &[u8], kind: Kind) {
        self.state.lock().mailbox.say(lines, kind);
    }

    /// Nothing more will be said.
    pub(super) fn close(&self) {
        self.state.lock().mailbox.close();
    }

    /// Ends the connection of a stream that does not take what is left, which would be held as long as it lives.
    pub(super) fn hang_up(&self) {
        let mut state = self.state.lock();
        state.mailbox.close();
        if state.mailbox.untaken() > 0
            && let Some((stream, delivery)) = state.delivery.take()
        {
            state.mailbox.gone(stream, &delivery.cut());
        }
    }

    /// Waits for a stream that comes, goes or takes something.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// What the session may say: without a stream, output stays where it holds its process back.
    pub(super) fn wanted(&self) -> Wanted {
        match self.state.lock().mailbox.waiting() {
            Some(waiting) if waiting < BATCH_BYTES => Wanted::Everything,
            Some(_) | None => Wanted::Answers,
        }
    }

    pub(super) fn has_room_for_answers(&self) -> bool {
        self.state.lock().mailbox.untaken() < ANSWERS_BYTES
    }

    pub(super) fn stream(&self) -> Stream {
        if self.state.lock().mailbox.waiting().is_some() { Stream::Open } else { Stream::None }
    }

    /// Whether something waits for the stream that there is.
    pub(super) fn is_behind(&self) -> bool {
        let state = self.state.lock();
        state.mailbox.waiting().is_some() && state.mailbox.untaken() > 0
    }

    /// A number that grows while a stream takes something.
    pub(super) fn progress(&self) -> u64 {
        let state = self.state.lock();
        let outstanding = state.delivery.as_ref().map_or(0, |(_, delivery)| delivery.taken());
        state.mailbox.ever_taken() + outstanding as u64
    }

    /// Begins a stream over a connection. One that there was has come to its end: its connection writes nothing more.
    pub(super) fn open(
        self: &Arc<Self>,
        after: Option<u64>,
        delivery: Delivery,
    ) -> Result<Outlet, UnknownId> {
        let mut state = self.state.lock();
        if let Some(after) = after {
            state.mailbox.knows(after)?;
        }
        if let Some((older, delivery)) = state.delivery.take() {
            state.mailbox.gone(older, &delivery.cut());
        }
        let stream = state.mailbox.open(after, now())?;
        state.delivery = Some((stream, delivery));
        drop(state);
        self.news.notify_one();
        let quiet = Box::pin(tokio::time::sleep_until(clock::now().into()));
        Ok(Outlet { line: Arc::clone(self), stream, quiet })
    }

    fn gone(&self, stream: StreamId) {
        let mut state = self.state.lock();
        if let Some((_, delivery)) = state.delivery.take_if(|(current, _)| *current == stream) {
            state.mailbox.gone(stream, &delivery.cut());
            drop(state);
            self.news.notify_one();
        }
    }
}

/// One stream: the frames of a session, as its connection takes them.
#[derive(Debug)]
pub(super) struct Outlet {
    line: Arc<Line>,
    stream: StreamId,
    /// Until something must be said, if only that the stream is alive. At the beginning that is at once.
    quiet: Pin<Box<Sleep>>,
}

impl Outlet {
    fn rest(&mut self, how_long: Duration) {
        self.quiet.as_mut().reset((clock::now() + how_long).into());
    }
}

impl Source for Outlet {
    fn spent(&mut self, chunk: Bytes) {
        self.line.state.lock().mailbox.recycle(chunk);
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.line.state.lock().mailbox.poll_next(self.stream, now(), cx);
        match next {
            Poll::Ready(Ok(Next::Frames(frames))) => {
                self.rest(SILENCE);
                self.line.news.notify_one();
                return Poll::Ready(Some(frames));
            }
            Poll::Ready(Ok(Next::End)) => return Poll::Ready(None),
            Poll::Ready(Err(error)) => {
                tracing::error!(%error, "what was said cannot be read back now, trying again");
                self.rest(READ_RETRY);
            }
            // What has just been taken may have made room.
            Poll::Pending => self.line.news.notify_one(),
        }
        std::task::ready!(self.quiet.as_mut().poll(cx));
        self.line.state.lock().mailbox.idle();
        self.rest(SILENCE);
        Poll::Ready(Some(Bytes::from_static(sse::COMMENT)))
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.line.gone(self.stream);
    }
}

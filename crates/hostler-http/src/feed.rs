//! A body of unknown end, of which is known how much the connection has taken.
//!
//! One chunk is outstanding at a time: the next one is asked for when the one before has been written to its end. What a
//! connection has taken of it follows from the meter, because a chunk stands on the wire as its length in hex, `\r\n`, its
//! bytes and `\r\n` (RFC 9112, 7.1), and nothing else is written meanwhile. A test holds HTTP's library to that.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;

use crate::meter::Meter;

/// Where chunks come from.
pub trait Source {
    /// Gives back a chunk that was taken, for its memory: the last but one that it gave.
    fn spent(&mut self, chunk: Bytes);

    /// The next chunk, which is not empty; all that it gave before was taken. `None` is the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// How far the outstanding chunk of a [`Feed`] was taken; a handle, which outlives it.
#[derive(Clone, Debug)]
pub struct Delivery(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    meter: Meter,
    outstanding: Mutex<Outstanding>,
}

#[derive(Debug, Default)]
struct Outstanding {
    chunk: Bytes,
    /// What the connection had taken before it.
    before: u64,
}

impl Outstanding {
    /// How much of the chunk was taken when so much was in all.
    fn taken(&self, written: u64) -> usize {
        let line = self.chunk.len().checked_ilog(16).map_or(0, |digits| u64::from(digits) + 1 + 2);
        let taken = written.saturating_sub(self.before).saturating_sub(line);
        usize::try_from(taken).unwrap_or(usize::MAX).min(self.chunk.len())
    }
}

impl Delivery {
    /// Bytes of the outstanding chunk that the connection has taken.
    pub fn taken(&self) -> usize {
        // The other order would count what is written in between to the chunk before.
        let outstanding = self.0.outstanding.lock();
        outstanding.taken(self.0.meter.written())
    }

    /// Ends the connection, and says what it has taken of the last chunk that it was given. It takes nothing more.
    pub fn cut(&self) -> Bytes {
        let outstanding = self.0.outstanding.lock();
        let taken = outstanding.taken(self.0.meter.cut());
        outstanding.chunk.slice(..taken)
    }
}

/// The body: see the module.
#[derive(Debug)]
pub struct Feed<S> {
    shared: Arc<Shared>,
    source: S,
}

impl Feed<()> {
    /// The body of the answer to a request on this connection, without its source yet.
    pub fn new(meter: &Meter) -> (Self, Delivery) {
        // The head of the answer comes first.
        meter.announce();
        let shared = Arc::new(Shared { meter: meter.clone(), outstanding: Mutex::default() });
        (Self { shared: Arc::clone(&shared), source: () }, Delivery(shared))
    }

    /// The body with its source.
    pub fn of<S: Source>(self, source: S) -> Feed<S> {
        Feed { shared: self.shared, source }
    }
}

impl<S: Source + Unpin> Body for Feed<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        std::task::ready!(this.shared.meter.poll_flushed(cx));
        // The chunk before stays the outstanding one until its source has been told that it was taken: a cut in between must
        // not find that nothing was.
        let Some(chunk) = std::task::ready!(this.source.poll_chunk(cx)) else { return Poll::Ready(None) };
        let mut outstanding = this.shared.outstanding.lock();
        let next = Outstanding { chunk: chunk.clone(), before: this.shared.meter.announce() };
        let spent = std::mem::replace(&mut *outstanding, next).chunk;
        drop(outstanding);
        // Before the first one there was none.
        if !spent.is_empty() {
            this.source.spent(spent);
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

//! The end of a connection whose client may still be sending.
//!
//! Bytes that nobody has read make the kernel reset a connection that is closed (RFC 9112, section 9.6), and a reset
//! overtakes the answer: the client sees a broken pipe in its place. So the answer's end is sent first, and what still
//! comes is dropped for a while.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// How long is read on.
const LIMIT: Duration = Duration::from_secs(5);

/// Whether the last body of a connection was left before its end; a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// The body of the next request: there is none before the last one is out of the way.
    pub(crate) fn watch<B: Body>(&self, body: B) -> Watched<B> {
        self.0.store(false, Ordering::Release);
        Watched { body, has_ended: false, unread: self.clone() }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A body that tells when it is left before its end.
#[derive(Debug)]
pub(crate) struct Watched<B: Body> {
    body: B,
    /// Its end was seen, which a body without a length has to be asked for.
    has_ended: bool,
    unread: Unread,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.has_ended = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Watched<B> {
    fn drop(&mut self) {
        if !self.has_ended && !self.body.is_end_stream() {
            self.unread.0.store(true, Ordering::Release);
        }
    }
}

/// Sends the end, and reads until the client has ended too.
pub(crate) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let close = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // A client that goes on for longer has had time to read, and one whose connection is broken has none.
    let _ = tokio::time::timeout(LIMIT, close).await;
}

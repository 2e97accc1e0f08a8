//! How much a connection has taken.
//!
//! It sits between HTTP and the socket (outside of TLS, whose records it does not see), and counts the bytes that were
//! accepted there. What was accepted is on its way as far as we can know.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counts what a connection takes; a handle.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    written: u64,
    /// Something was announced that is not known to be written to its end.
    behind: bool,
    cut: bool,
    flushed: Option<Waker>,
    /// Of the connection, which reads or writes.
    connection: Option<Waker>,
}

impl Meter {
    /// Bytes that were taken in all.
    pub(crate) fn written(&self) -> u64 {
        self.0.lock().written
    }

    /// Announces bytes that will be written: until they all are, [`poll_flushed`](Self::poll_flushed) waits. Says how much
    /// was taken before.
    pub(crate) fn announce(&self) -> u64 {
        let mut state = self.0.lock();
        state.behind = true;
        state.written
    }

    /// Waits until everything that was announced is written. HTTP flushes a connection only when it has nothing left to
    /// write.
    pub(crate) fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if !state.behind {
            return Poll::Ready(());
        }
        state.flushed = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the connection: nothing more is written from this moment on. Says how much was taken.
    pub(crate) fn cut(&self) -> u64 {
        let mut state = self.0.lock();
        state.cut = true;
        let (written, connection) = (state.written, state.connection.take());
        drop(state);
        if let Some(connection) = connection {
            connection.wake();
        }
        written
    }
}

/// A connection with its meter.
#[derive(Debug)]
pub(crate) struct Metered<T> {
    inner: T,
    meter: Meter,
}

impl<T> Metered<T> {
    pub(crate) fn new(inner: T, meter: Meter) -> Self {
        Self { inner, meter }
    }

    /// Writes by `write` unless the connection was cut. That happens under the lock, so that a cut knows exactly what was
    /// taken before it; a write does not wait.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut T, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.meter.0.lock();
        if state.cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let wrote = std::task::ready!(write(&mut self.inner, cx))?;
        state.written += wrote as u64;
        Poll::Ready(Ok(wrote))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.meter.0.lock();
        if state.cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // A connection always waits for something to read besides: for its client to go.
        if !state.connection.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.connection = Some(cx.waker().clone());
        }
        drop(state);
        Pin::new(&mut this.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |inner, cx| Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |inner, cx| Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        std::task::ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        let mut state = this.meter.0.lock();
        state.behind = false;
        let flushed = state.flushed.take();
        drop(state);
        if let Some(flushed) = flushed {
            flushed.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

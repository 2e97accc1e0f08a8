//! Standard input and output: one client, one session, and an end that is seen at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::McpServer;

/// How long answers that are ready may take to go out when the session has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Why serving has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client has closed its end, or is gone.
    ClientGone,
    /// It was asked for.
    Stopped,
}

/// Serves a client at standard input and output until one of them ends or `stop` completes. Everything of the session has
/// ended when it returns.
pub async fn serve_stdio(server: McpServer, stop: impl Future<Output = ()>) -> Ending {
    let gone = Arc::new(Notify::new());
    let (reader, writer) = stdio_pipes();
    let ends = (Watched::new(reader, &gone), Watched::new(writer, &gone));
    let shell = server.shell().clone();
    let mut serving = tokio::spawn(async move {
        match server.serve(ends).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::warn!(%error, "no client has introduced itself"),
        }
    });
    let ending = tokio::select! {
        () = gone.notified() => Ending::ClientGone,
        () = stop => Ending::Stopped,
        _ = &mut serving => Ending::ClientGone,
    };
    shell.close().await;
    // Commands that were waited for have their answers now.
    if !serving.is_finished() && tokio::time::timeout(LAST_WORDS, &mut serving).await.is_err() {
        serving.abort();
    }
    ending
}

/// An end of a connection that tells when the other one is gone.
#[derive(Debug)]
struct Watched<T> {
    inner: T,
    gone: Arc<Notify>,
}

impl<T> Watched<T> {
    fn new(inner: T, gone: &Arc<Notify>) -> Self {
        Self { inner, gone: Arc::clone(gone) }
    }

    fn saw<R>(&self, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Poll::Ready(Err(_)) = &result {
            self.gone.notify_one();
        }
        result
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = &read
            && buffer.filled().len() == before
        {
            this.gone.notify_one();
        }
        this.saw(read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.saw(wrote)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(cx);
        this.saw(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

//! A2E over a pair of descriptors: one JSON object a line in, one a line out.
//!
//! The descriptors are usually pipes or sockets that the agent made. Their own open file descriptions are left as they
//! are (others may share them): pipes are opened anew in non-blocking mode, sockets are used with non-waiting calls, and
//! for anything else (files, terminals) a thread waits in our place.
//!
//! While the client does not read, no output is taken from processes, so they are held back at their quota, and memory
//! does not grow; requests are still carried out until their answers fill the buffer.

mod ends;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hostler_core::sys::clock;

use tokio::sync::oneshot;

use crate::codec::{Item, LineCodec, MAX_LINE_BYTES};
use crate::session::{A2eSession, Event, Flow, Wanted};

pub use ends::{Input, Output};

/// Encoded events are taken up to this much at a time before they are written.
const BATCH_BYTES: usize = 256 * 1024;
/// Answers may wait up to this much before requests are no longer read.
const ANSWERS_BYTES: usize = 16 << 20;
/// Bytes of one read of requests.
const READ_BYTES: usize = 64 * 1024;
/// How long the client may take for what is left to say after the session's end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Between SIGTERM and SIGKILL when the client or the host goes.
const END_GRACE: Duration = Duration::from_secs(1);

/// Why the session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client asked for it.
    Shutdown,
    /// The client closed its end, of either descriptor.
    ClientGone,
    /// The host was asked to stop.
    Stopped,
}

#[derive(Debug)]
enum Wake {
    Input(io::Result<usize>),
    Core(Event),
    Written(io::Result<()>),
    End(Ending),
}

/// Serves until the session ends, and returns when nothing of it is left.
///
/// `stop` completes when the host is to end.
///
/// # Errors
/// When the descriptors cannot be used at all.
pub async fn serve(
    mut session: A2eSession,
    input: OwnedFd,
    output: OwnedFd,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Ending> {
    let mut input = Input::open(input)?;
    let mut output = Output::open(output)?;
    let mut codec = LineCodec::new(MAX_LINE_BYTES);
    let mut buffer = vec![0; READ_BYTES];
    let mut end = watch_for_end(stop, output.gone());
    let (ending, grace) = loop {
        // A full buffer is written before more output is taken; requests go on meanwhile.
        let wanted = if output.pending() < BATCH_BYTES { Wanted::Everything } else { Wanted::Answers };
        let has_pending = output.pending() > 0;
        let wake = tokio::select! {
            biased;
            ending = &mut end => Wake::End(ending.unwrap_or(Ending::Stopped)),
            read = input.read(&mut buffer), if output.pending() < ANSWERS_BYTES => Wake::Input(read),
            event = session.next(wanted) => Wake::Core(event),
            written = output.flush(), if has_pending => Wake::Written(written),
        };
        match wake {
            Wake::Input(Ok(0) | Err(_)) => {
                finish_input(&mut session, &mut codec, output.buffer());
                break (Ending::ClientGone, END_GRACE);
            }
            Wake::Input(Ok(n)) => {
                if let Flow::Shutdown(grace) = feed(&mut session, &mut codec, &buffer[..n], output.buffer()) {
                    break (Ending::Shutdown, grace);
                }
                // A client that never stops asking must not keep what it asks for from being said.
                if wanted == Wanted::Everything
                    && let Some(event) = session.try_next()
                {
                    take_batch(&mut session, event, output.buffer());
                }
            }
            Wake::Core(event) => take_batch(&mut session, event, output.buffer()),
            Wake::Written(Ok(())) => {}
            Wake::Written(Err(_)) => break (Ending::ClientGone, END_GRACE),
            Wake::End(ending) => break (ending, END_GRACE),
        }
        if output.write_now().is_err() {
            break (Ending::ClientGone, END_GRACE);
        }
    };
    // Its task holds on to the output.
    drop(end);
    farewell(session, output, grace).await;
    Ok(ending)
}

/// What ends a session from outside, in a task of its own: the loop that serves looks at one word for it, every time.
fn watch_for_end(
    stop: impl Future<Output = ()> + Send + 'static,
    gone: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Receiver<Ending> {
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let ending = tokio::select! {
            () = stop => Ending::Stopped,
            () = gone => Ending::ClientGone,
            () = sender.closed() => return,
        };
        // A session that has ended by itself does not hear it.
        let _ = sender.send(ending);
    });
    receiver
}

fn feed(session: &mut A2eSession, codec: &mut LineCodec, mut bytes: &[u8], out: &mut Vec<u8>) -> Flow {
    while let Some(item) = codec.next_item(&mut bytes) {
        let length = item_length(&item);
        if let Flow::Shutdown(grace) = session.handle(item, length, out) {
            return Flow::Shutdown(grace);
        }
    }
    Flow::Continue
}

fn item_length(item: &Item<'_>) -> usize {
    match item {
        Item::Line(line) => line.len() + 1,
        Item::Bad(_) => 0,
    }
}

/// A last line without its end is a line.
fn finish_input(session: &mut A2eSession, codec: &mut LineCodec, out: &mut Vec<u8>) {
    if let Some(item) = codec.finish() {
        let length = item_length(&item);
        let _ = session.handle(item, length, out);
    }
}

/// Takes what is ready besides, so that one write carries it all.
fn take_batch(session: &mut A2eSession, first: Event, out: &mut Vec<u8>) {
    session.take(first, out);
    while out.len() < BATCH_BYTES
        && let Some(event) = session.try_next()
    {
        session.take(event, out);
    }
}

/// Ends the session, and says what is left to say as long as the client reads it.
async fn farewell(mut session: A2eSession, mut output: Output, grace: Duration) {
    let closing = session.close(grace);
    tokio::pin!(closing);
    // Outside of the future that the limit may drop: a close that is done must not be waited for again.
    let closed = AtomicBool::new(false);
    let speak = async {
        while !closed.load(Relaxed) || session.has_something_to_say() || output.pending() > 0 {
            tokio::select! {
                biased;
                () = &mut closing, if !closed.load(Relaxed) => closed.store(true, Relaxed),
                event = session.next(Wanted::Everything), if output.pending() < BATCH_BYTES => {
                    take_batch(&mut session, event, output.buffer());
                }
                written = output.flush(), if output.pending() > 0 => {
                    if written.is_err() {
                        break;
                    }
                }
            }
        }
    };
    // A client that does not read what is left loses it, with its processes already dead.
    let deadline = clock::now() + grace + FAREWELL;
    if tokio::time::timeout_at(deadline.into(), speak).await.is_ok() {
        let _ = tokio::time::timeout_at(deadline.into(), output.finish()).await;
    }
    if !closed.load(Relaxed) {
        closing.await;
    }
}

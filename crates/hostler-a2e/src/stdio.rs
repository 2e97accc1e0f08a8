//! A2E over a pair of descriptors: one JSON object a line in, one a line out.
//!
//! The descriptors are usually pipes or sockets that the agent made. Their own open file descriptions are left as they
//! are (others may share them): pipes are opened anew in non-blocking mode, sockets are used with non-waiting calls, and
//! for anything else (files, terminals) a thread waits in our place.
//!
//! While the client does not read, no output is taken from processes, so they are held back at their quota, and memory
//! does not grow. Requests are still carried out until their answers fill the buffer, or until too many are under way;
//! then they stay where they are, in our buffer of one read and in the client's pipe. What goes on without them (ends,
//! limits of time, the answers to what is under way) goes on.
//!
//! A client that goes while its requests are left unread is noticed all the same. When it has left altogether, which its
//! end of our output tells, the session ends at once. When it has closed its end of our input alone, it may still read:
//! what it wrote before is carried out as it takes answers; from the moment on that it has taken none for a while, the
//! rest is carried out and its answers are dropped, up to the end of input, which is the end of the session.

mod ends;
mod input;
mod output;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hostler_core::sys::clock;

use tokio::sync::oneshot;

use crate::codec::{Item, LineCodec, MAX_LINE_BYTES};
use crate::farewell::{self, END_GRACE, Patience};
use crate::session::{A2eSession, Event, Flow, Wanted};

pub use input::Input;
pub use output::Output;

/// Encoded events are taken up to this much at a time before they are written.
const BATCH_BYTES: usize = 256 * 1024;
/// Answers may wait up to this much before requests are no longer carried out: room for some 100,000 answers, for
/// clients that say all that they have to say before they read.
const ANSWERS_BYTES: usize = 16 << 20;
/// Bytes of one read of requests.
const READ_BYTES: usize = 64 * 1024;
/// How long a client that has closed its end of our input may take nothing before its answers are dropped.
const HANG_UP_PATIENCE: Duration = Duration::from_secs(3);

/// Why the session could not be served, or not to an end that anybody wanted. It has ended, with all that it had started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A descriptor cannot be used at all; nothing was started.
    #[error("failed to use standard input and output")]
    Open(#[source] io::Error),
    /// Requests cannot be read, and not because the client is gone.
    #[error("failed to read from standard input")]
    Read(#[source] io::Error),
    /// Messages cannot be written, and not because the client is gone.
    #[error("failed to write to standard output")]
    Write(#[source] io::Error),
}

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
    Requests(io::Result<Arrived>),
    HungUp,
    GivenUp,
    Core(Event),
    Written(io::Result<()>),
    End(Result<Ending, ServeError>),
}

/// Serves until the session ends, and returns when nothing of it is left.
///
/// `stop` completes when the host is to end.
///
/// # Errors
/// [`ServeError`]. A client that is gone is none.
pub async fn serve(
    session: A2eSession,
    input: OwnedFd,
    output: OwnedFd,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Ending, ServeError> {
    let output = Output::open(output).map_err(ServeError::Open)?;
    let input = Requests::new(Input::open(input).map_err(ServeError::Open)?);
    let end = watch_for_end(stop, output.gone());
    let mut conversation = Conversation { session, input, output, hung_up: None };
    let (ending, grace) = conversation.run(end).await;
    conversation.output.keep_answers();
    let said = say_farewell(conversation.session, conversation.output, grace).await;
    // What could not be written after the end is news only where nothing had gone wrong before.
    match (ending, said) {
        (Ok(_), Err(error)) => ended_by(error),
        (ending, _) => ending,
    }
}

/// What a failed write means for the session.
fn ended_by(error: io::Error) -> Result<Ending, ServeError> {
    if ends::is_departure(&error) { Ok(Ending::ClientGone) } else { Err(ServeError::Write(error)) }
}

struct Conversation {
    session: A2eSession,
    input: Requests,
    output: Output,
    hung_up: Option<HungUp>,
}

/// The client has closed its end of our input, and requests of it are left unread.
#[derive(Clone, Copy, Debug)]
struct HungUp {
    /// How much of our output it had taken in all.
    taken: u64,
    /// When that was last more than before.
    since: Instant,
}

impl Conversation {
    /// Until the session is to end: why, and how long what it started may take to end by itself.
    async fn run(&mut self, mut end: Ended) -> (Result<Ending, ServeError>, Duration) {
        loop {
            match self.wait(&mut end).await {
                Wake::Requests(Ok(Arrived::Some)) => {
                    if let Flow::Shutdown(grace) = self.carry_out() {
                        return (Ok(Ending::Shutdown), grace);
                    }
                }
                Wake::Requests(Ok(Arrived::End)) => {
                    let flow = self.input.finish(&mut self.session, self.output.buffer());
                    return match flow {
                        Flow::Continue => (Ok(Ending::ClientGone), END_GRACE),
                        Flow::Shutdown(grace) => (Ok(Ending::Shutdown), grace),
                    };
                }
                Wake::Requests(Err(error)) if ends::is_departure(&error) => {
                    return (Ok(Ending::ClientGone), END_GRACE);
                }
                Wake::Requests(Err(error)) => return (Err(ServeError::Read(error)), END_GRACE),
                Wake::HungUp => {
                    self.hung_up = Some(HungUp { taken: self.output.taken(), since: clock::now() });
                }
                // It may have taken something in the meantime: writing down a long backlog is one turn of this loop.
                Wake::GivenUp if self.has_taken_nothing() => self.output.drop_answers(),
                Wake::GivenUp => {}
                Wake::Core(event) => take_batch(&mut self.session, event, &mut self.output),
                Wake::Written(Ok(())) => {}
                Wake::Written(Err(error)) => return (ended_by(error), END_GRACE),
                Wake::End(ending) => return (ending, END_GRACE),
            }
            if let Err(error) = self.output.write_now() {
                return (ended_by(error), END_GRACE);
            }
        }
    }

    async fn wait(&mut self, end: &mut Ended) -> Wake {
        let hold = self.hold();
        let has_pending = self.output.pending() > 0;
        // A full buffer is written before more output is taken; requests go on meanwhile.
        let wanted = wanted(&self.output);
        // A client that reads little by little gets its requests carried out as soon as there is room again.
        let keep = if self.output.pending() < ANSWERS_BYTES { 0 } else { ANSWERS_BYTES - 1 };
        tokio::select! {
            biased;
            ending = end => Wake::End(ending.unwrap_or(Ok(Ending::Stopped))),
            wake = self.input.next(hold) => wake,
            event = self.session.next(wanted) => Wake::Core(event),
            written = self.output.flush(keep), if has_pending => Wake::Written(written),
        }
    }

    fn hold(&mut self) -> Hold {
        if has_room(&self.session, &self.output) {
            return Hold::Nothing;
        }
        if has_room_for_answers(&self.output) {
            return Hold::UntilDone;
        }
        let Some(hung_up) = &mut self.hung_up else { return Hold::UntilRead };
        let taken = self.output.taken();
        if taken != hung_up.taken {
            *hung_up = HungUp { taken, since: clock::now() };
        }
        Hold::UntilReadOr { given_up: hung_up.since + HANG_UP_PATIENCE }
    }

    fn has_taken_nothing(&self) -> bool {
        self.hung_up.is_some_and(|hung_up| hung_up.taken == self.output.taken())
    }

    fn carry_out(&mut self) -> Flow {
        let listens = wanted(&self.output) == Wanted::Everything;
        if let Flow::Shutdown(grace) = self.input.feed(&mut self.session, &mut self.output) {
            return Flow::Shutdown(grace);
        }
        // A client that never stops asking must not keep what it asks for from being said.
        if listens && let Some(event) = self.session.try_next() {
            take_batch(&mut self.session, event, &mut self.output);
        }
        Flow::Continue
    }
}

/// Whether one more request may be carried out.
fn has_room(session: &A2eSession, output: &Output) -> bool {
    has_room_for_answers(output) && session.has_room()
}

fn has_room_for_answers(output: &Output) -> bool {
    output.drops_answers() || output.pending() < ANSWERS_BYTES
}

fn wanted(output: &Output) -> Wanted {
    // What processes print is never dropped.
    if output.pending() < BATCH_BYTES && !output.drops_answers() {
        Wanted::Everything
    } else {
        Wanted::Answers
    }
}

/// Why requests are left unread.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// They are not.
    Nothing,
    /// Too many are under way. That ends by itself.
    UntilDone,
    /// Too many answers wait for a client that may have gone.
    UntilRead,
    /// The same, and it has hung up: it has until then to read on.
    UntilReadOr { given_up: Instant },
}

/// Requests as they arrive, and those of the last read that are not carried out yet.
struct Requests {
    source: Input,
    codec: LineCodec,
    buffer: Vec<u8>,
    rest: Range<usize>,
}

/// What has come of the client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    Some,
    End,
}

impl Requests {
    fn new(source: Input) -> Self {
        Self { source, codec: LineCodec::new(MAX_LINE_BYTES), buffer: vec![0; READ_BYTES], rest: 0..0 }
    }

    /// Waits for what there is to know of the client's side. Cancel-safe.
    async fn next(&mut self, hold: Hold) -> Wake {
        match hold {
            Hold::Nothing => Wake::Requests(self.more().await),
            Hold::UntilDone => std::future::pending().await,
            Hold::UntilRead => {
                self.source.hung_up().await;
                Wake::HungUp
            }
            Hold::UntilReadOr { given_up } => {
                tokio::time::sleep_until(given_up.into()).await;
                Wake::GivenUp
            }
        }
    }

    /// Waits until there are bytes to look at. Cancel-safe.
    async fn more(&mut self) -> io::Result<Arrived> {
        if self.rest.is_empty() {
            self.rest = 0..self.source.read(&mut self.buffer).await?;
        }
        Ok(if self.rest.is_empty() { Arrived::End } else { Arrived::Some })
    }

    /// Carries out what has arrived, as far as there is room.
    fn feed(&mut self, session: &mut A2eSession, output: &mut Output) -> Flow {
        let mut bytes = &self.buffer[self.rest.clone()];
        let mut flow = Flow::Continue;
        while flow == Flow::Continue
            && has_room(session, output)
            && let Some(item) = self.codec.next_item(&mut bytes)
        {
            let length = item_length(&item);
            flow = session.handle(item, length, output.buffer());
        }
        self.rest.start = self.rest.end - bytes.len();
        flow
    }

    /// A last line without its end is a line.
    fn finish(&mut self, session: &mut A2eSession, out: &mut Vec<u8>) -> Flow {
        let Some(item) = self.codec.finish() else { return Flow::Continue };
        let length = item_length(&item);
        session.handle(item, length, out)
    }
}

/// Where the end of a session comes from when it comes from outside.
type Ended = oneshot::Receiver<Result<Ending, ServeError>>;

/// What ends a session from outside, in a task of its own: the loop that serves looks at one word for it, every time.
fn watch_for_end(
    stop: impl Future<Output = ()> + Send + 'static,
    gone: impl Future<Output = io::Error> + Send + 'static,
) -> Ended {
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let ending = tokio::select! {
            () = stop => Ok(Ending::Stopped),
            error = gone => ended_by(error),
            () = sender.closed() => return,
        };
        // A session that has ended by itself does not hear it.
        let _ = sender.send(ending);
    });
    receiver
}

fn item_length(item: &Item<'_>) -> usize {
    match item {
        Item::Line(line) => line.len() + 1,
        Item::Bad(_) => 0,
    }
}

/// Takes what is ready besides, so that one write carries it all.
fn take_batch(session: &mut A2eSession, first: Event, output: &mut Output) {
    session.take(first, output.buffer());
    while wanted(output) == Wanted::Everything
        && let Some(event) = session.try_next()
    {
        session.take(event, output.buffer());
    }
}

/// Ends the session, and says what is left to say as long as the client reads it.
///
/// # Errors
/// When something of that cannot be written.
async fn say_farewell(mut session: A2eSession, mut output: Output, grace: Duration) -> io::Result<()> {
    let closing = session.close(grace);
    tokio::pin!(closing);
    let mut closed = false;
    let mut patience = Patience::new(output.taken(), grace);
    let said = loop {
        if closed && !session.has_something_to_say() && output.pending() == 0 {
            break tokio::time::timeout(farewell::PATIENCE, output.finish()).await.unwrap_or(Ok(()));
        }
        tokio::select! {
            biased;
            () = &mut closing, if !closed => closed = true,
            // A client that does not read what is left loses it, with its processes already dead.
            () = patience.ends() => if !patience.is_renewed(output.taken()) { break Ok(()) },
            event = session.next(Wanted::Everything), if wanted(&output) == Wanted::Everything => {
                take_batch(&mut session, event, &mut output);
            }
            written = output.flush(0), if output.pending() > 0 => if let Err(error) = written { break Err(error) },
        }
    };
    if !closed {
        closing.await;
    }
    farewell::hear_out(session).await;
    said
}

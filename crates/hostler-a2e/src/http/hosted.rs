//! One session over HTTP: a task that carries out what is posted to it, and ends it when its time has come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hostler_core::sys::clock;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::line::{Line, Stream};
use super::{HttpOptions, Sessions};
use crate::codec::{Item, MAX_LINE_BYTES};
use crate::farewell::{self, END_GRACE, Patience};
use crate::mailbox::Kind;
use crate::session::{A2eSession, Event, Flow, Wanted};

/// How many events are taken, of processes or answers, before what is posted gets its turn.
const BATCH_TURNS: usize = 8;

/// A message that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) body: Bytes,
    /// Told when it was begun; dropped when it never will be.
    pub(super) begun: oneshot::Sender<()>,
    /// Its room among the large bodies of the host.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client asked for it.
    Shutdown,
    /// There was no good handshake in time.
    NoHandshake,
    /// Its client has not been heard of for too long.
    Expired,
    /// The host was asked to stop.
    Stopped,
}

#[derive(Debug)]
enum Wake {
    Posted(Posted),
    Core(Event),
    News,
    Overdue,
    Stop,
}

/// See the module.
pub(super) struct Conversation {
    session: A2eSession,
    line: Arc<Line>,
    posted: mpsc::Receiver<Posted>,
    out: Vec<u8>,
    presence: Presence,
    /// A place among those that have not shaken hands.
    stranger: Option<super::StrangerPlace>,
}

impl Conversation {
    pub(super) fn new(
        session: A2eSession,
        line: Arc<Line>,
        posted: mpsc::Receiver<Posted>,
        presence: Presence,
        stranger: Option<super::StrangerPlace>,
    ) -> Self {
        Self { session, line, posted, out: Vec::new(), presence, stranger }
    }

    /// Serves until the session has ended, and returns when nothing of it is left.
    pub(super) async fn run(mut self, sessions: &Sessions, mut stop: super::StopWatch) {
        let (ending, grace) = self.serve(&mut stop).await;
        // From here on the session is unknown, also to a client that hears of its end by an answer.
        sessions.forget(self.session.id());
        tracing::info!(session = %self.session.id(), ?ending, "a session has ended");
        let Self { session, line, out, posted, .. } = self;
        drop(posted);
        say_farewell(session, &line, out, grace).await;
    }

    async fn serve(&mut self, stop: &mut super::StopWatch) -> (Ending, Duration) {
        loop {
            match self.wait(stop).await {
                Wake::Posted(posted) => {
                    self.presence.is_here(clock::now());
                    if let Flow::Shutdown(grace) = self.carry_out(posted) {
                        return (Ending::Shutdown, grace);
                    }
                    // A client that never stops asking must not keep what it asks for from being said.
                    if self.line.wanted() == Wanted::Everything
                        && let Some(event) = self.session.try_next()
                    {
                        self.take_batch(event);
                    }
                }
                Wake::Core(event) => self.take_batch(event),
                Wake::News => {}
                Wake::Overdue => match self.presence.state {
                    State::Stranger { .. } => return (Ending::NoHandshake, Duration::ZERO),
                    State::Absent { .. } => return (Ending::Expired, END_GRACE),
                    State::Here => {}
                },
                Wake::Stop => return (Ending::Stopped, END_GRACE),
            }
        }
    }

    async fn wait(&mut self, stop: &mut super::StopWatch) -> Wake {
        let overdue = self.overdue();
        let (has_room, wanted) = (self.session.has_room(), self.line.wanted());
        let sleep = async {
            match overdue {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.asked() => Wake::Stop,
            Some(posted) = self.posted.recv(), if has_room => Wake::Posted(posted),
            event = self.session.next(wanted) => Wake::Core(event),
            () = self.line.news() => Wake::News,
            () = sleep => Wake::Overdue,
        }
    }

    /// When the session is to end, unless something happens before.
    fn overdue(&mut self) -> Option<Instant> {
        if self.session.is_welcome() {
            self.stranger = None;
            self.presence.is_welcome(clock::now());
        }
        let live = self.session.live_processes();
        self.presence.look(self.line.stream(), live, clock::now())
    }

    fn carry_out(&mut self, posted: Posted) -> Flow {
        let Posted { body, begun, _room } = posted;
        let flow = match Item::of_body(&body, MAX_LINE_BYTES) {
            Some(item) => self.session.handle(item, body.len(), &mut self.out),
            None => Flow::Continue,
        };
        self.say(Kind::Reply);
        // Whoever has left by now does not hear that it was begun.
        let _ = begun.send(());
        flow
    }

    /// Takes what is ready besides, up to a point: a stream that is as fast as its processes must not keep what is posted
    /// from being read.
    fn take_batch(&mut self, first: Event) {
        take(&mut self.session, first, &self.line, &mut self.out);
        for _ in 1..BATCH_TURNS {
            let wanted = self.line.wanted();
            let Some(event) = (if wanted == Wanted::Everything { self.session.try_next() } else { None })
            else {
                return;
            };
            take(&mut self.session, event, &self.line, &mut self.out);
        }
    }

    fn say(&mut self, kind: Kind) {
        self.line.say(&self.out, kind);
        self.out.clear();
    }
}

fn take(session: &mut A2eSession, event: Event, line: &Line, out: &mut Vec<u8>) {
    let kind = if event.is_answer() { Kind::Reply } else { Kind::Event };
    session.take(event, out);
    line.say(out, kind);
    out.clear();
}

/// Ends the session, and says what is left to say as long as there is a stream that takes it.
async fn say_farewell(mut session: A2eSession, line: &Line, mut out: Vec<u8>, grace: Duration) {
    let closing = session.close(grace);
    tokio::pin!(closing);
    let mut closed = false;
    let mut patience = Patience::new(line.progress(), grace);
    loop {
        let said = closed && !session.has_something_to_say();
        if said {
            line.close();
        }
        if closed && (line.stream() == Stream::None || said && !line.is_behind()) {
            break;
        }
        tokio::select! {
            biased;
            () = &mut closing, if !closed => closed = true,
            () = patience.ends() => if !patience.is_renewed(line.progress()) { break },
            event = session.next(line.wanted()) => take(&mut session, event, line, &mut out),
            () = line.news() => {}
        }
    }
    if !closed {
        closing.await;
    }
    line.hang_up();
    farewell::hear_out(session).await;
}

/// Whether the client is there, and how long it may stay away. It reads no clock.
#[derive(Debug)]
pub(super) struct Presence {
    state: State,
    idle_timeout: Duration,
    busy_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No good handshake yet; it has until then.
    Stranger { until: Instant },
    /// A stream is open.
    Here,
    /// No stream is open, and nothing has come since then.
    Absent { since: Instant },
}

impl Presence {
    pub(super) fn new(options: &HttpOptions, now: Instant) -> Self {
        Self {
            state: State::Stranger { until: now + options.handshake_timeout },
            idle_timeout: options.idle_timeout,
            busy_timeout: options.busy_timeout,
        }
    }

    /// A good handshake was made.
    fn is_welcome(&mut self, now: Instant) {
        match self.state {
            State::Stranger { .. } => self.state = State::Absent { since: now },
            State::Here | State::Absent { .. } => {}
        }
    }

    /// It has sent something.
    fn is_here(&mut self, now: Instant) {
        match self.state {
            State::Absent { .. } => self.state = State::Absent { since: now },
            State::Stranger { .. } | State::Here => {}
        }
    }

    /// When its time is over as things stand; `None`: not while its stream is open.
    fn look(&mut self, stream: Stream, live_processes: usize, now: Instant) -> Option<Instant> {
        match (self.state, stream) {
            (State::Here | State::Absent { .. }, Stream::Open) => self.state = State::Here,
            (State::Here, Stream::None) => self.state = State::Absent { since: now },
            (State::Absent { .. }, Stream::None) | (State::Stranger { .. }, Stream::Open | Stream::None) => {}
        }
        match self.state {
            State::Stranger { until } => Some(until),
            State::Here => None,
            State::Absent { since } if live_processes == 0 => Some(since + self.idle_timeout),
            State::Absent { since } => Some(since + self.busy_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_stranger_has_a_moment_a_client_that_is_away_an_hour_or_a_day_and_one_that_listens_for_ever() {
        let start = clock::now();
        let at = |n| start + seconds(n);
        let options = HttpOptions {
            handshake_timeout: seconds(10),
            idle_timeout: seconds(1000),
            busy_timeout: seconds(9000),
            ..HttpOptions::default()
        };
        let mut presence = Presence::new(&options, start);
        assert_eq!(presence.look(Stream::None, 0, at(1)), Some(at(10)));
        presence.is_here(at(3));
        assert_eq!(
            presence.look(Stream::Open, 0, at(3)),
            Some(at(10)),
            "neither a request nor a stream is a handshake"
        );
        presence.is_welcome(at(5));
        assert_eq!(presence.look(Stream::None, 0, at(5)), Some(at(1005)));
        presence.is_here(at(7));
        presence.is_welcome(at(8));
        assert_eq!(presence.look(Stream::None, 0, at(8)), Some(at(1007)));
        assert_eq!(presence.look(Stream::None, 2, at(8)), Some(at(9007)), "something runs");
        assert_eq!(presence.look(Stream::Open, 0, at(20)), None);
        presence.is_here(at(21));
        assert_eq!(presence.look(Stream::Open, 0, at(5000)), None);
        assert_eq!(presence.look(Stream::None, 0, at(6000)), Some(at(7000)), "its stream was open until now");
    }
}

//! A2E over HTTP: sessions that any number of agents open, and the routes by which they reach them.
//!
//! `POST /session` opens a session, `POST /send` brings it one message, `GET /stream` takes what it says, as server-sent
//! events. Each session is a task of its own (`hosted`), that a request reaches by a queue and a stream by the session's
//! `line`; what was said waits there, so that a client may come and go. Who may connect at all, and what a request must
//! look like before a route sees it, is the door's business ([`hostler_http`]).
//!
//! Invariants:
//! - messages of a session are begun in the order in which their bodies were read, each of them once; one that was begun is
//!   answered with 200;
//! - a session that has ended is unknown, in the same words as one that never was, from the answer on that ends it;
//! - a session ends by `shutdown`, when no good handshake comes in time, when its client stays away too long, and with the
//!   host; whatever it had started ends with it;
//! - without a stream nothing is taken from processes, and more than 16 MiB of replies never wait.

mod hosted;
mod line;
mod routes;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hostler_core::sys::clock;
use hostler_http::Peer;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::mailbox::Mailbox;
pub use crate::mailbox::ReplayWindow;
use crate::session::A2eSession;
use crate::wire::SessionId;
use hosted::{Conversation, Posted, Presence};
use line::Line;

/// Messages of a session that may wait for it to have room; whoever sends more waits with them.
const POSTED: usize = 16;

/// How sessions over HTTP are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Sessions at a time; default 1000.
    pub max_sessions: usize,
    /// Of these, sessions without a good handshake that one address may have. Where anybody may connect, because the token of
    /// the handshake is all that protects, nobody shall keep others out with such sessions. Default: as many as there may
    /// be sessions.
    pub max_strangers: Option<usize>,
    /// What a stream can have again; default 16 MiB, and 1,024 replies before that.
    pub window: ReplayWindow,
    /// How long a session may go without a good handshake; default 10 s.
    pub handshake_timeout: Duration,
    /// How long a session without a live process lives when it has no stream and no message comes; default 30 min.
    pub idle_timeout: Duration,
    /// The same with live processes; default 24 h.
    pub busy_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            max_sessions: 1000,
            max_strangers: None,
            window: ReplayWindow { bytes: 16 << 20, replies: 1024 },
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(1800),
            busy_timeout: Duration::from_secs(86_400),
        }
    }
}

/// The sessions of a host that are reached over HTTP. See the module.
pub struct Sessions {
    options: HttpOptions,
    new_session: Box<dyn Fn() -> A2eSession + Send + Sync>,
    table: Mutex<Table>,
    bodies: routes::BodyRoom,
    stop: watch::Sender<bool>,
    /// Every conversation has a sender of its channel, so that its end is the end of them all.
    running: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

#[derive(Debug, Default)]
struct Table {
    hosted: HashMap<SessionId, Hosted>,
    strangers: HashMap<IpAddr, usize>,
}

/// The way to a session.
#[derive(Clone, Debug)]
struct Hosted {
    posted: mpsc::Sender<Posted>,
    line: Arc<Line>,
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Full {
    #[error("{0} sessions are open, as many as there may be: end one, or raise `a2e.http.max_sessions`")]
    Sessions(usize),
    #[error(
        "{0} sessions of this address wait for their handshake, as many as may: send one, or wait until they end"
    )]
    Strangers(usize),
    #[error("the host is ending")]
    Ending,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("options", &self.options)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    /// No sessions yet. `new_session` makes one on which nothing was said.
    pub fn new(
        options: HttpOptions,
        new_session: impl Fn() -> A2eSession + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (running, ended) = mpsc::channel(1);
        Arc::new(Self {
            options,
            new_session: Box::new(new_session),
            table: Mutex::default(),
            bodies: routes::BodyRoom::default(),
            stop: watch::Sender::new(false),
            running: Mutex::new(Some(running)),
            ended: tokio::sync::Mutex::new(ended),
        })
    }

    /// The routes, for the door.
    pub fn router(self: &Arc<Self>) -> axum::Router {
        routes::router(Arc::clone(self))
    }

    /// Ends all sessions, and waits until nothing of them is left. None is opened any more.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        drop(self.running.lock().take());
        // Nothing is ever sent: this is the end of the last conversation.
        while self.ended.lock().await.recv().await.is_some() {}
    }

    fn open(self: &Arc<Self>, peer: Option<&Peer>) -> Result<SessionId, Full> {
        let running = self.running.lock().clone().ok_or(Full::Ending)?;
        let place = self.stranger_place(peer)?;
        let mut session = (self.new_session)();
        let id = session.id().clone();
        let window = self.options.window;
        let line = Line::new(Mailbox::new(session.spool(window.bytes), session.lane(), window));
        let (sender, posted) = mpsc::channel(POSTED);
        let mut table = self.table.lock();
        if table.hosted.len() >= self.options.max_sessions {
            drop(table);
            return Err(Full::Sessions(self.options.max_sessions));
        }
        table.hosted.insert(id.clone(), Hosted { posted: sender, line: Arc::clone(&line) });
        drop(table);
        let presence = Presence::new(&self.options, clock::now());
        let conversation = Conversation::new(session, line, posted, presence, place);
        let (sessions, stop) = (Arc::clone(self), StopWatch(self.stop.subscribe()));
        tokio::spawn(async move {
            conversation.run(&sessions, stop).await;
            drop(running);
        });
        Ok(id)
    }

    fn find(&self, id: &SessionId) -> Option<Hosted> {
        self.table.lock().hosted.get(id).cloned()
    }

    fn forget(&self, id: &SessionId) {
        self.table.lock().hosted.remove(id);
    }

    /// A place for one more stranger; `None` where they are not counted, as users of this machine are not.
    fn stranger_place(self: &Arc<Self>, peer: Option<&Peer>) -> Result<Option<StrangerPlace>, Full> {
        let (Some(max), Some(Peer::Address(address))) = (self.options.max_strangers, peer) else {
            return Ok(None);
        };
        let mut table = self.table.lock();
        let strangers = table.strangers.entry(*address).or_default();
        if *strangers >= max {
            return Err(Full::Strangers(max));
        }
        *strangers += 1;
        drop(table);
        Ok(Some(StrangerPlace { sessions: Arc::clone(self), address: *address }))
    }
}

/// A place among the sessions of an address that have not shaken hands; given back when dropped.
struct StrangerPlace {
    sessions: Arc<Sessions>,
    address: IpAddr,
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        let mut table = self.sessions.table.lock();
        if let Some(strangers) = table.strangers.get_mut(&self.address) {
            *strangers -= 1;
            if *strangers == 0 {
                table.strangers.remove(&self.address);
            }
        }
    }
}

/// Hears that the host is to end.
#[derive(Debug)]
struct StopWatch(watch::Receiver<bool>);

impl StopWatch {
    async fn asked(&mut self) {
        // The sender lives as long as the sessions, which the conversation holds.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

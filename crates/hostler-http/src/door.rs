//! Listening, letting in, and the end of all that.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Version;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::address::Address;
use crate::guard::{BearerToken, Guard, ReachedBy};
use crate::linger::{self, Unread};
use crate::meter::{Meter, Metered};
use crate::peer::{Owners, Peer};
use crate::throttle::Throttle;
use crate::tls::{self, TlsError, TlsFiles};
use crate::unix::{self, Place, SocketError};

/// How long connections may take to end when the door is closed.
const FAREWELL: Duration = Duration::from_secs(5);
/// Between two tries to accept when the system refuses.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that the kernel holds until they are accepted; less where `net.core.somaxconn` is.
const BACKLOG: i32 = 4096;
/// Refused connections that are held until their clients have read why; others are closed at once.
const TURNED_AWAY: usize = 64;
/// Bytes of a request's head, and of what is read ahead.
const HEAD_BYTES: usize = 64 * 1024;

/// Whether other machines may be served in clear text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearText {
    /// No.
    Refused,
    /// Yes: everybody between here and there reads everything, tokens too.
    Allowed,
}

/// Whether the kernel is asked who is at the other end, where no bearer token is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCheck {
    /// The same user or root may come in. Only peers on this machine can be asked for.
    SameUser,
    /// Anybody may come in: what is served has a token of its own.
    None,
}

/// How a door is made.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// Where it is.
    pub address: Address,
    /// What every request must bring, but those to `open_paths`. Default: nothing.
    pub bearer: Option<BearerToken>,
    /// Default: clear text.
    pub tls: Option<TlsFiles>,
    /// Default: refused.
    pub clear_text: ClearText,
    /// Default: the same user. A unix socket is always its owner's and root's.
    pub peer_check: PeerCheck,
    /// Names that a `Host` may have besides `localhost` and IP addresses. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may send requests, such as `https://tool.example`. Default: none.
    pub allowed_origins: Vec<String>,
    /// Paths that need no token. Default: none.
    pub open_paths: &'static [&'static str],
    /// Connections at a time, about 20 KiB each; more are closed. Default: 2048.
    pub max_connections: usize,
    /// How long the head of a request may take, and a connection between two of them. Default: 30 s.
    pub head_timeout: Duration,
}

impl DoorOptions {
    /// The defaults, at an address.
    pub fn at(address: Address) -> Self {
        Self {
            address,
            bearer: None,
            tls: None,
            clear_text: ClearText::Refused,
            peer_check: PeerCheck::SameUser,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            open_paths: &[],
            max_connections: 2048,
            head_timeout: Duration::from_secs(30),
        }
    }
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Other machines reach the address, and nothing would keep them out.
    #[error("{0} can be reached by other machines, which needs a bearer token")]
    NeedsToken(SocketAddr),
    /// The same, and everything would go in clear text.
    #[error("{0} can be reached by other machines, which needs TLS")]
    NeedsTls(SocketAddr),
    /// No certificate that works.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Nobody tells whose a connection is.
    #[error("failed to find out whose a connection is, so nobody could be let in without a token")]
    Owners(#[source] io::Error),
}

/// A door that is open: see the crate.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    local: Address,
    owners: Option<Owners>,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    /// Places of those who are turned away.
    porch: Arc<Semaphore>,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix {
        /// Removed with the door, and before it: a socket that still listens is replaced by nobody.
        _place: Place,
        listener: UnixListener,
    },
}

/// What all connections have in common.
#[derive(Debug)]
struct Shared {
    guard: Guard,
    tls: Option<Acceptor>,
    head_timeout: Duration,
}

struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// A connection that may come in.
enum Accepted {
    Tcp(TcpStream, Peer),
    Unix(UnixStream, Peer),
}

/// Why a connection may not come in.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it belongs to user {0}")]
    User(u32),
    #[error("it belongs to nobody any more")]
    Nobody,
    #[error("nobody tells whose it is: {0}")]
    Unknown(io::Error),
    #[error("there are as many connections as there may be")]
    Full,
}

impl Door {
    /// Opens a door. To be called where a runtime is.
    ///
    /// # Errors
    /// [`DoorError`]; nothing listens then.
    pub fn open(options: DoorOptions) -> Result<Self, DoorError> {
        check(&options)?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?.map(Acceptor);
        let asks = options.bearer.is_none() && options.peer_check == PeerCheck::SameUser;
        let (listener, local, owners, reached_by) = match &options.address {
            Address::Tcp(address) => {
                let owners = asks.then(Owners::new).transpose().map_err(DoorError::Owners)?;
                let listener = listen(*address);
                let (listener, local) =
                    listener.map_err(|source| DoorError::Listen { address: *address, source })?;
                let by = if tls.is_some() { ReachedBy::Tls } else { ReachedBy::ClearText };
                (Listener::Tcp(listener), Address::Tcp(local), owners, by)
            }
            Address::Unix(path) => {
                let (listener, place) = unix::listen(path)?;
                let made = UnixListener::from_std(listener);
                let listener = made.map_err(|source| SocketError::Make { path: path.clone(), source })?;
                (
                    Listener::Unix { _place: place, listener },
                    options.address.clone(),
                    None,
                    ReachedBy::UnixSocket,
                )
            }
        };
        let guard = Guard {
            bearer: options.bearer,
            hosts: options.allowed_hosts,
            origins: options.allowed_origins,
            open_paths: options.open_paths,
            reached_by,
            log: Throttle::default(),
        };
        let shared = Arc::new(Shared { guard, tls, head_timeout: options.head_timeout });
        let room = Arc::new(Semaphore::new(options.max_connections));
        let porch = Arc::new(Semaphore::new(TURNED_AWAY));
        Ok(Self { listener, local, owners, shared, room, porch })
    }

    /// Where it is, with the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.local
    }

    /// How clients write that.
    pub fn url(&self) -> String {
        match (&self.local, self.shared.guard.reached_by) {
            (Address::Tcp(address), ReachedBy::Tls) => format!("https://{address}"),
            (Address::Tcp(address), ReachedBy::ClearText | ReachedBy::UnixSocket) => {
                format!("http://{address}")
            }
            (address @ Address::Unix(_), _) => address.to_string(),
        }
    }

    /// Lets connections in until `stop` completes. Requests that are being answered then have 5 s to end.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let (stopping, _) = watch::channel(false);
        let mut connections = JoinSet::new();
        let (refusals, troubles) = (Throttle::default(), Throttle::default());
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok(incoming) => match self.admit(incoming) {
                        Ok((accepted, place)) => {
                            let router = router.clone();
                            let stopping = stopping.subscribe();
                            let shared = Arc::clone(&self.shared);
                            connections.spawn(converse(accepted, shared, router, stopping, place));
                        }
                        Err(refusal) => {
                            let Refusal { why, from, client } = *refusal;
                            refusals.note(|unsaid| {
                                tracing::warn!(from, refused = %why, not_shown_before = unsaid, "a connection was refused");
                            });
                            connections.spawn(turn_away(client, stopping.subscribe()));
                        }
                    },
                    Err(error) => after_trouble(&error, &troubles).await,
                },
            }
        }
        // Nobody comes in any more, also not by a path.
        drop(self.listener);
        stopping.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            connections.shutdown().await;
        }
    }

    /// Whether a connection may come in; one that may not is answered, as far as that goes without waiting.
    fn admit(&self, incoming: Arrival) -> Result<(Accepted, OwnedSemaphorePermit), Box<Refusal>> {
        let peer = match self.judge(&incoming) {
            Ok(peer) => peer,
            // Who may not come in takes no place.
            Err(why) => return Err(Box::new(self.refuse(why, incoming))),
        };
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            return Err(Box::new(self.refuse(Refused::Full, incoming)));
        };
        Ok(match incoming {
            Arrival::Tcp(stream, _) => (Accepted::Tcp(stream, peer), place),
            Arrival::Unix(stream) => (Accepted::Unix(stream, peer), place),
        })
    }

    /// Tells a client why, if it listens; a full buffer is its own doing. Its connection is held until it has read that, as
    /// long as there are few of its kind.
    fn refuse(&self, why: Refused, incoming: Arrival) -> Refusal {
        let answer = why.answer();
        let (from, written) = match &incoming {
            Arrival::Tcp(stream, from) if self.shared.tls.is_none() => {
                (from.to_string(), stream.try_write(answer.as_bytes()).is_ok())
            }
            Arrival::Tcp(_, from) => (from.to_string(), false),
            Arrival::Unix(stream) => {
                ("a local socket".to_owned(), stream.try_write(answer.as_bytes()).is_ok())
            }
        };
        let place = Arc::clone(&self.porch).try_acquire_owned().ok();
        Refusal { why, from, client: place.filter(|_| written).map(|place| (incoming, place)) }
    }

    fn judge(&self, incoming: &Arrival) -> Result<Peer, Refused> {
        match incoming {
            Arrival::Unix(stream) => {
                let user = stream.peer_cred().map_err(Refused::Unknown)?.uid();
                same_user(user)
            }
            Arrival::Tcp(stream, from) => {
                let Some(owners) = &self.owners else { return Ok(Peer::Address(from.ip().to_canonical())) };
                let local = stream.local_addr().map_err(Refused::Unknown)?;
                let owner = owners.of(*from, local).map_err(Refused::Unknown)?;
                // A client can reset its connection and leave what it sent to be read; the next socket with its port would
                // answer for it. While our end stands, no other can have these four numbers; one that was reset has no peer.
                stream.peer_addr().map_err(|_| Refused::Nobody)?;
                same_user(owner.ok_or(Refused::Nobody)?)
            }
        }
    }
}

fn same_user(user: u32) -> Result<Peer, Refused> {
    const ROOT: u32 = 0;
    let is_welcome = user == ROOT || user == rustix::process::geteuid().as_raw();
    if is_welcome { Ok(Peer::User(user)) } else { Err(Refused::User(user)) }
}

/// A connection that nobody has looked at.
enum Arrival {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                // Answers are written as a whole, and wait for nothing.
                let _ = stream.set_nodelay(true);
                Ok(Arrival::Tcp(stream, from))
            }
            Self::Unix { listener, .. } => Ok(Arrival::Unix(listener.accept().await?.0)),
        }
    }
}

/// A connection that may not come in.
struct Refusal {
    why: Refused,
    from: String,
    /// It is to read its answer.
    client: Option<(Arrival, OwnedSemaphorePermit)>,
}

/// Holds a connection until its client has read why it may not come in, for a while.
async fn turn_away(client: Option<(Arrival, OwnedSemaphorePermit)>, mut stopping: watch::Receiver<bool>) {
    let Some((arrival, place)) = client else { return };
    let close = async {
        match arrival {
            Arrival::Tcp(stream, _) => linger::close(stream).await,
            Arrival::Unix(stream) => linger::close(stream).await,
        }
    };
    tokio::select! {
        () = close => {}
        () = asked_to_stop(&mut stopping) => {}
    }
    drop(place);
}

impl Refused {
    /// A whole answer, for a client that speaks HTTP.
    fn answer(&self) -> String {
        let (status, detail) = match self {
            Self::User(_) | Self::Nobody | Self::Unknown(_) => (
                "403 Forbidden",
                "this host serves its own user only: run as that user, or let a token be set",
            ),
            Self::Full => ("503 Service Unavailable", "too many connections: close some, or come back later"),
        };
        let body = format!("{{\"detail\":\"{detail}\"}}");
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }
}

/// A connection that was closed before it was accepted is none of our troubles; for others a while is waited.
async fn after_trouble(error: &io::Error, log: &Throttle) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    log.note(|unsaid| {
        tracing::error!(%error, not_shown_before = unsaid, "connections cannot be accepted; trying again until it works");
    });
    tokio::time::sleep_until(tokio::time::Instant::now() + ACCEPT_PAUSE).await;
}

/// Whether what would be served is safe where it would be.
fn check(options: &DoorOptions) -> Result<(), DoorError> {
    let Address::Tcp(address) = &options.address else { return Ok(()) };
    if options.address.is_local() {
        return Ok(());
    }
    match options.clear_text {
        ClearText::Refused if options.bearer.is_none() => Err(DoorError::NeedsToken(*address)),
        ClearText::Refused if options.tls.is_none() => Err(DoorError::NeedsTls(*address)),
        // No kernel tells whose a socket of another machine is.
        ClearText::Allowed if options.bearer.is_none() && options.peer_check == PeerCheck::SameUser => {
            Err(DoorError::NeedsToken(*address))
        }
        ClearText::Allowed if options.tls.is_none() => {
            tracing::warn!(
                %address,
                "other machines are served in clear text: whoever can listen between here and there reads everything, tokens \
                 too, and can do all that the agents can"
            );
            Ok(())
        }
        ClearText::Refused | ClearText::Allowed => Ok(()),
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    // Hundreds of agents that start at once; the standard library leaves room for 128 of them.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

/// Serves one connection to its end.
async fn converse(
    accepted: Accepted,
    shared: Arc<Shared>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    place: OwnedSemaphorePermit,
) {
    match accepted {
        Accepted::Unix(stream, peer) => answer(stream, peer, shared, router, stopping).await,
        Accepted::Tcp(stream, peer) => {
            let acceptor = shared.tls.as_ref().map(|acceptor| acceptor.0.clone());
            let Some(acceptor) = acceptor else {
                return answer(stream, peer, shared, router, stopping).await;
            };
            let agreed = tokio::select! {
                agreed = tokio::time::timeout(shared.head_timeout, acceptor.accept(stream)) => agreed,
                // There is no request that could be answered.
                () = asked_to_stop(&mut stopping) => return,
            };
            match agreed {
                Ok(Ok(stream)) => answer(stream, peer, shared, router, stopping).await,
                Ok(Err(error)) => tracing::debug!(?peer, %error, "no TLS came about"),
                Err(_) => tracing::debug!(?peer, "no TLS came about in time"),
            }
        }
    }
    drop(place);
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    peer: Peer,
    shared: Arc<Shared>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let meter = Meter::default();
    let unread = Unread::default();
    let io = TokioIo::new(Metered::new(stream, meter.clone()));
    let head_timeout = shared.head_timeout;
    let bodies = unread.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(|body| bodies.watch(body));
        let refusal = shared.guard.refusal(&request);
        request.extensions_mut().insert(peer);
        // What is streamed is measured by its chunks, which older clients do not know.
        if request.version() == Version::HTTP_11 {
            request.extensions_mut().insert(meter.clone());
        }
        let mut router = router.clone();
        async move {
            match refusal {
                Some(refusal) => Ok(refusal),
                // A router is always ready.
                None => router.call(request.map(Body::new)).await,
            }
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(io, service);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = asked_to_stop(&mut stopping) => {
            Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        }
    };
    let is_no_http = ended.as_ref().is_err_and(hyper::Error::is_parse);
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection has broken off");
    }
    if unread.is_there() || is_no_http {
        linger::close(connection.into_parts().io.into_inner()).await;
    }
}

/// The door outlives its connections, so that this is never the end of the channel.
async fn asked_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

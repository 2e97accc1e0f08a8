//! The routes. Every answer but a stream is a JSON object; what is refused says in `detail` what to do.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hostler_http::{BodyError, Feed, Meter, Peer, read_body};
use http_body::Body as _;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::hosted::Posted;
use super::{Full, Hosted, Sessions};
use crate::codec::MAX_LINE_BYTES;
use crate::mailbox::UnknownId;
use crate::sse;
use crate::wire::SessionId;

const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How long a body may bring nothing.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// Bodies up to this need no room of their own: there are no more of them than connections.
const SMALL_BODY: usize = 64 * 1024;
/// Room for all larger ones, in KiB.
const BODIES_KIB: u32 = 256 * 1024;

/// Room in memory for the large bodies of all sessions.
#[derive(Debug)]
pub(super) struct BodyRoom(Arc<Semaphore>);

impl Default for BodyRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BODIES_KIB as usize)))
    }
}

impl Sessions {
    /// Room for the body of a request, given back when it was handled.
    async fn room_for(&self, length: usize) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        if length <= SMALL_BODY {
            return Ok(None);
        }
        let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(BODIES_KIB);
        let room = Arc::clone(&self.bodies.0).acquire_many_owned(kib);
        match tokio::time::timeout(BODY_PATIENCE, room).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                let detail = "too many large messages at once: send it again in a while";
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail))
            }
        }
    }
}

/// A refusal, in its words.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    detail: String,
    /// The method that would do.
    allow: Option<HeaderValue>,
}

impl Refusal {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allow: None }
    }

    /// The session is not there, or no more, or is somebody else's: all the same.
    fn unknown_session() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such session: open one with POST /session")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({"detail": self.detail}))).into_response();
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }
}

pub(super) fn router(sessions: Arc<Sessions>) -> Router {
    Router::new()
        .route("/health", any(health))
        .route("/session", any(session))
        .route("/send", any(send))
        .route("/stream", any(stream))
        .fallback(unknown_route)
        .with_state(sessions)
}

async fn unknown_route() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "no such route: there are POST /session, POST /send, GET /stream and GET /health",
    )
}

/// Routes have one method each. HEAD is none of them: a stream without its body would be taken by nobody.
fn must_be(expected: &Method, request: &Request) -> Result<(), Refusal> {
    if request.method() == expected {
        return Ok(());
    }
    let detail = format!("{} takes {expected} only", request.uri().path());
    let allow = HeaderValue::from_str(expected.as_str()).ok();
    Err(Refusal { allow, ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, detail) })
}

async fn health(request: Request) -> Result<Response, Refusal> {
    must_be(&Method::GET, &request)?;
    Ok(Json(json!({"status": "ok"})).into_response())
}

async fn session(State(sessions): State<Arc<Sessions>>, request: Request) -> Result<Response, Refusal> {
    must_be(&Method::POST, &request)?;
    let peer = request.extensions().get::<Peer>();
    let id = sessions.open(peer).map_err(|full| {
        tracing::warn!(?peer, %full, "no session was opened");
        let status = match full {
            Full::Strangers(_) => StatusCode::TOO_MANY_REQUESTS,
            Full::Sessions(_) | Full::Ending => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal::new(status, full.to_string())
    })?;
    tracing::info!(session = %id, ?peer, "a session was opened");
    Ok(Json(json!({"session_id": id})).into_response())
}

async fn send(State(sessions): State<Arc<Sessions>>, request: Request) -> Result<Response, Refusal> {
    must_be(&Method::POST, &request)?;
    let (id, hosted) = addressed(&sessions, request.headers())?;
    let room = sessions.room_for(body_length(&request)).await?;
    let body = read_body(request.into_body(), MAX_LINE_BYTES, BODY_PATIENCE).await;
    let body = body.map_err(|error| bad_body(&error))?;
    if body.trim_ascii().is_empty() {
        let detail = "the body is empty: it must be one message, a JSON object";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, detail));
    }
    if !hosted.line.has_room_for_answers() {
        let detail = "replies of 16 MiB wait for a stream: open GET /stream, and read it";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    tracing::debug!(session = %id, bytes = body.len(), "a message has come");
    let (begun, done) = oneshot::channel();
    let gone = || Refusal::unknown_session();
    hosted.posted.send(Posted { body, begun, _room: room }).await.map_err(|_| gone())?;
    done.await.map_err(|_| gone())?;
    Ok(Json(json!({"ok": true})).into_response())
}

/// How much of a body may have to be kept: one that is longer is refused before that.
fn body_length(request: &Request) -> usize {
    let exact = request.body().size_hint().exact();
    exact.map_or(MAX_LINE_BYTES, |exact| usize::try_from(exact).unwrap_or(usize::MAX).min(MAX_LINE_BYTES))
}

fn bad_body(error: &BodyError) -> Refusal {
    let status = match error {
        BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::TimedOut => StatusCode::REQUEST_TIMEOUT,
        BodyError::Broken(_) => StatusCode::BAD_REQUEST,
    };
    Refusal::new(status, error.to_string())
}

async fn stream(State(sessions): State<Arc<Sessions>>, request: Request) -> Result<Response, Refusal> {
    must_be(&Method::GET, &request)?;
    let (id, hosted) = addressed(&sessions, request.headers())?;
    let after = last_event_id(request.headers())?;
    let Some(meter) = request.extensions().get::<Meter>() else {
        let detail = "this connection cannot carry a stream: use HTTP/1.1";
        return Err(Refusal::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, detail));
    };
    let (feed, delivery) = Feed::new(meter);
    let outlet = hosted.line.open(after, delivery).map_err(|UnknownId| {
        let detail =
            "Last-Event-ID is the id of no frame of this session: leave it out to go on behind what was sent";
        Refusal::new(StatusCode::BAD_REQUEST, detail)
    })?;
    tracing::debug!(session = %id, ?after, "a stream was opened");
    let mut response = Response::new(axum::body::Body::new(feed.of(outlet)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that gather before they pass on would hold frames back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// The session that a request names.
fn addressed(sessions: &Sessions, headers: &HeaderMap) -> Result<(SessionId, Hosted), Refusal> {
    let mut values = headers.get_all(&SESSION_ID).iter();
    let (Some(id), None) = (values.next(), values.next()) else {
        let detail = "one header X-Session-Id must name the session that POST /session has opened";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, detail));
    };
    let id = SessionId::new(id.to_str().map_err(|_| Refusal::unknown_session())?);
    let hosted = sessions.find(&id).ok_or_else(Refusal::unknown_session)?;
    Ok((id, hosted))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(id) = headers.get(&LAST_EVENT_ID) else { return Ok(None) };
    // A client of server-sent events that has not seen an id says nothing, or says this.
    if id.is_empty() {
        return Ok(None);
    }
    let bad =
        || Refusal::new(StatusCode::BAD_REQUEST, "Last-Event-ID must be the id of a frame: a decimal number");
    sse::parse_id(id.as_bytes()).map(Some).ok_or_else(bad)
}

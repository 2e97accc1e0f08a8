//! Requests: one line of a client in, a typed request or a named complaint out.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::field::{self, FieldPath, Found, JsonKind, MAX_DEPTH, Read};
use super::ids::{ProcId, ReqId};
use super::refusal::Malformed;

/// The types of message that a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestType {
    /// `handshake/req`
    Handshake,
    /// `ping`
    Ping,
    /// `shutdown`
    Shutdown,
    /// `proc/spawn/req`
    Spawn,
    /// `proc/write/req`
    Write,
    /// `proc/kill/req`
    Kill,
    /// `proc/status/req`
    Status,
}

impl RequestType {
    const ALL: [Self; 7] =
        [Self::Handshake, Self::Ping, Self::Shutdown, Self::Spawn, Self::Write, Self::Kill, Self::Status];

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Handshake => "handshake/req",
            Self::Ping => "ping",
            Self::Shutdown => "shutdown",
            Self::Spawn => "proc/spawn/req",
            Self::Write => "proc/write/req",
            Self::Kill => "proc/kill/req",
            Self::Status => "proc/status/req",
        }
    }

    /// Whether the request needs the capability `proc`.
    pub fn needs_proc(self) -> bool {
        match self {
            Self::Spawn | Self::Write | Self::Kill | Self::Status => true,
            Self::Handshake | Self::Ping | Self::Shutdown => false,
        }
    }
}

/// The types that only hosts send: a client that sends one is told so.
const HOST_TYPES: [&str; 8] = [
    "handshake/resp",
    "pong",
    "error",
    "proc/spawn/resp",
    "proc/write/resp",
    "proc/read/event",
    "proc/kill/resp",
    "proc/status/resp",
];

/// The types that a client may send, for messages.
pub(super) fn client_types() -> String {
    RequestType::ALL.map(RequestType::word).join(", ")
}

/// A text that no log and no debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` out of sight.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// `handshake/req`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// The protocol version of the envelope, as written.
    pub version: String,
    /// Name that the agent gives itself.
    pub agent_id: String,
    /// Capabilities that the agent asks for.
    pub agent_caps: Vec<String>,
    /// Token of the agent; empty when it has none.
    pub auth_token: Secret,
}

/// `shutdown`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// Seconds between SIGTERM and SIGKILL, before any cap.
    pub timeout_s: u64,
}

/// `proc/spawn/req`; nothing but the types of its fields is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcSpawnRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// Session in which to start; empty = the connection's.
    pub session_id: String,
    /// Command and arguments.
    pub cmd: Vec<String>,
    /// Working directory; empty = the host's.
    pub cwd: String,
    /// Variables laid over the inherited environment.
    pub env: BTreeMap<String, String>,
    /// `pipe` or `null`.
    pub stdin_mode: String,
    /// Seconds after which to kill; 0 = no limit.
    pub timeout_s: i64,
}

/// `proc/write/req`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcWriteRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// Process to write to.
    pub proc_id: ProcId,
    /// Text for its stdin.
    pub data: String,
    /// Whether to close stdin afterwards.
    pub eof: bool,
}

/// `proc/kill/req`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcKillRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// Process to signal.
    pub proc_id: ProcId,
    /// Name of the signal.
    pub signal: String,
}

/// `proc/status/req`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStatusRequest {
    /// Id of the request.
    pub req_id: ReqId,
    /// Process to tell of; empty = all of the session.
    pub proc_id: ProcId,
}

/// A request whose fields all have their types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `handshake/req`
    Handshake(HandshakeRequest),
    /// `ping`
    Ping(ReqId),
    /// `shutdown`
    Shutdown(ShutdownRequest),
    /// `proc/spawn/req`
    Spawn(ProcSpawnRequest),
    /// `proc/write/req`
    Write(ProcWriteRequest),
    /// `proc/kill/req`
    Kill(ProcKillRequest),
    /// `proc/status/req`
    Status(ProcStatusRequest),
}

/// A line whose type and id are known and whose other fields are still raw JSON.
#[derive(Debug)]
pub struct Envelope<'line> {
    kind: RequestType,
    id: Read<ReqId>,
    fields: Fields<'line>,
}

impl<'line> Envelope<'line> {
    /// Splits a line into its fields.
    ///
    /// # Errors
    /// What is wrong with the line, together with the id of the request where one can be read (else an empty one).
    pub fn parse(line: &'line str) -> Result<Self, (ReqId, Malformed)> {
        let fields = Fields::parse(line).map_err(|trouble| (ReqId::new(""), trouble))?;
        let id = fields.id();
        match fields.kind() {
            Ok(kind) => Ok(Self { kind, id, fields }),
            Err(trouble) => Err((id.unwrap_or_else(|_| ReqId::new("")), trouble)),
        }
    }

    /// The type of the message.
    pub fn kind(&self) -> RequestType {
        self.kind
    }

    /// The id of the request, empty when it has none that can be read.
    pub fn req_id(&self) -> ReqId {
        self.id.as_ref().map_or_else(|_| ReqId::new(""), ReqId::clone)
    }

    /// Reads the fields that the type has, and ignores all others.
    ///
    /// # Errors
    /// The first field, in the order of the protocol document, that does not take what stands in it.
    pub fn request(self) -> Result<Request, Malformed> {
        let Self { kind, id, fields } = self;
        if let Some(name) = fields.twice {
            let (field, found) = (FieldPath::Whole(name), Found::Twice);
            return Err(Malformed::Field { field, found, expected: "each field once" });
        }
        let req_id = id?;
        let version = fields.read(Name::Version, field::text)?.unwrap_or_else(|| super::VERSION.to_owned());
        fields.read(Name::Ts, field::float)?;
        match kind {
            RequestType::Handshake => fields.handshake(req_id, version).map(Request::Handshake),
            RequestType::Ping => Ok(Request::Ping(req_id)),
            RequestType::Shutdown => fields.shutdown(req_id).map(Request::Shutdown),
            RequestType::Spawn => fields.spawn(req_id).map(Request::Spawn),
            RequestType::Write => fields.write(req_id).map(Request::Write),
            RequestType::Kill => fields.kill(req_id).map(Request::Kill),
            RequestType::Status => fields.status(req_id).map(Request::Status),
        }
    }
}

/// The fields that some request has. Others are skipped while the line is split, so that they cost no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Type,
    Id,
    Version,
    Ts,
    AgentId,
    AgentCaps,
    AuthToken,
    SessionId,
    Cmd,
    Cwd,
    Env,
    StdinMode,
    Timeout,
    ProcId,
    Data,
    Eof,
    Signal,
}

impl Name {
    const WORDS: [&'static str; 17] = [
        "type",
        "id",
        "version",
        "ts",
        "agent_id",
        "agent_caps",
        "auth_token",
        "session_id",
        "cmd",
        "cwd",
        "env",
        "stdin_mode",
        "timeout",
        "proc_id",
        "data",
        "eof",
        "signal",
    ];

    fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// A message as raw fields: one place for each [`Name`].
#[derive(Debug)]
struct Fields<'line> {
    raw: [Option<&'line RawValue>; Name::WORDS.len()],
    /// The first field that came a second time.
    twice: Option<&'static str>,
    too_deep: bool,
}

impl<'line> Fields<'line> {
    fn parse(line: &'line str) -> Read<Self> {
        let start = line.trim_ascii_start();
        if !start.starts_with('{') {
            return Err(match serde_json::from_str::<&RawValue>(line) {
                Ok(_) => Malformed::NotObject { found: JsonKind::of(start) },
                Err(reason) => Malformed::NotJson { reason },
            });
        }
        match serde_json::from_str::<Self>(line) {
            Ok(fields) if fields.too_deep => Err(Malformed::TooDeep { limit: MAX_DEPTH }),
            Ok(fields) => Ok(fields),
            Err(reason) => Err(Malformed::NotJson { reason }),
        }
    }

    fn kind(&self) -> Read<RequestType> {
        let Some(raw) = self.raw[Name::Type as usize] else { return Err(Malformed::TypeMissing) };
        if JsonKind::of(raw.get()) != JsonKind::Text {
            return Err(Malformed::TypeUnreadable { found: Found::Kind(JsonKind::of(raw.get())) });
        }
        // What is no Unicode text is the name of no type, whatever is wrong with it as a field.
        let Ok(word) = field::text(Name::Type.word(), raw) else {
            return Err(Malformed::TypeUnreadable { found: Found::LoneSurrogate });
        };
        if let Some(kind) = RequestType::ALL.into_iter().find(|kind| kind.word() == word) {
            return Ok(kind);
        }
        match HOST_TYPES.into_iter().find(|host| *host == word) {
            Some(word) => Err(Malformed::TypeOfHost { word }),
            None => Err(Malformed::TypeUnknown { word }),
        }
    }

    /// The id; a client that leaves it out gets replies with an empty `req_id`.
    fn id(&self) -> Read<ReqId> {
        Ok(ReqId::new(self.read(Name::Id, field::id)?.unwrap_or_default()))
    }

    fn read<T>(&self, name: Name, parse: fn(&'static str, &RawValue) -> Read<T>) -> Read<Option<T>> {
        self.raw[name as usize].map(|raw| parse(name.word(), raw)).transpose()
    }

    fn text(&self, name: Name, default: &str) -> Read<String> {
        Ok(self.read(name, field::text)?.unwrap_or_else(|| default.to_owned()))
    }

    fn proc_id(&self) -> Read<ProcId> {
        Ok(ProcId::new(self.read(Name::ProcId, field::proc_id)?.unwrap_or_default()))
    }

    fn handshake(&self, req_id: ReqId, version: String) -> Read<HandshakeRequest> {
        Ok(HandshakeRequest {
            req_id,
            version,
            agent_id: self.text(Name::AgentId, "")?,
            agent_caps: self.read(Name::AgentCaps, field::texts)?.unwrap_or_default(),
            auth_token: Secret::new(self.text(Name::AuthToken, "")?),
        })
    }

    fn shutdown(&self, req_id: ReqId) -> Read<ShutdownRequest> {
        const DEFAULT_S: i64 = 10;
        let timeout = self.read(Name::Timeout, field::whole_number)?.unwrap_or(DEFAULT_S);
        let timeout_s = u64::try_from(timeout).map_err(|_| Malformed::Field {
            field: FieldPath::Whole(Name::Timeout.word()),
            found: Found::Negative,
            expected: "seconds, 0 or more",
        })?;
        Ok(ShutdownRequest { req_id, timeout_s })
    }

    fn spawn(&self, req_id: ReqId) -> Read<ProcSpawnRequest> {
        Ok(ProcSpawnRequest {
            req_id,
            session_id: self.text(Name::SessionId, "")?,
            cmd: self.read(Name::Cmd, field::texts)?.unwrap_or_default(),
            cwd: self.text(Name::Cwd, "")?,
            env: self.read(Name::Env, field::text_map)?.unwrap_or_default(),
            stdin_mode: self.text(Name::StdinMode, "pipe")?,
            timeout_s: self.read(Name::Timeout, field::whole_number)?.unwrap_or_default(),
        })
    }

    fn write(&self, req_id: ReqId) -> Read<ProcWriteRequest> {
        Ok(ProcWriteRequest {
            req_id,
            proc_id: self.proc_id()?,
            data: self.text(Name::Data, "")?,
            eof: self.read(Name::Eof, field::boolean)?.unwrap_or_default(),
        })
    }

    fn kill(&self, req_id: ReqId) -> Read<ProcKillRequest> {
        Ok(ProcKillRequest { req_id, proc_id: self.proc_id()?, signal: self.text(Name::Signal, "SIGTERM")? })
    }

    fn status(&self, req_id: ReqId) -> Read<ProcStatusRequest> {
        Ok(ProcStatusRequest { req_id, proc_id: self.proc_id()? })
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields { raw: [None; Name::WORDS.len()], twice: None, too_deep: false };
        while let Some(place) = map.next_key_seed(PlaceSeed)? {
            let raw: &RawValue = map.next_value()?;
            fields.too_deep |= field::is_too_deep(raw.get());
            let Some(place) = place else { continue };
            if fields.raw[place].is_some() {
                fields.twice = fields.twice.or(Some(Name::WORDS[place]));
            } else {
                fields.raw[place] = Some(raw);
            }
        }
        Ok(fields)
    }
}

/// Reads a key as the place of its [`Name`], without keeping the text.
struct PlaceSeed;

impl<'de> DeserializeSeed<'de> for PlaceSeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for PlaceSeed {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, word: &str) -> Result<Self::Value, E> {
        Ok(Name::WORDS.iter().position(|known| *known == word))
    }
}

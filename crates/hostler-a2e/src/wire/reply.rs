//! Replies: what the host answers, one constructor for each outcome, and the line that each becomes.
//!
//! The order of fields is that of the examples in the protocol document. The extras `error` (of `proc/kill/resp`),
//! `survivors`, `unattributed` and `procs` stand on the wire only when there is something to say.

use std::io;
use std::time::Duration;

use serde::Serialize;

use super::ids::{MessageIds, ProcId, ReqId, SessionId};
use super::json::{Timestamp, push_json};
use super::refusal::{
    Denied, EnvelopeCode, HandshakeRefusal, KillRefusal, Malformed, ProcCode, SpawnRefusal, WriteRefusal,
};
use super::status::{Fate, ProcStatus, StatusWord, overall_status};

/// The number of requests in flight that the handshake suggests. Nothing is refused above it.
const MAX_PARALLEL: u32 = 4;

/// An answer, ready but for its own id and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    req_id: ReqId,
    body: Body,
    outcome: Outcome,
}

/// How a request went, for the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Success,
    /// It was refused or failed, with the code on the wire where there is one.
    Failure(Option<&'static str>),
}

impl Outcome {
    fn refused(code: Option<ProcCode>) -> Self {
        Self::Failure(code.map(ProcCode::word))
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    Handshake(HandshakeBody),
    Pong(PongBody),
    Spawn(SpawnBody),
    Write(WriteBody),
    Kill(KillBody),
    Status(StatusBody),
    Error(ErrorBody),
}

impl Reply {
    /// `handshake/resp` of a good handshake. `accepted` says whether the agent may use `proc`.
    pub fn welcome(req_id: ReqId, session_id: SessionId, accepted: Accepted) -> Self {
        let accepted_caps = match accepted {
            Accepted::Proc => vec![ProcCapability::entry()],
            Accepted::Nothing => Vec::new(),
        };
        let max_parallel = MAX_PARALLEL;
        let body = HandshakeBody { session_id, accepted_caps, max_parallel, ok: true, reason: String::new() };
        Self { req_id, body: Body::Handshake(body), outcome: Outcome::Success }
    }

    /// `handshake/resp` of a refused handshake.
    pub fn unwelcome(req_id: ReqId, refusal: HandshakeRefusal) -> Self {
        let body = HandshakeBody {
            session_id: SessionId::new(""),
            accepted_caps: Vec::new(),
            max_parallel: MAX_PARALLEL,
            ok: false,
            reason: refusal.to_string(),
        };
        Self { req_id, body: Body::Handshake(body), outcome: Outcome::Failure(None) }
    }

    /// `pong`, with how long the host has been up.
    pub fn pong(req_id: ReqId, uptime: Duration) -> Self {
        let body = PongBody { uptime_seconds: uptime.as_secs_f64() };
        Self { req_id, body: Body::Pong(body), outcome: Outcome::Success }
    }

    /// `proc/spawn/resp` of a process that runs.
    pub fn spawned(req_id: ReqId, proc_id: ProcId, pid: u32) -> Self {
        let body = SpawnBody { proc_id, ok: true, pid, error: String::new() };
        Self { req_id, body: Body::Spawn(body), outcome: Outcome::Success }
    }

    /// `proc/spawn/resp` where nothing was started.
    pub fn spawn_refused(req_id: ReqId, refusal: &SpawnRefusal) -> Self {
        let body = SpawnBody { proc_id: ProcId::new(""), ok: false, pid: 0, error: refusal.to_string() };
        Self { req_id, body: Body::Spawn(body), outcome: Outcome::refused(refusal.code()) }
    }

    /// `proc/write/resp` of data that is in the pipe to `pid` as a whole.
    pub fn written(req_id: ReqId, proc_id: ProcId, pid: u32) -> Self {
        let body = WriteBody { proc_id, ok: true, pid, error: String::new() };
        Self { req_id, body: Body::Write(body), outcome: Outcome::Success }
    }

    /// `proc/write/resp` where not all of the data reached the pipe.
    pub fn write_refused(req_id: ReqId, proc_id: ProcId, refusal: &WriteRefusal) -> Self {
        let body = WriteBody { proc_id, ok: false, pid: 0, error: refusal.to_string() };
        Self { req_id, body: Body::Write(body), outcome: Outcome::refused(refusal.code()) }
    }

    /// `proc/kill/resp` of a signal that was sent, with what the process was at the end of the wait.
    ///
    /// With survivors `ok` is false.
    pub fn kill_settled(req_id: ReqId, fate: Fate, left: Left) -> Self {
        if left.survivors.is_empty() {
            let body = KillBody { ok: true, state: Some(fate.status()), error: None, left };
            return Self { req_id, body: Body::Kill(body), outcome: Outcome::Success };
        }
        let refusal = KillRefusal::Survivors { count: left.survivors.len() };
        Self::kill_failed(req_id, Some(fate.status()), &refusal, left)
    }

    /// `proc/kill/resp` of a signal after which nobody can say who is dead: `ok` is false, whatever is known of the process.
    pub fn kill_unconfirmed(req_id: ReqId, fate: Fate, reason: io::Error, left: Left) -> Self {
        Self::kill_failed(req_id, Some(fate.status()), &KillRefusal::Unconfirmed { reason }, left)
    }

    /// `proc/kill/resp` for a process that the session does not have.
    pub fn kill_unknown(req_id: ReqId) -> Self {
        Self::kill_failed(req_id, Some(StatusWord::NotFound), &KillRefusal::UnknownProc, Left::default())
    }

    /// `proc/kill/resp` for a process that had ended before.
    pub fn kill_ended(req_id: ReqId, fate: Fate) -> Self {
        Self::kill_failed(req_id, Some(fate.status()), &KillRefusal::ProcDead, Left::default())
    }

    /// `proc/kill/resp` where nothing was sent, and nothing is said of the process.
    pub fn kill_refused(req_id: ReqId, refusal: &KillRefusal) -> Self {
        Self::kill_failed(req_id, None, refusal, Left::default())
    }

    fn kill_failed(req_id: ReqId, state: Option<StatusWord>, refusal: &KillRefusal, left: Left) -> Self {
        let body = KillBody { ok: false, state, error: Some(refusal.to_string()), left };
        Self { req_id, body: Body::Kill(body), outcome: Outcome::refused(refusal.code()) }
    }

    /// `proc/status/resp` of one process.
    pub fn status(req_id: ReqId, proc_id: ProcId, fate: Fate) -> Self {
        let error = match fate {
            Fate::Lost => {
                "the keeper that watched the process was lost, and its exit code with it".to_owned()
            }
            Fate::Torn => "part of the output was lost on the disk; an error has said where".to_owned(),
            Fate::Running | Fate::Exited { .. } | Fate::Killed { .. } | Fate::TimedOut { .. } => {
                String::new()
            }
        };
        let body = StatusBody { proc_id, status: fate.status(), error, procs: None };
        Self { req_id, body: Body::Status(body), outcome: Outcome::Success }
    }

    /// `proc/status/resp` for a process that the session does not have.
    pub fn status_unknown(req_id: ReqId, proc_id: ProcId) -> Self {
        let code = ProcCode::UnknownProc;
        let body =
            StatusBody { proc_id, status: StatusWord::NotFound, error: code.word().to_owned(), procs: None };
        Self { req_id, body: Body::Status(body), outcome: Outcome::refused(Some(code)) }
    }

    /// `proc/status/resp` of all processes of the session, in order of their start, beside which so many `starts` are under
    /// way and have no process yet.
    pub fn status_all(req_id: ReqId, procs: Vec<ProcStatus>, starts: usize) -> Self {
        let status = overall_status(&procs, starts);
        let body = StatusBody { proc_id: ProcId::new(""), status, error: String::new(), procs: Some(procs) };
        Self { req_id, body: Body::Status(body), outcome: Outcome::Success }
    }

    /// `error` for a line that is no usable request.
    pub fn malformed(req_id: ReqId, trouble: &Malformed) -> Self {
        Self::error(req_id, trouble.code(), trouble.to_string(), "", Subject::Other)
    }

    /// The same for a line that is a `proc/*` request but for what stands in it.
    pub fn malformed_proc(req_id: ReqId, trouble: &Malformed) -> Self {
        Self::error(req_id, trouble.code(), trouble.to_string(), "", Subject::Processes)
    }

    /// `error` for a `proc/*` request that this connection may not make.
    pub fn denied(req_id: ReqId, denied: Denied) -> Self {
        Self::error(req_id, denied.code(), denied.to_string(), denied.capability_name(), Subject::Processes)
    }

    /// `error` in the place of output that was lost. It answers no request.
    pub fn output_lost(proc_id: ProcId, stream_type: &'static str, bytes: u64) -> Self {
        let message = format!(
            "{bytes} bytes of {stream_type} are missing here: the file in the state folder in which they waited for the \
             client was cut, or its disk fails; read faster, or set HOSTLER_RUNTIME_STATE_DIR to another place"
        );
        let code = EnvelopeCode::OutputLost.word();
        let detail = Detail::Lost { proc_id, stream_type, bytes };
        let subject = Subject::Processes;
        let body = ErrorBody { code, message, detail, retryable: false, capability_name: "proc", subject };
        Self { req_id: ReqId::new(""), body: Body::Error(body), outcome: Outcome::Failure(Some(code)) }
    }

    /// `error` in the place of messages that a client asks for again and that are kept no more: those behind offset `after`
    /// and up to `from`. It answers no request.
    pub fn replay_gap(after: u64, from: u64) -> Self {
        let message = format!(
            "what was said between id {after} and id {from} is no longer kept, except for the replies that follow; it was \
             sent before: read faster, come back sooner, or raise `a2e.http.replay_bytes`"
        );
        let code = EnvelopeCode::ReplayGap.word();
        let detail = Detail::Gap { after, from };
        let subject = Subject::Processes;
        let body = ErrorBody { code, message, detail, retryable: false, capability_name: "", subject };
        Self { req_id: ReqId::new(""), body: Body::Error(body), outcome: Outcome::Failure(Some(code)) }
    }

    fn error(
        req_id: ReqId,
        code: EnvelopeCode,
        message: String,
        capability_name: &'static str,
        subject: Subject,
    ) -> Self {
        let (code, detail) = (code.word(), Detail::Nothing {});
        let body = ErrorBody { code, message, detail, retryable: false, capability_name, subject };
        Self { req_id, body: Body::Error(body), outcome: Outcome::Failure(Some(code)) }
    }

    /// The id of the request that this answers; empty where none could be read.
    pub fn req_id(&self) -> &ReqId {
        &self.req_id
    }

    /// Whether this answers a `proc/*` request: the audit notes those.
    pub fn is_about_processes(&self) -> bool {
        match &self.body {
            Body::Handshake(_) | Body::Pong(_) => false,
            Body::Spawn(_) | Body::Write(_) | Body::Kill(_) | Body::Status(_) => true,
            Body::Error(body) => body.subject == Subject::Processes,
        }
    }

    /// How the request went, for the audit.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Appends the reply as one line, `\n` included, with the next of `ids` and the time `ts`.
    pub fn push_line(&self, ids: &mut MessageIds, ts: Timestamp, out: &mut Vec<u8>) {
        let (id, req_id) = (ids.next_id(), &self.req_id);
        match &self.body {
            Body::Handshake(body) => push_envelope(out, "handshake/resp", (id, ts, req_id), body),
            Body::Pong(body) => push_envelope(out, "pong", (id, ts, req_id), body),
            Body::Spawn(body) => push_envelope(out, "proc/spawn/resp", (id, ts, req_id), body),
            Body::Write(body) => push_envelope(out, "proc/write/resp", (id, ts, req_id), body),
            Body::Kill(body) => push_envelope(out, "proc/kill/resp", (id, ts, req_id), body),
            Body::Status(body) => push_envelope(out, "proc/status/resp", (id, ts, req_id), body),
            Body::Error(body) => push_envelope(out, "error", (id, ts, req_id), body),
        }
        out.push(b'\n');
    }
}

/// Pids of what lives on after a signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Of the tree, after SIGKILL.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<u32>,
    /// Of the session, without a sign of which process started it. It may be this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unattributed: Vec<u32>,
}

/// What a good handshake accepted of the capabilities that the agent named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// `proc`
    Proc,
    /// None of those that we have.
    Nothing,
}

fn push_envelope(
    out: &mut Vec<u8>,
    kind: &'static str,
    (id, ts, req_id): (&str, Timestamp, &ReqId),
    body: &impl Serialize,
) {
    push_json(out, &Message { kind, id, version: super::VERSION, ts, req_id, body });
}

#[derive(Serialize)]
struct Message<'a, B: Serialize> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    version: &'static str,
    ts: Timestamp,
    req_id: &'a ReqId,
    #[serde(flatten)]
    body: &'a B,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct HandshakeBody {
    session_id: SessionId,
    accepted_caps: Vec<ProcCapability>,
    max_parallel: u32,
    ok: bool,
    reason: String,
}

/// The one entry that `accepted_caps` may have: strict clients reject a reply with a name that they do not know.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ProcCapability {
    capability: &'static str,
    enabled: bool,
    metadata: PluginMetadata,
}

impl ProcCapability {
    fn entry() -> Self {
        let metadata = PluginMetadata { name: "proc", kind: "proc", priority: 5, exclusive: false };
        Self { capability: "proc", enabled: true, metadata }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PluginMetadata {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    priority: u32,
    exclusive: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PongBody {
    uptime_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct SpawnBody {
    proc_id: ProcId,
    ok: bool,
    pid: u32,
    error: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct WriteBody {
    proc_id: ProcId,
    ok: bool,
    pid: u32,
    error: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct KillBody {
    ok: bool,
    #[serde(serialize_with = "word_or_empty")]
    state: Option<StatusWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    left: Left,
}

fn word_or_empty<S: serde::Serializer>(word: &Option<StatusWord>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word.map_or("", StatusWord::word))
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct StatusBody {
    proc_id: ProcId,
    status: StatusWord,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    procs: Option<Vec<ProcStatus>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ErrorBody {
    code: &'static str,
    message: String,
    detail: Detail,
    retryable: bool,
    capability_name: &'static str,
    #[serde(skip)]
    subject: Subject,
}

/// What the request was about that an `error` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// `proc/*`
    Processes,
    /// Something else, or nothing that could be read.
    Other,
}

/// What an `error` says beyond its message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Detail {
    /// `{}`
    Nothing {},
    /// Which bytes are missing.
    Lost { proc_id: ProcId, stream_type: &'static str, bytes: u64 },
    /// Between which ids of frames messages are missing.
    Gap { after: u64, from: u64 },
}

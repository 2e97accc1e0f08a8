//! The rules of one connection: who may do what, and what a request asks for once it is valid.
//!
//! [`Connection::handle`] takes one line and says what to do ([`Step`]): answer it, or carry something out and answer
//! then with a constructor of [`Reply`]. It starts nothing, knows no process and reads no clock; whether a process
//! exists, has ended or may be started is for the executor to say. Framing is in [`crate::codec`], the JSON in
//! [`crate::wire`].
//!
//! Invariants:
//! - No `proc/*` request becomes a step before a good handshake that named `proc`.
//! - A refused handshake changes nothing; a further good one replaces capabilities and forms, and keeps the session.
//! - Every request but `shutdown` gets exactly one reply: from here, or from the executor of its step.
//! - No line ends the connection, however bad it is.

mod spawn;

use std::path::PathBuf;
use std::time::Duration;

use crate::codec::Item;
use crate::encode::{DataForm, EventForm, PushForm};
use crate::wire::{
    Accepted, Denied, Envelope, HandshakeRefusal, HandshakeRequest, KillRefusal, Malformed, ProcId,
    ProcKillRequest, ProcStatusRequest, ProcWriteRequest, Reply, ReqId, Request, Secret, SessionId, Shown,
};

/// The longest time limit of a process, a hundred years: larger ones become this, so that adding it to a clock never
/// overflows.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The longest time between SIGTERM and SIGKILL at `shutdown`.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// What a connection is told at its start. Plain values; the host's configuration is read elsewhere.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The session that this connection is.
    pub session_id: SessionId,
    /// Commands that may be started, compared with `cmd[0]` as they are.
    pub allowed_commands: Vec<String>,
    /// The token that a handshake must bring; `None` where none is asked for.
    pub auth_token: Option<Secret>,
    /// How `data` of events is written for agents that do not ask for a form.
    pub data_form: DataForm,
    /// Whether events name their spawn request, for agents that do not ask.
    pub push_form: PushForm,
    /// The limit of processes whose spawn request says 0; `None` = no limit.
    pub default_timeout: Option<Duration>,
}

/// What a line asks for.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Nothing but this answer.
    Reply(Reply),
    /// Start a process, then answer [`Reply::spawned`] before its first event, or [`Reply::spawn_refused`].
    Spawn(SpawnRequest),
    /// Write to a process, then answer [`Reply::written`] or [`Reply::write_refused`].
    Write {
        /// Id of the request.
        req_id: ReqId,
        /// The process, as the client names it.
        proc_id: ProcId,
        /// Bytes for its stdin, exactly.
        data: String,
        /// Whether to close stdin afterwards.
        eof: bool,
    },
    /// Signal a process, wait for its end (2 s at most), then answer [`Reply::kill_settled`] or one of the others.
    Kill {
        /// Id of the request.
        req_id: ReqId,
        /// The process, as the client names it.
        proc_id: ProcId,
        /// The signal.
        signal: KillSignal,
    },
    /// Answer [`Reply::status`] or [`Reply::status_unknown`].
    StatusOne {
        /// Id of the request.
        req_id: ReqId,
        /// The process, as the client names it.
        proc_id: ProcId,
    },
    /// Answer [`Reply::status_all`].
    StatusAll {
        /// Id of the request.
        req_id: ReqId,
    },
    /// End the session without an answer: SIGTERM, after `grace` SIGKILL.
    Shutdown {
        /// At most [`SHUTDOWN_GRACE`].
        grace: Duration,
    },
}

/// A process to start. Everything is checked but what only the system knows: the folder, the program, the quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnRequest {
    /// Id of the request; events of the process name it.
    pub req_id: ReqId,
    /// Command and arguments, at least the command, free of NUL.
    pub argv: Vec<String>,
    /// Working directory; `None` = the host's.
    pub cwd: Option<PathBuf>,
    /// Variables to lay over the inherited environment, free of NUL, names not empty and without `=`.
    pub env: Vec<(String, String)>,
    /// Where its stdin comes from.
    pub stdin: StdinSource,
    /// Time after which it is killed, at most [`MAX_TIMEOUT`]; `None` = no limit.
    pub timeout: Option<Duration>,
    /// How its events are written.
    pub events: EventForm,
}

/// Where the stdin of a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinSource {
    /// A pipe that `proc/write` fills.
    Pipe,
    /// `/dev/null`
    Null,
}

/// The signals that `proc/kill` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillSignal {
    /// SIGTERM, to the process group.
    Term,
    /// SIGKILL, to the whole tree.
    Kill,
    /// SIGINT, to the process group.
    Int,
}

impl KillSignal {
    fn parse(name: &str) -> Result<Self, KillRefusal> {
        match name {
            "SIGTERM" => Ok(Self::Term),
            "SIGKILL" => Ok(Self::Kill),
            "SIGINT" => Ok(Self::Int),
            _ => Err(KillRefusal::Signal { name: name.to_owned() }),
        }
    }
}

/// The state of one connection, which is one session.
#[derive(Debug)]
pub struct Connection {
    options: ConnectionOptions,
    standing: Standing,
}

/// What the handshakes so far allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// No good handshake yet.
    Stranger,
    /// A good handshake without `proc`.
    Guest,
    /// A good handshake with `proc`.
    Agent(EventForm),
}

impl Connection {
    /// A connection on which nothing was said yet.
    pub fn new(options: ConnectionOptions) -> Self {
        Self { options, standing: Standing::Stranger }
    }

    /// Takes one line. `uptime` is how long the host has been up, for `pong`.
    pub fn handle(&mut self, item: Item<'_>, uptime: Duration) -> Step {
        let line = match item {
            Item::Line(line) => line,
            Item::Bad(trouble) => return malformed(ReqId::new(""), &trouble),
        };
        let envelope = match Envelope::parse(line) {
            Ok(envelope) => envelope,
            Err((req_id, trouble)) => return malformed(req_id, &trouble),
        };
        let req_id = envelope.req_id();
        let events = match self.standing {
            Standing::Agent(events) => events,
            Standing::Stranger if envelope.kind().needs_proc() => {
                return denied(req_id, Denied::Unauthorized);
            }
            Standing::Guest if envelope.kind().needs_proc() => {
                return denied(req_id, Denied::CapabilityMissing);
            }
            Standing::Stranger | Standing::Guest => self.default_form(),
        };
        let is_about_processes = envelope.kind().needs_proc();
        match envelope.request() {
            Ok(request) => self.carry_out(request, events, uptime),
            Err(trouble) if is_about_processes => Step::Reply(Reply::malformed_proc(req_id, &trouble)),
            Err(trouble) => malformed(req_id, &trouble),
        }
    }

    fn carry_out(&mut self, request: Request, events: EventForm, uptime: Duration) -> Step {
        match request {
            Request::Handshake(request) => Step::Reply(self.shake_hands(request)),
            Request::Ping(req_id) => Step::Reply(Reply::pong(req_id, uptime)),
            Request::Shutdown(request) => {
                Step::Shutdown { grace: Duration::from_secs(request.timeout_s).min(SHUTDOWN_GRACE) }
            }
            Request::Spawn(request) => {
                let req_id = request.req_id.clone();
                match spawn::checked(request, &self.options, events) {
                    Ok(request) => Step::Spawn(request),
                    Err(refusal) => Step::Reply(Reply::spawn_refused(req_id, &refusal)),
                }
            }
            Request::Write(ProcWriteRequest { req_id, proc_id, data, eof }) => {
                Step::Write { req_id, proc_id, data, eof }
            }
            Request::Kill(ProcKillRequest { req_id, proc_id, signal }) => match KillSignal::parse(&signal) {
                Ok(signal) => Step::Kill { req_id, proc_id, signal },
                Err(refusal) => Step::Reply(Reply::kill_refused(req_id, &refusal)),
            },
            Request::Status(ProcStatusRequest { req_id, proc_id }) if proc_id.as_str().is_empty() => {
                Step::StatusAll { req_id }
            }
            Request::Status(ProcStatusRequest { req_id, proc_id }) => Step::StatusOne { req_id, proc_id },
        }
    }

    fn shake_hands(&mut self, request: HandshakeRequest) -> Reply {
        let agent = Shown(&request.agent_id);
        if let Some(refusal) = self.objection(&request) {
            tracing::info!(%agent, %refusal, "a handshake was refused");
            return Reply::unwelcome(request.req_id, refusal);
        }
        let asks_for = |capability| request.agent_caps.iter().any(|word| word == capability);
        let mut events = self.default_form();
        if asks_for(OBJECT_DATA) {
            events.data = DataForm::Object;
        }
        if asks_for(PUSHED_EVENTS) {
            events.push = PushForm::Push;
        }
        let (standing, accepted) = if asks_for(PROC) {
            (Standing::Agent(events), Accepted::Proc)
        } else {
            (Standing::Guest, Accepted::Nothing)
        };
        tracing::info!(%agent, "a handshake was accepted");
        self.standing = standing;
        Reply::welcome(request.req_id, self.options.session_id.clone(), accepted)
    }

    fn objection(&self, request: &HandshakeRequest) -> Option<HandshakeRefusal> {
        if !speaks_our_version(&request.version) {
            return Some(HandshakeRefusal::VersionMismatch);
        }
        let token = self.options.auth_token.as_ref()?;
        (!same_secret(token, &request.auth_token)).then_some(HandshakeRefusal::AuthFailed)
    }

    fn default_form(&self) -> EventForm {
        EventForm { data: self.options.data_form, push: self.options.push_form }
    }

    /// Whether a good handshake has been made.
    pub fn is_welcome(&self) -> bool {
        match self.standing {
            Standing::Stranger => false,
            Standing::Guest | Standing::Agent(_) => true,
        }
    }
}

const PROC: &str = "proc";
/// Asks for events whose `data` is an object.
const OBJECT_DATA: &str = "proc.data.object";
/// Asks for events with an empty `req_id`.
const PUSHED_EVENTS: &str = "proc.event.push";

fn malformed(req_id: ReqId, trouble: &Malformed) -> Step {
    Step::Reply(Reply::malformed(req_id, trouble))
}

fn denied(req_id: ReqId, denied: Denied) -> Step {
    Step::Reply(Reply::denied(req_id, denied))
}

/// Whether a version has our major number, 1.
fn speaks_our_version(version: &str) -> bool {
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    major == "1" && !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Compares in a time that depends on the length of `offered` alone.
fn same_secret(expected: &Secret, offered: &Secret) -> bool {
    let (expected, offered) = (expected.expose().as_bytes(), offered.expose().as_bytes());
    let mut difference = u8::from(expected.len() != offered.len());
    let mut cycle = expected.iter().cycle();
    for &byte in offered {
        difference |= std::hint::black_box(byte ^ cycle.next().copied().unwrap_or_default());
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests;

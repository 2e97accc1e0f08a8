//! Every "no" of the protocol: what went wrong, the code that it has on the wire, and the text that says what to do.
//!
//! Lines that are no usable request and requests that nobody may make yet are answered by an `error` envelope
//! ([`Malformed`], [`Denied`]). A `proc/*` request that was understood is answered by its typed reply with `ok` false,
//! whose `error` starts with the code where there is one ([`ProcCode`]).

use std::fmt;
use std::io;

use super::field::{FieldPath, Found, JsonKind};

/// Codes of the `error` envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeCode {
    /// The line is no JSON.
    ParseError,
    /// JSON, but no message that a client may send.
    InvalidMessage,
    /// A field does not take what stands in it.
    SchemaViolation,
    /// No good handshake yet.
    Unauthorized,
    /// The handshake did not ask for the capability.
    CapabilityMissing,
    /// Nobody's request: output of a process was lost on its way to the client.
    OutputLost,
    /// Nobody's request: what a client asks for again is no longer kept.
    ReplayGap,
}

impl EnvelopeCode {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::ParseError => "parse_error",
            Self::InvalidMessage => "invalid_message",
            Self::SchemaViolation => "schema_violation",
            Self::Unauthorized => "unauthorized",
            Self::CapabilityMissing => "capability_missing",
            Self::OutputLost => "output_lost",
            Self::ReplayGap => "replay_gap",
        }
    }
}

/// Codes that the `error` of a typed reply may start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcCode {
    /// The session has no such process.
    UnknownProc,
    /// The process has ended.
    ProcDead,
    /// The session runs as many processes as it may.
    ProcLimit,
}

impl ProcCode {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::UnknownProc => "unknown_proc",
            Self::ProcDead => "proc_dead",
            Self::ProcLimit => "proc_limit",
        }
    }
}

/// A line that is no usable request. The display text is the `message` of the envelope.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// The line is longer than a line may be.
    #[error("the line is longer than {limit} bytes; split the data over several messages")]
    LineTooLong {
        /// The longest line in bytes, without its end.
        limit: usize,
    },
    /// The line is no UTF-8.
    #[error("the line is no UTF-8 from byte {offset} on; send one JSON object per line in UTF-8")]
    NotUtf8 {
        /// How many bytes of the line are UTF-8.
        offset: usize,
    },
    /// The line is no JSON.
    #[error("the line is no JSON ({reason}); send one JSON object per line")]
    NotJson {
        /// What serde_json said, with the place.
        reason: serde_json::Error,
    },
    /// Lists or objects inside each other beyond the limit.
    #[error("the message nests deeper than {limit} levels")]
    TooDeep {
        /// The deepest nesting allowed.
        limit: usize,
    },
    /// JSON that is no object.
    #[error("a message must be a JSON object; this line is {found}")]
    NotObject {
        /// What the line is.
        found: JsonKind,
    },
    /// No `type`.
    #[error("the message has no type; expected one of {}", super::request::client_types())]
    TypeMissing,
    /// A `type` that is no string.
    #[error("field type: found {found}, expected one of {}", super::request::client_types())]
    TypeUnreadable {
        /// What stood there.
        found: Found,
    },
    /// A `type` that nobody knows.
    #[error("type {} is not known; expected one of {}", Shown(.word), super::request::client_types())]
    TypeUnknown {
        /// What stood there.
        word: String,
    },
    /// A `type` that only hosts send.
    #[error("only a host sends messages of type {word}; expected one of {}", super::request::client_types())]
    TypeOfHost {
        /// What stood there.
        word: &'static str,
    },
    /// A field does not take what stands in it.
    #[error("field {field}: found {found}, expected {expected}")]
    Field {
        /// Which field.
        field: FieldPath,
        /// What stood there.
        found: Found,
        /// What may stand there.
        expected: &'static str,
    },
}

impl Malformed {
    /// The code of the envelope that answers this.
    pub fn code(&self) -> EnvelopeCode {
        match self {
            Self::NotUtf8 { .. } | Self::NotJson { .. } | Self::TooDeep { .. } => EnvelopeCode::ParseError,
            Self::LineTooLong { .. }
            | Self::NotObject { .. }
            | Self::TypeMissing
            | Self::TypeUnreadable { .. }
            | Self::TypeUnknown { .. }
            | Self::TypeOfHost { .. } => EnvelopeCode::InvalidMessage,
            Self::Field { .. } => EnvelopeCode::SchemaViolation,
        }
    }
}

/// A request that this connection may not make (yet). The display text is the `message` of the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// `proc/*` before a good handshake.
    #[error("no handshake yet; send handshake/req with \"proc\" in agent_caps first")]
    Unauthorized,
    /// `proc/*` although the handshake did not name `proc`.
    #[error("capability proc was not negotiated; send handshake/req again with \"proc\" in agent_caps")]
    CapabilityMissing,
}

impl Denied {
    /// The code of the envelope that answers this.
    pub fn code(self) -> EnvelopeCode {
        match self {
            Self::Unauthorized => EnvelopeCode::Unauthorized,
            Self::CapabilityMissing => EnvelopeCode::CapabilityMissing,
        }
    }

    /// The `capability_name` of the envelope.
    pub fn capability_name(self) -> &'static str {
        match self {
            Self::Unauthorized => "",
            Self::CapabilityMissing => "proc",
        }
    }
}

/// Why a handshake was refused. The display text is the `reason` of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// Another major version than 1, or a version that cannot be read.
    #[error("version_mismatch")]
    VersionMismatch,
    /// The token is not the host's.
    #[error("auth_failed")]
    AuthFailed,
}

/// Why no process was started. The display text is the `error` of `proc/spawn/resp`.
#[derive(Debug, thiserror::Error)]
pub enum SpawnRefusal {
    /// A session id that is not the connection's.
    #[error("session_id {} is not this session; send the session_id of the handshake or \"\"", Shown(.session_id))]
    OtherSession {
        /// The id in the request.
        session_id: String,
    },
    /// `cmd` is empty.
    #[error("cmd is empty; send the command and its arguments as a list, for example [\"ls\", \"/\"]")]
    EmptyCommand,
    /// The command is not in the allowlist.
    #[error(
        "command {} is not allowed (it is compared as it is, no path); allowed: {}; the host's operator sets allowed_commands",
        Shown(.command),
        .allowed.join(", ")
    )]
    NotAllowed {
        /// The first word of `cmd`.
        command: String,
        /// What is allowed, in the order of the configuration.
        allowed: Vec<String>,
    },
    /// A NUL where the system takes none.
    #[error("{place} holds a NUL character; no argument, path or environment entry can hold one")]
    Nul {
        /// Which field.
        place: FieldPath,
    },
    /// A name that no environment variable can have.
    #[error("env name {} is refused; a name must not be empty and must not hold \"=\"", Shown(.name))]
    EnvName {
        /// The name in the request.
        name: String,
    },
    /// A word for `stdin_mode` that is not known.
    #[error("stdin_mode {} is not known; use \"pipe\" or \"null\"", Shown(.word))]
    StdinMode {
        /// The word in the request.
        word: String,
    },
    /// A timeout below zero.
    #[error(
        "timeout {seconds} is negative; use 0 for no limit, or the seconds after which to kill the process"
    )]
    NegativeTimeout {
        /// The number in the request.
        seconds: i64,
    },
    /// The session runs as many processes as it may.
    #[error(
        "proc_limit: {limit} processes of this session are live, all that max_processes allows; wait until one ends or kill one"
    )]
    Limit {
        /// The quota of the session.
        limit: usize,
    },
    /// All sessions of the host together run as many processes as they may.
    #[error(
        "proc_limit: {limit} processes of all sessions are live, all that max_processes_total allows; wait until one ends or kill one"
    )]
    HostLimit {
        /// The quota of the host.
        limit: usize,
    },
    /// The host's limit of open files has no room for another process, whatever the quotas say.
    #[error(
        "proc_limit: the host's limit of {limit} open files has no room for another process; wait until one ends, kill one, or start the host with a higher hard limit (`ulimit -Hn`)"
    )]
    OpenFiles {
        /// The limit, as far as the host could raise it.
        limit: u64,
    },
    /// The machine has no open files left for anybody.
    #[error(
        "proc_limit: the machine has as many open files as it may; try again later, or raise its fs.file-max"
    )]
    SystemFiles,
    /// The system has no room for another process.
    #[error("the system cannot start another process: {reason}; {}", what_to_raise(.reason))]
    Resources {
        /// What the system said.
        reason: io::Error,
    },
    /// `cwd` cannot be used.
    #[error("cwd {}: {reason}; use a directory that exists, or \"\" for the host's own", Shown(.cwd))]
    WorkingDirectory {
        /// The path in the request.
        cwd: String,
        /// What the system said.
        reason: io::Error,
    },
    /// The command is not on the host's `PATH`.
    #[error("command {} was not found on the host's PATH", Shown(.command))]
    NotFound {
        /// The first word of `cmd`.
        command: String,
    },
    /// The system did not start the process.
    #[error("failed to start {}: {reason}", Shown(.command))]
    Start {
        /// The first word of `cmd`.
        command: String,
        /// What the system said.
        reason: io::Error,
    },
    /// The process could not be started for a reason that is not its command's.
    #[error("the process was not started: {reason}")]
    NotStarted {
        /// What the core said.
        reason: io::Error,
    },
    /// The session ends.
    #[error("the session is ending and starts nothing any more; open a new one")]
    SessionEnding,
}

impl SpawnRefusal {
    /// The code that the text starts with, where it has one.
    pub fn code(&self) -> Option<ProcCode> {
        match self {
            Self::Limit { .. } | Self::HostLimit { .. } | Self::OpenFiles { .. } | Self::SystemFiles => {
                Some(ProcCode::ProcLimit)
            }
            Self::OtherSession { .. }
            | Self::EmptyCommand
            | Self::NotAllowed { .. }
            | Self::Nul { .. }
            | Self::EnvName { .. }
            | Self::StdinMode { .. }
            | Self::NegativeTimeout { .. }
            | Self::WorkingDirectory { .. }
            | Self::NotFound { .. }
            | Self::Start { .. }
            | Self::Resources { .. }
            | Self::NotStarted { .. }
            | Self::SessionEnding => None,
        }
    }
}

fn what_to_raise(reason: &io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(reason) {
        Some(rustix::io::Errno::AGAIN) => {
            "end some, or raise the number of processes and threads that the host's user (`ulimit -u`) and its control group (pids.max) may have"
        }
        Some(rustix::io::Errno::NOMEM) => "end some, or raise what memory the host may have",
        _ => "end some, and try again",
    }
}

/// Why a write was refused. The display text is the `error` of `proc/write/resp`.
#[derive(Debug, thiserror::Error)]
pub enum WriteRefusal {
    /// The session has no such process.
    #[error("unknown_proc")]
    UnknownProc,
    /// The process has ended, before the write or while that waited for it to read.
    #[error("proc_dead")]
    ProcDead,
    /// An earlier write said `eof`.
    #[error("stdin is closed: an earlier write had eof set")]
    AfterEof,
    /// The process was started with `stdin_mode` `null`.
    #[error("the process has no stdin: it was started with stdin_mode \"null\"")]
    NoStdin,
    /// The process closed its end.
    #[error("the process has closed its stdin; it runs on")]
    ClosedByProcess,
    /// Too many writes wait for the process.
    #[error(
        "{limit} writes wait for the process to read, and no more are taken; wait for their answers before the next"
    )]
    TooMany {
        /// How many may wait.
        limit: usize,
    },
    /// Too many writes wait for all processes of the session together.
    #[error(
        "{limit} writes wait for processes of this session to read, and no more are taken; wait for their answers before the next, or kill a process that does not read"
    )]
    TooManyInSession {
        /// How many may wait.
        limit: usize,
    },
    /// The system refused the write.
    #[error("failed to write to stdin: {reason}")]
    Write {
        /// What the system said.
        reason: io::Error,
    },
}

impl WriteRefusal {
    /// The code that the text starts with, where it has one.
    pub fn code(&self) -> Option<ProcCode> {
        match self {
            Self::UnknownProc => Some(ProcCode::UnknownProc),
            Self::ProcDead => Some(ProcCode::ProcDead),
            Self::AfterEof
            | Self::NoStdin
            | Self::ClosedByProcess
            | Self::TooMany { .. }
            | Self::TooManyInSession { .. }
            | Self::Write { .. } => None,
        }
    }
}

/// Why a kill was refused or not done. The display text is the extra `error` of `proc/kill/resp`.
#[derive(Debug, thiserror::Error)]
pub enum KillRefusal {
    /// The session has no such process.
    #[error("unknown_proc")]
    UnknownProc,
    /// The process has ended.
    #[error("proc_dead")]
    ProcDead,
    /// A signal name that we do not send.
    #[error("signal {} is not known; use SIGTERM, SIGINT or SIGKILL", Shown(.name))]
    Signal {
        /// The name in the request.
        name: String,
    },
    /// Something that the process started outlived SIGKILL.
    #[error("{count} of the processes below it survived SIGKILL; their pids are in survivors")]
    Survivors {
        /// How many live on.
        count: usize,
    },
    /// Nobody can say that what should be dead is dead.
    #[error("{reason}")]
    Unconfirmed {
        /// Why not.
        reason: io::Error,
    },
}

impl KillRefusal {
    /// The code that the text starts with, where it has one.
    pub fn code(&self) -> Option<ProcCode> {
        match self {
            Self::UnknownProc => Some(ProcCode::UnknownProc),
            Self::ProcDead => Some(ProcCode::ProcDead),
            Self::Signal { .. } | Self::Survivors { .. } | Self::Unconfirmed { .. } => None,
        }
    }
}

/// Shows a client's text inside a message: quoted, escaped and cut to a length that fits a line.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl Shown<'_> {
    const CHARACTERS: usize = 80;
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(Self::CHARACTERS) {
            Some((at, _)) => write!(f, "{:?}…", &self.0[..at]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

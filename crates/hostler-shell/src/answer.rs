//! What an agent is told, without a wire format.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How a run stands, or what became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It waits for a place.
    Queued,
    /// It runs.
    Running,
    /// It has exited with 0, or a request that starts nothing was carried out.
    Completed,
    /// It has exited with another code, or by a signal from elsewhere.
    Failed,
    /// A stop, a cancel or the end of the session ended it.
    Killed,
    /// A limit that kills ended it.
    TimedOut,
    /// It was stopped while it waited for a place.
    Canceled,
    /// A guard, a route or the policy does not let it start.
    Refused,
    /// It could not be carried out.
    Error,
}

impl Status {
    /// The word that agents see.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::Refused => "refused",
            Self::Error => "error",
        }
    }

    /// Whether a run can change no more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Completed
            | Self::Failed
            | Self::Killed
            | Self::TimedOut
            | Self::Canceled
            | Self::Refused
            | Self::Error => true,
        }
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No run or service of this session has this name or id.
    UnknownProcess,
    /// The run has ended.
    ProcessDead,
    /// Its standard input is closed, or never was open.
    StdinClosed,
    /// Its standard input takes nothing now.
    StdinFull,
    /// Too many runs wait for a place.
    ProcessLimit,
    /// An argument is missing, unknown, or has a value that it cannot have.
    InvalidArguments,
    /// The Git guard stops it.
    GitGuard,
    /// Another tool is made for this.
    Routed,
    /// The shell tool policy forbids it.
    Policy,
    /// An address in it leads nowhere.
    UnresolvedUrl,
    /// A service did not become ready.
    NotReady,
    /// It could not be started.
    StartFailed,
    /// Not here.
    Unsupported,
}

impl ErrorCode {
    /// The word that agents see.
    pub fn word(self) -> &'static str {
        match self {
            Self::UnknownProcess => "unknown_process",
            Self::ProcessDead => "process_dead",
            Self::StdinClosed => "stdin_closed",
            Self::StdinFull => "stdin_full",
            Self::ProcessLimit => "process_limit",
            Self::InvalidArguments => "invalid_arguments",
            Self::GitGuard => "git_guard",
            Self::Routed => "routed",
            Self::Policy => "policy",
            Self::UnresolvedUrl => "unresolved_url",
            Self::NotReady => "not_ready",
            Self::StartFailed => "start_failed",
            Self::Unsupported => "unsupported",
        }
    }
}

/// How complete what is saved of an output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capture {
    /// Everything is there.
    Complete,
    /// A quota has stopped the saving.
    Limited,
    /// The disk has.
    Failed,
}

impl Capture {
    /// The word that agents see.
    pub fn word(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Limited => "limited",
            Self::Failed => "failed",
        }
    }
}

/// What is not text: see the page of the tools (`docs/mcp.md`) for when a field is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// How it stands.
    pub status: Status,
    /// Id of the run, 32 hex digits.
    pub process_id: Option<String>,
    /// The run goes on without being waited for.
    pub background: bool,
    /// Name of the service.
    pub name: Option<String>,
    /// Its pid.
    pub pid: Option<i32>,
    /// Its exit code, 128 + n for a death by signal n.
    pub exit_code: Option<i32>,
    /// The signal that it died by, as `SIGKILL`.
    pub signal: Option<String>,
    /// From its start to its end.
    pub duration: Option<Duration>,
    /// The limit that is in force for a foreground wait.
    pub timeout: Option<Duration>,
    /// The session's working directory after the call.
    pub cwd: Option<PathBuf>,
    /// Bytes of its output, when that is more than is shown.
    pub total_bytes: Option<u64>,
    /// Lines of its output, when that is more than is shown.
    pub total_lines: Option<u64>,
    /// Less is shown than there is.
    pub truncated: bool,
    /// The address of the whole output.
    pub saved_output: Option<String>,
    /// How complete that is.
    pub capture: Option<Capture>,
    /// Bytes that nobody can have any more.
    pub dropped_bytes: u64,
    /// Newlines among them.
    pub dropped_lines: u64,
    /// There are further unread lines.
    pub more: bool,
    /// A terminal was asked for and is not to be had.
    pub pty_fallback: bool,
    /// Pids of what still runs after the command's own exit.
    pub survivors: Vec<i32>,
    /// What else there is to say; the text has each in brackets.
    pub notices: Vec<String>,
    /// What is wrong.
    pub error: Option<ErrorCode>,
    /// The runs of the session, for a list.
    pub processes: Option<Vec<Listed>>,
}

impl Details {
    /// Nothing but a status.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            process_id: None,
            background: false,
            name: None,
            pid: None,
            exit_code: None,
            signal: None,
            duration: None,
            timeout: None,
            cwd: None,
            total_bytes: None,
            total_lines: None,
            truncated: false,
            saved_output: None,
            capture: None,
            dropped_bytes: 0,
            dropped_lines: 0,
            more: false,
            pty_fallback: false,
            survivors: Vec::new(),
            notices: Vec::new(),
            error: None,
            processes: None,
        }
    }
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the service.
    pub name: Option<String>,
    /// Its id.
    pub process_id: String,
    /// How it stands.
    pub status: Status,
    /// Its pid, once it runs.
    pub pid: Option<i32>,
    /// The text as it was given.
    pub command: String,
    /// When it was asked for.
    pub started_at: SystemTime,
}

/// An answer: text and details, each complete without the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The program's text.
    pub output: String,
    /// The rest.
    pub details: Box<Details>,
}

impl Answer {
    /// An answer.
    pub fn new(output: impl Into<String>, details: Details) -> Self {
        Self { output: output.into(), details: Box::new(details) }
    }

    /// Something went wrong, or may not be: the notice says what, and what to do.
    pub fn error(code: ErrorCode, notice: impl Into<String>) -> Self {
        let status = match code {
            ErrorCode::GitGuard | ErrorCode::Routed | ErrorCode::Policy => Status::Refused,
            ErrorCode::UnknownProcess
            | ErrorCode::ProcessDead
            | ErrorCode::StdinClosed
            | ErrorCode::StdinFull
            | ErrorCode::ProcessLimit
            | ErrorCode::InvalidArguments
            | ErrorCode::UnresolvedUrl
            | ErrorCode::NotReady
            | ErrorCode::StartFailed
            | ErrorCode::Unsupported => Status::Error,
        };
        let details = Details { error: Some(code), notices: vec![notice.into()], ..Details::new(status) };
        Self::new("", details)
    }

    /// All of it as one text: the output, then a line in brackets for each notice. A notice that the command had no terminal
    /// comes first.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut notices = &self.details.notices[..];
        if self.details.pty_fallback
            && let [first, rest @ ..] = notices
        {
            text = format!("[{first}]\n");
            notices = rest;
        }
        text += &self.output;
        if !notices.is_empty() && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let lines: Vec<String> = notices.iter().map(|notice| format!("[{notice}]")).collect();
        text + &lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &str, notices: &[&str]) -> String {
        let notices = notices.iter().map(|&notice| notice.to_owned()).collect();
        let details = Details { notices, ..Details::new(Status::Completed) };
        Answer::new(output, details).text()
    }

    #[test]
    fn notices_stand_on_lines_of_their_own_behind_the_output() {
        assert_eq!(text("a\n", &[]), "a\n");
        assert_eq!(text("", &["no output, exit 0"]), "[no output, exit 0]");
        assert_eq!(text("a", &["exit 3"]), "a\n[exit 3]");
        assert_eq!(text("a\n", &["one", "two"]), "a\n[one]\n[two]");
    }

    #[test]
    fn that_there_is_no_terminal_is_said_first() {
        let notices = vec!["no terminal".to_owned(), "exit 1".to_owned()];
        let details = Details { notices, pty_fallback: true, ..Details::new(Status::Failed) };
        assert_eq!(Answer::new("a\n", details).text(), "[no terminal]\na\n[exit 1]");
    }
}

//! What an agent may ask for, as its adapter has read it. What is wrong with a request is said by its answer.

/// Starts a command of bash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BashRequest {
    /// The text for `bash -c`: not blank, without NUL.
    pub command: String,
    /// A directory that exists, absolute or relative to the session's. Default: the session's.
    pub cwd: Option<String>,
    /// Variables for this call alone. Names are `[A-Za-z_][A-Za-z0-9_]*`, values have no NUL.
    pub env: Vec<(String, String)>,
    /// How long an answer is waited for in milliseconds; the command goes on in the background then. Default: 120000, at most
    /// 600000.
    pub timeout_ms: Option<i64>,
    /// Whether an answer is waited for.
    pub mode: Mode,
    /// Whether it gets a terminal.
    pub terminal: Terminal,
    /// Whether saved state is discarded first.
    pub state: SavedState,
    /// It is a service with this name.
    pub name: Option<String>,
    /// When the service counts as ready. Default: as soon as it runs.
    pub ready: Option<ReadyRequest>,
}

/// Whether the end of a command is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Up to its timeout.
    #[default]
    Foreground,
    /// Not at all; it has a standard input.
    Background,
}

/// What a command gets as standard input, output and error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Terminal {
    /// No terminal.
    #[default]
    None,
    /// A pseudoterminal.
    Pty,
}

/// What becomes of the session's saved working directory and variables before a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SavedState {
    /// The command starts with them.
    #[default]
    Kept,
    /// They are forgotten.
    Discarded,
}

/// When a service is ready: when either condition holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadyRequest {
    /// A regular expression that a line of its output matches.
    pub log: Option<String>,
    /// A TCP port that is listened on, 1 to 65535.
    pub port: Option<i64>,
    /// The address of the port. Default: 127.0.0.1.
    pub host: Option<String>,
    /// How long that may take, in seconds: above 0, at most 3600. Default: 30.
    pub timeout_s: Option<f64>,
}

/// Reads output of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRequest {
    /// Id of a run, or name of a service.
    pub process_id: String,
    /// What is read.
    pub look: Look,
    /// How long a new line or the end is waited for in milliseconds, 0 to 600000. Default: 0.
    pub wait_ms: Option<i64>,
}

/// What of a run's output is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// The lines since the last such read, which are not read again.
    #[default]
    Next,
    /// The newest output, whether it was read or not.
    Peek,
}

/// Writes to the standard input of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRequest {
    /// Id of a run, or name of a service.
    pub process_id: String,
    /// Exactly these bytes.
    pub input: String,
    /// What comes behind them.
    pub then: Eof,
}

/// Whether standard input is closed after something was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eof {
    /// It stays open.
    #[default]
    Open,
    /// It is closed.
    Close,
}

/// Stops a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillRequest {
    /// Id of a run, or name of a service.
    pub process_id: String,
    /// `term`, the default, or `kill`.
    pub signal: Option<String>,
}

/// Reads what an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// `proc://`, `proc://ID`, `artifact://ID`, `local://PATH`, `skill://NAME` or `skill://NAME/PATH`.
    pub path: String,
    /// Lines to skip. Default: 0.
    pub offset: Option<i64>,
    /// Lines to read at most. Default: a window.
    pub limit: Option<i64>,
}

/// Writes to what an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// `proc://ID` (its standard input), `proc://ID/kill` or `local://PATH`.
    pub path: String,
    /// The bytes; for `kill` a signal, `term` when it is empty.
    pub content: String,
    /// What comes behind them, for a standard input.
    pub then: Eof,
}

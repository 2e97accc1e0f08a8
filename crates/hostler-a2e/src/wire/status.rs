//! What became of a process, and the two vocabularies of A2E for it.
//!
//! A2E has a status word (`proc/status/resp`, `proc/kill/resp`) and a ProcState (entries of `procs`) that overlap but
//! differ. Both, the exit code and the terminal event come from [`Fate`], each by one `match`.

use serde::Serialize;

use super::ids::ProcId;
use super::json::Timestamp;

/// What is known of a process. Codes are exit codes, or the negated number of the signal that ended the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or how it ended is not known yet. Its terminal event may come later than another fate than this.
    Running,
    /// It ended on its own, or by a signal from elsewhere.
    Exited {
        /// Exit code, or minus the signal.
        code: i32,
    },
    /// It ended after a kill request or with its session.
    Killed {
        /// Exit code, or minus the signal.
        code: i32,
    },
    /// It was stopped at its time limit.
    TimedOut {
        /// Exit code, or minus the signal.
        code: i32,
    },
    /// It ended with the keeper that watched it, so its own exit code is not known.
    Lost,
    /// It ended on its own with 0, but part of its output was lost: nobody may take that for a success.
    Torn,
}

impl Fate {
    /// The status word for this.
    pub fn status(self) -> StatusWord {
        match self {
            Self::Running => StatusWord::Running,
            Self::Exited { code: 0 } => StatusWord::Completed,
            Self::Exited { .. } => StatusWord::Failed,
            Self::Killed { .. } => StatusWord::Killed,
            Self::TimedOut { .. } => StatusWord::TimedOut,
            Self::Lost | Self::Torn => StatusWord::Error,
        }
    }

    /// The ProcState for this.
    pub fn state(self) -> ProcState {
        match self {
            Self::Running => ProcState::Running,
            Self::Exited { code: 0 } | Self::Killed { .. } => ProcState::Stopped,
            Self::Exited { .. } | Self::Lost | Self::Torn => ProcState::Crashed,
            Self::TimedOut { .. } => ProcState::TimedOut,
        }
    }

    /// The exit code, where one is known.
    pub fn exit_code(self) -> Option<i32> {
        match self {
            Self::Exited { code } | Self::Killed { code } | Self::TimedOut { code } => Some(code),
            Self::Torn => Some(0),
            Self::Running | Self::Lost => None,
        }
    }

    /// The last event of a process that ended so; `None` while it runs.
    ///
    /// A lost process counts as ended by SIGKILL: that is what the nursery does with what a dead keeper leaves. Where output
    /// was lost, the same code says that the host does not answer for the end.
    pub fn terminal(self) -> Option<Terminal> {
        const LOST: i32 = -9;
        match self {
            Self::Running => None,
            Self::Exited { code } => Some(Terminal::Exit(code)),
            Self::Killed { .. } | Self::TimedOut { .. } => Some(Terminal::Killed),
            Self::Lost | Self::Torn => Some(Terminal::Exit(LOST)),
        }
    }
}

/// The last event of a process: how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// Its exit code, or minus the signal that ended it.
    Exit(i32),
    /// It was killed on request or at its time limit.
    Killed,
}

/// The status of a process as `proc/status/resp` and `proc/kill/resp` say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWord {
    /// It runs.
    Running,
    /// It ended with exit code 0.
    Completed,
    /// It ended with another code, or by a signal from elsewhere.
    Failed,
    /// It ended after a kill request.
    Killed,
    /// It was stopped at its time limit.
    TimedOut,
    /// The session has no such process.
    NotFound,
    /// The host itself could not settle the question.
    Error,
}

impl StatusWord {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::TimedOut => "timedout",
            Self::NotFound => "not_found",
            Self::Error => "error",
        }
    }
}

impl Serialize for StatusWord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// The state of a process as entries of `procs` say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcState {
    /// It runs.
    Running,
    /// It ended with exit code 0, or was killed on request.
    Stopped,
    /// It ended with another code, or by a signal from elsewhere.
    Crashed,
    /// It was stopped at its time limit.
    TimedOut,
}

impl ProcState {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Crashed => "crashed",
            Self::TimedOut => "timedout",
        }
    }
}

impl Serialize for ProcState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// One entry of the list that answers a status request without `proc_id`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcStatus {
    proc_id: ProcId,
    cmd: String,
    state: ProcState,
    pid: u32,
    exit_code: Option<i32>,
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    lingering: Option<bool>,
}

impl ProcStatus {
    /// The entry of the process `proc_id`; `cmd` is its command line as [`shown_command`] gives it.
    pub fn new(proc_id: ProcId, cmd: String, pid: u32, fate: Fate, started_at: Timestamp) -> Self {
        let (state, exit_code) = (fate.state(), fate.exit_code());
        Self { proc_id, cmd, state, pid, exit_code, started_at, lingering: None }
    }

    /// The same of a process that has ended and has left something alive, which keeps its place.
    #[must_use]
    pub fn lingering(self) -> Self {
        Self { lingering: Some(true), ..self }
    }
}

/// The status of a whole session: running while any of `procs` runs or `starts` are under way, else completed.
pub fn overall_status(procs: &[ProcStatus], starts: usize) -> StatusWord {
    if starts > 0 || procs.iter().any(|entry| entry.state == ProcState::Running) {
        StatusWord::Running
    } else {
        StatusWord::Completed
    }
}

/// The most of a command line that is shown, in bytes on the wire.
const MAX_COMMAND_BYTES: usize = 4096;
/// What all entries of a list may take together, so that the line stays below what a client must accept.
const MAX_LIST_BYTES: usize = 15 << 20;
/// What an entry takes at most beside its command line.
const ENTRY_BYTES: usize = 256;

/// What the command line of each of so many processes may take of an answer, in bytes.
pub fn command_share(processes: usize) -> usize {
    (MAX_LIST_BYTES / processes.max(1)).saturating_sub(ENTRY_BYTES).min(MAX_COMMAND_BYTES)
}

/// A command line that a POSIX shell reads back as `words`; where it takes more than `most` bytes on the wire, its
/// beginning and `…`.
pub fn shown_command(words: impl IntoIterator<Item = impl AsRef<str>>, most: usize) -> String {
    let mut line = Line { text: String::new(), room: most, is_full: false };
    for (index, word) in words.into_iter().enumerate() {
        if index > 0 {
            line.push(" ");
        }
        line.push_quoted(word.as_ref());
        if line.is_full {
            break;
        }
    }
    line.text
}

/// Takes characters while there is room for them.
struct Line {
    text: String,
    room: usize,
    is_full: bool,
}

impl Line {
    fn push(&mut self, text: &str) {
        for character in text.chars().take_while(|_| !self.is_full) {
            let Some(room) = self.room.checked_sub(bytes_on_the_wire(character)) else {
                self.is_full = true;
                self.text.push('…');
                return;
            };
            self.room = room;
            self.text.push(character);
        }
    }

    fn push_quoted(&mut self, word: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
        if !word.is_empty() && word.bytes().all(is_plain) {
            return self.push(word);
        }
        self.push("'");
        for (index, part) in word.split('\'').enumerate() {
            if index > 0 {
                self.push("'\\''");
            }
            self.push(part);
        }
        self.push("'");
    }
}

/// What a character takes inside of a JSON string, at most.
fn bytes_on_the_wire(character: char) -> usize {
    const ESCAPED: usize = "\\u0000".len();
    match character {
        '"' | '\\' => 2,
        '\0'..'\u{20}' | '\u{85}' | '\u{2028}' | '\u{2029}' => ESCAPED,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_its_words_its_code_and_its_last_event() {
        let table = [
            (Fate::Running, "running", "running", None, None),
            (Fate::Exited { code: 0 }, "completed", "stopped", Some(0), Some(Terminal::Exit(0))),
            (Fate::Exited { code: 3 }, "failed", "crashed", Some(3), Some(Terminal::Exit(3))),
            (Fate::Exited { code: -9 }, "failed", "crashed", Some(-9), Some(Terminal::Exit(-9))),
            (Fate::Killed { code: -15 }, "killed", "stopped", Some(-15), Some(Terminal::Killed)),
            (Fate::Killed { code: 0 }, "killed", "stopped", Some(0), Some(Terminal::Killed)),
            (Fate::TimedOut { code: -9 }, "timedout", "timedout", Some(-9), Some(Terminal::Killed)),
            (Fate::Lost, "error", "crashed", None, Some(Terminal::Exit(-9))),
            (Fate::Torn, "error", "crashed", Some(0), Some(Terminal::Exit(-9))),
        ];
        for (fate, status, state, code, terminal) in table {
            assert_eq!(fate.status().word(), status, "{fate:?}");
            assert_eq!(fate.state().word(), state, "{fate:?}");
            assert_eq!(fate.exit_code(), code, "{fate:?}");
            assert_eq!(fate.terminal(), terminal, "{fate:?}");
        }
    }

    #[test]
    fn the_words_that_no_fate_has_are_those_of_the_protocol() {
        assert_eq!(StatusWord::NotFound.word(), "not_found");
        assert_eq!(StatusWord::Error.word(), "error");
    }

    #[test]
    fn a_session_is_running_while_any_process_runs() {
        let entry = |fate| {
            ProcStatus::new(
                ProcId::new("p"),
                "ls".to_owned(),
                7,
                fate,
                Timestamp::from_unix(std::time::Duration::ZERO),
            )
        };
        assert_eq!(overall_status(&[], 0), StatusWord::Completed);
        assert_eq!(overall_status(&[], 1), StatusWord::Running);
        assert_eq!(overall_status(&[entry(Fate::Exited { code: 1 })], 0), StatusWord::Completed);
        assert_eq!(
            overall_status(&[entry(Fate::Exited { code: 1 }), entry(Fate::Running)], 0),
            StatusWord::Running
        );
    }

    #[test]
    fn command_lines_are_quoted_where_a_shell_needs_it() {
        let quoted = |argv: &[&str]| shown_command(argv, MAX_COMMAND_BYTES);
        assert_eq!(quoted(&["python3", "-c", "print(input())"]), "python3 -c 'print(input())'");
        assert_eq!(
            quoted(&["ls", "", "a b", "it's", "/usr/bin:x=1,2%+@_-"]),
            r"ls '' 'a b' 'it'\''s' /usr/bin:x=1,2%+@_-"
        );
        assert_eq!(quoted(&["ls", "é", "~", "$x", "a\nb"]), "ls 'é' '~' '$x' 'a\nb'");
        assert_eq!(quoted(&[]), "");
    }

    #[test]
    fn long_command_lines_are_cut_at_a_character_and_say_so() {
        for (argv, most, expected) in [
            (["ls", "abc"], 6, "ls abc"),
            (["ls", "abc"], 5, "ls ab…"),
            (["ls", "abc"], 3, "ls …"),
            (["ls", "abc"], 0, "…"),
            (["ls", "é€"], 8, "ls 'é…"),
            (["ls", "é€"], 10, "ls 'é€'"),
            (["ls", "\n\n"], 11, "ls '\n…"),
            (["ls", "it's"], 8, "ls 'it'…"),
        ] {
            assert_eq!(shown_command(argv, most), expected, "{most}");
        }
    }

    #[test]
    fn a_list_of_any_length_fits_into_a_line() {
        for count in [0, 1, 1100, 4000, 20_000, 60_000] {
            // The worst of each: all digits, nothing but escapes.
            let cmd = shown_command(["\u{7}".repeat(5000)], command_share(count));
            let ts = Timestamp::from_unix(std::time::Duration::from_micros(u64::MAX));
            let (id, fate) = (ProcId::new("x".repeat(36)), Fate::TimedOut { code: i32::MIN });
            let entry = ProcStatus::new(id, cmd, u32::MAX, fate, ts);
            let bytes = serde_json::to_string(&entry).unwrap().len() + 1;
            assert!(bytes * count <= MAX_LIST_BYTES, "{count} of {bytes} bytes");
        }
    }
}

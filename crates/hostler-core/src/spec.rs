//! What a caller asks for when it starts a process, and what can be wrong with it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::keeper::respawn::NoKeeper;
use crate::sys::clone::Step;

/// Where a process's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StdinMode {
    /// A pipe that [`Process::write`](crate::Process::write) fills.
    #[default]
    Pipe,
    /// /dev/null: the process reads end of file at once.
    Null,
}

/// Where a process's standard error goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StderrMode {
    /// A pipe and a stream of its own.
    #[default]
    Separate,
    /// The pipe of standard output, so that the order is the program's.
    Merged,
}

/// A program to start. [`SpawnSpec::new`] takes the command and has the defaults for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnSpec {
    /// Program and arguments. A program without a slash is looked for on the host's PATH as execvp(3) does; no shell
    /// is involved.
    pub argv: Vec<OsString>,
    /// Working directory; `None`, the default, is the host's. A relative one starts there.
    pub cwd: Option<PathBuf>,
    /// Variables laid over the inherited environment; of several with one name the last counts. Default: none.
    pub env: Vec<(OsString, OsString)>,
    /// Standard input. Default: [`StdinMode::Pipe`].
    pub stdin: StdinMode,
    /// Standard error. Default: [`StderrMode::Separate`].
    pub stderr: StderrMode,
    /// How long it may run before its tree is stopped; `None`, the default, is for ever.
    pub timeout: Option<Duration>,
}

impl SpawnSpec {
    /// A program with arguments and otherwise defaults.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: Vec::new(),
            stdin: StdinMode::default(),
            stderr: StderrMode::default(),
            timeout: None,
        }
    }

    /// Checks what the kernel could only misunderstand.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let has_nul = |text: &OsStr| text.as_bytes().contains(&0);
        if self.argv.first().is_none_or(|program| program.is_empty()) {
            return Err(SpecError::NoProgram);
        }
        if let Some(index) = self.argv.iter().position(|arg| has_nul(arg)) {
            return Err(SpecError::NulInArgument { index });
        }
        if self.cwd.as_ref().is_some_and(|cwd| has_nul(cwd.as_os_str())) {
            return Err(SpecError::NulInCwd);
        }
        for (name, value) in &self.env {
            let shown = name.to_string_lossy().into_owned();
            if name.is_empty() {
                return Err(SpecError::EmptyEnvName);
            }
            if name.as_bytes().contains(&b'=') {
                return Err(SpecError::EqualsInEnvName { name: shown });
            }
            if has_nul(name) || has_nul(value) {
                return Err(SpecError::NulInEnv { name: shown.replace('\0', "\u{fffd}") });
            }
        }
        Ok(())
    }

    /// Program and arguments as the keeper wants them: each ended by NUL.
    pub(crate) fn argv_block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(self.argv.iter().map(|arg| arg.len() + 1).sum());
        for arg in &self.argv {
            block.extend_from_slice(arg.as_bytes());
            block.push(0);
        }
        block
    }

    /// The variables as the keeper wants them: `NAME=value`, each ended by NUL, one of a name.
    pub(crate) fn env_block(&self) -> Vec<u8> {
        let last: HashMap<&OsStr, usize> =
            self.env.iter().enumerate().map(|(index, (name, _))| (name.as_os_str(), index)).collect();
        let mut block = Vec::new();
        for (index, (name, value)) in self.env.iter().enumerate() {
            if last.get(name.as_os_str()) == Some(&index) {
                env_entry(&mut block, name, value);
            }
        }
        block
    }
}

/// The most of a command line that is remembered, in bytes.
const MAX_COMMAND_BYTES: usize = 4096;
/// The longest path that the kernel takes (PATH_MAX), its NUL included.
pub(crate) const MAX_PATH_BYTES: usize = 4096;

/// Program and arguments to show: what is remembered of a process for as long as it is known, so it has a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The words with a NUL between them: many short ones take no more room than one long one.
    block: Box<[u8]>,
    is_cut: bool,
}

impl CommandLine {
    pub(crate) fn of(argv: &[OsString]) -> Self {
        let mut block = Vec::new();
        for (index, word) in argv.iter().enumerate() {
            if index > 0 {
                block.push(0);
            }
            block.extend_from_slice(word.as_bytes());
            if block.len() > MAX_COMMAND_BYTES {
                block.truncate(whole_characters(&block, MAX_COMMAND_BYTES));
                return Self { block: block.into(), is_cut: true };
            }
        }
        Self { block: block.into(), is_cut: false }
    }

    /// The words; the last one is not whole, or others follow, where it [is cut](Self::is_cut).
    pub fn words(&self) -> impl Iterator<Item = &OsStr> {
        self.block.split(|byte| *byte == 0).map(OsStr::from_bytes)
    }

    /// Whether there was more of it: beyond 4 KiB nothing is remembered.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// The most bytes up to `most` that do not end inside of a character, where `bytes` are UTF-8.
fn whole_characters(bytes: &[u8], most: usize) -> usize {
    const LONGEST: usize = 4;
    let begins = |at: &usize| bytes.get(*at).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000);
    (most.saturating_sub(LONGEST - 1)..=most).rev().find(begins).unwrap_or(most)
}

pub(crate) fn env_entry(block: &mut Vec<u8>, name: &OsStr, value: &OsStr) {
    block.extend_from_slice(name.as_bytes());
    block.push(b'=');
    block.extend_from_slice(value.as_bytes());
    block.push(0);
}

/// A request that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No argv, or an empty first string.
    #[error("there is no program to start: give at least one non-empty string")]
    NoProgram,
    /// C strings end at NUL.
    #[error("argument {index} holds a NUL byte, which no argument can")]
    NulInArgument {
        /// Position in argv, the program is 0.
        index: usize,
    },
    /// C strings end at NUL.
    #[error("the working directory holds a NUL byte, which no path can")]
    NulInCwd,
    /// There is no such variable.
    #[error("an environment variable has an empty name")]
    EmptyEnvName,
    /// It would be read as another name.
    #[error("the environment name {name:?} holds '='")]
    EqualsInEnvName {
        /// The name.
        name: String,
    },
    /// C strings end at NUL.
    #[error("the environment variable {name:?} holds a NUL byte, in its name or value")]
    NulInEnv {
        /// The name, NUL replaced.
        name: String,
    },
}

/// A limit that keeps a process from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    /// The session's quota of processes.
    #[error("the session already has {max} live processes (the quota): stop one, or wait for one to end")]
    Session {
        /// The quota.
        max: usize,
    },
    /// The host's quota over all sessions.
    #[error("the host already has {max} live processes in all sessions (the quota)")]
    Host {
        /// The quota.
        max: usize,
    },
    /// Not enough file descriptors for one more.
    #[error("the host is near its limit of {limit} open files: raise `ulimit -n`, or stop a process")]
    OpenFiles {
        /// The soft limit.
        limit: u64,
    },
    /// The machine has no file descriptors left for anybody.
    #[error("the machine has as many open files as it may: close some, or raise fs.file-max")]
    SystemFiles,
}

/// A process that was not started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The request makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no place for it.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The session is closed or closing.
    #[error("the session is closed")]
    SessionClosed,
    /// The working directory cannot be entered.
    #[error("cannot enter the working directory {cwd:?}")]
    Cwd {
        /// The directory.
        cwd: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program cannot be executed.
    #[error("cannot execute {program:?}{}", hint(.source))]
    Exec {
        /// The program as it was asked for.
        program: OsString,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Arguments and environment are larger than the kernel takes.
    #[error(
        "arguments and environment are too large: {total} bytes in {count} strings, the longest {longest}; the kernel takes \
         {max_string} bytes a string and about {max_total} in all"
    )]
    TooLarge {
        /// Bytes of all strings, the inherited environment included.
        total: usize,
        /// How many strings.
        count: usize,
        /// Bytes of the longest.
        longest: usize,
        /// The kernel's limit for one.
        max_string: usize,
        /// The kernel's limit for all.
        max_total: u64,
    },
    /// The system has no room for another process, or took away what starting one needs.
    #[error("the system cannot start another process")]
    Resources(#[source] io::Error),
    /// The session has no keeper, and none can be started now.
    #[error(transparent)]
    NoKeeper(#[from] NoKeeper),
    /// The keeper was lost while it was starting the program.
    #[error("the session's keeper was lost while the program was being started: try again")]
    KeeperLost,
    /// It was stopped before its program ran.
    #[error("the process was stopped before its program ran")]
    Canceled,
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOEXEC) => " (neither a binary for this machine nor a script that starts with #!)",
        Some(libc::EACCES) => " (is it a file, with the x bit, on a file system that may execute?)",
        _ => "",
    }
}

/// The longest string that execve(2) takes: 32 pages, its NUL included.
const MAX_ARG_STRLEN: usize = 131_072;

impl SpawnError {
    /// What the keeper's errno means for this request.
    pub(crate) fn from_failure(spec: &SpawnSpec, inherited: &[u8], step: Step, errno: i32) -> Self {
        let source = io::Error::from_raw_os_error(errno);
        match step {
            Step::Exec if errno == libc::E2BIG => Self::too_large(spec, inherited),
            Step::Exec => Self::Exec { program: spec.argv.first().cloned().unwrap_or_default(), source },
            Step::Chdir => Self::Cwd { cwd: spec.cwd.clone().unwrap_or_default(), source },
            // The keeper refuses what comes after the session's end.
            Step::Clone if errno == libc::ECANCELED => Self::SessionClosed,
            Step::Clone | Step::Stdio => Self::Resources(source),
        }
    }

    /// Whether there was nobody who could start it.
    pub(crate) fn is_of_the_keeper(&self) -> bool {
        match self {
            Self::NoKeeper(_) | Self::KeeperLost | Self::Canceled => true,
            Self::Spec(_)
            | Self::Limit(_)
            | Self::SessionClosed
            | Self::Cwd { .. }
            | Self::Exec { .. }
            | Self::TooLarge { .. }
            | Self::Resources(_) => false,
        }
    }

    fn too_large(spec: &SpawnSpec, inherited: &[u8]) -> Self {
        let blocks = [spec.argv_block(), spec.env_block(), inherited.to_vec()];
        let strings = || blocks.iter().flat_map(|block| block.split_inclusive(|b| *b == 0));
        Self::TooLarge {
            total: strings().map(<[u8]>::len).sum(),
            count: strings().count(),
            longest: strings().map(<[u8]>::len).max().unwrap_or(0),
            max_string: MAX_ARG_STRLEN,
            max_total: crate::sys::limits::exec_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(argv: &[&str]) -> SpawnSpec {
        SpawnSpec::new(argv.iter().copied())
    }

    #[test]
    fn senseless_requests_are_named() {
        let with_env =
            |name: &str, value: &str| SpawnSpec { env: vec![(name.into(), value.into())], ..spec(&["x"]) };
        let cases = [
            (spec(&[]), SpecError::NoProgram),
            (spec(&["", "a"]), SpecError::NoProgram),
            (spec(&["a", "b\0c"]), SpecError::NulInArgument { index: 1 }),
            (SpawnSpec { cwd: Some("/a\0".into()), ..spec(&["a"]) }, SpecError::NulInCwd),
            (with_env("", "v"), SpecError::EmptyEnvName),
            (with_env("A=B", "v"), SpecError::EqualsInEnvName { name: "A=B".into() }),
            (with_env("A", "v\0"), SpecError::NulInEnv { name: "A".into() }),
            (with_env("A\0", "v"), SpecError::NulInEnv { name: "A\u{fffd}".into() }),
        ];
        for (spec, expected) in cases {
            assert_eq!(spec.check(), Err(expected));
        }
        assert_eq!(with_env("A", "x=y").check(), Ok(()));
    }

    #[test]
    fn a_command_line_is_remembered_up_to_a_bound_and_cut_between_characters() {
        let check = |argv: &[&str], words: &[&str], is_cut| {
            let command = CommandLine::of(&spec(argv).argv);
            assert_eq!(
                (command.words().collect::<Vec<_>>(), command.is_cut()),
                (words.iter().map(OsStr::new).collect(), is_cut)
            );
        };
        let long = "x".repeat(MAX_COMMAND_BYTES);
        check(&["a", "", "b c"], &["a", "", "b c"], false);
        check(&["a", ""], &["a", ""], false);
        check(&[&long], &[&long], false);
        check(&[&long, ""], &[&long], true);
        check(&["a", &long], &["a", &long[2..]], true);
        check(&["a", &"\u{20ac}".repeat(2000)], &["a", &"\u{20ac}".repeat(4094 / 3)], true);
        let many = CommandLine::of(&vec![OsString::new(); 2_000_000]);
        assert_eq!((many.block.len(), many.is_cut()), (MAX_COMMAND_BYTES, true));
    }

    #[test]
    fn of_several_values_of_a_name_the_last_counts() {
        let mut spec = spec(&["a", ""]);
        spec.env = vec![("A".into(), "1".into()), ("B".into(), "2".into()), ("A".into(), "3".into())];
        assert_eq!(spec.env_block(), b"B=2\0A=3\0");
        assert_eq!(spec.argv_block(), b"a\0\0");
    }
}

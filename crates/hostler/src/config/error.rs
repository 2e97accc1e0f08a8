//! What can be wrong with the configuration, where it stands, and what to do about it.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the default file.
    Default,
    /// In a file, at this line counted from 1.
    File { path: PathBuf, line: usize },
    /// In the variable of this name.
    Variable(String),
    /// In the flag of this name, dashes included.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the defaults"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A file that is there, or was asked for, cannot be read.
    #[error("failed to read the configuration file {}", path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    /// A configuration file larger than any sensible one.
    #[error("the configuration file {} is larger than {limit} bytes", path.display())]
    FileTooLarge { path: PathBuf, limit: u64 },
    /// A file is no TOML; the reason is the parser's.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax { origin: Origin, reason: String },
    /// A key or section that does not exist.
    #[error("{origin}: unknown key `{key}`")]
    UnknownKey { origin: Origin, key: String, nearest: String },
    /// A variable with our prefix that stands for no key.
    #[error("unknown variable {name}")]
    UnknownVariable { name: String, nearest: String },
    /// A variable or path whose bytes are no UTF-8.
    #[error("{origin}: the text is not valid UTF-8")]
    NotText { origin: Origin },
    /// A value of the wrong type or out of range; the reason names both the value and what is allowed.
    #[error("{origin}: `{key}`: {reason}")]
    NotAllowed { origin: Origin, key: String, reason: String },
    /// A single value where a section has to be.
    #[error("{origin}: `{key}` is a section, not a single value")]
    NotASection { origin: Origin, key: String },
    /// A relative path in a place that has no folder.
    #[error("{origin}: `{key}` cannot be the relative path {path:?}")]
    RelativePath { origin: Origin, key: String, path: String },
    /// `HOSTLER_CONFIG` holds a relative path.
    #[error("HOSTLER_CONFIG cannot be the relative path {path:?}")]
    RelativeFile { path: OsString },
    /// The audit is on and has nowhere to go.
    #[error("{origin}: the audit is enabled, but `a2e.audit.path` is empty")]
    AuditWithoutPath { origin: Origin },
    /// The file with the token cannot be read.
    #[error("{origin}: failed to read the token file {}", path.display())]
    ReadToken { origin: Origin, path: PathBuf, source: io::Error },
    /// A token that is empty, too long, or no text.
    #[error("{origin}: the token {problem}")]
    BadToken { origin: Origin, problem: TokenProblem },
}

/// What is wrong with a token. The token itself is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenProblem {
    Empty,
    TooLong { limit: usize },
    NotText,
}

impl fmt::Display for TokenProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::TooLong { limit } => write!(f, "is longer than {limit} bytes"),
            Self::NotText => f.write_str("is not valid UTF-8"),
        }
    }
}

impl ConfigError {
    /// What the user can do.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::ReadFile { .. } => {
                "it must be a file that you may read; your own is looked for below XDG_CONFIG_HOME or HOME"
                    .into()
            }
            Self::FileTooLarge { .. } | Self::Syntax { .. } | Self::NotASection { .. } => {
                "`hostler config default` prints a file to start from".into()
            }
            Self::UnknownKey { nearest, .. } => {
                format!("the nearest known key is `{nearest}`; `hostler config default` lists all")
            }
            Self::UnknownVariable { nearest, .. } => {
                format!("the nearest known variable is {nearest}; unset what is not meant for hostler")
            }
            Self::NotText { .. } => "write it in UTF-8".into(),
            Self::NotAllowed { .. } => "`hostler config default` describes what each key takes".into(),
            Self::RelativePath { .. } | Self::RelativeFile { .. } => "write an absolute path".into(),
            Self::AuditWithoutPath { .. } => {
                "set `a2e.audit.path`, use --audit FILE, or set `a2e.audit.enabled` to false".into()
            }
            Self::ReadToken { .. } => {
                "make the file readable for this user, or set HOSTLER_A2E_AUTH_TOKEN instead".into()
            }
            Self::BadToken { .. } => "write the token again, or unset it to ask for none".into(),
        }
    }
}

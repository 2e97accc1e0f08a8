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
    /// In the Python SDK's configuration, at this key.
    Sdk { path: PathBuf, key: String },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the defaults"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Sdk { path, key } if key.is_empty() => write!(f, "{}", path.display()),
            Self::Sdk { path, key } => write!(f, "{}: {key}", path.display()),
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
    /// A certificate without its key, or the other way round.
    #[error("{origin}: `{set}` is set, but `{missing}` is empty")]
    HalfOfTls { origin: Origin, set: &'static str, missing: &'static str },
    /// The Python SDK's configuration asks for something that cannot be done here, or holds something else than it should.
    #[error("{origin}: {problem}")]
    Sdk { origin: Origin, problem: SdkProblem },
    /// The file with the token cannot be read.
    #[error("{origin}: failed to read the token file {}", path.display())]
    ReadToken { origin: Origin, path: PathBuf, variable: &'static str, source: io::Error },
    /// A token that is empty, too long, or no text.
    #[error("{origin}: the token {problem}")]
    BadToken { origin: Origin, problem: TokenProblem },
}

/// What is wrong with the Python SDK's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SdkProblem {
    /// No YAML, or more than it may be; the reason is the reader's.
    Syntax { reason: String },
    /// Something else than this has to be there.
    Expected { what: &'static str },
    /// Two spellings of a key, with two values.
    TwoValues { other: String },
    /// Programs shall have no network.
    DisableNetwork,
    /// The plugin is switched off, or not there.
    NoProcPlugin,
    /// A word that names no transport.
    Transport,
    /// A transport to which a flag for HTTP means nothing.
    NotHttp,
}

impl fmt::Display for SdkProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { reason } => write!(f, "not valid YAML: {reason}"),
            Self::Expected { what } => write!(f, "expected {what}"),
            Self::TwoValues { other } => {
                write!(f, "says something else than `{other}`, which is the same key")
            }
            Self::DisableNetwork => {
                f.write_str("programs cannot be kept from the network yet, so this host does not start")
            }
            Self::NoProcPlugin => {
                f.write_str("there is no enabled plugin of type `proc` or class `ProcPlugin`, which is all that is hosted here")
            }
            Self::Transport => f.write_str("expected `http`, `direct` or `subprocess`"),
            Self::NotHttp => f.write_str("is not `http`, which is all that --insecure-http is for"),
        }
    }
}

impl SdkProblem {
    fn hint(&self) -> &'static str {
        match self {
            Self::Syntax { .. } | Self::Expected { .. } => "docs/sdk.md lists the keys and what they take",
            Self::TwoValues { .. } => "leave one of them out",
            Self::DisableNetwork => {
                "start it where there is no network, such as in a network namespace, and leave the key out"
            }
            Self::NoProcPlugin => "add the plugin, or enable it; or start without --sdk-config",
            Self::Transport => "name one of them, or use --stdio or --http ADDR",
            Self::NotHttp => "leave the flag out, or use --http ADDR",
        }
    }
}

/// What is wrong with a token. The token itself is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenProblem {
    Empty,
    TooLong { limit: usize },
    NotText,
    NotForAHeader,
}

impl fmt::Display for TokenProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::TooLong { limit } => write!(f, "is longer than {limit} bytes"),
            Self::NotText => f.write_str("is not valid UTF-8"),
            Self::NotForAHeader => f.write_str("holds a blank or something else that no header can carry"),
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
            Self::HalfOfTls { .. } => "TLS needs a certificate and its key: set both, or neither".into(),
            Self::Sdk { problem, .. } => problem.hint().into(),
            Self::ReadToken { variable, .. } => {
                format!("make the file readable for this user, or set {variable} instead")
            }
            Self::BadToken { .. } => "write the token again, or unset it to ask for none".into(),
        }
    }
}

//! How the program ends: exit status, and the words about a failure.

use std::io;
use std::process::ExitCode;

use hostler_a2e::audit::AuditError;
use hostler_a2e::stdio::ServeError;
use hostler_http::{AddressError, DoorError};
use hostler_shell::WorkspaceError;
use rustix::io::Errno;

use crate::config::ConfigError;

/// The exit statuses. `--help` lists them in the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done.
    Done,
    /// Failed while running.
    Failed,
    /// The command line or the configuration cannot be used.
    Unusable,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        match status {
            Status::Done => Self::SUCCESS,
            Status::Failed => Self::from(1),
            Status::Unusable => Self::from(2),
        }
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments do not parse; help and version come this way too.
    Arguments(clap::Error),
    /// The configuration cannot be used.
    Configuration(ConfigError),
    /// The audit cannot be written where the configuration says.
    Audit(AuditError),
    /// What was named to listen on is no address.
    Address(AddressError),
    /// Nothing can be served there, or not like that.
    Door(DoorError),
    /// What was named to work in is no directory.
    Workspace(WorkspaceError),
    /// Standard input cannot be read.
    Input(io::Error),
    /// Standard output cannot be written, and not because its reader has left.
    Output(io::Error),
    /// Something went wrong while running.
    Runtime(anyhow::Error),
    /// The machine lacks these features, which nothing can replace.
    Machine(Vec<&'static str>),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Configuration(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Runtime(error)
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Read(error) => Self::Input(error),
            ServeError::Write(error) => Self::Output(error),
            error @ ServeError::Open(_) => Self::Runtime(error.into()),
        }
    }
}

impl Failure {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Arguments(error) if error.exit_code() == 0 => Status::Done,
            Self::Arguments(_)
            | Self::Configuration(_)
            | Self::Audit(_)
            | Self::Address(_)
            | Self::Workspace(_) => Status::Unusable,
            Self::Door(DoorError::NeedsToken(_) | DoorError::NeedsTls(_) | DoorError::Tls(_)) => {
                Status::Unusable
            }
            Self::Door(DoorError::Listen { .. } | DoorError::Socket(_) | DoorError::Owners(_))
            | Self::Input(_)
            | Self::Output(_)
            | Self::Runtime(_)
            | Self::Machine(_) => Status::Failed,
        }
    }

    /// The text for the user: the chain of causes, then what to do.
    pub(crate) fn report(&self) -> String {
        match self {
            Self::Arguments(error) => error.render().to_string(),
            Self::Configuration(error) => format!("error: {}\nhint: {}\n", chain(error), error.hint()),
            Self::Audit(error @ AuditError::Thread(_)) => {
                format!("error: {}\nhint: let this user have more threads: `ulimit -u`\n", chain(error))
            }
            Self::Audit(error) => format!(
                "error: {}\nhint: its folder must exist and this user must be able to write there, a pipe needs its \
                 reader first; --audit FILE or `a2e.audit.path` names another one\n",
                chain(error)
            ),
            Self::Address(error) => {
                format!("error: {error}\nhint: --http 127.0.0.1:0 listens on any free port of this machine\n")
            }
            Self::Workspace(error) => {
                format!("error: {}\nhint: --workspace DIR names a directory that exists\n", chain(error))
            }
            Self::Door(error) => format!("error: {}\nhint: {}\n", chain(error), door_hint(error)),
            Self::Input(error) => format!(
                "error: failed to read from standard input: {error}\nhint: it must be a pipe, a socket, a file or a \
                 terminal\n"
            ),
            Self::Output(error) => format!(
                "error: failed to write to standard output: {error}\nhint: make room where it goes, or let it go \
                 elsewhere\n"
            ),
            Self::Machine(lacking) => format!(
                "error: this machine lacks what hostler needs: {}\nhint: Linux 5.3 or later and a mounted /proc are \
                 needed; a container may hide them\n",
                lacking.join(", ")
            ),
            Self::Runtime(error) => format!("error: {error:#}\nhint: {}\n", hint(error)),
        }
    }
}

/// What to do about it. Most of what keeps a host from starting is a limit of the system.
fn hint(error: &anyhow::Error) -> &'static str {
    let errno = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    let errno = errno.filter_map(Errno::from_io_error).last();
    match errno {
        Some(Errno::MFILE) => "raise the limit of open files: `ulimit -n`",
        Some(Errno::NFILE) => {
            "the machine has as many open files as it may: close some, or raise fs.file-max"
        }
        Some(Errno::AGAIN) => {
            "no more processes or threads may be had, or no memory for one: raise `ulimit -u`, `ulimit -v` or the limits \
             of the control group"
        }
        Some(Errno::NOMEM) => {
            "there is no memory left for this: raise `ulimit -v` or the limit of the control group"
        }
        _ => "`hostler doctor` shows what this machine offers",
    }
}

fn door_hint(error: &DoorError) -> &'static str {
    match error {
        DoorError::NeedsToken(_) => {
            "set HOSTLER_A2E_HTTP_BEARER_TOKEN or `a2e.http.bearer_token_file`, and TLS; with --insecure-http a token is enough, \
             that of the handshake too (HOSTLER_A2E_AUTH_TOKEN); or listen on 127.0.0.1, where this user alone gets in"
        }
        DoorError::NeedsTls(_) => {
            "set `a2e.http.tls_cert` and `a2e.http.tls_key`, or use --insecure-http where nobody can listen in"
        }
        DoorError::Tls(_) => "both must be PEM, readable for this user, and belong together",
        DoorError::Listen { .. } => {
            "another program may listen there, or the address is not of this machine; port 0 is any free one"
        }
        DoorError::Socket(_) => {
            "its folder must exist, this user must be able to write there, and no other program may listen at that path"
        }
        DoorError::Owners(_) => {
            "a container may hide them; set a token, or use a unix socket: --http unix:PATH"
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

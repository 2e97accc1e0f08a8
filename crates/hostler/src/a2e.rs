//! `hostler a2e`, over its standard streams and over HTTP ([`http`]).

mod http;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::Context;
use hostler_a2e::audit::{AuditError, AuditLog, AuditOptions};
use hostler_a2e::encode::{DataForm, PushForm};
use hostler_a2e::protocol::{Connection, ConnectionOptions};
use hostler_a2e::session::A2eSession;
use hostler_a2e::stdio::{self, Ending};
use hostler_a2e::wire::{Secret, SessionId};
use hostler_core::{Host, HostOptions, Nursery, Session, SessionOptions};

use crate::config::{Audit, AuditFolder, Config, EventData};
use crate::exit::{Failure, Status};
use crate::house::{self, StopSignals};

pub(crate) use http::a2e_http;

/// Hosts processes for the agent at the other end of standard input and output, until it ends the session.
///
/// `inherited` is the environment that processes get, without secrets.
pub(crate) fn a2e_stdio(config: Config, inherited: Vec<(OsString, OsString)>) -> Result<ExitCode, Failure> {
    let Prepared { nursery, audit } = Prepared::with(&config)?;
    // One thread: a request, its process and its event meet without waking another one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to set up the event loop")?;
    // As a task, for the runtime runs those without asking the kernel for events in between.
    let ending = runtime.block_on(async { tokio::spawn(host(config, inherited, nursery, audit)).await });
    let ending = ending.context("the host has failed")??;
    tracing::info!(?ending, "the session has ended");
    Ok(Status::Done.into())
}

async fn host(
    config: Config,
    inherited: Vec<(OsString, OsString)>,
    nursery: Nursery,
    audit: Option<AuditLog>,
) -> Result<Ending, Failure> {
    let stop = StopSignals::listen().context("failed to listen for signals")?;
    let host = Host::start(nursery, host_options(&config, inherited)).context("failed to start")?;
    let session = host.open_session(session_options(&config));
    let (input, output) = stdio_ends().context("failed to use standard input and output")?;
    let session = a2e_session(&config, session, audit);
    Ok(stdio::serve(session, input, output, stop.any()).await?)
}

/// What has to be there before the event loop is.
struct Prepared {
    nursery: Nursery,
    audit: Option<AuditLog>,
}

impl Prepared {
    fn with(config: &Config) -> Result<Self, Failure> {
        let audit = config.a2e.audit.as_ref().map(open_audit).transpose().map_err(Failure::Audit)?;
        Ok(Self { nursery: house::start_nursery()?, audit })
    }
}

fn host_options(config: &Config, inherited: Vec<(OsString, OsString)>) -> HostOptions {
    HostOptions {
        max_processes: config.a2e.max_processes_total,
        ..house::host_options(&config.runtime, inherited)
    }
}

fn session_options(config: &Config) -> SessionOptions {
    SessionOptions {
        max_processes: config.a2e.max_processes,
        bytes_per_process: config.runtime.output.relay_bytes_per_process,
        bytes_per_session: config.runtime.output.relay_bytes_per_session,
        ..SessionOptions::relay()
    }
}

fn a2e_session(config: &Config, session: Session, audit: Option<AuditLog>) -> A2eSession {
    let session_id = SessionId::new(session.id().to_string());
    let connection = Connection::new(ConnectionOptions {
        session_id: session_id.clone(),
        allowed_commands: config.a2e.allowed_commands.clone(),
        auth_token: config.a2e.auth_token.as_ref().map(|token| Secret::new(token.reveal())),
        data_form: match config.a2e.event_data {
            EventData::String => DataForm::String,
            EventData::Object => DataForm::Object,
        },
        push_form: if config.a2e.push_events { PushForm::Push } else { PushForm::Correlated },
        default_timeout: config.a2e.default_timeout,
    });
    let seed = hostler_core::SessionId::random().to_u128();
    A2eSession::new(connection, session, session_id, config.a2e.max_processes, seed, audit)
}

fn open_audit(audit: &Audit) -> Result<AuditLog, AuditError> {
    if let (AuditFolder::Made, Some(folder)) = (audit.folder, audit.path.parent()) {
        // Opening the file says what is wrong with it.
        let _ = std::fs::create_dir_all(folder);
    }
    AuditLog::open(AuditOptions {
        path: audit.path.clone(),
        max_bytes: audit.max_bytes,
        backup_count: u32::try_from(audit.backup_count).unwrap_or(u32::MAX),
    })
}

/// Standard input and output as descriptors of our own, so that nothing else in the process writes between messages.
fn stdio_ends() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok((std::io::stdin().as_fd().try_clone_to_owned()?, std::io::stdout().as_fd().try_clone_to_owned()?))
}

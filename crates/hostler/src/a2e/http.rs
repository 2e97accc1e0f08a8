//! `hostler a2e --http ADDR`.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use hostler_a2e::audit::AuditLog;
use hostler_a2e::http::{HttpOptions, ReplayWindow, Sessions};
use hostler_core::{Host, Nursery};
use hostler_http::{Address, BearerToken, ClearText, Door, DoorOptions, PeerCheck, TlsFiles};
use tokio::sync::oneshot;

use super::{Prepared, a2e_session, host_options, session_options};
use crate::config::{A2e, Config};
use crate::exit::{Failure, Status};
use crate::house::StopSignals;

/// Sessions without a handshake that an address may have where anybody may connect.
const MAX_STRANGERS: usize = 64;

/// The routes that need no bearer token.
const OPEN_PATHS: &[&str] = &["/health"];

/// Hosts processes for agents that come by HTTP, until it is asked to stop.
///
/// `inherited` is the environment that processes get, without secrets.
pub(crate) fn a2e_http(
    config: Config,
    inherited: Vec<(OsString, OsString)>,
    address: &str,
    clear_text: ClearText,
) -> Result<ExitCode, Failure> {
    let address = address.parse().map_err(Failure::Address)?;
    let door = door_options(&config, address, clear_text);
    let Prepared { nursery, audit } = Prepared::with(&config)?;
    // Sessions have nothing to do with each other, so they may have all cores.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to set up the event loop")?;
    let served =
        runtime.block_on(async { tokio::spawn(host(config, inherited, nursery, audit, door)).await });
    served.context("the host has failed")??;
    Ok(Status::Done.into())
}

async fn host(
    config: Config,
    inherited: Vec<(OsString, OsString)>,
    nursery: Nursery,
    audit: Option<AuditLog>,
    door: DoorOptions,
) -> Result<(), Failure> {
    let stop = StopSignals::listen().context("failed to listen for signals")?;
    let door = Door::open(door).map_err(Failure::Door)?;
    let host = Host::start(nursery, host_options(&config, inherited)).context("failed to start")?;
    let options = http_options(&config.a2e);
    let sessions = Sessions::new(options, move || {
        a2e_session(&config, host.open_session(session_options(&config)), audit.clone())
    });
    announce(&door.url())?;
    let (close, closed) = oneshot::channel::<()>();
    let serving = tokio::spawn(door.serve(sessions.router(), async {
        // A sender that is gone means the same.
        let _ = closed.await;
    }));
    stop.any().await;
    tracing::info!("asked to stop");
    // Sessions say farewell over connections that are still there.
    sessions.close().await;
    drop(close);
    serving.await.context("the server has failed")?;
    Ok(())
}

/// Says where the host can be reached: the port may have been any free one.
fn announce(url: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "listening on {url}").and_then(|()| stdout.flush()) {
        // Nobody wants to know.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::Output(error)),
        Ok(()) => Ok(()),
    }
}

fn door_options(config: &Config, address: Address, clear_text: ClearText) -> DoorOptions {
    let http = &config.a2e.http;
    DoorOptions {
        // The configuration has refused a token that no header can carry.
        bearer: http.bearer_token.as_ref().and_then(|token| BearerToken::new(token.reveal())),
        tls: http.tls.clone().map(|files| TlsFiles { certificate: files.certificate, key: files.key }),
        clear_text,
        peer_check: if config.a2e.auth_token.is_some() { PeerCheck::None } else { PeerCheck::SameUser },
        allowed_hosts: http.allowed_hosts.clone(),
        allowed_origins: http.allowed_origins.clone(),
        open_paths: OPEN_PATHS,
        max_connections: http.max_connections,
        ..DoorOptions::at(address)
    }
}

fn http_options(a2e: &A2e) -> HttpOptions {
    let http = &a2e.http;
    let anybody_may_connect = a2e.auth_token.is_some() && http.bearer_token.is_none();
    HttpOptions {
        max_sessions: http.max_sessions,
        max_strangers: anybody_may_connect.then_some(MAX_STRANGERS),
        window: ReplayWindow { bytes: http.replay_bytes, replies: http.replay_replies },
        handshake_timeout: http.handshake_timeout,
        idle_timeout: http.idle_timeout,
        busy_timeout: http.busy_timeout,
    }
}

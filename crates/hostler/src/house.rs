//! What every host of this program has in common: how it starts, and what asks it to end.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::Context;
use hostler_core::sys::signal::{is_ignored, unblock};
use hostler_core::{CgroupUse, HelperProgram, HostOptions, Nursery, Places};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Cgroup, Runtime};

/// Starts the nursery, which has to come before any thread; if what a host needs besides can be had.
pub(crate) fn start_nursery() -> anyhow::Result<Nursery> {
    check_open_files().context("failed to open what a host needs")?;
    Nursery::start(HelperProgram::CurrentExe).context("failed to start")
}

/// Descriptors that a host opens until it serves, with a few to spare.
const DESCRIPTORS: usize = 24;

/// Looks whether there is room for them, before anything is started: the event loop does not take a limit for an answer.
fn check_open_files() -> std::io::Result<()> {
    let stderr = std::io::stderr();
    let taken: Vec<OwnedFd> =
        (0..DESCRIPTORS).map(|_| stderr.as_fd().try_clone_to_owned()).collect::<Result<_, _>>()?;
    drop(taken);
    Ok(())
}

/// What the configuration says of hosts of every face.
pub(crate) fn host_options(runtime: &Runtime, inherited: Vec<(OsString, OsString)>) -> HostOptions {
    HostOptions {
        stop_grace: runtime.stop_grace,
        buffer_bytes: runtime.output.buffer_bytes,
        record_bytes_total: runtime.output.artifact_bytes_total,
        cgroup: match runtime.cgroup {
            Cgroup::Auto => CgroupUse::Auto,
            Cgroup::Off => CgroupUse::Off,
        },
        state_dir: runtime.state_dir.clone(),
        places: Places::of(|name| std::env::var_os(name)),
        env: inherited,
        ..HostOptions::default()
    }
}

/// The signals that ask a host to end.
pub(crate) struct StopSignals {
    term: Signal,
    interrupt: Option<Signal>,
    hangup: Option<Signal>,
}

impl StopSignals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        // A mask that was inherited is nobody's wish, unlike an ignored signal.
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        unblock(&kinds.map(|kind| kind.as_raw_value()));
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: unless_ignored(SignalKind::interrupt())?,
            hangup: unless_ignored(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn any(mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            () = arrives(self.interrupt.as_mut()) => {}
            () = arrives(self.hangup.as_mut()) => {}
        }
    }
}

/// A signal that was ignored when the host started stays so: nohup wants it to live on after its terminal, and a shell
/// keeps the ^C of its terminal from what runs in its background.
fn unless_ignored(kind: SignalKind) -> std::io::Result<Option<Signal>> {
    (!is_ignored(kind.as_raw_value())).then(|| signal(kind)).transpose()
}

async fn arrives(listened_to: Option<&mut Signal>) {
    match listened_to {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

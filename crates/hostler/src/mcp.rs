//! `hostler mcp`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use hostler_core::{Host, HostOptions, Nursery};
use hostler_mcp::{McpOptions, McpServer, NonzeroExit, serve_stdio};
use hostler_shell::{Policy, Shell, ShellOptions};

use crate::config::{Config, Mcp, OnClientTimeout, Runtime, ShellPolicy};
use crate::exit::{Failure, Status};
use crate::house::{self, StopSignals};

/// Gives the agent at the other end of standard input and output a shell in a workspace, until it ends the session.
///
/// `inherited` is the environment that commands get, without secrets.
pub(crate) fn mcp_stdio(
    config: &Config,
    inherited: Vec<(OsString, OsString)>,
    workspace: &Path,
) -> Result<ExitCode, Failure> {
    let nursery = house::start_nursery()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to set up the event loop")?;
    let served = runtime.block_on(serve(config, inherited, nursery, workspace));
    // A read from standard input may be under way that nothing can take back.
    runtime.shutdown_background();
    served.map(|()| Status::Done.into())
}

async fn serve(
    config: &Config,
    inherited: Vec<(OsString, OsString)>,
    nursery: Nursery,
    workspace: &Path,
) -> Result<(), Failure> {
    let stop = StopSignals::listen().context("failed to listen for signals")?;
    let for_shells = ShellOptions::inherited(&inherited);
    let host = Host::start(nursery, host_options(&config.runtime, for_shells)).context("failed to start")?;
    let shell = Shell::open(&host, workspace, &inherited, shell_options(&config.runtime))
        .map_err(Failure::Workspace)?;
    let ending = serve_stdio(McpServer::new(shell, mcp_options(&config.mcp)), stop.any()).await;
    tracing::info!(?ending, "the session has ended");
    Ok(())
}

fn host_options(runtime: &Runtime, inherited: Vec<(OsString, OsString)>) -> HostOptions {
    // How many run at a time is the sessions' to say.
    HostOptions { max_processes: usize::MAX, ..house::host_options(runtime, inherited) }
}

fn shell_options(runtime: &Runtime) -> ShellOptions {
    ShellOptions {
        policy: match runtime.shell {
            ShellPolicy::Allow => Policy::Allow,
            ShellPolicy::Ask => Policy::Ask,
            ShellPolicy::Deny => Policy::Deny,
        },
        max_running: runtime.max_running,
        max_queued: runtime.max_queued,
        stop_grace: runtime.stop_grace,
        bytes_per_process: runtime.output.artifact_bytes_per_process,
        bytes_per_session: runtime.output.artifact_bytes_per_session,
        skills: runtime.skills.clone(),
        ..ShellOptions::new()
    }
}

fn mcp_options(mcp: &Mcp) -> McpOptions {
    McpOptions {
        nonzero_exit: if mcp.nonzero_exit_is_error { NonzeroExit::IsError } else { NonzeroExit::IsNoError },
        max_wait_without_progress: mcp.max_wait_without_progress,
        on_client_timeout: match mcp.on_client_timeout {
            OnClientTimeout::Detach => hostler_mcp::OnClientTimeout::Detach,
            OnClientTimeout::Kill => hostler_mcp::OnClientTimeout::Kill,
        },
    }
}

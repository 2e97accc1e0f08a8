//! The host: what all sessions share. Limits, quotas, the folder for spools, and the way to keepers.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::capture::{Budget, BufferPool, Policy};
use crate::id::{ProcessId, ProcessIds};
use crate::keeper::link::KeeperLink;
use crate::keeper::nursery_link::{AskError, Nursery, NurseryLink};
use crate::session::{Session, SessionOptions};
use crate::spec::{Limit, env_entry};
use crate::state_dir::{Places, SessionDir, StateHome};
use crate::sys::cgroup::{Base, HostTag};
use crate::sys::limits::{self, NofileLimit};

/// Descriptors that are kept free of processes: for sockets, files, and one start under way.
const RESERVED_FDS: u64 = 64;
/// Descriptors that the host holds for one process: three pipe ends and its pidfd.
const FDS_PER_PROCESS: u64 = 4;

/// What programs get on top of the host's oom_score_adj, so that they go before host and keepers.
const OOM_SCORE_ADJ_STEP: i32 = 200;

/// How long the sweep of a dead host's control groups may wait for their processes to go.
const CGROUP_PATIENCE: Duration = Duration::from_millis(200);

/// Whether processes get control groups of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CgroupUse {
    /// Where a probe shows that it works.
    #[default]
    Auto,
    /// Never: trees are killed by walking descendants.
    Off,
}

/// How a host is set up. Its `default()` is the default of the configuration, with this process's environment.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Live processes in all sessions together. Default: 4096.
    pub max_processes: usize,
    /// Between SIGTERM and SIGKILL when a limit stops a process. Default: 2 seconds.
    pub stop_grace: Duration,
    /// How long a kill may go on before it reports survivors. Default: 2 seconds.
    pub kill_limit: Duration,
    /// Bytes of the newest output of a stream that are kept in memory. Default: 64 KiB.
    pub buffer_bytes: usize,
    /// Bytes of recorded output of all sessions together. Default: 8 GiB.
    pub record_bytes_total: u64,
    /// Control groups. Default: [`CgroupUse::Auto`].
    pub cgroup: CgroupUse,
    /// Where spools and artifacts go; `None`, the default, finds a folder as [`StateHome`] says.
    pub state_dir: Option<PathBuf>,
    /// What decides where that is. Default: the variables of this process.
    pub places: Places,
    /// What programs inherit: usually [`std::env::vars_os`] without secrets. PATH in it is where programs are looked for.
    /// Default: all variables of this process, secrets too.
    pub env: Vec<(OsString, OsString)>,
}

impl Default for HostOptions {
    /// The defaults of the configuration, with this process's environment.
    fn default() -> Self {
        Self {
            max_processes: 4096,
            stop_grace: Duration::from_secs(2),
            kill_limit: Duration::from_secs(2),
            buffer_bytes: 64 * 1024,
            record_bytes_total: 8 << 30,
            cgroup: CgroupUse::Auto,
            state_dir: None,
            places: Places::of(|name| std::env::var_os(name)),
            env: std::env::vars_os().collect(),
        }
    }
}

/// A host that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The nursery cannot be talked to.
    #[error("failed to take the nursery into use")]
    Nursery(#[source] io::Error),
    /// /dev/null is not there.
    #[error("failed to open /dev/null")]
    Null(#[source] io::Error),
    /// There is no tokio runtime to run in.
    #[error(
        "a host runs inside a tokio runtime with its I/O and time drivers enabled: start it from within one"
    )]
    NoRuntime,
}

/// Sessions are numbered over all hosts of this process: control groups are named by process and session, and what one
/// host kills must never be another's.
static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct HostInner {
    options: HostOptions,
    nursery: Arc<NurseryLink>,
    ids: ProcessIds,
    live: Arc<AtomicUsize>,
    record_budget: Arc<Budget>,
    relay_budget: Arc<Budget>,
    pool: Arc<BufferPool>,
    state_home: StateHome,
    cgroup: Option<Base>,
    cgroup_folder: Vec<u8>,
    env: Arc<[u8]>,
    search_path: Vec<u8>,
    cwd: PathBuf,
    nofile: NofileLimit,
    oom_score_adj: Vec<u8>,
    null: OwnedFd,
}

/// A handle of the host. Sessions keep it alive.
#[derive(Clone, Debug)]
pub struct Host(Arc<HostInner>);

impl Host {
    /// Takes a nursery into use. Must be called inside a tokio runtime.
    ///
    /// Raises this process's soft limit of open files to the hard one; programs get the original back. Sweeps what
    /// hosts that died have left in the state folder and among the control groups.
    ///
    /// # Errors
    /// [`StartError`]. A state folder or control groups that cannot be used are no error: see
    /// [`CaptureState`](crate::CaptureState) and `hostler doctor`.
    pub fn start(nursery: Nursery, options: HostOptions) -> Result<Self, StartError> {
        if tokio::runtime::Handle::try_current().is_err() {
            nursery.dismiss();
            return Err(StartError::NoRuntime);
        }
        let nofile = limits::raise_nofile();
        let nursery = NurseryLink::open(nursery).map_err(StartError::Nursery)?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| StartError::Null(errno.into()))?;
        let cgroup = match options.cgroup {
            CgroupUse::Auto => find_cgroup(),
            CgroupUse::Off => None,
        };
        let cgroup_folder = cgroup
            .as_ref()
            .map(|base| base.host_folder().into_os_string().into_encoded_bytes())
            .unwrap_or_default();
        let state_home = open_state_home(&options);
        let search_path =
            options.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let inner = HostInner {
            nursery,
            ids: ProcessIds::new(),
            live: Arc::default(),
            record_budget: Budget::root(options.record_bytes_total),
            // Relayed output is bounded in each session; over all of them it is bounded by their number.
            relay_budget: Budget::root(u64::MAX),
            pool: BufferPool::new(POOL_BYTES),
            state_home,
            cgroup,
            cgroup_folder,
            env: env_block(&options.env).into(),
            // One that was removed is met by whoever starts a process without naming another.
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            search_path: search_path.map_or(DEFAULT_PATH.into(), OsString::into_encoded_bytes),
            nofile,
            oom_score_adj: raised_oom_score_adj(),
            null,
            options,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Opens a session.
    pub fn open_session(&self, options: SessionOptions) -> Session {
        let number = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
        Session::new(Arc::clone(&self.0), number, options)
    }

    /// Lets nursery and spare keeper go and waits until the nursery has ended, for which all sessions must be closed and
    /// their handles dropped: until then they keep the host.
    pub async fn shutdown(self) {
        let ended = self.0.nursery.ended();
        drop(self);
        ended.await;
    }

    /// Live processes in all sessions.
    pub fn live(&self) -> usize {
        self.0.live.load(Ordering::Acquire)
    }

    /// How often the nursery had to be replaced.
    pub fn nursery_replacements(&self) -> u64 {
        self.0.nursery.generation()
    }

    /// Where spools and artifacts are kept, if anywhere.
    pub fn state_folder(&self) -> Option<PathBuf> {
        match &self.0.state_home {
            StateHome::Folder(folder) => Some(folder.path().to_owned()),
            StateHome::RingOnly { .. } => None,
        }
    }
}

/// execvp(3)'s path where the environment has none.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Buffers of rings that are kept for the next process that prints.
const POOL_BYTES: usize = 4 << 20;

fn find_cgroup() -> Option<Base> {
    let base = match HostTag::own().map(Base::probe)? {
        Ok(base) => base,
        Err(reason) => {
            tracing::debug!(%reason, "no control groups: trees are killed by walking descendants");
            return None;
        }
    };
    match base.sweep(CGROUP_PATIENCE) {
        Ok(swept) => {
            swept.failed.iter().for_each(|error| tracing::debug!(%error, "a dead host's control groups stay"))
        }
        Err(error) => tracing::debug!(%error, "cannot look for control groups of dead hosts"),
    }
    Some(base)
}

fn open_state_home(options: &HostOptions) -> StateHome {
    let home = StateHome::open(options.state_dir.as_deref(), &options.places);
    match &home {
        StateHome::Folder(folder) => {
            // What dead hosts left may be large; nobody waits for this thread, the process may end before it does.
            let sweep = folder.sweeper();
            let _ = std::thread::Builder::new().name("sweep".to_owned()).spawn(sweep);
        }
        StateHome::RingOnly { refused } => {
            for reason in refused {
                tracing::warn!(%reason, "no folder for output: it is kept in memory alone");
            }
        }
    }
    home
}

fn env_block(env: &[(OsString, OsString)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in env {
        env_entry(&mut block, name, value);
    }
    block
}

fn raised_oom_score_adj() -> Vec<u8> {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
    let own: i32 = own.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    (own + OOM_SCORE_ADJ_STEP).min(1000).to_string().into_bytes()
}

impl HostInner {
    pub(crate) fn keeper(&self) -> Result<Arc<KeeperLink>, AskError> {
        self.nursery.keeper()
    }

    pub(crate) fn next_process_id(&self) -> ProcessId {
        self.ids.next()
    }

    pub(crate) fn live(&self) -> &Arc<AtomicUsize> {
        &self.live
    }

    pub(crate) fn max_processes(&self) -> usize {
        self.options.max_processes
    }

    pub(crate) fn stop_grace(&self) -> Duration {
        self.options.stop_grace
    }

    pub(crate) fn kill_limit(&self) -> Duration {
        self.options.kill_limit
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.options.buffer_bytes
    }

    pub(crate) fn budget(&self, policy: Policy) -> &Arc<Budget> {
        match policy {
            Policy::Record => &self.record_budget,
            Policy::Relay => &self.relay_budget,
        }
    }

    pub(crate) fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    pub(crate) fn env(&self) -> &Arc<[u8]> {
        &self.env
    }

    pub(crate) fn cwd(&self) -> &Path {
        &self.cwd
    }

    pub(crate) fn search_path(&self) -> &[u8] {
        &self.search_path
    }

    pub(crate) fn original_nofile(&self) -> (u64, u64) {
        (self.nofile.soft, self.nofile.hard)
    }

    pub(crate) fn oom_score_adj(&self) -> &[u8] {
        &self.oom_score_adj
    }

    pub(crate) fn cgroup_folder(&self) -> &[u8] {
        &self.cgroup_folder
    }

    pub(crate) fn null(&self) -> io::Result<OwnedFd> {
        self.null.try_clone()
    }

    /// Refuses a process that the limit of open files has no room for, before anything runs into it.
    pub(crate) fn check_open_files(&self) -> Result<(), Limit> {
        // The hard limit of before is the soft one of now.
        let limit = self.nofile.hard;
        let wanted =
            (self.live.load(Ordering::Acquire) as u64).saturating_mul(FDS_PER_PROCESS) + RESERVED_FDS;
        if wanted > limit { Err(Limit::OpenFiles { limit }) } else { Ok(()) }
    }

    pub(crate) fn session_folder(&self, number: u64) -> Option<SessionDir> {
        match &self.state_home {
            StateHome::Folder(folder) => folder
                .session(&format!("s{number}"))
                .inspect_err(|error| tracing::warn!(%error, "output of this session is kept in memory alone"))
                .ok(),
            StateHome::RingOnly { .. } => None,
        }
    }

    /// Removes the groups that a session's keeper could not remove any more. It may wait, for the lock of somebody who sweeps.
    pub(crate) fn forget_cgroup(&self, number: u64) {
        let Some(base) = self.cgroup.as_ref().filter(|base| base.has_session(number)) else { return };
        if let Ok(group) = base.session(number) {
            let _ = group.kill();
            let _ = group.remove();
        }
    }
}

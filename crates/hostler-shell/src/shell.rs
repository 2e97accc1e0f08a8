//! A session of the shell tools: its runs, its state, and the requests of its agent.

mod bash;
mod files;
mod processes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hostler_core::{Host, Session, SessionOptions, StopCause};
use parking_lot::Mutex;
use rustix::fs::Access;
use tokio::sync::{Semaphore, watch};

use crate::answer::{Answer, ErrorCode, Listed, Status};
use crate::capture::PrivateFolder;
use crate::run::{Phase, Run, RunId};
use crate::state::{FOR_THE_SHELL, HostEnv, NEVER_INHERITED, Saved};

pub use bash::{Detach, Foreground, Started};

/// Whether agents may use the tools that act: bash, process_input, kill_process and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// They may.
    #[default]
    Allow,
    /// Somebody is asked each time.
    Ask,
    /// They may not.
    Deny,
}

/// How the shell tools are set up.
#[derive(Clone, Debug)]
pub struct ShellOptions {
    /// Whether agents may use the tools that act. Default: they may.
    pub policy: Policy,
    /// Runs of a session at a time; further ones wait. One whose command has ended counts while something that it started
    /// lives. Default: 64.
    pub max_running: usize,
    /// Runs that wait, at most. Default: 256.
    pub max_queued: usize,
    /// Between SIGTERM and SIGKILL. Default: 2 s.
    pub stop_grace: Duration,
    /// Bytes of output that are saved of a run. Default: 64 MiB.
    pub bytes_per_process: u64,
    /// The same for a session. Default: 1 GiB.
    pub bytes_per_session: u64,
    /// Folders with skills. Default: none.
    pub skills: Vec<PathBuf>,
    /// Where private folders are made. Default: see [`ShellOptions::private_base`].
    pub private_base: PathBuf,
}

impl ShellOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            policy: Policy::Allow,
            max_running: 64,
            max_queued: 256,
            stop_grace: Duration::from_secs(2),
            bytes_per_process: 64 << 20,
            bytes_per_session: 1 << 30,
            skills: Vec::new(),
            private_base: Self::private_base(|name| std::env::var_os(name)),
        }
    }

    /// Where secrets in flight are put: `XDG_RUNTIME_DIR`, which is in memory, else `TMPDIR`, the first that this user can
    /// write to, else /tmp.
    pub fn private_base(var: impl Fn(&str) -> Option<OsString>) -> PathBuf {
        let can_be_used = |path: &PathBuf| {
            path.is_absolute()
                && path.is_dir()
                && rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        };
        let usable = |name| var(name).map(PathBuf::from).filter(can_be_used);
        usable("XDG_RUNTIME_DIR").or_else(|| usable("TMPDIR")).unwrap_or_else(|| PathBuf::from("/tmp"))
    }

    /// What a host may hand down to shells: all of this but what would change the shell itself. The rest, which is given to
    /// what a shell starts, is [`Shell::open`]'s.
    pub fn inherited(env: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
        let is_kept_back = |name: &OsString| {
            FOR_THE_SHELL.iter().chain(&NEVER_INHERITED).any(|known| name.as_bytes() == known.as_bytes())
        };
        env.iter().filter(|(name, _)| !is_kept_back(name)).cloned().collect()
    }
}

impl Default for ShellOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A workspace that is none.
#[derive(Debug, thiserror::Error)]
#[error("{} is no directory that can be worked in", .path.display())]
pub struct WorkspaceError {
    path: PathBuf,
    source: std::io::Error,
}

/// A session of the shell tools; a cheap handle. What it has started ends with [`close`](Self::close), or with the last
/// handle.
#[derive(Clone, Debug)]
pub struct Shell(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: ShellOptions,
    host: Host,
    pub(crate) session: Session,
    /// Those that end with it.
    children: Mutex<Vec<Weak<Inner>>>,
    pub(crate) workspace: PathBuf,
    pub(crate) env: HostEnv,
    pub(crate) private: PrivateFolder,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) memory: Mutex<Memory>,
    runs: Mutex<Runs>,
    changes: watch::Sender<u64>,
}

/// The state of the session, and how often it was discarded: what was begun before that is not kept.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) saved: Saved,
    pub(crate) generation: u64,
}

#[derive(Debug, Default)]
struct Runs {
    by_id: BTreeMap<RunId, (u64, Arc<Run>)>,
    started: u64,
}

/// Ended runs that stay known.
const KEPT: usize = 512;
/// Beyond those, how many may be there before the oldest are forgotten.
const BATCH: usize = 64;

impl Shell {
    /// Opens a session in a workspace. `env` is the host's environment, of which the host itself was given
    /// [`ShellOptions::inherited`].
    ///
    /// # Errors
    /// [`WorkspaceError`]
    pub fn open(
        host: &Host,
        workspace: &Path,
        env: &[(OsString, OsString)],
        options: ShellOptions,
    ) -> Result<Self, WorkspaceError> {
        let wrong = |source| WorkspaceError { path: workspace.to_owned(), source };
        let workspace = workspace.canonicalize().map_err(wrong)?;
        if !workspace.is_dir() {
            return Err(wrong(std::io::ErrorKind::NotADirectory.into()));
        }
        let vars = env.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        Ok(Self::fresh(host, workspace, HostEnv::new(vars), options))
    }

    /// Opens a session that has nothing of this one but its workspace and its options, and ends with it.
    pub fn child(&self) -> Self {
        let Inner { host, workspace, env, options, children, .. } = &*self.0;
        let child = Self::fresh(host, workspace.clone(), env.clone(), options.clone());
        let mut children = children.lock();
        children.retain(|known| known.strong_count() > 0);
        children.push(Arc::downgrade(&child.0));
        child
    }

    fn fresh(host: &Host, workspace: PathBuf, env: HostEnv, options: ShellOptions) -> Self {
        let secret = hostler_core::SessionId::random().to_u128();
        let private = PrivateFolder::below(&options.private_base, secret);
        let session = host.open_session(SessionOptions {
            // Places are given here, in order, to those who wait for one.
            max_processes: usize::MAX,
            keep_ended: 0,
            bytes_per_process: options.bytes_per_process,
            bytes_per_session: options.bytes_per_session,
            private_folder: Some(private.path().to_owned()),
            ..SessionOptions::record()
        });
        Self(Arc::new(Inner {
            host: host.clone(),
            places: Arc::new(Semaphore::new(options.max_running)),
            session,
            children: Mutex::default(),
            env,
            private,
            memory: Mutex::new(Memory { saved: Saved::fresh(&workspace), generation: 0 }),
            workspace,
            runs: Mutex::default(),
            changes: watch::Sender::new(0),
            options,
        }))
    }

    /// Live runs, oldest first.
    pub fn runs(&self) -> Vec<Listed> {
        let mut live: Vec<(u64, Arc<Run>)> = self.0.runs.lock().by_id.values().cloned().collect();
        live.retain(|(_, run)| !run.status().is_final() || run.lingers());
        live.sort_by_key(|(number, _)| *number);
        live.iter().map(|(_, run)| run.listed()).collect()
    }

    /// Counts up whenever a run starts or ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Forgets the saved state; what runs now leaves none.
    pub fn reset(&self) {
        self.0.reset();
    }

    /// Ends the session and its children: SIGTERM, and SIGKILL to whatever lives after a grace of at most a second.
    pub async fn close(&self) {
        let ends: Vec<_> = self.0.with_children().iter().map(|shell| shell.end()).collect();
        // All of them have begun.
        for end in ends {
            end.await;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            for child in self.children.get_mut().drain(..).filter_map(|child| child.upgrade()) {
                let child = Shell(child);
                runtime.spawn(async move { child.close().await });
            }
        }
    }
}

impl Inner {
    /// The session, its children, and theirs.
    fn with_children(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let children: Vec<_> = self.children.lock().iter().filter_map(Weak::upgrade).collect();
        let below = children.iter().flat_map(Self::with_children);
        std::iter::once(Arc::clone(self)).chain(below).collect()
    }

    /// Begins to end the session; the future waits for that.
    fn end(&self) -> impl Future<Output = ()> + use<> {
        const LONGEST_GRACE: Duration = Duration::from_secs(1);
        for run in self.all_runs() {
            if let Phase::Queued = run.phase() {
                run.stop(self.stop_request(StopCause::SessionEnd));
            }
        }
        let ended = self.session.close(self.options.stop_grace.min(LONGEST_GRACE));
        async move { drop(ended.await) }
    }

    pub(crate) fn reset(&self) {
        let mut memory = self.memory.lock();
        memory.saved = Saved::fresh(&self.workspace);
        memory.generation += 1;
    }

    /// A run is known from here on.
    pub(crate) fn enter(&self, run: &Arc<Run>) {
        let mut runs = self.runs.lock();
        let number = runs.started;
        runs.started += 1;
        runs.by_id.insert(run.id, (number, Arc::clone(run)));
        runs.prune();
        drop(runs);
        self.changed();
    }

    /// Nobody can ask for it.
    pub(crate) fn forget(&self, run: &Run) {
        self.runs.lock().by_id.remove(&run.id);
        self.changed();
    }

    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn all_runs(&self) -> Vec<Arc<Run>> {
        self.runs.lock().by_id.values().map(|(_, run)| Arc::clone(run)).collect()
    }

    /// How many wait for a place.
    pub(crate) fn queued(&self) -> usize {
        self.all_runs().iter().filter(|run| run.status() == Status::Queued).count()
    }

    /// The run with this id; the text for unknown ones and those of others is the same.
    pub(crate) fn run(&self, id: &str) -> Result<Arc<Run>, Answer> {
        let runs = self.runs.lock();
        let found = RunId::parse(id).and_then(|id| runs.by_id.get(&id));
        found.map(|(_, run)| Arc::clone(run)).ok_or_else(|| {
            Answer::error(
                ErrorCode::UnknownProcess,
                format!(
                    "this session has no process {}: ids are those that bash has given, and of what has ended only the newest \
                     are kept; read proc:// lists what runs",
                    shown(id)
                ),
            )
        })
    }

    /// Whether the policy lets an agent act.
    pub(crate) fn allowed(&self) -> Result<(), Answer> {
        let notice = match self.options.policy {
            Policy::Allow => return Ok(()),
            Policy::Deny => "the shell tool policy of this host forbids it: [runtime.tools] shell = \"deny\"",
            Policy::Ask => {
                "the shell tool policy of this host asks a person first ([runtime.tools] shell = \"ask\"), and this client has no \
                 way to do that: let the host be configured with \"allow\""
            }
        };
        Err(Answer::error(ErrorCode::Policy, notice))
    }

    pub(crate) fn cwd(&self) -> PathBuf {
        self.memory.lock().saved.cwd.clone()
    }
}

impl Runs {
    fn prune(&mut self) {
        let ended = |run: &Run| run.status().is_final() && !run.lingers();
        if self.by_id.len() < KEPT + BATCH {
            return;
        }
        let mut over: Vec<(u64, RunId)> = self
            .by_id
            .values()
            .filter(|(_, run)| ended(run))
            .map(|(number, run)| (*number, run.id))
            .collect();
        over.sort_unstable();
        let excess = over.len().saturating_sub(KEPT);
        for (_, id) in over.into_iter().take(excess) {
            self.by_id.remove(&id);
        }
    }
}

/// Bytes as the system has them.
pub(crate) fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// A text of an agent's as a refusal shows it: quoted, and not all of a very long one.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN: usize = 200;
    let end = text.floor_char_boundary(SHOWN);
    let more = if end < text.len() { " (cut)" } else { "" };
    format!("{:?}{more}", &text[..end])
}

pub(crate) fn invalid(notice: impl Into<String>) -> Answer {
    Answer::error(ErrorCode::InvalidArguments, notice)
}

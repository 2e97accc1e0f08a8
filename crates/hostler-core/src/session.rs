//! A session: the owner of processes, with a keeper of its own. What another session has is unknown to it.
//!
//! Everything that a caller asks for is begun inside the call and in its order; the futures only wait for the answer.
//! Nothing outlives a session: closing it, or dropping its last handle, kills all that was ever started in it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::watch;

use crate::capture::{Budget, Disk, LogOptions, Policy, Spool, Stream};
use crate::cursor::SharedLog;
use crate::host::HostInner;
use crate::id::{ProcessId, SessionId};
use crate::keeper::link::KeeperLink;
use crate::keeper::nursery_link::AskError;
use crate::keeper::protocol::{Control, Open, Spawn, SpawnRequest};
use crate::keeper::receipt::{Doubt, Receipt};
use crate::lifecycle::StopCause;
use crate::outputs::{Outputs, Readership};
use crate::process::{Birth, Inner, Pipes, Process, Pump};
use crate::spec::{Limit, SpawnError, SpawnSpec, StderrMode, StdinMode};
use crate::state_dir::SessionDir;
use crate::stdin::{MAX_WAITING_IN_SESSION, Stdin, StdinAccount};
use crate::sys::{clock, limits};

/// How long a keeper may take for the end of a session beyond the grace and the limit of the kill.
const CLOSE_SLACK: Duration = Duration::from_secs(5);

/// Longer than any session end takes: the keeper, not each process's own deadline, ends what is left.
const KEEPER_DECIDES: Duration = Duration::from_secs(24 * 3600);

/// How often a session may be given a keeper that turns out to be dead.
const KEEPER_ATTEMPTS: usize = 3;

/// How many processes beyond those to keep are known before the oldest are forgotten.
const PRUNE_BATCH: usize = 64;

/// How a session is set up: there are defaults for [`relay`](Self::relay) and for [`record`](Self::record).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// What is kept of output: see [`Policy`]. It is what the two differ in.
    pub policy: Policy,
    /// Live processes at a time; one whose root has ended counts while something that it started lives. Default: 64.
    pub max_processes: usize,
    /// How many ended processes stay known. Default: 1024.
    pub keep_ended: usize,
    /// Quota of output of one process in bytes. Record: what is saved, by default 64 MiB. Relay: what has not been taken,
    /// by default 16 MiB.
    pub bytes_per_process: u64,
    /// The same for all processes of the session together. Default: 1 GiB recorded, 256 MiB relayed.
    pub bytes_per_session: u64,
    /// A folder that its owner may make, and that is removed with all that is in it when the session has ended, also when its
    /// host was killed. The path must be one that nobody else can guess. Default: none.
    pub private_folder: Option<PathBuf>,
}

impl SessionOptions {
    /// The defaults for relayed output: nothing is lost, unread bytes hold the process back.
    pub fn relay() -> Self {
        Self {
            policy: Policy::Relay,
            max_processes: 64,
            keep_ended: 1024,
            bytes_per_process: 16 << 20,
            bytes_per_session: 256 << 20,
            private_folder: None,
        }
    }

    /// The defaults for recorded output: processes are never held back, a quota limits what is saved.
    pub fn record() -> Self {
        Self {
            policy: Policy::Record,
            bytes_per_process: 64 << 20,
            bytes_per_session: 1 << 30,
            ..Self::relay()
        }
    }
}

/// A place in the quotas of session and host, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    session: Arc<AtomicUsize>,
    host: Arc<AtomicUsize>,
}

impl Place {
    fn take(
        session: &Arc<AtomicUsize>,
        max: usize,
        host: &Arc<AtomicUsize>,
        max_host: usize,
    ) -> Result<Self, Limit> {
        let one_more = |max: usize| move |n: usize| (n < max).then_some(n + 1);
        if session.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more(max)).is_err() {
            return Err(Limit::Session { max });
        }
        if host.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more(max_host)).is_err() {
            session.fetch_sub(1, Ordering::AcqRel);
            return Err(Limit::Host { max: max_host });
        }
        Ok(Self { session: Arc::clone(session), host: Arc::clone(host) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.session.fetch_sub(1, Ordering::AcqRel);
        self.host.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct Table {
    /// In order of start: ids count up.
    processes: BTreeMap<ProcessId, Process>,
    link: Option<Arc<KeeperLink>>,
    /// Held up to the end of the session.
    readership: Arc<Readership>,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct SessionInner {
    id: SessionId,
    number: u64,
    options: SessionOptions,
    host: Arc<HostInner>,
    live: Arc<AtomicUsize>,
    budget: Arc<Budget>,
    unread: Arc<StdinAccount>,
    disk: Option<Arc<dyn Disk>>,
    /// Removed with the session.
    _folder: Option<SessionDir>,
    table: Mutex<Table>,
    /// What its end came to, once that is known. Held by the task that hears it too.
    receipt: Arc<watch::Sender<Option<Receipt>>>,
}

/// A handle of a session; the session ends with the last one.
#[derive(Clone, Debug)]
pub struct Session(Arc<SessionInner>);

/// Hears that a process of the session waits for room. What it waits for may be the incomplete lines of others: their
/// reader is woken to take those in pieces.
struct Contention(Weak<SessionInner>);

impl Wake for Contention {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(session) = self.0.upgrade() else { return };
        // Called while a log is locked: this schedules, and looks at no log.
        session.table.lock().processes.values().for_each(|process| process.0.wake_consumer());
    }
}

/// The pipe ends of a new process.
struct Plumbing {
    ours: Pipes,
    stdin: Arc<Stdin>,
    theirs: [OwnedFd; 3],
}

impl Session {
    pub(crate) fn new(host: Arc<HostInner>, number: u64, options: SessionOptions) -> Self {
        let budget = host.budget(options.policy).child(options.bytes_per_session);
        let folder = host.session_folder(number);
        let disk = folder.as_ref().map(SessionDir::disk);
        let inner = Arc::new_cyclic(|this| {
            budget.set_contention_waker(Waker::from(Arc::new(Contention(Weak::clone(this)))));
            SessionInner {
                id: SessionId::random(),
                number,
                options,
                host,
                live: Arc::default(),
                budget,
                unread: StdinAccount::new(MAX_WAITING_IN_SESSION),
                disk,
                _folder: folder,
                table: Mutex::default(),
                receipt: Arc::new(watch::Sender::new(None)),
            }
        });
        Self(inner)
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.0.id
    }

    /// A reader for the output of all its processes.
    pub fn outputs(&self) -> Outputs {
        Outputs::new(Arc::clone(&self.0.table.lock().readership))
    }

    /// A spool in the folder of this session, for what its adapter may have to say again. `name` is unique in the session
    /// and no process id; `capacity` is how many bytes its file holds.
    pub fn spool(&self, name: &str, capacity: u64) -> Spool {
        Spool::new(self.0.disk.clone(), name.to_owned(), capacity)
    }

    /// Its keeper's pid, once there is one.
    pub fn keeper_pid(&self) -> Option<i32> {
        self.0.table.lock().link.as_ref()?.pid()
    }

    /// Starts a program, now. The future waits until it executes or has failed to; dropping it takes nothing back.
    ///
    /// # Errors
    /// [`SpawnError`]; nothing is left of the process then.
    pub fn spawn(&self, spec: SpawnSpec) -> impl Future<Output = Result<Process, SpawnError>> + use<> {
        let begun = self.0.begin(spec);
        async move { begun?.launched().await }
    }

    /// The process with this id, while it is known: live, or among the last that ended.
    pub fn process(&self, id: ProcessId) -> Option<Process> {
        self.0.table.lock().processes.get(&id).cloned()
    }

    /// All processes that are known, in order of their start.
    pub fn processes(&self) -> Vec<Process> {
        self.0.table.lock().processes.values().cloned().collect()
    }

    /// Forgets a process of which nothing is left; handles of it stay good. Its files go with the last of those.
    pub fn forget(&self, id: ProcessId) {
        let mut table = self.0.table.lock();
        let forgotten = match table.processes.get(&id) {
            Some(process) if process.0.is_closed() => table.processes.remove(&id),
            Some(_) | None => None,
        };
        drop(table);
        // Without the lock, as this may be the last handle.
        drop(forgotten);
    }

    /// Live processes, those included that have left something alive behind.
    pub fn live(&self) -> usize {
        self.0.live.load(Ordering::Acquire)
    }

    /// Ends the session, now: SIGTERM to everything that was started in it, SIGKILL to whatever lives after `grace`. The
    /// future waits until that is done and says what was signalled and what survived. A session ends once: who asks
    /// again waits for the same end, whatever the grace.
    pub fn close(&self, grace: Duration) -> impl Future<Output = Receipt> + use<> {
        let mut table = self.0.table.lock();
        let ending = table.end(&self.0, grace);
        let readership = std::mem::take(&mut table.readership);
        drop(table);
        // Without the lock, as these may be the last handles of processes.
        drop(readership);
        let mut told = self.0.receipt.subscribe();
        if let Some(ending) = ending {
            tokio::spawn(ending);
        }
        async move {
            match told.wait_for(Option::is_some).await {
                Ok(receipt) => receipt.clone().unwrap_or_default(),
                // Only a runtime that is being shut down drops the task that tells.
                Err(_) => Receipt::after_loss(Some(Doubt::KeeperLost)),
            }
        }
    }
}

impl SessionInner {
    fn begin(&self, spec: SpawnSpec) -> Result<Process, SpawnError> {
        spec.check()?;
        let place =
            Place::take(&self.live, self.options.max_processes, self.host.live(), self.host.max_processes())?;
        self.host.check_open_files()?;
        let link = self.keeper()?;
        let Plumbing { ours, stdin, theirs } = plumb(&spec, &self.host, &self.unread).map_err(resources)?;
        let id = self.host.next_process_id();
        let account = self.budget.child(self.options.bytes_per_process);
        let log = |stream| self.log(stream, id, &account);
        let merged = spec.stderr == StderrMode::Merged;
        let (argv, env) = (spec.argv_block(), spec.env_block());
        let cwd = spec.cwd.as_ref().map(|cwd| self.host.cwd().join(cwd)).unwrap_or_default();
        let cwd = cwd.into_os_string().into_encoded_bytes();
        let timeout_at = spec.timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let (inner, inbox) = Inner::new(Birth {
            id,
            spec,
            grace: self.host.stop_grace(),
            kill_limit: self.host.kill_limit(),
            link: Arc::clone(&link),
            stdin,
            stdout: log(Stream::Stdout),
            stderr: (!merged).then(|| log(Stream::Stderr)),
            place,
            inherited: Arc::clone(self.host.env()),
        });
        let pump = Pump::new(Arc::clone(&inner), inbox, ours, timeout_at);
        let process = Process(Arc::clone(&inner));
        self.enter(process.clone())?;
        let request = SpawnRequest::Spawn(Spawn { id, argv: &argv, env: &env, cwd: &cwd });
        let client: Arc<dyn crate::keeper::link::KeeperClient> = Arc::clone(&inner) as _;
        if let Err(error) = link.start(id, client, &request, theirs) {
            tracing::warn!(%error, "a request could not be sent to the keeper");
            let lost = error.kind() == ErrorKind::BrokenPipe;
            inner.not_sent(if lost { SpawnError::KeeperLost } else { resources(error) });
        }
        tokio::spawn(pump.run());
        Ok(process)
    }

    /// Registered before it exists, so that no list is ever behind.
    fn enter(&self, process: Process) -> Result<(), SpawnError> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(SpawnError::SessionClosed);
        }
        table.readership.enter(&process);
        table.processes.insert(process.id(), process);
        self.prune(&mut table);
        Ok(())
    }

    /// Forgets the oldest of those that ended, beyond the number to keep.
    fn prune(&self, table: &mut Table) {
        // Now and then, so that the cost of looking at all of them is spread over many starts.
        let known = self.options.keep_ended + self.live.load(Ordering::Acquire);
        if table.processes.len() < known + PRUNE_BATCH {
            return;
        }
        let ended: Vec<ProcessId> =
            table.processes.values().filter(|p| p.0.is_closed()).map(Process::id).collect();
        let excess = ended.len().saturating_sub(self.options.keep_ended);
        for id in ended.into_iter().take(excess) {
            table.processes.remove(&id);
            table.readership.forget(id);
        }
    }

    fn keeper(&self) -> Result<Arc<KeeperLink>, SpawnError> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(SpawnError::SessionClosed);
        }
        if let Some(link) = table.link.as_ref().filter(|link| link.can_be_asked()) {
            return Ok(Arc::clone(link));
        }
        let link = self.new_keeper()?;
        table.link = Some(Arc::clone(&link));
        Ok(link)
    }

    /// A keeper that knows what the programs of this session have in common.
    fn new_keeper(&self) -> Result<Arc<KeeperLink>, SpawnError> {
        let open = Open {
            session: self.number,
            nofile: self.host.original_nofile(),
            cgroup: self.host.cgroup_folder(),
            oom_score_adj: self.host.oom_score_adj(),
            cwd: self.host.cwd().as_os_str().as_bytes(),
            search_path: self.host.search_path(),
            private_folder: self.options.private_folder.as_ref().map_or(&[], |p| p.as_os_str().as_bytes()),
            env: self.host.env(),
        };
        let open = SpawnRequest::Open(open);
        for _ in 0..KEEPER_ATTEMPTS {
            let link = self.host.keeper().map_err(|error| match error {
                AskError::Request(error) => resources(error),
                AskError::NoKeeper(reason) => SpawnError::NoKeeper(reason),
            })?;
            let Err(error) = link.request(&open) else { return Ok(link) };
            // It is nobody's, and would wait for a session that does not come.
            link.hang_up();
            // A spare keeper may have died, or never have started, and nobody has heard of it yet.
            if error.kind() != ErrorKind::BrokenPipe {
                return Err(resources(error));
            }
        }
        Err(SpawnError::KeeperLost)
    }

    fn log(&self, stream: Stream, id: ProcessId, account: &Arc<Budget>) -> Arc<SharedLog> {
        let suffix = match stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
        };
        SharedLog::new(LogOptions {
            stream,
            policy: self.options.policy,
            buffer_bytes: self.host.buffer_bytes(),
            pool: Arc::clone(self.host.pool()),
            account: Arc::clone(account),
            disk: self.disk.clone(),
            name: format!("{id}.{suffix}"),
        })
    }
}

impl Table {
    /// Asks the keeper to end the session, the first time. What is left to do is to hear its answer, and to give it up if
    /// there is none, whether anybody waits for that or not.
    fn end(&mut self, session: &SessionInner, grace: Duration) -> Option<impl Future<Output = ()> + use<>> {
        if std::mem::replace(&mut self.closed, true) {
            return None;
        }
        let Some(link) = self.link.take() else {
            session.receipt.send_replace(Some(Receipt::default()));
            return None;
        };
        for process in self.processes.values().filter(|process| !process.0.is_closed()) {
            process.0.will_be_stopped(StopCause::SessionEnd, KEEPER_DECIDES);
        }
        let limit = session.host.kill_limit();
        let ticket = link.ask(|ticket| Control::Close { ticket, grace, limit });
        let (host, number, told) = (Arc::clone(&session.host), session.number, Arc::clone(&session.receipt));
        Some(async move {
            let patience = grace.saturating_add(limit).saturating_add(CLOSE_SLACK);
            let receipt = link.answer(ticket, patience).await;
            // Off the event loop. Whoever hears of the end may be the last who holds the host: it is let go before.
            let forgotten = tokio::task::spawn_blocking(move || host.forget_cgroup(number));
            let _ = forgotten.await;
            told.send_replace(Some(receipt));
        })
    }
}

impl Drop for SessionInner {
    fn drop(&mut self) {
        let mut table = std::mem::take(self.table.get_mut());
        // The request is sent in any case; without a runtime nobody can wait for its answer.
        if let (Some(ending), Ok(runtime)) =
            (table.end(self, Duration::ZERO), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(ending);
        }
        // A session that has started nothing has no keeper that would.
        if let Some(folder) = &self.options.private_folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn resources(error: std::io::Error) -> SpawnError {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Limit::OpenFiles { limit: limits::nofile().soft }.into(),
        Some(libc::ENFILE) => Limit::SystemFiles.into(),
        _ => SpawnError::Resources(error),
    }
}

fn plumb(spec: &SpawnSpec, host: &HostInner, unread: &Arc<StdinAccount>) -> std::io::Result<Plumbing> {
    let (stdin, their_stdin) = match spec.stdin {
        StdinMode::Null => (Stdin::none(unread), host.null()?),
        StdinMode::Pipe => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            (Stdin::open(ours, unread), theirs)
        }
    };
    let output = || -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((ours, theirs))
    };
    let (stdout, their_stdout) = output()?;
    let (stderr, their_stderr) = match spec.stderr {
        StderrMode::Merged => (None, their_stdout.try_clone()?),
        StderrMode::Separate => {
            let (ours, theirs) = output()?;
            (Some(ours), theirs)
        }
    };
    Ok(Plumbing { ours: Pipes { stdout, stderr }, stdin, theirs: [their_stdin, their_stdout, their_stderr] })
}

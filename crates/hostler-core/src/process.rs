//! One process: the handle that callers hold, and what stands behind it.
//!
//! The state that answers questions ([`Inner`]) is behind small locks and changes by [`Lifecycle::step`] alone; the
//! pipes belong to one task ([`pump`]) from the start of the process to the end of everything that holds them. The
//! handle is cheap, and dropping it, or any future made from it, neither stops nor leaks a process: the session
//! owns it.

mod pull;
mod pump;
mod stop;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::capture::{Stream, Totals};
use crate::cursor::{Cursor, SharedLog};
use crate::id::ProcessId;
use crate::keeper::link::{KeeperClient, KeeperLink, Ticket};
use crate::keeper::protocol::{Control, Pids, Scope};
use crate::keeper::receipt::Doubt;
use crate::keeper::respawn::NoKeeper;
use crate::lifecycle::{Action, End, Exit, ExitStatus, Input, Lifecycle, Outcome, Remains, State, StopCause};
use crate::outputs::ReadyQueue;
use crate::session::Place;
use crate::spec::{CommandLine, MAX_PATH_BYTES, SpawnError, SpawnSpec};
use crate::stdin::{Stdin, Then, Writing};
use crate::sys::clock;
use crate::sys::clone::StartFailure;
use crate::sys::signal::{self, Signal};
use crate::sys::wait::Usage;

pub(crate) use pump::{Mail, Pipes, Pump};
pub use stop::Signalled;

/// What can be said of a process at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its id.
    pub id: ProcessId,
    /// Program and arguments as asked for, up to 4 KiB.
    pub command: CommandLine,
    /// Working directory as asked for.
    pub cwd: Option<PathBuf>,
    /// When it was asked for.
    pub started_at: SystemTime,
    /// What it is doing.
    pub state: State,
    /// The root's pid, once it runs; kept after its end, when it may be anybody's.
    pub pid: Option<i32>,
    /// What the root used, once it has ended.
    pub usage: Option<Usage>,
    /// What it left behind alive when its root ended, until the last of them is gone.
    pub survivors: Pids,
    /// Why there may be survivors that are not named: from the last look at its tree, or because its keeper was lost.
    pub doubt: Option<Doubt>,
    /// The counts of its standard output (of both streams when they are merged).
    pub stdout: Totals,
    /// The counts of its standard error, when that is a stream of its own.
    pub stderr: Option<Totals>,
}

impl Status {
    /// How it ended, once that is known: before the end of its output, which may still be on its way.
    pub fn end(&self) -> Option<End> {
        self.state.end()
    }
}

#[derive(Debug)]
struct Facts {
    life: Lifecycle,
    pid: Option<i32>,
    pidfd: Option<OwnedFd>,
    usage: Option<Usage>,
    survivors: Pids,
    doubt: Option<Doubt>,
    start_error: Option<SpawnError>,
    /// Until it is known whether it runs: for the text of the error. Arguments and environment are megabytes, and processes
    /// are remembered long after their end.
    asked: Option<Box<SpawnSpec>>,
    place: Option<Place>,
    /// Its session was closed before its end: whatever keeps it from starting then is that.
    session_ends: bool,
    /// The end was reported: output is complete.
    finished: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: ProcessId,
    command: CommandLine,
    cwd: Option<PathBuf>,
    started_at: SystemTime,
    grace: Duration,
    kill_limit: Duration,
    link: Arc<KeeperLink>,
    facts: Mutex<Facts>,
    changed: Notify,
    stdin: Arc<Stdin>,
    pub(crate) stdout: Arc<SharedLog>,
    pub(crate) stderr: Option<Arc<SharedLog>>,
    mail: mpsc::UnboundedSender<Mail>,
    reader: Mutex<Reader>,
    /// The pump wants to hear of what the session's reader takes next.
    tell_of_takes: AtomicBool,
    pull: Mutex<pull::Positions>,
    /// The environment that it inherited, for the figures of an error.
    inherited: Arc<[u8]>,
}

/// Where the session's own reader hears of the process.
#[derive(Debug, Default)]
struct Reader {
    queue: Option<Arc<ReadyQueue>>,
    /// It stands in that queue.
    queued: bool,
}

impl Reader {
    fn has(&self, queue: &Arc<ReadyQueue>) -> bool {
        self.queue.as_ref().is_some_and(|own| Arc::ptr_eq(own, queue))
    }
}

/// What a session gives to a new process.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) id: ProcessId,
    pub(crate) spec: SpawnSpec,
    pub(crate) grace: Duration,
    pub(crate) kill_limit: Duration,
    pub(crate) link: Arc<KeeperLink>,
    pub(crate) stdin: Arc<Stdin>,
    pub(crate) stdout: Arc<SharedLog>,
    pub(crate) stderr: Option<Arc<SharedLog>>,
    pub(crate) place: Place,
    pub(crate) inherited: Arc<[u8]>,
}

impl Inner {
    pub(crate) fn new(birth: Birth) -> (Arc<Self>, mpsc::UnboundedReceiver<Mail>) {
        // A process gets a handful of messages in its life: its exit, its end, wake-ups for room.
        let (mail, inbox) = mpsc::unbounded_channel();
        let (life, action) = Lifecycle::new().step(Input::Launch, clock::now());
        debug_assert_eq!(action, Action::Spawn);
        let command = CommandLine::of(&birth.spec.argv);
        // Whatever is longer is no working directory of anything that runs.
        let cwd = birth.spec.cwd.clone().filter(|cwd| cwd.as_os_str().len() < MAX_PATH_BYTES);
        let facts = Facts {
            life,
            pid: None,
            pidfd: None,
            usage: None,
            survivors: Pids::default(),
            doubt: None,
            start_error: None,
            asked: Some(Box::new(birth.spec)),
            place: Some(birth.place),
            session_ends: false,
            finished: false,
        };
        let inner = Self {
            id: birth.id,
            command,
            cwd,
            started_at: SystemTime::now(),
            grace: birth.grace,
            kill_limit: birth.kill_limit,
            link: birth.link,
            facts: Mutex::new(facts),
            changed: Notify::new(),
            stdin: birth.stdin,
            stdout: birth.stdout,
            stderr: birth.stderr,
            mail,
            reader: Mutex::default(),
            tell_of_takes: AtomicBool::new(false),
            pull: Mutex::default(),
            inherited: birth.inherited,
        };
        (Arc::new(inner), inbox)
    }

    /// Takes a step and does what it asks for. Returns the answer of the keeper, when it was asked something.
    pub(crate) fn step(&self, input: Input) -> Option<Ticket> {
        let action = self.advance(input);
        self.perform(action)
    }

    /// The output counts as read; `pipes` says whether somebody still holds them.
    pub(crate) fn drained(&self, pipes: Remains) {
        let action = self.advance_by(|facts| match pipes {
            Remains::Nothing if facts.survivors.total > 0 => Input::Drained(Remains::Lingerers),
            Remains::Nothing | Remains::Lingerers => Input::Drained(pipes),
        });
        // Finish and Release ask nobody.
        let _ = self.perform(action);
    }

    /// Takes a step whose deed is somebody else's.
    fn advance(&self, input: Input) -> Action {
        self.advance_by(|_| input)
    }

    /// Chooses the input and takes the step under one lock: what it was chosen by cannot change in between.
    fn advance_by(&self, input: impl FnOnce(&Facts) -> Input) -> Action {
        let mut facts = self.facts.lock();
        let input = input(&facts);
        let (life, action) = facts.life.step(input, clock::now());
        let moved = facts.life != life;
        facts.life = life;
        drop(facts);
        if moved {
            self.changed.notify_waiters();
        }
        action
    }

    /// Takes a stop into account that somebody else carries out.
    pub(crate) fn will_be_stopped(&self, cause: StopCause, grace: Duration) {
        if cause == StopCause::SessionEnd {
            self.facts.lock().session_ends = true;
        }
        let action = self.advance(Input::Stop { cause, grace });
        if action == Action::Finish {
            self.finish();
        }
    }

    fn perform(&self, action: Action) -> Option<Ticket> {
        let id = self.id;
        match action {
            Action::None | Action::Spawn => None,
            Action::SignalGroup(signal) => {
                Some(self.link.ask(|ticket| Control::Signal { ticket, id, scope: Scope::Group, signal }))
            }
            Action::TermTree => {
                let signal = Signal::Term;
                Some(self.link.ask(|ticket| Control::Signal { ticket, id, scope: Scope::Tree, signal }))
            }
            Action::KillTree => {
                let limit = self.kill_limit;
                Some(self.link.ask(|ticket| Control::Kill { ticket, id, limit }))
            }
            Action::Finish => {
                self.finish();
                None
            }
            Action::Release => {
                let mut facts = self.facts.lock();
                facts.place = None;
                facts.pidfd = None;
                drop(facts);
                let _ = self.mail.send(Mail::Gone);
                None
            }
        }
    }

    /// The end is reported: a place is free, unless something lingers, before anybody can hear of it.
    fn finish(&self) {
        let mut facts = self.facts.lock();
        if matches!(facts.life.state(), State::Closed { .. }) {
            facts.place = None;
            facts.pidfd = None;
        }
        facts.finished = true;
        drop(facts);
        let _ = self.mail.send(Mail::Finished);
        self.changed.notify_waiters();
        self.stdin.end();
    }

    pub(crate) fn deadline(&self) -> Option<std::time::Instant> {
        self.facts.lock().life.deadline()
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.facts.lock().life.state(), State::Closed { .. })
    }

    /// Whether its root has ended.
    pub(crate) fn has_exited(&self) -> bool {
        self.facts.lock().life.end().is_some()
    }

    /// Whether its end has been reported.
    pub(crate) fn is_finished(&self) -> bool {
        self.facts.lock().finished
    }

    pub(crate) fn log(&self, stream: Stream) -> Option<&Arc<SharedLog>> {
        match stream {
            Stream::Stdout => Some(&self.stdout),
            Stream::Stderr => self.stderr.as_ref(),
        }
    }

    /// Whether something that it started is known to live on after its root.
    pub(crate) fn has_survivors(&self) -> bool {
        self.facts.lock().survivors.total > 0
    }

    /// The request never got to the keeper.
    pub(crate) fn not_sent(&self, error: SpawnError) {
        {
            let mut facts = self.facts.lock();
            facts.start_error = Some(error);
            facts.asked = None;
        }
        self.step(Input::StartFailed);
    }

    fn exited_with(&self, status: ExitStatus, usage: Option<Usage>, survivors: Pids) {
        {
            let mut facts = self.facts.lock();
            facts.usage = usage;
            facts.survivors = survivors;
        }
        self.step(Input::Exited(status));
        self.stdin.end();
        let _ = self.mail.send(Mail::Exited);
    }

    /// The reader with this queue has gone; if it was this process's, nobody will read it.
    pub(crate) fn reader_has_gone(&self, queue: &Arc<ReadyQueue>) {
        let mut reader = self.reader.lock();
        if !reader.has(queue) {
            return;
        }
        *reader = Reader::default();
        drop(reader);
        self.close_logs();
    }

    /// Nobody is left who could give it a reader.
    pub(crate) fn nobody_will_read(&self) {
        let _ = self.mail.send(Mail::NoReader);
    }

    fn close_unless_read(&self) {
        if self.reader.lock().queue.is_none() {
            self.close_logs();
        }
    }

    fn close_logs(&self) {
        self.stdout.close();
        if let Some(log) = &self.stderr {
            log.close();
        }
    }

    /// From here on the next take is told to the pump, once.
    pub(crate) fn tell_of_takes(&self) {
        self.tell_of_takes.store(true, Ordering::Release);
    }

    fn taken(&self) {
        if self.tell_of_takes.load(Ordering::Acquire) && self.tell_of_takes.swap(false, Ordering::AcqRel) {
            let _ = self.mail.send(Mail::Taken);
        }
    }

    /// Something new for the session's reader.
    pub(crate) fn wake_consumer(self: &Arc<Self>) {
        let mut reader = self.reader.lock();
        let Reader { queue: Some(queue), queued } = &mut *reader else { return };
        if !std::mem::replace(queued, true) {
            queue.push(Process(Arc::clone(self)));
        }
    }
}

impl KeeperClient for Inner {
    fn spawned(&self, pid: i32, pidfd: Option<OwnedFd>) {
        {
            let mut facts = self.facts.lock();
            facts.pid = Some(pid);
            facts.pidfd = pidfd;
            facts.asked = None;
        }
        self.step(Input::Started);
        let _ = self.mail.send(Mail::Started);
    }

    fn spawn_failed(&self, failure: StartFailure) {
        let asked = self.facts.lock().asked.take();
        let error = match asked {
            Some(asked) => SpawnError::from_failure(&asked, &self.inherited, failure.step, failure.errno),
            // A keeper says once what has become of a start.
            None => SpawnError::KeeperLost,
        };
        self.not_sent(error);
    }

    fn exited(&self, status: ExitStatus, usage: Usage, lingerers: Pids) {
        self.exited_with(status, Some(usage), lingerers);
    }

    fn gone(&self) {
        self.facts.lock().survivors = Pids::default();
        self.step(Input::Gone);
    }

    fn no_keeper(&self, reason: NoKeeper) {
        self.not_sent(SpawnError::NoKeeper(reason));
    }

    fn keeper_lost(&self, doubt: Option<Doubt>) {
        let (state, end) = {
            let mut facts = self.facts.lock();
            facts.doubt = doubt;
            (facts.life.state(), facts.life.end())
        };
        match (state, end) {
            (State::Starting, _) => self.not_sent(SpawnError::KeeperLost),
            (_, Some(_)) => self.gone(),
            (_, None) => self.exited_with(ExitStatus::KeeperLost, None, Pids::default()),
        }
    }

    fn kill_root(&self) {
        let facts = self.facts.lock();
        if let Some(pidfd) = &facts.pidfd {
            let _ = signal::send_pidfd(pidfd.as_fd(), libc::SIGKILL);
        }
    }
}

/// A handle of a process of a session.
#[derive(Clone, Debug)]
pub struct Process(pub(crate) Arc<Inner>);

impl Process {
    /// Its id.
    pub fn id(&self) -> ProcessId {
        self.0.id
    }

    /// The root's pid, once it runs.
    pub fn pid(&self) -> Option<i32> {
        self.0.facts.lock().pid
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let stdout = self.0.stdout.totals();
        let stderr = self.0.stderr.as_ref().map(|log| log.totals());
        let facts = self.0.facts.lock();
        Status {
            id: self.0.id,
            command: self.0.command.clone(),
            cwd: self.0.cwd.clone(),
            started_at: self.0.started_at,
            state: facts.life.state(),
            pid: facts.pid,
            usage: facts.usage,
            survivors: facts.survivors.clone(),
            doubt: facts.doubt,
            stdout,
            stderr,
        }
    }

    /// What it is doing, without the rest of [`Process::status`].
    pub fn state(&self) -> State {
        self.0.facts.lock().life.state()
    }

    /// Writes to its standard input; the bytes are taken now and in the order of the calls.
    pub fn write(&self, bytes: &[u8], then: Then) -> Writing {
        self.0.stdin.write(bytes, then)
    }

    /// Closes its standard input after what was written before.
    pub fn close_stdin(&self) -> Writing {
        self.0.stdin.write(&[], Then::Close)
    }

    /// How it ended, once that is known.
    pub fn end(&self) -> Option<End> {
        self.0.facts.lock().life.end()
    }

    /// Looks again after every change until there is something to see. Enabled before looking: no change is missed.
    async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(seen) = look(self) {
                return seen;
            }
            changed.await;
        }
    }

    /// Waits until its root has ended. Its output may still be on its way.
    pub async fn ended(&self) -> End {
        self.until(Self::end).await
    }

    /// Waits until its end is reported: the root has ended and its output is complete.
    pub async fn finished(&self) -> End {
        self.until(|process| process.end().filter(|_| process.0.is_finished())).await
    }

    /// Waits until nothing of it is left: its end is reported, and what it left behind has gone too.
    pub async fn closed(&self) {
        self.until(|process| process.0.is_closed().then_some(())).await;
    }

    /// Waits until it runs, or could not be started.
    pub(crate) async fn launched(&self) -> Result<Self, SpawnError> {
        self.until(Self::launch_result).await.map(|()| self.clone())
    }

    fn launch_result(&self) -> Option<Result<(), SpawnError>> {
        let mut facts = self.0.facts.lock();
        let ended = if facts.session_ends { SpawnError::SessionClosed } else { SpawnError::Canceled };
        match facts.life.state() {
            State::Queued | State::Starting => None,
            State::Running
            | State::Exited(_)
            | State::Lingering(_)
            | State::Closed { end: End::Exited(_) } => Some(Ok(())),
            State::Closed { end: End::NotStarted } => {
                // With the session goes its keeper. That is no loss, and trying again would be in vain.
                let error = facts.start_error.take();
                Some(Err(error
                    .filter(|error| !(facts.session_ends && error.is_of_the_keeper()))
                    .unwrap_or(ended)))
            }
            State::Closed { end: End::Canceled { .. } } => Some(Err(ended)),
        }
    }

    /// A reader of one of its streams, from the oldest byte kept; `None` for standard error when that is merged.
    pub fn cursor(&self, stream: Stream) -> Option<Cursor> {
        self.0.log(stream).map(|log| Cursor::from_start(Arc::clone(log)))
    }

    pub(crate) fn attach(&self, queue: &Arc<ReadyQueue>) {
        // It may stand in the queue of a reader before this one, but not in this one's.
        *self.0.reader.lock() = Reader { queue: Some(Arc::clone(queue)), queued: false };
        let waker = Waker::from(Arc::new(News(Arc::downgrade(&self.0))));
        self.0.stdout.set_consumer(waker.clone());
        if let Some(log) = &self.0.stderr {
            log.set_consumer(waker);
        }
        self.0.wake_consumer();
    }

    /// It was taken from this queue; whether that is its reader's by now.
    pub(crate) fn news_taken(&self, queue: &Arc<ReadyQueue>) -> bool {
        let mut reader = self.0.reader.lock();
        let is_its_own = reader.has(queue);
        reader.queued &= !is_its_own;
        is_its_own
    }

    /// Puts it back into the queue of its session's reader, who left something of it. See [`Outputs`](crate::Outputs).
    pub fn requeue(&self) {
        self.0.wake_consumer();
    }
}

/// Wakes the session's reader when a log has something new.
struct News(Weak<Inner>);

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(process) = self.0.upgrade() {
            process.wake_consumer();
        }
    }
}

/// What a process that ended counts as, for callers that have no use for its status.
pub fn outcome(end: End) -> Option<Outcome> {
    match end {
        End::Exited(Exit { outcome, .. }) => Some(outcome),
        End::NotStarted | End::Canceled { .. } => None,
    }
}

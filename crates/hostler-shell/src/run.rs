//! One command that an agent has started: what it is, how it stands, and how far its output has been read.
//!
//! A run is known before anything of it exists. Its phase changes in one direction alone, by the task that drives it
//! (`launch`); a stop that comes before there is a process is kept until there is one.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hostler_core::{
    CaptureState, End, Exit, ExitStatus, Outcome, Process, SharedLog, State, StopCause, Stream,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::answer::{Capture, Details, ErrorCode, Listed, Status};
use crate::reader::{LastLine, Place};
use crate::request::Mode;

/// Id of a run: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunId(u128);

impl RunId {
    pub(crate) fn random() -> Self {
        Self(hostler_core::SessionId::random().to_u128())
    }

    /// The id that is written so, and in no other way.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// How far a run has come.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// It waits for a place.
    Queued,
    /// It has one, and is being started.
    Starting,
    /// Its process is there.
    Running(Process),
    /// Its output is complete, and what it left was looked at.
    Ended(Process),
    /// There never was a process.
    NotStarted(StartFailure),
    /// It was stopped before there was one.
    Canceled,
}

/// Why a command could not be started.
#[derive(Clone, Debug)]
pub(crate) struct StartFailure {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
}

/// A stop that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopRequest {
    pub(crate) cause: StopCause,
    pub(crate) grace: Duration,
}

#[derive(Debug)]
struct Facts {
    /// The first stop before there was a process.
    stop: Option<StopRequest>,
    /// Nobody waits for its end: what it leaves is not the session's state.
    is_detached: bool,
    started: Option<Instant>,
    ended: Option<Instant>,
    place: Place,
    /// What its answer should say besides.
    notices: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    command: Mutex<String>,
    pub(crate) mode: Mode,
    started_at: SystemTime,
    phase: watch::Sender<Phase>,
    /// Changes when a stop comes before there is a process.
    stopped: watch::Sender<bool>,
    facts: Mutex<Facts>,
}

impl Run {
    pub(crate) fn new(command: String, mode: Mode) -> Arc<Self> {
        let facts = Facts {
            stop: None,
            is_detached: mode == Mode::Background,
            started: None,
            ended: None,
            place: Place::default(),
            notices: Vec::new(),
        };
        Arc::new(Self {
            id: RunId::random(),
            command: Mutex::new(command),
            mode,
            started_at: SystemTime::now(),
            phase: watch::Sender::new(Phase::Queued),
            stopped: watch::Sender::new(false),
            facts: Mutex::new(facts),
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Waits for a phase. The run holds the sender, so there is always an answer.
    pub(crate) async fn until(&self, is_it: impl Fn(&Phase) -> bool) -> Phase {
        let mut phases = self.phase.subscribe();
        let seen = phases.wait_for(is_it).await.map(|phase| phase.clone());
        seen.unwrap_or(Phase::Canceled)
    }

    /// Waits until nothing will change any more but by what was left behind.
    pub(crate) async fn ended(&self) {
        self.until(|phase| match phase {
            Phase::Queued | Phase::Starting | Phase::Running(_) => false,
            Phase::Ended(_) | Phase::NotStarted(_) | Phase::Canceled => true,
        })
        .await;
    }

    /// Waits until it has a process, or will never have one.
    pub(crate) async fn started(&self) -> Option<Process> {
        match self.until(|phase| !matches!(phase, Phase::Queued | Phase::Starting)).await {
            Phase::Running(process) | Phase::Ended(process) => Some(process),
            Phase::Queued | Phase::Starting | Phase::NotStarted(_) | Phase::Canceled => None,
        }
    }

    pub(crate) async fn is_stopped(&self) {
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Its process is there. Says which stop has come before it.
    pub(crate) fn begun(&self, process: Process) -> Option<StopRequest> {
        let mut facts = self.facts.lock();
        facts.started = Some(hostler_core::sys::clock::now());
        let stop = facts.stop;
        // Under the lock: a stop finds the process, or is found here.
        self.phase.send_replace(Phase::Running(process));
        stop
    }

    /// Its output is complete. Its text, which may be megabytes, is cut: ended runs are kept long, and nobody asks for it.
    pub(crate) fn output_is_complete(&self) {
        const REMEMBERED: usize = 4096;
        let mut command = self.command.lock();
        let end = command.floor_char_boundary(REMEMBERED);
        command.truncate(end);
        command.shrink_to_fit();
        drop(command);
        self.facts.lock().ended = Some(hostler_core::sys::clock::now());
    }

    /// Stops its tree, now or as soon as there is one. Nothing happens to what has ended and left nobody.
    pub(crate) fn stop(&self, request: StopRequest) {
        let mut facts = self.facts.lock();
        match self.phase() {
            Phase::Queued | Phase::Starting => {
                facts.stop.get_or_insert(request);
                drop(facts);
                self.stopped.send_replace(true);
            }
            Phase::Running(process) | Phase::Ended(process) => {
                drop(facts);
                begin_stop(&process, request);
            }
            Phase::NotStarted(_) | Phase::Canceled => {}
        }
    }

    /// From here on nobody waits for its end.
    pub(crate) fn detach(&self) {
        self.facts.lock().is_detached = true;
    }

    /// Whether what it leaves counts: decided once, under the same lock as [`detach`](Self::detach).
    pub(crate) fn is_attached(&self) -> bool {
        !self.facts.lock().is_detached
    }

    pub(crate) fn note(&self, notice: String) {
        self.facts.lock().notices.push(notice);
    }

    pub(crate) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.facts.lock().notices)
    }

    pub(crate) fn process(&self) -> Option<Process> {
        match self.phase() {
            Phase::Running(process) | Phase::Ended(process) => Some(process),
            Phase::Queued | Phase::Starting | Phase::NotStarted(_) | Phase::Canceled => None,
        }
    }

    /// What it prints, both streams in one.
    pub(crate) fn log(&self) -> Option<Arc<SharedLog>> {
        self.process()?.cursor(Stream::Stdout).map(|cursor| Arc::clone(cursor.log()))
    }

    pub(crate) fn last_line(&self) -> LastLine {
        match self.phase() {
            Phase::Queued | Phase::Starting | Phase::Running(_) => LastLine::Grows,
            Phase::Ended(_) | Phase::NotStarted(_) | Phase::Canceled => LastLine::Whole,
        }
    }

    /// Looks at, or moves, the place up to which its lines were read.
    pub(crate) fn with_place<T>(&self, look: impl FnOnce(&mut Place) -> T) -> T {
        look(&mut self.facts.lock().place)
    }

    pub(crate) fn status(&self) -> Status {
        match self.phase() {
            Phase::Queued => Status::Queued,
            Phase::Starting | Phase::Running(_) => Status::Running,
            Phase::Ended(process) => status_of(process.end()),
            Phase::NotStarted(_) => Status::Error,
            Phase::Canceled => Status::Canceled,
        }
    }

    /// Whether something that it started lives on after its own end.
    pub(crate) fn lingers(&self) -> bool {
        match self.phase() {
            Phase::Ended(process) => matches!(process.state(), State::Lingering(_)),
            Phase::Queued | Phase::Starting | Phase::Running(_) | Phase::NotStarted(_) | Phase::Canceled => {
                false
            }
        }
    }

    /// What can be said of it, without its output.
    pub(crate) fn details(&self) -> Details {
        let mut details = Details::new(self.status());
        let Some(process) = self.process() else { return details };
        let status = process.status();
        details.pid = status.pid;
        let totals = status.stdout;
        if totals.dropped.bytes > 0 || totals.state != CaptureState::Complete {
            details.capture = Some(match totals.state {
                CaptureState::Complete => Capture::Complete,
                CaptureState::Limited | CaptureState::RingOnly => Capture::Limited,
                CaptureState::Failed => Capture::Failed,
            });
        }
        if let Phase::Ended(_) = self.phase() {
            details.survivors = status.survivors.pids;
            (details.exit_code, details.signal) = exit_of(process.end());
        }
        let facts = self.facts.lock();
        details.duration = facts.started.zip(facts.ended).map(|(from, to)| to - from);
        details
    }

    pub(crate) fn listed(&self) -> Listed {
        Listed {
            name: None,
            process_id: self.id.to_string(),
            status: self.status(),
            pid: self.process().and_then(|process| process.pid()),
            command: self.command.lock().clone(),
            started_at: self.started_at,
        }
    }
}

/// Stops a tree; what came of it is seen in the state of its process.
pub(crate) fn begin_stop(process: &Process, request: StopRequest) {
    let stopping = process.stop(request.cause, request.grace);
    // It has an end of its own, and somebody has to hear of it.
    tokio::spawn(async move { drop(stopping.await) });
}

fn status_of(end: Option<End>) -> Status {
    match end {
        None => Status::Running,
        Some(End::NotStarted) => Status::Error,
        Some(End::Canceled { .. }) => Status::Canceled,
        Some(End::Exited(Exit { outcome, .. })) => match outcome {
            Outcome::Completed => Status::Completed,
            Outcome::Failed => Status::Failed,
            Outcome::Killed => Status::Killed,
            Outcome::TimedOut => Status::TimedOut,
            // Its keeper killed it when it was lost.
            Outcome::Lost => Status::Killed,
        },
    }
}

fn exit_of(end: Option<End>) -> (Option<i32>, Option<String>) {
    let Some(End::Exited(exit)) = end else { return (None, None) };
    match exit.status {
        ExitStatus::Code(code) => (Some(code), None),
        ExitStatus::Signal { number, .. } => (Some(128 + number), Some(signal_name(number))),
        ExitStatus::KeeperLost => (None, None),
    }
}

/// The name of a signal, as in signal(7).
pub(crate) fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let known = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    known.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

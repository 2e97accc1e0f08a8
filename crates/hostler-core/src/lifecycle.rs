//! The life of one process, as a pure state machine: facts in, the next deed out.
//!
//! Owns what a process is doing, which stop is under way and what its end will count as. It reads no clock and does
//! no I/O: `now` is passed in, [`Lifecycle::deadline`] says when to call again, and every effect comes back as an
//! [`Action`] that the driver (the registry) hands to the keeper. It leaves to others: pids and pipes, when output
//! has ended (`drain`), and which timeouts there are: one that has run out arrives as an ordinary stop.
//!
//! Invariants, each with a test of the same words:
//! - `Closed` is final: no input leaves it and none brings an action.
//! - The end is reported once, by `Finish`, and does not change any more once the root has exited.
//! - `KillTree` is asked at most once per escalation, and once more when the start succeeded in spite of it.
//! - A shorter grace replaces a longer one, never the reverse.
//! - There is a deadline only while a grace is running.
//! - The first cause wins: a later kill does not hide a timeout, a later timeout does not hide a kill.

use std::time::{Duration, Instant};

use crate::sys::signal::Signal;

/// A grace that is longer counts as this long, so that no client can make clock arithmetic overflow.
const LONGEST_GRACE: Duration = Duration::from_hours(24 * 365);

/// How the root of a process ended, from waitid(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    /// It exited by itself, with this code (0 to 255).
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number, see signal(7).
        number: i32,
        /// Whether a core was written.
        core_dumped: bool,
    },
    /// The keeper was lost, and the status with it.
    KeeperLost,
}

impl ExitStatus {
    /// What the status says when nobody here had asked the process to end.
    fn own_outcome(self) -> Outcome {
        match self {
            Self::Code(0) => Outcome::Completed,
            Self::Code(_) | Self::Signal { .. } => Outcome::Failed,
            Self::KeeperLost => Outcome::Lost,
        }
    }

    fn is_death_by(self, signal: Signal) -> bool {
        match self {
            Self::Signal { number, .. } => number == signal.number(),
            Self::Code(_) | Self::KeeperLost => false,
        }
    }
}

/// What the end of a process that ran counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Exit code 0, unasked.
    Completed,
    /// Another exit code, or a signal that was not ours.
    Failed,
    /// It ended after it had been asked to: by a kill, a stop, a cancellation or the end of its session.
    Killed,
    /// It ended after its time limit had passed.
    TimedOut,
    /// Its keeper was lost, nobody knows how it ended.
    Lost,
}

/// Why a process is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopCause {
    /// A client asked for it.
    Request,
    /// Its time limit has passed.
    Timeout,
    /// Its session ends.
    SessionEnd,
    /// The request that had started it was canceled.
    Cancel,
}

impl StopCause {
    fn outcome(self) -> Outcome {
        match self {
            Self::Request | Self::SessionEnd | Self::Cancel => Outcome::Killed,
            Self::Timeout => Outcome::TimedOut,
        }
    }
}

/// How a process that ran has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exit {
    /// The root's status.
    pub status: ExitStatus,
    /// What it counts as.
    pub outcome: Outcome,
}

/// How a process has ended, also one that never ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The program could not be started.
    NotStarted,
    /// It was stopped before its program ran: in the queue, or while exec hung.
    Canceled {
        /// Why.
        cause: StopCause,
    },
    /// It ran and exited.
    Exited(Exit),
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// The keeper was asked to start it and has not answered.
    Starting,
    /// Its root is alive.
    Running,
    /// Its root has exited, its output is not all read yet. The end is known and not reported.
    Exited(Exit),
    /// The end was reported, but something that it started lives on or holds its output open.
    Lingering(Exit),
    /// Nothing of it is left.
    Closed {
        /// How it ended.
        end: End,
    },
}

impl State {
    /// How the process ended: `Some` as soon as that is known, which is before it is reported.
    pub fn end(self) -> Option<End> {
        match self {
            Self::Queued | Self::Starting | Self::Running => None,
            Self::Exited(exit) | Self::Lingering(exit) => Some(End::Exited(exit)),
            Self::Closed { end } => Some(end),
        }
    }
}

/// The stop that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// None.
    None,
    /// A client sent SIGTERM. No escalation follows, but whenever the process ends now, it was killed: a graceful
    /// shutdown may take long.
    Terminated,
    /// The tree was asked to end, or will be as soon as it has started, and is killed at the end of the grace.
    Asked {
        /// The first cause.
        cause: StopCause,
        /// End of the grace.
        kill_at: Instant,
    },
    /// The tree is being killed.
    Killing {
        /// The first cause.
        cause: StopCause,
    },
    /// The kill is over and something has survived it; the next stop kills again.
    Survived {
        /// The first cause.
        cause: StopCause,
    },
}

/// Interrupts (SIGINT) that a client sent. They vary apart from the stop: an interpreter survives one and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interrupt {
    /// None was sent.
    None,
    /// So many kill requests still wait for the process to end by theirs.
    InFlight {
        /// At least 1.
        waits: u32,
    },
    /// The process has outlived every wait.
    Spent,
}

impl Interrupt {
    fn sent(self) -> Self {
        match self {
            Self::None | Self::Spent => Self::InFlight { waits: 1 },
            Self::InFlight { waits } => Self::InFlight { waits: waits.saturating_add(1) },
        }
    }

    fn settled(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::InFlight { waits: 0 | 1 } | Self::Spent => Self::Spent,
            Self::InFlight { waits } => Self::InFlight { waits: waits - 1 },
        }
    }

    /// A program may clean up for longer than anybody waits and then die by the interrupt after all.
    fn has_ended(self, status: ExitStatus) -> bool {
        match self {
            Self::None => false,
            Self::InFlight { .. } => true,
            Self::Spent => status.is_death_by(Signal::Int),
        }
    }
}

/// What is left of a process when its output counts as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remains {
    /// Both streams have ended and nothing of its tree lives.
    Nothing,
    /// A descendant lives, or somebody holds a stream open.
    Lingerers,
}

/// Something that has happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Its turn has come.
    Launch,
    /// The keeper has started it.
    Started,
    /// The keeper could not start it, or exec was killed while it hung.
    StartFailed,
    /// A client sends a signal: exactly this one, without escalation.
    Signal(Signal),
    /// The wait of one kill request has ended and the process lives on.
    SignalSettled,
    /// The tree is to be stopped.
    Stop {
        /// Why.
        cause: StopCause,
        /// Time between the request and the kill; zero kills at once.
        grace: Duration,
    },
    /// Time has passed, see [`Lifecycle::deadline`].
    Tick,
    /// The keeper has given up killing: something lives on.
    KillSettled,
    /// The root has exited.
    Exited(ExitStatus),
    /// The output counts as read to its end.
    Drained(Remains),
    /// The last lingerer is gone.
    Gone,
}

/// What the driver has to do now.
#[must_use = "the state has moved on in the belief that this is done"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing.
    None,
    /// Ask the keeper to start the program.
    Spawn,
    /// Send this signal to the process group of the root.
    SignalGroup(Signal),
    /// Send SIGTERM to the whole tree.
    TermTree,
    /// Kill the whole tree to the last, a start that hangs too.
    KillTree,
    /// Report the end: the last event of this process. Its place in the quota is free if it is closed as well.
    Finish,
    /// Nothing is left now: free its place in the quota. The end has been reported before.
    Release,
}

/// The life of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifecycle {
    state: State,
    stop: Stop,
    interrupt: Interrupt,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// A process that waits for its turn.
    pub fn new() -> Self {
        Self { state: State::Queued, stop: Stop::None, interrupt: Interrupt::None }
    }

    /// What the process is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// The stop that is under way.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// How it ended: `Some` as soon as that is known, which is before it is reported.
    pub fn end(&self) -> Option<End> {
        self.state.end()
    }

    /// When [`Input::Tick`] is due: the end of the grace that is running.
    pub fn deadline(&self) -> Option<Instant> {
        match (self.state, self.stop) {
            (State::Queued | State::Closed { .. }, _) => None,
            (_, Stop::Asked { kill_at, .. }) => Some(kill_at),
            (_, Stop::None | Stop::Terminated | Stop::Killing { .. } | Stop::Survived { .. }) => None,
        }
    }

    /// Takes in what has happened and says what to do.
    pub fn step(self, input: Input, now: Instant) -> (Self, Action) {
        match self.state {
            State::Queued => self.while_queued(input),
            State::Starting => self.while_starting(input, now),
            State::Running => self.while_running(input, now),
            State::Exited(exit) => self.after_exit(exit, input, now),
            State::Lingering(exit) => self.while_lingering(exit, input, now),
            State::Closed { .. } => (self, Action::None),
        }
    }

    fn while_queued(self, input: Input) -> (Self, Action) {
        match input {
            Input::Launch => (self.to(State::Starting), Action::Spawn),
            Input::Signal(_) => self.cancel(StopCause::Request),
            Input::Stop { cause, .. } => self.cancel(cause),
            Input::Started
            | Input::StartFailed
            | Input::SignalSettled
            | Input::Tick
            | Input::KillSettled
            | Input::Exited(_)
            | Input::Drained(_)
            | Input::Gone => (self, Action::None),
        }
    }

    fn while_starting(self, input: Input, now: Instant) -> (Self, Action) {
        match input {
            Input::Started => self.started(),
            Input::StartFailed => self.start_failed(),
            Input::Signal(signal) => self.hold_back(signal),
            // Who asked has been told that the process lives on: an interrupt is not sent behind their back.
            Input::SignalSettled => match self.interrupt.settled() {
                Interrupt::None | Interrupt::Spent => (self.interrupted(Interrupt::None), Action::None),
                waiting @ Interrupt::InFlight { .. } => (self.interrupted(waiting), Action::None),
            },
            Input::Stop { cause, grace } => self.ask(cause, grace, now, Action::None),
            Input::Tick => self.tick(now),
            Input::KillSettled => self.kill_settled(),
            // Nothing but a kill can have reached it yet.
            Input::Exited(status) => match self.stop {
                Stop::None | Stop::Terminated | Stop::Asked { .. } => self.exit(status, status.own_outcome()),
                Stop::Killing { .. } | Stop::Survived { .. } => {
                    self.exit(status, self.interrupted(Interrupt::None).outcome(status))
                }
            },
            Input::Launch | Input::Drained(_) | Input::Gone => (self, Action::None),
        }
    }

    fn while_running(self, input: Input, now: Instant) -> (Self, Action) {
        match input {
            Input::Signal(signal) => self.signal(signal),
            Input::SignalSettled => (self.interrupted(self.interrupt.settled()), Action::None),
            Input::Stop { cause, grace } => self.ask(cause, grace, now, Action::TermTree),
            Input::Tick => self.tick(now),
            Input::KillSettled => self.kill_settled(),
            Input::Exited(status) => self.exit(status, self.outcome(status)),
            Input::Launch | Input::Started | Input::StartFailed | Input::Drained(_) | Input::Gone => {
                (self, Action::None)
            }
        }
    }

    /// What can still be done when the root is gone: its tree is stopped, its group is not signalled any more.
    fn after_exit(self, exit: Exit, input: Input, now: Instant) -> (Self, Action) {
        match input {
            Input::Signal(Signal::Kill) => self.signal(Signal::Kill),
            Input::Stop { cause, grace } => self.ask(cause, grace, now, Action::TermTree),
            Input::Tick => self.tick(now),
            Input::KillSettled => self.kill_settled(),
            Input::Drained(Remains::Nothing) => {
                (self.to(State::Closed { end: End::Exited(exit) }), Action::Finish)
            }
            Input::Drained(Remains::Lingerers) => (self.to(State::Lingering(exit)), Action::Finish),
            Input::Gone
            | Input::Signal(Signal::Term | Signal::Int)
            | Input::Launch
            | Input::Started
            | Input::StartFailed
            | Input::SignalSettled
            | Input::Exited(_) => (self, Action::None),
        }
    }

    fn while_lingering(self, exit: Exit, input: Input, now: Instant) -> (Self, Action) {
        match input {
            Input::Gone => (self.to(State::Closed { end: End::Exited(exit) }), Action::Release),
            // The end has been reported.
            Input::Drained(_) => (self, Action::None),
            Input::Launch
            | Input::Started
            | Input::StartFailed
            | Input::Signal(_)
            | Input::SignalSettled
            | Input::Stop { .. }
            | Input::Tick
            | Input::KillSettled
            | Input::Exited(_) => self.after_exit(exit, input, now),
        }
    }

    /// Carries out what was asked while the program was being started.
    fn started(self) -> (Self, Action) {
        let running = self.to(State::Running);
        // Beside a stop the interrupt is not sent any more, so it must not count either.
        let stopping = running.interrupted(Interrupt::None);
        match self.stop {
            Stop::None => match self.interrupt {
                Interrupt::InFlight { .. } => (running, Action::SignalGroup(Signal::Int)),
                Interrupt::None | Interrupt::Spent => (running, Action::None),
            },
            Stop::Terminated => (stopping, Action::SignalGroup(Signal::Term)),
            Stop::Asked { .. } => (stopping, Action::TermTree),
            // The kill may have come before there was anything to kill.
            Stop::Killing { cause } | Stop::Survived { cause } => stopping.kill(cause),
        }
    }

    /// A start that fails before anything was killed has failed by itself.
    fn start_failed(self) -> (Self, Action) {
        match self.stop {
            Stop::None | Stop::Terminated | Stop::Asked { .. } => {
                (self.to(State::Closed { end: End::NotStarted }), Action::Finish)
            }
            Stop::Killing { cause } | Stop::Survived { cause } => self.cancel(cause),
        }
    }

    /// A signal for a program that has no group yet is sent once it has started; a kill cannot wait for that.
    fn hold_back(self, signal: Signal) -> (Self, Action) {
        let (next, action) = self.signal(signal);
        match signal {
            Signal::Int | Signal::Term => (next, Action::None),
            Signal::Kill => (next, action),
        }
    }

    fn signal(self, signal: Signal) -> (Self, Action) {
        let send = Action::SignalGroup(signal);
        match (signal, self.stop) {
            (Signal::Int, Stop::None) => (self.interrupted(self.interrupt.sent()), send),
            (Signal::Term, Stop::None) => (Self { stop: Stop::Terminated, ..self }, send),
            // The end has its cause already: what is sent now does not count for it.
            (Signal::Int | Signal::Term, Stop::Terminated | Stop::Asked { .. } | Stop::Survived { .. }) => {
                (self, send)
            }
            (Signal::Kill, Stop::None | Stop::Terminated) => self.kill(StopCause::Request),
            (Signal::Kill, Stop::Asked { cause, .. } | Stop::Survived { cause }) => self.kill(cause),
            (Signal::Int | Signal::Term | Signal::Kill, Stop::Killing { .. }) => (self, Action::None),
        }
    }

    fn ask(self, cause: StopCause, grace: Duration, now: Instant, request: Action) -> (Self, Action) {
        let asked_until = now + grace.min(LONGEST_GRACE);
        let (cause, kill_at, action) = match self.stop {
            Stop::None => (cause, asked_until, request),
            Stop::Terminated => (StopCause::Request, asked_until, request),
            Stop::Asked { cause: first, kill_at } => (first, kill_at.min(asked_until), Action::None),
            Stop::Killing { .. } => return (self, Action::None),
            Stop::Survived { cause: first } => return self.kill(first),
        };
        if kill_at <= now {
            return self.kill(cause);
        }
        (Self { stop: Stop::Asked { cause, kill_at }, ..self }, action)
    }

    fn tick(self, now: Instant) -> (Self, Action) {
        match self.stop {
            Stop::Asked { cause, kill_at } if kill_at <= now => self.kill(cause),
            Stop::None
            | Stop::Terminated
            | Stop::Asked { .. }
            | Stop::Killing { .. }
            | Stop::Survived { .. } => (self, Action::None),
        }
    }

    fn kill(self, cause: StopCause) -> (Self, Action) {
        (Self { stop: Stop::Killing { cause }, ..self }, Action::KillTree)
    }

    fn kill_settled(self) -> (Self, Action) {
        let stop = match self.stop {
            Stop::Killing { cause } => Stop::Survived { cause },
            other @ (Stop::None | Stop::Terminated | Stop::Asked { .. } | Stop::Survived { .. }) => other,
        };
        (Self { stop, ..self }, Action::None)
    }

    fn cancel(self, cause: StopCause) -> (Self, Action) {
        (self.to(State::Closed { end: End::Canceled { cause } }), Action::Finish)
    }

    fn exit(self, status: ExitStatus, outcome: Outcome) -> (Self, Action) {
        (self.to(State::Exited(Exit { status, outcome })), Action::None)
    }

    /// What an exit counts as that our signals may have caused.
    fn outcome(self, status: ExitStatus) -> Outcome {
        if status == ExitStatus::KeeperLost {
            return Outcome::Lost;
        }
        if self.interrupt.has_ended(status) {
            return Outcome::Killed;
        }
        match self.stop {
            Stop::None => status.own_outcome(),
            Stop::Terminated => Outcome::Killed,
            Stop::Asked { cause, .. } | Stop::Killing { cause } | Stop::Survived { cause } => cause.outcome(),
        }
    }

    fn to(self, state: State) -> Self {
        Self { state, ..self }
    }

    fn interrupted(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }
}

#[cfg(test)]
mod tests;

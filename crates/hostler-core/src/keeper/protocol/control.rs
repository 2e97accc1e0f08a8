//! Between host and keeper on the control socket: whom to signal, and what has happened.

use std::time::Duration;

use super::codec::{Reader, Writer};
use super::{Pids, ProtocolError};
use crate::id::ProcessId;
use crate::lifecycle::ExitStatus;
use crate::sys::clone::{StartFailure, Step};
use crate::sys::signal::Signal;
use crate::sys::wait::Usage;

/// Which processes a signal goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The process group of the root.
    Group,
    /// Everything that belongs to the process, as `docs/design/attribution.md` has it.
    Tree,
}

/// Host to keeper, on the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Send a signal once and say to whom.
    Signal {
        /// Names this request in the answer.
        ticket: u64,
        /// The process.
        id: ProcessId,
        /// Whom of it.
        scope: Scope,
        /// What.
        signal: Signal,
    },
    /// SIGKILL the tree until two passes in a row find nothing, at most for `limit`.
    Kill {
        /// Names this request in the answer.
        ticket: u64,
        /// The process.
        id: ProcessId,
        /// When to give up and report.
        limit: Duration,
    },
    /// End the session: SIGTERM to every descendant, SIGKILL to a fixpoint after `grace`, then the keeper's own end.
    Close {
        /// Names this request in the answer.
        ticket: u64,
        /// Between the two, at most.
        grace: Duration,
        /// When to give up and report, counted from the SIGKILL.
        limit: Duration,
    },
}

const SIGNAL: u16 = 48;
const KILL: u16 = 49;
const CLOSE: u16 = 50;

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl Control {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Signal { ticket, id, scope, signal } => {
                let mut w = Writer::new(SIGNAL);
                w.u64(ticket);
                w.id(id);
                w.u8(u8::from(scope == Scope::Tree));
                w.i32(signal.number());
                w.0
            }
            Self::Kill { ticket, id, limit } => {
                let mut w = Writer::new(KILL);
                w.u64(ticket);
                w.id(id);
                w.u64(millis(limit));
                w.0
            }
            Self::Close { ticket, grace, limit } => {
                let mut w = Writer::new(CLOSE);
                w.u64(ticket);
                w.u64(millis(grace));
                w.u64(millis(limit));
                w.0
            }
        }
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        let control = match kind {
            SIGNAL => Self::Signal {
                ticket: r.u64()?,
                id: r.id()?,
                scope: match r.u8()? {
                    0 => Scope::Group,
                    1 => Scope::Tree,
                    _ => return Err(ProtocolError::Malformed),
                },
                signal: Signal::from_number(r.i32()?).ok_or(ProtocolError::Malformed)?,
            },
            KILL => Self::Kill { ticket: r.u64()?, id: r.id()?, limit: Duration::from_millis(r.u64()?) },
            CLOSE => Self::Close {
                ticket: r.u64()?,
                grace: Duration::from_millis(r.u64()?),
                limit: Duration::from_millis(r.u64()?),
            },
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        Ok(control)
    }
}

/// Keeper to host, on the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// The program executes. Descriptor: its pidfd. Always before the `Exited` of the same process.
    Spawned {
        /// The process.
        id: ProcessId,
        /// Its root's pid.
        pid: i32,
    },
    /// There is no process.
    SpawnFailed {
        /// The process that was asked for.
        id: ProcessId,
        /// Where and why.
        failure: StartFailure,
    },
    /// The root has ended and been reaped.
    Exited {
        /// The process.
        id: ProcessId,
        /// How it ended.
        status: ExitStatus,
        /// What it used.
        usage: Usage,
        /// What it started and left behind alive; one without a pid where that could not be looked at.
        lingerers: Pids,
    },
    /// The last of the lingerers has ended.
    Gone {
        /// The process.
        id: ProcessId,
    },
    /// A control request is done.
    Done {
        /// The request's.
        ticket: u64,
        /// Who got a signal.
        signalled: Pids,
        /// Who of the target still lives.
        survivors: Pids,
        /// Who lives in the session without a sign of which process started it.
        unattributed: Pids,
        /// What kept the last look from being whole, as errno(3) numbers it: there may be others.
        unseen: Option<i32>,
    },
}

const SPAWNED: u16 = 64;
const SPAWN_FAILED: u16 = 65;
const EXITED: u16 = 66;
const GONE: u16 = 67;
const DONE: u16 = 68;

fn micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

impl Writer {
    fn status(&mut self, status: ExitStatus) {
        match status {
            ExitStatus::Code(code) => {
                self.u8(0);
                self.i32(code);
            }
            ExitStatus::Signal { number, core_dumped } => {
                self.u8(if core_dumped { 2 } else { 1 });
                self.i32(number);
            }
            ExitStatus::KeeperLost => {
                self.u8(3);
                self.i32(0);
            }
        }
    }

    fn usage(&mut self, usage: Usage) {
        self.u64(micros(usage.user));
        self.u64(micros(usage.system));
        self.u64(usage.max_rss_kib);
    }
}

impl Reader<'_> {
    fn status(&mut self) -> Result<ExitStatus, ProtocolError> {
        let (kind, value) = (self.u8()?, self.i32()?);
        match kind {
            0 => Ok(ExitStatus::Code(value)),
            1 => Ok(ExitStatus::Signal { number: value, core_dumped: false }),
            2 => Ok(ExitStatus::Signal { number: value, core_dumped: true }),
            3 if value == 0 => Ok(ExitStatus::KeeperLost),
            _ => Err(ProtocolError::Malformed),
        }
    }

    fn usage(&mut self) -> Result<Usage, ProtocolError> {
        Ok(Usage {
            user: Duration::from_micros(self.u64()?),
            system: Duration::from_micros(self.u64()?),
            max_rss_kib: self.u64()?,
        })
    }
}

impl KeeperEvent {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Spawned { id, pid } => {
                let mut w = Writer::new(SPAWNED);
                w.id(*id);
                w.i32(*pid);
                w.0
            }
            Self::SpawnFailed { id, failure } => {
                let mut w = Writer::new(SPAWN_FAILED);
                w.id(*id);
                w.u32(failure.step as u32);
                w.i32(failure.errno);
                w.0
            }
            Self::Exited { id, status, usage, lingerers } => {
                let mut w = Writer::new(EXITED);
                w.id(*id);
                w.status(*status);
                w.usage(*usage);
                w.pids(lingerers);
                w.0
            }
            Self::Gone { id } => {
                let mut w = Writer::new(GONE);
                w.id(*id);
                w.0
            }
            Self::Done { ticket, signalled, survivors, unattributed, unseen } => {
                let mut w = Writer::new(DONE);
                w.u64(*ticket);
                w.pids(signalled);
                w.pids(survivors);
                w.pids(unattributed);
                w.i32(unseen.unwrap_or(0));
                w.0
            }
        }
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        let event = match kind {
            SPAWNED => Self::Spawned { id: r.id()?, pid: r.i32()? },
            SPAWN_FAILED => Self::SpawnFailed {
                id: r.id()?,
                failure: StartFailure {
                    step: Step::from_u32(r.u32()?).ok_or(ProtocolError::Malformed)?,
                    errno: r.i32()?,
                },
            },
            EXITED => {
                Self::Exited { id: r.id()?, status: r.status()?, usage: r.usage()?, lingerers: r.pids()? }
            }
            GONE => Self::Gone { id: r.id()? },
            DONE => Self::Done {
                ticket: r.u64()?,
                signalled: r.pids()?,
                survivors: r.pids()?,
                unattributed: r.pids()?,
                unseen: Some(r.i32()?).filter(|errno| *errno != 0),
            },
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        Ok(event)
    }
}

//! The words between host, nursery and keepers: pure encoding and decoding, no I/O.
//!
//! Every packet starts with the protocol version and its kind, both 16 bit, little-endian like all numbers here.
//! Host and helpers are the same binary, so a different version can only mean that a path option names another
//! build: both sides say so instead of guessing. Descriptors ride beside the bytes (SCM_RIGHTS) and are listed at
//! each message. A body that is too large for a packet travels in a memory file, see [`Body`].

use std::time::Duration;

use crate::id::ProcessId;
use crate::lifecycle::ExitStatus;
use crate::sys::clone::{StartFailure, Step};
use crate::sys::signal::Signal;
use crate::sys::wait::Usage;

/// Version of everything in this file.
pub const VERSION: u16 = 1;

/// The largest packet that is sent as such; what is larger goes by memory file.
pub const MAX_PACKET: usize = 160 * 1024;

/// The most pids that one message lists; further ones are only counted.
pub const MAX_PIDS: usize = 4096;

/// A packet that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {found} of the keeper protocol, this is version {VERSION}: use one build of hostler"
    )]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// The kind is not one that this side receives.
    #[error("unknown packet kind {kind}")]
    Kind {
        /// The number found.
        kind: u16,
    },
    /// The packet ends too early, or holds more than it should, or a value is out of range.
    #[error("malformed packet")]
    Malformed,
}

/// Builds a packet.
#[derive(Debug)]
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u16) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        Self(bytes)
    }

    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn i32(&mut self, v: i32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn id(&mut self, id: ProcessId) {
        self.0.extend_from_slice(&id.to_u128().to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn pids(&mut self, pids: &Pids) {
        self.u32(pids.total);
        let listed = &pids.pids[..pids.pids.len().min(MAX_PIDS)];
        self.u32(listed.len() as u32);
        listed.iter().for_each(|pid| self.i32(*pid));
    }
}

/// Takes a packet apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn open(packet: &'a [u8]) -> Result<(u16, Self), ProtocolError> {
        let mut reader = Self(packet);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(ProtocolError::Version { found: version });
        }
        let kind = reader.u16()?;
        Ok((kind, reader))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(ProtocolError::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        self.take(N)?.try_into().map_err(|_| ProtocolError::Malformed)
    }

    fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, ProtocolError> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Result<ProcessId, ProtocolError> {
        self.array().map(|bytes| ProcessId::from_u128(u128::from_le_bytes(bytes)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], ProtocolError> {
        let n = self.u32()? as usize;
        self.take(n)
    }

    fn pids(&mut self) -> Result<Pids, ProtocolError> {
        let total = self.u32()?;
        let listed = self.u32()? as usize;
        if listed > MAX_PIDS || listed > total as usize {
            return Err(ProtocolError::Malformed);
        }
        let pids = (0..listed).map(|_| self.i32()).collect::<Result<_, _>>()?;
        Ok(Pids { total, pids })
    }

    fn end(self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}

/// A list of pids: all of them counted, the first [`MAX_PIDS`] named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    /// How many there are.
    pub total: u32,
    /// Their pids, cut after [`MAX_PIDS`].
    pub pids: Vec<i32>,
}

impl FromIterator<i32> for Pids {
    fn from_iter<I: IntoIterator<Item = i32>>(pids: I) -> Self {
        let mut list = Self::default();
        for pid in pids {
            list.total = list.total.saturating_add(1);
            if list.pids.len() < MAX_PIDS {
                list.pids.push(pid);
            }
        }
        list
    }
}

/// Host to nursery: start a keeper. Descriptors: the keeper's end of the spawn socket, its end of the control
/// socket, a pidfd of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartKeeper {
    /// Names this request in the answer.
    pub serial: u64,
}

const START_KEEPER: u16 = 1;

impl StartKeeper {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(START_KEEPER);
        w.u64(self.serial);
        w.0
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        if kind != START_KEEPER {
            return Err(ProtocolError::Kind { kind });
        }
        let serial = r.u64()?;
        r.end()?;
        Ok(Self { serial })
    }
}

/// Nursery to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NurseryEvent {
    /// A keeper runs. Descriptor: its pidfd.
    KeeperStarted {
        /// The request's.
        serial: u64,
        /// The keeper.
        pid: i32,
    },
    /// It could not be started.
    KeeperFailed {
        /// The request's.
        serial: u64,
        /// Why, see errno(3).
        errno: i32,
    },
    /// A keeper has ended, and everything that it left behind is dead and reaped.
    Swept {
        /// The keeper.
        pid: i32,
        /// How many processes were killed.
        killed: u32,
    },
}

const KEEPER_STARTED: u16 = 16;
const KEEPER_FAILED: u16 = 17;
const SWEPT: u16 = 18;

impl NurseryEvent {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Self::KeeperStarted { serial, pid } => {
                let mut w = Writer::new(KEEPER_STARTED);
                w.u64(serial);
                w.i32(pid);
                w.0
            }
            Self::KeeperFailed { serial, errno } => {
                let mut w = Writer::new(KEEPER_FAILED);
                w.u64(serial);
                w.i32(errno);
                w.0
            }
            Self::Swept { pid, killed } => {
                let mut w = Writer::new(SWEPT);
                w.i32(pid);
                w.u32(killed);
                w.0
            }
        }
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        let event = match kind {
            KEEPER_STARTED => Self::KeeperStarted { serial: r.u64()?, pid: r.i32()? },
            KEEPER_FAILED => Self::KeeperFailed { serial: r.u64()?, errno: r.i32()? },
            SWEPT => Self::Swept { pid: r.i32()?, killed: r.u32()? },
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        Ok(event)
    }
}

/// A body that stands in the packet or in a memory file (memfd_create(2)) whose descriptor comes last.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the packet.
    Inline(&'a [u8]),
    /// In the file, this many bytes from its start.
    File(u64),
}

/// Host to keeper, on the spawn socket: what all programs of the session have in common. Comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open<'a> {
    /// The session's number for the names of its control groups.
    pub session: u64,
    /// Soft and hard limit of open files for programs.
    pub nofile: (u64, u64),
    /// Folder of the host's control groups, see `sys::cgroup::Base::host_folder`; empty when there are none.
    pub cgroup: &'a [u8],
    /// Text for oom_score_adj; empty keeps the keeper's own.
    pub oom_score_adj: &'a [u8],
    /// Working directory of programs that name none: the host's.
    pub cwd: &'a [u8],
    /// Where programs without a slash in their name are looked for, as in PATH.
    pub search_path: &'a [u8],
    /// The inherited environment: `NAME=value` strings, each ended by NUL.
    pub env: &'a [u8],
}

/// Host to keeper, on the spawn socket: start a program. Descriptors: its stdin, stdout and stderr, then the memory
/// file if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn<'a> {
    /// The process's id, which goes into its environment as well.
    pub id: ProcessId,
    /// Program and arguments, each ended by NUL; at least one.
    pub argv: &'a [u8],
    /// What is laid over the inherited environment, each ended by NUL.
    pub env: &'a [u8],
    /// Working directory, absolute; empty is that of [`Open`].
    pub cwd: &'a [u8],
}

/// What arrives on the spawn socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpawnRequest<'a> {
    /// See [`Open`].
    Open(Open<'a>),
    /// See [`Spawn`].
    Spawn(Spawn<'a>),
}

const OPEN: u16 = 32;
const SPAWN: u16 = 33;
const BY_FILE: u16 = 34;

impl SpawnRequest<'_> {
    /// The request as bytes, which may be larger than a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Open(open) => {
                let mut w = Writer::new(OPEN);
                w.u64(open.session);
                w.u64(open.nofile.0);
                w.u64(open.nofile.1);
                w.bytes(open.cgroup);
                w.bytes(open.oom_score_adj);
                w.bytes(open.cwd);
                w.bytes(open.search_path);
                w.bytes(open.env);
                w.0
            }
            Self::Spawn(spawn) => {
                let mut w = Writer::new(SPAWN);
                w.0.reserve(spawn.argv.len() + spawn.env.len() + spawn.cwd.len() + 32);
                w.id(spawn.id);
                w.bytes(spawn.argv);
                w.bytes(spawn.env);
                w.bytes(spawn.cwd);
                w.0
            }
        }
    }

    /// The packet that stands for a request of `len` bytes in a memory file.
    pub fn by_file(len: u64) -> Vec<u8> {
        let mut w = Writer::new(BY_FILE);
        w.u64(len);
        w.0
    }

    /// Where the bytes of the request are.
    pub fn body(packet: &[u8]) -> Result<Body<'_>, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        if kind != BY_FILE {
            return Ok(Body::Inline(packet));
        }
        let len = r.u64()?;
        r.end()?;
        Ok(Body::File(len))
    }
}

impl<'a> SpawnRequest<'a> {
    /// Reads a request.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let (kind, mut r) = Reader::open(bytes)?;
        let request = match kind {
            OPEN => Self::Open(Open {
                session: r.u64()?,
                nofile: (r.u64()?, r.u64()?),
                cgroup: r.bytes()?,
                oom_score_adj: r.bytes()?,
                cwd: r.bytes()?,
                search_path: r.bytes()?,
                env: r.bytes()?,
            }),
            SPAWN => Self::Spawn(Spawn { id: r.id()?, argv: r.bytes()?, env: r.bytes()?, cwd: r.bytes()? }),
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        match &request {
            Self::Spawn(s) if !(is_block(s.argv) && !s.argv.is_empty() && is_block(s.env)) => {
                Err(ProtocolError::Malformed)
            }
            Self::Open(o) if !is_block(o.env) => Err(ProtocolError::Malformed),
            Self::Spawn(_) | Self::Open(_) => Ok(request),
        }
    }
}

/// Whether these are NUL-ended strings.
fn is_block(bytes: &[u8]) -> bool {
    bytes.last().is_none_or(|last| *last == 0)
}

/// Which processes a signal goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The process group of the root.
    Group,
    /// Everything that belongs to the process, as DESIGN.md attributes it.
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
        /// What it started and left behind alive.
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
            Self::Done { ticket, signalled, survivors, unattributed } => {
                let mut w = Writer::new(DONE);
                w.u64(*ticket);
                w.pids(signalled);
                w.pids(survivors);
                w.pids(unattributed);
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
            },
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        Ok(event)
    }
}

//! From host to keeper on the spawn socket: what to start.

use super::ProtocolError;
use super::codec::{Reader, Writer};
use crate::id::ProcessId;

/// A body that stands in the packet or in a memory file (memfd_create(2)) whose descriptor comes last.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the packet.
    Inline(&'a [u8]),
    /// In the file.
    File {
        /// The process that is asked for, who is told when the file cannot be had or read; `None` for [`Open`].
        id: Option<ProcessId>,
        /// How many bytes from its start.
        len: u64,
    },
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
    /// What is removed when the keeper ends; empty: nothing.
    pub private_folder: &'a [u8],
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
                w.bytes(open.private_folder);
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

    /// The packet that stands for a request of `len` bytes in a memory file, which asks for this process if for any.
    pub fn by_file(id: Option<ProcessId>, len: u64) -> Vec<u8> {
        let mut w = Writer::new(BY_FILE);
        w.u64(len);
        if let Some(id) = id {
            w.id(id);
        }
        w.0
    }

    /// Where the bytes of the request are.
    pub fn body(packet: &[u8]) -> Result<Body<'_>, ProtocolError> {
        let (kind, mut r) = Reader::open(packet)?;
        if kind != BY_FILE {
            return Ok(Body::Inline(packet));
        }
        let len = r.u64()?;
        let id = if r.is_empty() { None } else { Some(r.id()?) };
        r.end()?;
        Ok(Body::File { id, len })
    }

    /// The process that it asks for.
    pub fn id(&self) -> Option<ProcessId> {
        match self {
            Self::Spawn(spawn) => Some(spawn.id),
            Self::Open(_) => None,
        }
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
                private_folder: r.bytes()?,
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

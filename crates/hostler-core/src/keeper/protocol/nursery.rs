//! Between host and nursery.

use super::ProtocolError;
use super::codec::{Reader, Writer};

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
    /// It is up. The first word of a nursery: a program that is none does not say it.
    Ready,
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

const READY: u16 = 15;
const KEEPER_STARTED: u16 = 16;
const KEEPER_FAILED: u16 = 17;
const SWEPT: u16 = 18;

impl NurseryEvent {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Ready => Writer::new(READY).0,
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
            READY => Self::Ready,
            KEEPER_STARTED => Self::KeeperStarted { serial: r.u64()?, pid: r.i32()? },
            KEEPER_FAILED => Self::KeeperFailed { serial: r.u64()?, errno: r.i32()? },
            SWEPT => Self::Swept { pid: r.i32()?, killed: r.u32()? },
            kind => return Err(ProtocolError::Kind { kind }),
        };
        r.end()?;
        Ok(event)
    }
}

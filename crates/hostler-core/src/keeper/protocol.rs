//! The words between host, nursery and keepers: pure encoding and decoding, no I/O.
//!
//! Every packet starts with the protocol version and its kind, both 16 bit, little-endian like all numbers here.
//! Host and helpers are the same binary, so a different version can only mean that a path option names another
//! build: both sides say so instead of guessing. Descriptors ride beside the bytes (SCM_RIGHTS) and are listed at
//! each message. A body that is too large for a packet travels in a memory file, see [`Body`].

mod codec;
mod control;
mod nursery;
mod spawn;
#[cfg(test)]
mod tests;

pub use control::{Control, KeeperEvent, Scope};
pub use nursery::{NurseryEvent, StartKeeper};
pub use spawn::{Body, Open, Spawn, SpawnRequest};

/// Version of everything in this file.
pub const VERSION: u16 = 4;

/// The largest packet that is sent as such; what is larger, or too large for the socket, goes by memory file.
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

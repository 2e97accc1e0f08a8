//! The messages of A2E as Rust values: what a client may send, what we answer, and the words on both.
//!
//! This module owns the JSON of single messages: field names, their order, defaults and the text of every error.
//! It does not know what a message means ([`crate::protocol`]), where lines come from ([`crate::codec`]) or how
//! events are written (`proc/read/event` has its own encoder, [`crate::encode`]).
//!
//! Invariants:
//! - A request is read in two steps, [`Envelope::parse`] and [`Envelope::request`], so that whoever has not shaken
//!   hands learns nothing about the fields of `proc/*`.
//! - Whatever a client sends, reading it yields a request or a [`Malformed`]; nothing panics and nothing recurses.
//! - A reply is one line and holds no raw U+0085, U+2028 or U+2029: some clients split lines there.
//! - Status words and process states come from one exhaustive `match` each ([`Fate`]).

mod field;
mod ids;
mod json;
mod refusal;
mod reply;
mod request;
mod status;

pub use field::{FieldPath, Found, JsonKind};
pub(crate) use ids::count_up;
pub use ids::{MAX_ID_BYTES, MessageIds, ProcId, ReqId, SessionId};
pub use json::Timestamp;
pub(crate) use json::{push_json, push_json_text};
pub(crate) use refusal::Shown;
pub use refusal::{
    Denied, EnvelopeCode, HandshakeRefusal, KillRefusal, Malformed, ProcCode, SpawnRefusal, WriteRefusal,
};
pub use reply::{Accepted, Left, Outcome, Reply};
pub use request::{
    Envelope, HandshakeRequest, ProcKillRequest, ProcSpawnRequest, ProcStatusRequest, ProcWriteRequest,
    Request, RequestType, Secret, ShutdownRequest,
};
pub use status::{
    Fate, ProcState, ProcStatus, StatusWord, Terminal, command_share, overall_status, shown_command,
};

/// The protocol version that every message of ours carries.
pub const VERSION: &str = "1.0";

#[cfg(test)]
mod tests;

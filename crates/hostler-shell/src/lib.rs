//! The shell tools of an agent, without a protocol.
//!
//! (written when the crate is complete)

mod answer;
mod capture;
mod exports;
mod request;
mod state;
mod window;

pub use answer::{Answer, Capture, Details, ErrorCode, Listed, Status};
pub use request::{
    BashRequest, Eof, InputRequest, KillRequest, Look, Mode, OutputRequest, ReadRequest, ReadyRequest,
    SavedState, Terminal, WriteRequest,
};

//! The shell tools of an agent, without a protocol.
//!
//! # Theory of operation
//!
//! A [`Shell`] is a session: it runs commands of bash, and keeps the working directory and the exported variables from one to
//! the next. Each command is a *run*. It starts in the foreground, where its end is waited for, or in the background; one that
//! is waited for too long goes on in the background as the same process, and its output is read on from there. What an agent
//! is told comes back as an [`Answer`]: the program's text, and details that are complete without it.
//!
//! Who starts, feeds, captures and ends processes is `hostler-core`; this crate knows no wire format. Its adapters read
//! requests, wait as long as their clients are patient, and write answers.
//!
//! Invariants:
//! - A run is known before anything of it exists, and its phases go in one direction.
//! - The state of a session is that of the command that ended last; it is taken whole or not at all, and never from one that
//!   was detached, stopped, or begun before a reset.
//! - A line of output is given out once by consuming reads. What is lost is counted, once.
//! - A future that is dropped takes nothing back, stops nothing and reads nothing.
//! - Nothing outlives its session, and no file of it does.

// In reading order.
mod answer;
mod request;
mod shell;

mod capture;
mod exports;
mod reader;
mod run;
mod state;
mod window;

pub use answer::{Answer, Capture, Details, ErrorCode, Listed, Status};
pub use request::{
    BashRequest, Eof, InputRequest, KillRequest, Look, Mode, OutputRequest, ReadRequest, ReadyRequest,
    SavedState, Terminal, WriteRequest,
};
pub use shell::{Detach, Foreground, Policy, Shell, ShellOptions, Started, WorkspaceError};

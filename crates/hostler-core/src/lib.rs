//! Hostler's core: starts, feeds, captures, watches and stops processes, and lets none outlive its owner.
//!
//! # Theory of operation
//!
//! A [`Host`] never starts a program itself. A small helper process, the *nursery*, starts a *keeper* for each
//! [`Session`]; the keeper starts the session's programs and, being their subreaper, keeps everything that they start in
//! turn below itself. Ending a session means that its keeper kills whatever is below it until nothing is. Host gone,
//! keeper gone, nursery gone: each is noticed by one of the others ([`keeper`]).
//!
//! What a program prints is read by one task of the host into a log for each stream ([`capture`]), from which readers
//! pull at their own pace ([`Cursor`], [`Outputs`]). An exit is not the end of output: the end is reported when
//! everything that the program wrote was read ([`drain`]). What a process is doing is one pure state machine
//! ([`lifecycle`]).
//!
//! This crate knows no wire format, no shell and no command line.
//!
//! # Example
//!
//! The file `examples/two_minutes.rs`; `cargo test` runs it.
//!
#![doc = concat!("```standalone_crate\n", include_str!("../examples/two_minutes.rs"), "```")]

pub mod capture;
mod cursor;
pub mod drain;
mod host;
mod id;
pub mod keeper;
pub mod lifecycle;
mod outputs;
mod process;
mod session;
mod spec;
mod state_dir;
mod stdin;
pub mod sys;

pub use capture::{CaptureState, Policy, ReadError, Spool, SpoolView, Stream, Totals};
pub use cursor::{Cursor, Gap, Read as CursorRead, SharedLog};
pub use host::{CgroupUse, Host, HostOptions, StartError};
pub use id::{ParseIdError, ProcessId, SessionId};
pub use keeper::nursery_link::{HelperProgram, NotReady, Nursery, NurseryError};
pub use keeper::protocol::Pids;
pub use keeper::receipt::{Doubt, Receipt};
pub use keeper::respawn::{NoKeeper, NurseryEnd};
pub use keeper::{PROCESS_ID_VARIABLE, run_if_helper};
pub use lifecycle::{End, Exit, ExitStatus, Outcome, State, StopCause};
pub use outputs::{Chunk, Flush, Outputs, Pulled};
pub use process::{Process, Signalled, Status, outcome};
pub use session::{Session, SessionOptions};
pub use spec::{CommandLine, Limit, SpawnError, SpawnSpec, SpecError, StderrMode, StdinMode};
pub use state_dir::{Places, StateDir, StateDirError, StateForecast, StateHome};
pub use stdin::{MAX_WAITING, MAX_WAITING_IN_SESSION, Then, Withdrawn, WriteError, Writing};
pub use sys::signal::Signal;
pub use sys::wait::Usage;

/// The examples of the page are compiled, and the first one is run, by `cargo test --doc`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct EmbeddingPage;

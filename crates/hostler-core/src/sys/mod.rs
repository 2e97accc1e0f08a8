//! The kernel's side of things, and all unsafe code of the workspace.
//!
//! Each file wraps one kind of system call behind a narrow list of functions; nothing here decides anything.
#![expect(unsafe_code, reason = "the one folder that may")]

pub mod cgroup;
pub mod clock;
pub mod clone;
pub mod limits;
pub mod oom;
pub mod packet;
pub mod probe;
pub mod procfs;
pub mod reactor;
pub mod signal;
pub mod wait;

//! What the tests of this workspace share; no production code depends on it.
//!
//! * [`wait`]: wait for a fact with a long maximum instead of sleeping for luck.
//! * [`token`]: a mark in argv or environment by which a test finds every process it caused, and the guard that
//!   fails a test which leaves one behind.
//! * [`processes`]: what `/proc` says about a process.
//! * [`binaries`]: where the helper programs are; they are built when they are missing or old.
//! * [`embedder`]: a whole host in a process of its own, to be ended in any way.
//! * [`env`](mod@env): a hermetic environment.
//! * [`privilege`]: the same command as uid 65534, without cgroups, or without clone3(2).
//! * [`tmpfs`]: a small file system that can be filled up; [`fuse`]: one on which everything hangs.
//! * [`numbered`] and [`counter`]: what the helper child `hostler-evil` prints and counts, so that a test can check
//!   it.
//!
//! The helper child itself is the binary `hostler-evil`; its modes are listed at the top of
//! `src/bin/hostler-evil/main.rs`.
//!
//! Functions here panic instead of returning errors: a test that cannot set up its surroundings has failed.
#![expect(
    clippy::disallowed_methods,
    reason = "the testkit is where tests start processes and read the clock"
)]
#![expect(clippy::panic, clippy::expect_used, reason = "a test kit reports by panics, with the state it saw")]

pub mod wait;

pub mod processes;
pub mod token;

pub mod binaries;
pub mod embedder;
pub mod env;
pub mod fuse;
pub mod privilege;
pub mod tmpfs;

pub mod counter;
pub mod numbered;

pub use binaries::{bin, evil};
pub use counter::SharedCounter;
pub use embedder::{Counts, Embedder, Spawned};
pub use env::TestEnv;
pub use fuse::DeadFuse;
pub use privilege::{
    NOBODY, PublicCopy, as_nobody, can_hide_cgroups, is_root, keep_on_exec, public_copy, without_cgroups,
    without_clone3,
};
pub use processes::{ProcessInfo, children_of, descendants, fd_count, is_alive, rss_kib};
pub use tmpfs::Tmpfs;
pub use token::{NoProcessLeft, Token};
pub use wait::{Observation, read_line, wait_until, wait_until_async};

#[cfg(test)]
mod evil_tests;

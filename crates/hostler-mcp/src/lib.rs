//! The shell tools over the Model Context Protocol.
//!
//! # Theory of operation
//!
//! [`McpServer`] answers what a client asks for with the session of one [`Shell`](hostler_shell::Shell): six tools, and the
//! same processes as resources. The protocol itself, in its revisions from 2024-11-05 to 2026-07-28, is `rmcp`'s. What is here
//! is what it leaves open: arguments that are refused by name (`arguments`), results that are complete both as text and as
//! structure (`wire`), how long a client is kept waiting and what its giving up means (`call`), and an end of input that ends
//! the session at once ([`serve_stdio`]).
//!
//! Invariants:
//! - A call of a command ends by an answer when its client can still be waiting, or by no answer when it was cancelled; the
//!   command lives on unless the cancellation meant it.
//! - Standard output carries protocol alone.
//! - When [`serve_stdio`] returns, nothing of the session is left.
#![forbid(unsafe_code)]

use std::time::Duration;

// In reading order.
mod server;
mod tools;

mod arguments;
mod call;
mod stdio;
mod wire;

pub use server::McpServer;
pub use stdio::{Ending, serve_stdio};
pub use wire::NonzeroExit;

/// What becomes of a command whose client has stopped waiting for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnClientTimeout {
    /// It goes on in the background.
    #[default]
    Detach,
    /// It is stopped, as by any other cancellation.
    Kill,
}

/// How the tools are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McpOptions {
    /// Whether a call fails whose command has exited with another code than 0. Default: it does.
    pub nonzero_exit: NonzeroExit,
    /// How long a client is kept waiting that shows no progress. Default: 50 s.
    pub max_wait_without_progress: Duration,
    /// What becomes of a command whose client has stopped waiting for it. Default: it goes on.
    pub on_client_timeout: OnClientTimeout,
}

impl Default for McpOptions {
    fn default() -> Self {
        Self {
            nonzero_exit: NonzeroExit::IsError,
            max_wait_without_progress: Duration::from_secs(50),
            on_client_timeout: OnClientTimeout::Detach,
        }
    }
}

//! `hostler a2e --stdio` from outside: the built program, real processes, a small client of our own.
//!
//! [`host`] starts the program in an environment of its own and checks at its end that nothing of it is left; [`client`]
//! speaks A2E over any pair of descriptors. The other modules hold the tests, one a matter.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod client;
mod host;
mod raw;

mod bad_input;
mod handshake;
mod audit;
mod channels;
mod stdin;
mod lines;
mod loss;
mod stalled;
mod disk;
mod limits;
mod endings;
mod model;

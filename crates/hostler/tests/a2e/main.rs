//! `hostler a2e` from outside: the built program, real processes, small clients of our own. Over its standard streams, but for
//! what is in [`http`].
//!
//! [`host`] starts the program in an environment of its own and checks at its end that nothing of it is left; [`client`]
//! speaks A2E over any pair of descriptors. The other modules hold the tests, one a matter.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

mod client;
mod host;
mod raw;

mod audit;
mod bad_input;
mod channels;
mod disk;
mod endings;
mod handshake;
mod http;
mod kills;
mod limits;
mod lines;
mod loss;
mod model;
mod pressure;
mod stalled;
mod stdin;

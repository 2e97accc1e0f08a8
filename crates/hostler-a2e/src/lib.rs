//! # A2E: theory of operation
//!
//! An agent speaks A2E to a host: one JSON object per line, requests one way, replies and events the other. This
//! crate is the host's side of that conversation. A line takes this way:
//!
//! 1. [`codec`] cuts the bytes that arrive into lines, in any chunks, and goes on after bad ones.
//! 2. [`wire`] reads a line into a typed request, or says what is wrong with it.
//! 3. [`protocol`] holds what one connection may do (handshake, token, capabilities, allowlist) and turns a request
//!    into a [`protocol::Step`]: an answer, or something to carry out.
//! 4. [`session`] carries it out with processes of the core, and answers with one of the constructors of
//!    [`wire::Reply`], one for each outcome.
//! 5. [`stdio`] brings the bytes in and out, and ends the session with its client; or [`http`] does, for many sessions, whose
//!    clients may come and go: what is said waits in a mailbox for the stream that takes it.
//!
//! What processes print takes another way, because it is the bulk of the traffic: [`encode`] writes it from raw bytes
//! to event lines in one pass, without building a value for each. [`audit`] writes one entry for each `proc/*` request.
//!
//! All but sessions, transports and audit is pure: bytes and values in, bytes and values out. There is no clock (times are
//! passed in), no randomness (ids count up from a seed), nothing asynchronous and no I/O. The wire keeps its own types, so
//! that the core's may change without the wire. For those who write agents there are `docs/a2e.md` and `docs/http.md`.
#![forbid(unsafe_code)]

// In reading order.
pub mod wire;

pub mod codec;

pub mod protocol;

pub mod encode;

pub mod audit;

pub mod session;

mod farewell;

pub mod stdio;

mod sse;

mod mailbox;

pub mod http;

//! The door: what is the same for everything that hostler serves over HTTP.
//!
//! A [`Door`] listens on one address, decides who may come in, and hands what they ask to an [`axum::Router`]. It knows no
//! process and no protocol. A connection takes this way:
//!
//! 1. It is accepted, if there is room for one more. On an address of this machine the kernel is asked whose socket is at
//!    its other end ([`Peer`]): the same user or root, or the door stays shut. That is left out where a token does it.
//! 2. TLS, where the door has a certificate.
//! 3. Each request is looked at before any route sees it: the host that it names, the web page that it comes from, the
//!    bearer token (`guard`).
//! 4. The router answers. It finds the [`Peer`] in the extensions of the request, and the [`Meter`] of the connection.
//!
//! A stream of unknown end goes out by a [`Feed`], which knows at every moment how much of it the connection has taken: what
//! a client that comes back has missed is known to the byte.
//!
//! Invariants:
//! - an address that other machines reach is not served without a token, nor in clear text unless that was asked for;
//! - no connection, request or body is waited for without end, and none makes the accept loop wait;
//! - when [`Door::serve`] returns, no connection of it is left.
#![forbid(unsafe_code)]

// In reading order.
mod address;
mod door;
mod guard;
mod peer;
mod tls;
mod unix;

mod body;
mod feed;
mod linger;
mod meter;
mod throttle;

pub use address::{Address, AddressError};
pub use body::{BodyError, read_body};
pub use door::{ClearText, Door, DoorError, DoorOptions, PeerCheck};
pub use feed::{Delivery, Feed, Source};
pub use guard::BearerToken;
pub use meter::Meter;
pub use peer::Peer;
pub use tls::{TlsError, TlsFiles};
pub use unix::SocketError;

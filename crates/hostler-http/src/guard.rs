//! What a request must look like before any route sees it.
//!
//! Three questions, in this order, for every path and method, known or not: is the host that it names one of ours (so that
//! no web page reaches us by a name that it has rebound to this machine); does it come from a web page, and is that page
//! welcome; does it bring the token. There are no CORS headers: a page of another origin cannot even read a refusal.

use axum::Json;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, Ipv6Addr};
use subtle::ConstantTimeEq;

use crate::throttle::Throttle;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The token that every request must bring. Nothing shows it.
#[derive(Clone)]
pub struct BearerToken(Box<str>);

impl BearerToken {
    /// Takes the text of a token: visible ASCII without spaces, or no header could carry it.
    pub fn new(text: impl Into<Box<str>>) -> Option<Self> {
        let text = text.into();
        let is_sendable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_sendable.then_some(Self(text))
    }

    fn is(&self, offered: &[u8]) -> bool {
        // Says at once that the length is another one, and nothing else by the time it takes.
        self.0.as_bytes().ct_eq(offered).into()
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken")
    }
}

/// The names that a request may use for us, and the token that it must bring.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) bearer: Option<BearerToken>,
    /// Names in a `Host` besides `localhost` and IP addresses.
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    /// Paths that need no token.
    pub(crate) open_paths: &'static [&'static str],
    pub(crate) reached_by: ReachedBy,
    pub(crate) log: Throttle,
}

/// How requests come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReachedBy {
    ClearText,
    Tls,
    /// No name is needed to get here, and no browser can.
    UnixSocket,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("a request needs one Host header, and a target that agrees with it")]
    NoHost,
    #[error(
        "this host is not known by that name: use its IP address or localhost, or add the name to `allowed_hosts`"
    )]
    UnknownHost,
    #[error("web pages of other origins may not send requests here: add the origin to `allowed_origins`")]
    Origin,
    #[error("a bearer token is needed: send the header Authorization: Bearer TOKEN")]
    Token,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoHost => StatusCode::BAD_REQUEST,
            Self::UnknownHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
        };
        let mut response =
            (status, Json(std::collections::BTreeMap::from([("detail", self.to_string())]))).into_response();
        if self == Self::Token {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl Guard {
    /// The answer to a request that may not come in.
    pub(crate) fn refusal<B>(&self, request: &Request<B>) -> Option<Response> {
        self.check(request).err().map(|refusal| {
            self.log.note(|unsaid| {
                let (method, path) = (request.method(), request.uri().path());
                tracing::warn!(%method, path, %refusal, not_shown_before = unsaid, "a request was refused");
            });
            // The connection ends with it: what it may have sent besides is not read.
            let mut response = refusal.into_response();
            response.headers_mut().insert(axum::http::header::CONNECTION, HeaderValue::from_static("close"));
            response
        })
    }

    fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let headers = request.headers();
        let host = self.host(request)?;
        self.origin(headers, &host)?;
        if self.open_paths.contains(&request.uri().path()) { Ok(()) } else { self.token(headers) }
    }

    fn host<B>(&self, request: &Request<B>) -> Result<Authority, Refusal> {
        let host: Authority = one(request.headers(), &HOST)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok())
            .ok_or(Refusal::NoHost)?;
        // Names of users have no business here, an authority with nothing but a port names nobody, and a port is a number.
        let has_port = host.as_str().len() > host.host().len();
        if host.as_str().contains('@') || host.host().is_empty() || has_port != host.port_u16().is_some() {
            return Err(Refusal::NoHost);
        }
        if request.uri().authority().is_some_and(|target| !same(target, &host)) {
            return Err(Refusal::NoHost);
        }
        if self.reached_by != ReachedBy::UnixSocket && !self.knows(host.host()) {
            return Err(Refusal::UnknownHost);
        }
        Ok(host)
    }

    /// An address cannot be rebound; of names only those count that are ours.
    fn knows(&self, host: &str) -> bool {
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_address = name.parse::<Ipv4Addr>().is_ok()
            || name
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
        is_address
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.trim_end_matches('.').eq_ignore_ascii_case(name))
    }

    fn origin(&self, headers: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
        match headers.get_all(ORIGIN).iter().collect::<Vec<_>>().as_slice() {
            [] => {}
            [origin] => {
                let origin = origin.to_str().map_err(|_| Refusal::Origin)?;
                let is_listed = self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin));
                return if is_listed || self.is_own(origin, host) { Ok(()) } else { Err(Refusal::Origin) };
            }
            _ => return Err(Refusal::Origin),
        }
        // A browser says this of itself, and sends no Origin with some requests that it makes for a page.
        let sites: Vec<&[u8]> = headers.get_all(SEC_FETCH_SITE).iter().map(HeaderValue::as_bytes).collect();
        if sites.iter().all(|site| matches!(*site, b"same-origin" | b"none")) {
            Ok(())
        } else {
            Err(Refusal::Origin)
        }
    }

    fn is_own(&self, origin: &str, host: &Authority) -> bool {
        let scheme = match self.reached_by {
            ReachedBy::ClearText => "http://",
            ReachedBy::Tls => "https://",
            ReachedBy::UnixSocket => return false,
        };
        let own = origin.strip_prefix(scheme).and_then(|rest| rest.parse::<Authority>().ok());
        own.is_some_and(|own| same(&own, host))
    }

    fn token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(bearer) = &self.bearer else { return Ok(()) };
        let offered = one(headers, &AUTHORIZATION).ok_or(Refusal::Token)?.as_bytes();
        let (scheme, rest) = offered.split_at_checked(6).ok_or(Refusal::Token)?;
        let token = rest.strip_prefix(b" ").map(<[u8]>::trim_ascii).ok_or(Refusal::Token)?;
        if scheme.eq_ignore_ascii_case(b"bearer") && bearer.is(token) { Ok(()) } else { Err(Refusal::Token) }
    }
}

/// The value of a header that is there once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn same(a: &Authority, b: &Authority) -> bool {
    a.host().eq_ignore_ascii_case(b.host()) && a.port_u16() == b.port_u16()
}

#[cfg(test)]
mod tests;

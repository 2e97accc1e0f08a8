//! Where a door is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`: an IP address, IPv6 in brackets, or `localhost`, which is 127.0.0.1; port 0 is any free one.
    Tcp(SocketAddr),
    /// `unix:PATH`: a socket in the file system.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No port, or no number for one.
    #[error("{0:?} ends with no port: write HOST:PORT, such as 127.0.0.1:8080, or unix:PATH")]
    Port(String),
    /// A name, or nothing, where an IP address must be.
    #[error("{0:?} is no IP address: write one, IPv6 in brackets, or localhost")]
    Host(String),
    /// `unix:` alone.
    #[error("unix: needs the path of a socket")]
    Path,
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(AddressError::Path) } else { Ok(Self::Unix(path.into())) };
        }
        let port = || AddressError::Port(text.to_owned());
        let (host, digits) = text.rsplit_once(':').ok_or_else(port)?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u16>().ok().filter(|_| is_number).ok_or_else(port)?;
        let ip = if host.eq_ignore_ascii_case("localhost") {
            Some(IpAddr::V4(Ipv4Addr::LOCALHOST))
        } else if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inner.parse().ok().map(IpAddr::V6)
        } else {
            host.parse().ok().map(IpAddr::V4)
        };
        let ip = ip.ok_or_else(|| AddressError::Host(host.to_owned()))?;
        Ok(Self::Tcp(SocketAddr::new(ip, number)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_addresses_with_a_port_or_paths() {
        for (text, shown, local) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", true),
            ("127.9.9.9:1", "127.9.9.9:1", true),
            ("LocalHost:0", "127.0.0.1:0", true),
            ("[::1]:80", "[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80", true),
            ("0.0.0.0:80", "0.0.0.0:80", false),
            ("[::]:80", "[::]:80", false),
            ("10.1.2.3:65535", "10.1.2.3:65535", false),
            ("unix:/run/x.sock", "unix:/run/x.sock", true),
            ("unix:x", "unix:x", true),
        ] {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((address.to_string().as_str(), address.is_local()), (shown, local));
        }
    }

    #[test]
    fn what_is_none_is_told_what_it_lacks() {
        let port = |text: &str| Err(AddressError::Port(text.to_owned()));
        let host = |text: &str| Err(AddressError::Host(text.to_owned()));
        for text in ["", "8080", "localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:+1", "127.0.0.1:x"]
        {
            assert_eq!(text.parse::<Address>(), port(text));
        }
        for (text, wrong) in [
            (":8080", ""),
            ("*:80", "*"),
            ("example.org:80", "example.org"),
            ("::1:80", "::1"),
            ("[127.0.0.1]:80", "[127.0.0.1]"),
        ] {
            assert_eq!(text.parse::<Address>(), host(wrong));
        }
        assert_eq!("unix:".parse::<Address>(), Err(AddressError::Path));
    }
}

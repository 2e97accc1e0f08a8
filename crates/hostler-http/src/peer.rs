//! Who is at the other end of a connection of this machine: the kernel knows whose socket it is.
//!
//! A socket of ours is asked for by its four numbers, once, when its connection is accepted: first by an exact query of
//! `sock_diag(7)`, and where that is not to be had in `/proc/net/tcp` and `tcp6` (`proc(5)`). The kernel answers within the
//! call, so nothing is waited for. A socket that has gone meanwhile, or that no process holds any more (it has no inode
//! then), belongs to nobody: whoever connects, writes and leaves at once is a stranger.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A user of this machine, by the kernel's word.
    User(u32),
    /// Somebody at this address.
    Address(IpAddr),
}

/// Asks whose the other end of a TCP connection of this machine is.
#[derive(Debug)]
pub(crate) struct Owners(Source);

#[derive(Debug)]
enum Source {
    SockDiag(OwnedFd),
    Proc,
}

impl Owners {
    /// Finds out how it can be asked here.
    ///
    /// # Errors
    /// When it cannot be asked at all, or the answer would say nothing.
    pub(crate) fn new() -> io::Result<Self> {
        let read = std::fs::read_to_string;
        let (overflow, map) = (read("/proc/sys/kernel/overflowuid"), read("/proc/self/uid_map"));
        let own = rustix::process::geteuid().as_raw();
        if is_everybody_else(own, overflow.as_deref().unwrap_or(""), map.as_deref().unwrap_or("")) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "in this user namespace the users that it does not know are shown as this host's own",
            ));
        }
        if let Ok(socket) = sock_diag_socket() {
            let owners = Self(Source::SockDiag(socket));
            if owners.works()? {
                return Ok(owners);
            }
        }
        let owners = Self(Source::Proc);
        if owners.works()? {
            return Ok(owners);
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "neither sock_diag nor /proc/net/tcp tells whose a socket is",
        ))
    }

    /// Whether it knows the owner of a socket of our own.
    fn works(&self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ours = TcpStream::connect(listener.local_addr()?)?;
        let owner = self.of(ours.local_addr()?, ours.peer_addr()?);
        Ok(matches!(owner, Ok(Some(uid)) if uid == rustix::process::geteuid().as_raw()))
    }

    /// The user whose process holds the socket at `peer` that is connected to ours at `local`; `None`: nobody's does.
    pub(crate) fn of(&self, peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
        let (peer, local) = (canonical(peer), canonical(local));
        match &self.0 {
            Source::SockDiag(socket) => sock_diag(socket, peer, local),
            Source::Proc => proc_net(peer, local),
        }
    }
}

/// Whether a user is the one as which user_namespaces(7) shows those that have no number here: `map` is the `uid_map`.
fn is_everybody_else(own: u32, overflow: &str, map: &str) -> bool {
    let known = |row: &str| row.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    let knows_all = map.lines().filter_map(known).sum::<u64>() >= u64::from(u32::MAX);
    overflow.trim().parse() == Ok(own) && !knows_all
}

/// An IPv4 address that is written as an IPv6 one is an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn sock_diag_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?)
}

const HEADER: usize = 16;
/// `struct inet_diag_sockid` in both messages: ports and addresses, in network order.
const SOCKET_ID: usize = 48;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// The first 36 bytes of a `struct inet_diag_sockid`: which socket.
fn socket_id(peer: SocketAddr, local: SocketAddr) -> [u8; 36] {
    let mut id = [0; 36];
    id[..2].copy_from_slice(&peer.port().to_be_bytes());
    id[2..4].copy_from_slice(&local.port().to_be_bytes());
    for (ip, at) in [(peer.ip(), 4), (local.ip(), 20)] {
        match ip {
            IpAddr::V4(ip) => id[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    id
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    const LENGTH: u32 = (HEADER + 8 + SOCKET_ID) as u32;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend_from_slice(&LENGTH.to_ne_bytes());
    message.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and sender, which a single question needs neither of.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[family(peer), IPPROTO_TCP, 0, 0]);
    // All states: which one it is in is looked at in the answer.
    message.extend_from_slice(&u32::MAX.to_ne_bytes());
    message.extend_from_slice(&socket_id(peer, local));
    // Any interface.
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&NO_COOKIE);
    message
}

fn family(address: SocketAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Small constants of the kernel's.
    family.as_raw() as u8
}

fn sock_diag(socket: &OwnedFd, peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let mut answer = [0; 4096];
    // An answer to an earlier question that was broken off would be taken for one to this.
    while rustix::net::recv(socket, &mut answer[..], RecvFlags::DONTWAIT).is_ok() {}
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &request(peer, local), SendFlags::empty(), &kernel)?;
    let (_, length) = rustix::net::recv(socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    read_answer(&answer[..length.min(4096)], peer, local)
}

/// Reads `struct nlmsghdr` and `struct inet_diag_msg`, or an error in its place.
fn read_answer(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "a short answer of sock_diag");
    let (header, body) = answer.split_at_checked(HEADER).ok_or_else(short)?;
    if header[4..6] == NLMSG_ERROR.to_ne_bytes() {
        let number = body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or_else(short)?;
        return match Errno::from_raw_os_error(-number) {
            Errno::NOENT => Ok(None),
            error => Err(error.into()),
        };
    }
    if header[4..6] != SOCK_DIAG_BY_FAMILY.to_ne_bytes() || body.len() < 72 {
        return Err(short());
    }
    let number = |at: usize| body[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let (uid, inode) = (number(64), number(68));
    // Where no connection has these four numbers, the kernel names a listener that has two of them.
    let is_it = body[4..8] == socket_id(peer, local)[..4] && is_connected(body[1]);
    Ok((is_it && inode != 0).then_some(uid))
}

/// The states of a connection whose other end may still read what we answer.
fn is_connected(state: u8) -> bool {
    const ESTABLISHED: u8 = 1;
    const FIN_WAIT1: u8 = 4;
    const FIN_WAIT2: u8 = 5;
    matches!(state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2)
}

fn proc_net(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    for (file, table) in [("/proc/net/tcp", Table::Tcp), ("/proc/net/tcp6", Table::Tcp6)] {
        let (Some(peer), Some(local)) = (table.address(peer), table.address(local)) else { continue };
        let table = match std::fs::read_to_string(file) {
            Ok(table) => table,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if let Some(uid) = proc_owner(&table, &peer, &local) {
            return Ok(uid);
        }
    }
    Ok(None)
}

/// The owner in the row with these addresses; `Some(None)`: there is such a row, and it is nobody's.
fn proc_owner(table: &str, peer: &str, local: &str) -> Option<Option<u32>> {
    let rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row.get(1) == Some(&peer) && row.get(2) == Some(&local))?;
    let state = row.get(3).and_then(|state| u8::from_str_radix(state, 16).ok())?;
    let (uid, inode) = (row.get(7)?, row.get(9)?);
    Some(if is_connected(state) && *inode != "0" { uid.parse().ok() } else { None })
}

/// Which table.
#[derive(Clone, Copy, Debug)]
enum Table {
    /// IPv4 alone.
    Tcp,
    /// IPv6, and IPv4 in its form.
    Tcp6,
}

impl Table {
    /// An address as the table has it: words of 32 bits as this machine reads them, in hex.
    fn address(self, address: SocketAddr) -> Option<String> {
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let words =
            |bytes: &[u8]| bytes.chunks(4).map(|bytes| format!("{:08X}", word(bytes))).collect::<String>();
        let ip = match (self, address.ip()) {
            (Self::Tcp, IpAddr::V4(ip)) => words(&ip.octets()),
            (Self::Tcp, IpAddr::V6(_)) => return None,
            (Self::Tcp6, IpAddr::V4(ip)) => words(&ip.to_ipv6_mapped().octets()),
            (Self::Tcp6, IpAddr::V6(ip)) => words(&ip.octets()),
        };
        Some(format!("{ip}:{:04X}", address.port()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A connection to a listener: both ends, and the address of the first as the listener sees it.
    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream, SocketAddr) {
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, peer) = listener.accept().unwrap();
        (ours, theirs, peer)
    }

    /// All ways that work here, of which a container may hide one.
    fn ways() -> Vec<Owners> {
        let sources = sock_diag_socket().ok().map(Source::SockDiag).into_iter().chain([Source::Proc]);
        let ways: Vec<Owners> = sources.map(Owners).filter(|owners| owners.works().unwrap()).collect();
        assert!(!ways.is_empty());
        ways
    }

    #[test]
    fn a_connection_is_its_owner_s_and_nobody_s_once_that_has_left() {
        for bind in ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0"] {
            for owners in ways() {
                let listener = match TcpListener::bind(bind) {
                    Ok(listener) => listener,
                    // There is no IPv6 everywhere.
                    Err(_) if bind.starts_with('[') => continue,
                    Err(error) => panic!("{bind}: {error}"),
                };
                let (ours, theirs, peer) = connect(&listener);
                let local = theirs.local_addr().unwrap();
                assert_eq!(owners.of(peer, local).unwrap(), Some(me()), "{bind}, {owners:?}");
                ours.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(owners.of(peer, local).unwrap(), Some(me()), "it still reads");
                drop(ours);
                assert_eq!(owners.of(peer, local).unwrap(), None, "{bind}, {owners:?}");
            }
        }
    }

    #[test]
    fn a_listener_is_not_taken_for_a_connection_and_nothing_for_something() {
        for owners in ways() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let other = SocketAddr::new(address.ip(), 1);
            assert_eq!(owners.of(address, other).unwrap(), None);
            assert_eq!(owners.of(other, address).unwrap(), None);
        }
    }

    #[test]
    fn an_ipv6_socket_that_connects_to_an_ipv4_address_is_found() {
        use rustix::net::{connect, getsockname, socket};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Ok(ours) = socket(AddressFamily::INET6, SocketType::STREAM, None) else { return };
        let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), port);
        connect(&ours, &mapped).unwrap();
        let peer = SocketAddr::try_from(getsockname(&ours).unwrap()).unwrap();
        assert!(peer.is_ipv6());
        for owners in ways() {
            assert_eq!(owners.of(peer, mapped).unwrap(), Some(me()), "{owners:?}");
            let (seen, local) = (canonical(peer), listener.local_addr().unwrap());
            assert_eq!(owners.of(seen, local).unwrap(), Some(me()), "{owners:?}");
        }
    }

    #[test]
    fn rows_without_an_inode_are_nobody_s() {
        let row = |state: &str, inode: &str| {
            format!(
                "   0: 0100007F:C350 0100007F:1F90 {state} 00000000:00000000 00:00000000 00000000  1000 0 {inode} 1 0"
            )
        };
        let owner = |row: &str| proc_owner(row, "0100007F:C350", "0100007F:1F90");
        assert_eq!(owner(&row("01", "77")), Some(Some(1000)));
        assert_eq!(owner(&row("06", "0")), Some(None), "TIME_WAIT");
        assert_eq!(owner(&row("01", "0")), Some(None));
        assert_eq!(owner(&row("0A", "77")), Some(None), "a listener");
        assert_eq!(proc_owner(&row("01", "77"), "0100007F:C350", "0100007F:1F91"), None);
    }

    #[test]
    fn short_answers_are_errors() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        for length in [0, 15, 16, 40, 87] {
            let mut answer = vec![0; length];
            if let Some(kind) = answer.get_mut(4..6) {
                kind.copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            }
            assert!(read_answer(&answer, address, address).is_err(), "{length}");
        }
    }

    #[test]
    fn who_stands_for_unknown_users_cannot_tell_them_from_itself() {
        let everybody = "         0          0 4294967295\n";
        let some = "         0       1000          1\n     65534     165534          1\n";
        assert!(is_everybody_else(65_534, "65534\n", some));
        assert!(!is_everybody_else(65_534, "65534\n", everybody));
        assert!(!is_everybody_else(0, "65534\n", some));
        assert!(!is_everybody_else(65_534, "65533\n", some));
    }

    #[test]
    fn one_of_the_ways_works_here() {
        assert!(Owners::new().is_ok());
    }
}

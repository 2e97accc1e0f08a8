//! Names of sessions and processes.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::rand::{GetRandomFlags, getrandom};

/// Random bits from the kernel.
fn random_bits() -> [u8; 16] {
    let mut bits = [0; 16];
    let mut filled = 0;
    while filled < bits.len() {
        match getrandom(&mut bits[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            // getrandom(2) without flags fails for no other reason; what is filled in by then stays.
            Err(_) => break,
        }
    }
    bits
}

/// Text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 hexadecimal digits")]
pub struct ParseIdError;

fn parse_hex(text: &str) -> Result<u128, ParseIdError> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Err(ParseIdError);
    }
    u128::from_str_radix(text, 16).map_err(|_| ParseIdError)
}

/// A session's name: 128 random bits, shown as 32 hexadecimal digits. Knowing it is what opens the session to a
/// stranger, so it is not shown in logs of other sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u128);

impl SessionId {
    /// A new one.
    pub fn random() -> Self {
        Self(u128::from_le_bytes(random_bits()))
    }

    /// The 128 bits.
    pub fn to_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:08x}…)", self.0 >> 96)
    }
}

impl FromStr for SessionId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_hex(text).map(Self)
    }
}

/// A process's name, shown as 32 hexadecimal digits: bits that are random in each host, then a counter. It is a UUID of
/// version 8 (RFC 9562, "vendor specific").
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(u128);

impl ProcessId {
    pub(crate) fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128 bits, for other spellings of the id (a UUID on the A2E wire).
    pub fn to_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({self})")
    }
}

impl FromStr for ProcessId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_hex(text).map(Self)
    }
}

/// Hands out process ids.
#[derive(Debug)]
pub(crate) struct ProcessIds {
    prefix: u64,
    next: AtomicU64,
}

/// Where a UUID has its version in the upper half, and its variant in the lower.
const VERSION_MASK: u64 = 0xf000;
const VERSION: u64 = 0x8000;
const VARIANT: u64 = 1 << 63;

impl ProcessIds {
    pub(crate) fn new() -> Self {
        let [a, b, c, d, e, f, g, h, ..] = random_bits();
        let prefix = u64::from_le_bytes([a, b, c, d, e, f, g, h]) & !VERSION_MASK | VERSION;
        // Nobody counts up to the bits of the variant.
        Self { prefix, next: AtomicU64::new(VARIANT + 1) }
    }

    pub(crate) fn next(&self) -> ProcessId {
        let low = self.next.fetch_add(1, Ordering::Relaxed);
        ProcessId((u128::from(self.prefix) << 64) | u128::from(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_as_32_digits_and_parse_back() {
        let id = SessionId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(SessionId::random(), id);
        let ids = ProcessIds::new();
        let (a, b) = (ids.next(), ids.next());
        assert!(a < b);
        for id in [a, b, ProcessIds::new().next()] {
            assert_eq!(
                (id.to_u128() >> 76 & 0xf, id.to_u128() >> 62 & 0b11),
                (8, 0b10),
                "{id}: version and variant"
            );
        }
        assert_eq!(a.to_string().parse(), Ok(a));
        for bad in ["", "abc", &"g".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
            assert_eq!(bad.parse::<ProcessId>(), Err(ParseIdError));
        }
    }
}

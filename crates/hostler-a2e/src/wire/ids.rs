//! Identifiers on the wire, and the counter that numbers our own messages.

use std::fmt;

use serde::Serialize;

/// The longest `id` and `proc_id` of a request in bytes. Every event of a process repeats the id of its spawn request, and
/// every entry of the audit holds both: they must stay small, or a few requests fill all its files.
pub const MAX_ID_BYTES: usize = 4096;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub struct $name(Box<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(text.into())
            }

            /// The text as it stands on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// The id of a request, chosen by the client; empty when the client sent none.
    ReqId
}
text_id! {
    /// The id of a process, chosen by the host. In a request it is whatever the client wrote, up to [`MAX_ID_BYTES`].
    ProcId
}
text_id! {
    /// The id of a session, chosen by the host.
    SessionId
}

/// Numbers messages in UUID form: 74 bits that start at random, a counter of 48 bits behind them.
///
/// The version nibble is 8 (RFC 9562, "vendor specific"). Ids of one source never repeat; neither do those of its
/// [lanes](Self::lane), because each lane adds one to the 74 bits.
#[derive(Clone, Debug)]
pub struct MessageIds {
    start: u128,
    lanes: u128,
    text: [u8; Self::LEN],
}

impl MessageIds {
    /// Length of an id in bytes.
    pub const LEN: usize = 36;
    /// Length of the counter at the end of an id in bytes.
    pub(crate) const COUNTER_LEN: usize = 12;
    const START_BITS: u32 = 74;

    /// A source whose ids begin at `seed` (of which 74 bits are used); pass random bits, or fixed ones in a test.
    pub fn new(seed: u128) -> Self {
        let start = seed & ((1 << Self::START_BITS) - 1);
        Self { start, lanes: 0, text: Self::first_text(start) }
    }

    /// A source of its own, for the events of one process, whose ids never meet those of `self` or another lane.
    #[must_use]
    pub fn lane(&mut self) -> Self {
        self.lanes += 1;
        Self::new(self.start.wrapping_add(self.lanes))
    }

    /// The next id, ASCII.
    pub fn next_id(&mut self) -> &str {
        count_up(&mut self.text[Self::LEN - Self::COUNTER_LEN..]);
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The last id given, for an encoder that counts on by itself ([`count_up`]).
    pub(crate) fn last(&self) -> &[u8; Self::LEN] {
        &self.text
    }

    fn first_text(start: u128) -> [u8; Self::LEN] {
        let groups = [
            (start >> 42) & 0xffff_ffff,
            (start >> 26) & 0xffff,
            0x8000 | ((start >> 14) & 0xfff),
            0x8000 | (start & 0x3fff),
        ];
        let text =
            format!("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", groups[0], groups[1], groups[2], groups[3], 0);
        let mut bytes = [b'0'; Self::LEN];
        bytes.copy_from_slice(text.as_bytes());
        bytes
    }
}

/// Adds one to a number in lower-case hexadecimal digits, in place; the highest digit's overflow is dropped.
#[inline]
pub(crate) fn count_up(digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        match *digit {
            b'9' => *digit = b'a',
            b'f' => {
                *digit = b'0';
                continue;
            }
            other => *digit = other + 1,
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_have_uuid_form_and_count_in_hexadecimal() {
        let mut ids = MessageIds::new(u128::MAX);
        let seen: Vec<String> = (0..300).map(|_| ids.next_id().to_owned()).collect();
        assert_eq!(seen[0], "ffffffff-ffff-8fff-bfff-000000000001");
        assert_eq!(seen[9], "ffffffff-ffff-8fff-bfff-00000000000a");
        assert_eq!(seen[15], "ffffffff-ffff-8fff-bfff-000000000010");
        assert_eq!(seen[299], "ffffffff-ffff-8fff-bfff-00000000012c");
    }

    #[test]
    fn ids_of_lanes_never_meet() {
        let mut ids = MessageIds::new(u128::MAX);
        let mut lanes: Vec<MessageIds> = (0..5000).map(|_| ids.lane()).collect();
        let mut seen = HashSet::new();
        for source in lanes.iter_mut().chain([&mut ids]) {
            for _ in 0..3 {
                assert!(seen.insert(source.next_id().to_owned()));
            }
        }
        assert_eq!(seen.len(), 5001 * 3);
    }

    #[test]
    fn counting_drops_only_the_overflow_of_the_highest_digit() {
        let mut digits = *b"ffff";
        count_up(&mut digits);
        assert_eq!(&digits, b"0000");
    }
}

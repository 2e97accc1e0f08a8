//! How our JSON is written: compact, one line, and safe for clients that split at Unicode line ends.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};

/// A moment on the wall clock, as the `ts` of messages: seconds since the Unix epoch, rounded down to microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    micros: u64,
}

impl Timestamp {
    /// The moment that lies `since_epoch` after the Unix epoch.
    pub fn from_unix(since_epoch: Duration) -> Self {
        Self { micros: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX) }
    }
}

impl fmt::Display for Timestamp {
    /// The seconds with six decimals, which is a JSON number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PER_SECOND: u64 = 1_000_000;
        write!(f, "{}.{:06}", self.micros / PER_SECOND, self.micros % PER_SECOND)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "microseconds fit into 53 bits until the year 2255")]
        serializer.serialize_f64(self.micros as f64 / 1e6)
    }
}

/// Appends `value` as compact JSON in which U+0085, U+2028 and U+2029 are escaped.
pub(crate) fn push_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let mut serializer = serde_json::Serializer::with_formatter(out, LineSafe(CompactFormatter));
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok(), "our structs have text keys, and a Vec takes every byte");
}

/// Appends `text` as a JSON string in which U+0085, U+2028 and U+2029 are escaped.
pub(crate) fn push_json_text(out: &mut Vec<u8>, text: &str) {
    push_json(out, text);
}

struct LineSafe(CompactFormatter);

impl Formatter for LineSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['\u{85}', '\u{2028}', '\u{2029}']) {
            let (plain, from) = rest.split_at(at);
            let mut tail = from.chars();
            writer.write_all(plain.as_bytes())?;
            if let Some(unit) = tail.next() {
                write!(writer, "\\u{:04x}", u32::from(unit))?;
            }
            rest = tail.as_str();
        }
        self.0.write_string_fragment(writer, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: &str) -> String {
        let mut out = Vec::new();
        push_json(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn unicode_line_ends_are_escaped_and_nothing_else_is_touched() {
        assert_eq!(
            json("a\u{85}b\u{2028}\u{2029}é€😀\n\"\\\u{7}\u{7f}"),
            "\"a\\u0085b\\u2028\\u2029é€😀\\n\\\"\\\\\\u0007\u{7f}\""
        );
        assert_eq!(json("\u{2028}"), "\"\\u2028\"");
        assert_eq!(json(""), "\"\"");
    }

    #[test]
    fn timestamps_are_floats_with_microseconds() {
        for (micros, short, long) in [
            (0, "0.0", "0.000000"),
            (2_000_000, "2.0", "2.000000"),
            (1_716_123_456_789_001, "1716123456.789001", "1716123456.789001"),
        ] {
            let ts = Timestamp::from_unix(Duration::from_micros(micros));
            assert_eq!(serde_json::to_string(&ts).unwrap(), short);
            assert_eq!(ts.to_string(), long);
        }
    }
}

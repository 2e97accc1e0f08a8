//! Line framing: bytes in any chunks in, one [`Item`] per line out.
//!
//! This module owns where a line begins and ends, its limit and its UTF-8; it does not look at JSON. It does no I/O:
//! whoever reads feeds it ([`LineCodec::next_item`]).
//!
//! Invariants:
//! - Any chunking of the same bytes gives the same items.
//! - Every byte is searched for a line end once, and copied at most once: a line that lies whole in its chunk is lent
//!   from there.
//! - A line beyond the limit gives exactly one [`Item::Bad`] as soon as it is too long; the rest of it is skipped, and
//!   the next line is a line again.
//! - Between lines the codec keeps at most [`KEPT_BYTES`] of memory, however large a line was.

use memchr::memchr;

use crate::wire::Malformed;

/// The longest line that A2E clients may count on: 16 MiB, without its end.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// The memory that a codec may keep between lines, in bytes.
pub const KEPT_BYTES: usize = 64 << 10;

/// What became of a line.
#[derive(Debug)]
pub enum Item<'a> {
    /// A line, without `\n` or `\r\n`, that is not blank.
    Line(&'a str),
    /// A line that can be no message: too long, or no UTF-8.
    Bad(Malformed),
}

impl<'a> Item<'a> {
    /// The item of a body that holds one message, as a request over HTTP does; `None` when it is blank.
    pub fn of_body(body: &'a [u8], limit: usize) -> Option<Self> {
        let body = body.trim_ascii_end();
        if body.len() > limit {
            Some(Self::Bad(Malformed::LineTooLong { limit }))
        } else {
            Self::of_line(body)
        }
    }

    fn of_line(line: &'a [u8]) -> Option<Self> {
        if line.trim_ascii_start().is_empty() {
            return None;
        }
        Some(match std::str::from_utf8(line) {
            Ok(text) => Self::Line(text),
            Err(error) => Self::Bad(Malformed::NotUtf8 { offset: error.valid_up_to() }),
        })
    }
}

/// Cuts a byte stream into lines.
#[derive(Debug)]
pub struct LineCodec {
    limit: usize,
    held: Held,
    buffer: Vec<u8>,
}

/// What the buffer of a codec holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The beginning of a line; nothing between lines.
    Beginning,
    /// Nothing: the rest of a line that was too long is being skipped.
    Skipping,
    /// A whole line, lent by the last call and free now.
    Lent,
}

impl LineCodec {
    /// A codec for lines of at most `limit` bytes (their end not counted), see [`MAX_LINE_BYTES`].
    pub fn new(limit: usize) -> Self {
        Self { limit, held: Held::Beginning, buffer: Vec::new() }
    }

    /// The next item of the stream. Takes what it needs from the front of `input`; call it until it says `None`, with
    /// `input` empty then, and go on with the next chunk.
    pub fn next_item<'a, 'chunk: 'a>(&'a mut self, input: &mut &'chunk [u8]) -> Option<Item<'a>> {
        self.recycle();
        while let Some(end) = memchr(b'\n', input) {
            let (head, rest) = input.split_at(end);
            *input = &rest[1..];
            if self.held == Held::Skipping {
                self.held = Held::Beginning;
            } else if self.buffer.is_empty() {
                if let Some(item) = whole_line(head, self.limit) {
                    return Some(item);
                }
            } else if self.exceeds_limit(head) {
                self.buffer = Vec::new();
                return Some(self.too_long());
            } else {
                self.buffer.extend_from_slice(head);
                self.held = Held::Lent;
                if !self.buffer.trim_ascii_start().is_empty() {
                    return whole_line(&self.buffer, self.limit);
                }
                self.recycle();
            }
        }
        let tail = std::mem::take(input);
        self.keep(tail)
    }

    /// The last line of a stream that ends without `\n`, if there is one.
    pub fn finish(&mut self) -> Option<Item<'_>> {
        self.recycle();
        match std::mem::replace(&mut self.held, Held::Lent) {
            Held::Beginning => whole_line(&self.buffer, self.limit),
            Held::Skipping | Held::Lent => None,
        }
    }

    /// Takes the beginning of a line whose end is not there yet.
    fn keep(&mut self, tail: &[u8]) -> Option<Item<'static>> {
        if self.held == Held::Skipping {
            return None;
        }
        if self.exceeds_limit(tail) {
            self.buffer = Vec::new();
            self.held = Held::Skipping;
            return Some(self.too_long());
        }
        self.buffer.extend_from_slice(tail);
        None
    }

    /// Whether the line would be too long with `more`. A `\r` at its end may belong to the line's end and is free.
    fn exceeds_limit(&self, more: &[u8]) -> bool {
        let ends_in_return = more.last().or(self.buffer.last()) == Some(&b'\r');
        self.buffer.len() + more.len() > self.limit.saturating_add(usize::from(ends_in_return))
    }

    fn too_long(&self) -> Item<'static> {
        Item::Bad(Malformed::LineTooLong { limit: self.limit })
    }

    /// Frees the line that the last call lent, and the memory of a large one.
    fn recycle(&mut self) {
        if self.held == Held::Lent {
            self.held = Held::Beginning;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
        }
    }
}

/// The item of a line without its `\n`; `None` when it is blank.
fn whole_line(line: &[u8], limit: usize) -> Option<Item<'_>> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > limit {
        return Some(Item::Bad(Malformed::LineTooLong { limit }));
    }
    Item::of_line(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What items there are, as text: lines as they are, bad ones as `!` and their message.
    fn shown(item: &Item<'_>) -> String {
        match item {
            Item::Line(line) => (*line).to_owned(),
            Item::Bad(trouble) => format!("!{trouble}"),
        }
    }

    fn items(limit: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut codec = LineCodec::new(limit);
        let mut items = Vec::new();
        for chunk in chunks {
            let mut rest = *chunk;
            while let Some(item) = codec.next_item(&mut rest) {
                items.push(shown(&item));
            }
            assert!(rest.is_empty());
        }
        items.extend(codec.finish().map(|item| shown(&item)));
        items
    }

    const LONG: &str = "!the line is longer than 8 bytes; split the data over several messages";

    #[test]
    fn lines_come_out_of_any_chunks() {
        let table: [(&[&[u8]], &[&str]); 17] = [
            (&[b"a\nb\n"], &["a", "b"]),
            (&[b"a", b"b\nc", b"\n"], &["ab", "c"]),
            (&[b"a\r\n", b"b\r", b"\n", b"c\rd\n"], &["a", "b", "c\rd"]),
            (&[b"\n\r\n   \n\t\n", b" ", b"\n", b"x\n"], &["x"]),
            (&[b"no end"], &["no end"]),
            (&[b"a\nre", b"st\r"], &["a", "rest"]),
            (&[b"", b""], &[]),
            (&[b"12345678\n", b"1234", b"5678", b"\r\n"], &["12345678", "12345678"]),
            (&[b"12345678\r\n", b"12345678\r", b"\n"], &["12345678", "12345678"]),
            (&[b"123456789\nok\n"], &[LONG, "ok"]),
            (&[b"12345678\rx\nok\n"], &[LONG, "ok"]),
            (&[b"12345678\r", b"x", b"x\nok\n"], &[LONG, "ok"]),
            (&[b"12345", b"6789", b"0123456789", b"\nok\n"], &[LONG, "ok"]),
            (&[b"12345", b"6789\n", b"ok\n"], &[LONG, "ok"]),
            (&[b"123456789"], &[LONG]),
            (
                &[b"a\xffb\n", b"ok\n"],
                &["!the line is no UTF-8 from byte 1 on; send one JSON object per line in UTF-8", "ok"],
            ),
            (&["€\n".as_bytes().split_at(1).0, "€\n".as_bytes().split_at(1).1], &["€"]),
        ];
        for (chunks, expected) in table {
            assert_eq!(items(8, chunks), expected, "{chunks:?}");
        }
    }

    #[test]
    fn a_too_long_line_is_reported_before_its_end_has_come() {
        let mut codec = LineCodec::new(8);
        let mut rest = &b"1234567890"[..];
        assert_eq!(codec.next_item(&mut rest).map(|item| shown(&item)).as_deref(), Some(LONG));
        assert!(codec.next_item(&mut rest).is_none());
    }

    #[test]
    fn a_line_that_lies_whole_in_its_chunk_is_lent_from_there() {
        let mut codec = LineCodec::new(MAX_LINE_BYTES);
        let chunk = b"begin\nwhole line\n".to_vec();
        let mut rest = &chunk[..];
        for _ in 0..2 {
            let Some(Item::Line(line)) = codec.next_item(&mut rest) else { panic!("no line") };
            assert!(chunk.as_ptr_range().contains(&line.as_ptr()));
        }
        assert_eq!(codec.buffer.capacity(), 0);
    }

    #[test]
    fn the_memory_of_a_large_line_is_given_back() {
        let mut codec = LineCodec::new(MAX_LINE_BYTES);
        let piece = vec![b'x'; 1 << 20];
        for chunk in [&piece[..], &piece, b"\n"] {
            let mut rest = chunk;
            while let Some(item) = codec.next_item(&mut rest) {
                assert_eq!(shown(&item).len(), 2 << 20);
            }
        }
        assert!(codec.buffer.capacity() <= KEPT_BYTES, "{}", codec.buffer.capacity());
        for _ in 0..20 {
            let mut rest = &piece[..];
            while codec.next_item(&mut rest).is_some() {}
        }
        assert_eq!(codec.buffer.capacity(), 0, "a line that is being skipped holds nothing");
    }

    #[test]
    fn a_body_is_one_message() {
        let body = |bytes: &'static [u8]| Item::of_body(bytes, 8).map(|item| shown(&item));
        assert_eq!(body(b"{}\r\n").as_deref(), Some("{}"));
        assert_eq!(body(b"{\n}").as_deref(), Some("{\n}"));
        assert_eq!(body(b" \n"), None);
        assert_eq!(body(b"123456789").as_deref(), Some(LONG));
        assert_eq!(body(b"12345678\n").as_deref(), Some("12345678"));
        assert!(body(b"\xff").is_some_and(|text| text.starts_with("!the line is no UTF-8 from byte 0 on")));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_items(
            bytes in prop::collection::vec(prop::sample::select(b"ab \r\n\n\xe2\x82\xac\xff".to_vec()), 0..80),
            cuts in prop::collection::vec(1usize..12, 1..10),
            limit in 0usize..12,
        ) {
            let mut chunks = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, later) = rest.split_at(rest.len().min(*cut));
                chunks.push(chunk);
                rest = later;
            }
            prop_assert_eq!(items(limit, &chunks), items(limit, &[&bytes]));
        }
    }
}

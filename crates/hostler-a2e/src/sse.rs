//! Server-sent events: one frame for each message, as the stream of `GET /stream` has them.
//!
//! A frame is `id: N`, `data: {json}` and a blank line. `N` is the offset behind the message in all that its session has
//! said, so that ids need no index: they grow, and tell where to go on. What begins with a colon is a comment.

use bytes::{BufMut, BytesMut};
use memchr::memchr;
use memchr::memmem;

/// Keeps a connection alive that has nothing to say, and says at its beginning that it stands.
pub(crate) const COMMENT: &[u8] = b": alive\n\n";

const BEFORE_ID: &[u8] = b"id: ";
const BEFORE_DATA: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// Appends the frames of whole lines, of which the first begins at offset `at`.
pub(crate) fn push_frames(lines: &[u8], mut at: u64, out: &mut BytesMut) {
    let mut decimal = itoa::Buffer::new();
    let mut rest = lines;
    while let Some(end) = memchr(b'\n', rest) {
        let (line, later) = rest.split_at(end + 1);
        at += line.len() as u64;
        out.extend_from_slice(BEFORE_ID);
        out.extend_from_slice(decimal.format(at).as_bytes());
        out.put_u8(b'\n');
        push_data(line, out);
        rest = later;
    }
    debug_assert!(rest.is_empty(), "what a session says are whole lines");
}

/// Appends a frame without an id: whoever reads it has read no further by that.
pub(crate) fn push_unnumbered(line: &[u8], out: &mut BytesMut) {
    push_data(line, out);
}

fn push_data(line: &[u8], out: &mut BytesMut) {
    out.extend_from_slice(BEFORE_DATA);
    out.extend_from_slice(line);
    // The line's own end is the first half of it.
    out.put_u8(b'\n');
}

/// The id of the last frame that has one and is whole, in the beginning of a run of frames.
pub(crate) fn last_id(frames: &[u8]) -> Option<u64> {
    let mut end = memmem::rfind(frames, END)?;
    loop {
        let start = memmem::rfind(&frames[..end], END).map(|before| before + END.len());
        let frame = &frames[start.unwrap_or(0)..end];
        if let Some(id) = id_of(frame) {
            return Some(id);
        }
        end = start? - END.len();
    }
}

fn id_of(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(BEFORE_ID)?;
    parse_id(&rest[..memchr(b'\n', rest)?])
}

/// Reads an id as [`push_frames`] writes it.
pub(crate) fn parse_id(text: &[u8]) -> Option<u64> {
    let id: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // One spelling each: no sign, no leading zero.
    (itoa::Buffer::new().format(id).as_bytes() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_frame_and_its_id_the_offset_behind_it() {
        let mut out = BytesMut::new();
        push_frames(b"{\"a\":1}\n{}\n", 990, &mut out);
        assert_eq!(out[..], b"id: 998\ndata: {\"a\":1}\n\nid: 1001\ndata: {}\n\n"[..]);
    }

    #[test]
    fn the_last_whole_frame_with_an_id_is_found_however_much_of_the_frames_is_there() {
        let mut frames = BytesMut::new();
        let mut ends = vec![(0, None)];
        let mut id = None;
        for line in [&b"{}\n"[..], b"", b"{\"data\":\"id: 7\"}\n", b"{}\n"] {
            if line.is_empty() {
                frames.extend_from_slice(COMMENT);
                push_unnumbered(b"{\"type\":\"error\"}\n", &mut frames);
            } else {
                let at = id.unwrap_or(5);
                push_frames(line, at, &mut frames);
                id = Some(at + line.len() as u64);
            }
            ends.push((frames.len(), id));
        }
        for length in 0..=frames.len() {
            let whole = ends.iter().rev().find(|(end, _)| *end <= length).and_then(|(_, id)| *id);
            assert_eq!(last_id(&frames[..length]), whole, "{length} bytes");
        }
    }

    #[test]
    fn ids_are_decimal_numbers_in_one_spelling() {
        assert_eq!(parse_id(b"0"), Some(0));
        assert_eq!(parse_id(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"01", b"-1", b" 1", b"1 ", b"x", b"18446744073709551616", b"\xff"] {
            assert_eq!(parse_id(bad), None, "{bad:?}");
        }
    }
}

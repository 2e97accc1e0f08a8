//! How much of an output is shown, and where it is cut.
//!
//! A window is 51,200 bytes and 2,000 lines: the first and the last half of each, cut at the borders of lines, and where a
//! line is longer than that at those of characters. These functions look at bytes alone.

/// Bytes of a window.
pub(crate) const BYTES: usize = 51_200;
/// Lines of a window.
pub(crate) const LINES: usize = 2_000;

/// The longest character of UTF-8.
const LONGEST: usize = 4;

/// Lines of an output that has so many newlines, and so many bytes behind the last one.
pub(crate) fn lines_of(newlines: u64, bytes_behind: u64) -> u64 {
    newlines + bytes_behind.min(1)
}

/// Lines that a part has, one that is not whole included.
pub(crate) fn count(part: &[u8]) -> u64 {
    let newlines = memchr::memchr_iter(b'\n', part).count() as u64;
    let behind = part.len() - memchr::memrchr(b'\n', part).map_or(0, |at| at + 1);
    lines_of(newlines, behind as u64)
}

/// How many bytes of `part`, with which an output or the rest of one begins, are shown within these limits. Not all of it may
/// be there to be seen: what is cut is never the last character, but at a border.
pub(crate) fn first(part: &[u8], bytes: usize, lines: usize) -> usize {
    let by_lines =
        memchr::memchr_iter(b'\n', part).nth(lines.saturating_sub(1)).map_or(part.len(), |at| at + 1);
    if by_lines <= bytes {
        return by_lines;
    }
    match memchr::memrchr(b'\n', &part[..bytes]) {
        Some(at) => at + 1,
        None => before_character(part, bytes),
    }
}

/// Where in `part`, with which an output ends, begins what is shown within these limits.
pub(crate) fn last(part: &[u8], bytes: usize, lines: usize) -> usize {
    let body = part.strip_suffix(b"\n").unwrap_or(part);
    let by_lines = memchr::memrchr_iter(b'\n', body).nth(lines.saturating_sub(1)).map_or(0, |at| at + 1);
    let by_bytes = part.len().saturating_sub(bytes);
    if by_lines >= by_bytes {
        return by_lines;
    }
    // A line that begins just there is whole.
    if part[by_bytes - 1] == b'\n' {
        return by_bytes;
    }
    match memchr::memchr(b'\n', &body[by_bytes.min(body.len())..]) {
        Some(at) => by_bytes + at + 1,
        None => after_character(part, by_bytes),
    }
}

/// The border of a character at or before `at`.
pub(crate) fn before_character(text: &[u8], at: usize) -> usize {
    let begins = |at: &usize| text.get(*at).is_none_or(|byte| !is_continuation(*byte));
    (at.saturating_sub(LONGEST - 1)..=at).rev().find(begins).filter(|border| *border > 0).unwrap_or(at)
}

fn after_character(text: &[u8], at: usize) -> usize {
    let begins = |at: &usize| text.get(*at).is_none_or(|byte| !is_continuation(*byte));
    (at..at + LONGEST).find(begins).unwrap_or(at)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// How long `text` is without a character at its end whose rest has not come yet.
pub(crate) fn whole_characters(text: &[u8]) -> usize {
    let tail = text.len().saturating_sub(LONGEST - 1);
    let Some(start) = (tail..text.len()).rev().find(|at| !is_continuation(text[*at])) else {
        return text.len();
    };
    match std::str::from_utf8(&text[start..]) {
        // It may be the beginning of something, and is not wrong yet.
        Err(error) if error.error_len().is_none() => start,
        Ok(_) | Err(_) => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_first(part: &str, bytes: usize, lines: usize, shown: &str) {
        assert_eq!(&part[..first(part.as_bytes(), bytes, lines)], shown, "{part:?}, {bytes}, {lines}");
    }

    fn check_last(part: &str, bytes: usize, lines: usize, shown: &str) {
        assert_eq!(&part[last(part.as_bytes(), bytes, lines)..], shown, "{part:?}, {bytes}, {lines}");
    }

    #[test]
    fn a_beginning_is_cut_behind_a_line_or_inside_of_one_that_is_too_long() {
        check_first("a\nb\nc\n", 100, 2, "a\nb\n");
        check_first("a\nb\nc\n", 5, 9, "a\nb\n");
        check_first("a\nb\nc\n", 6, 9, "a\nb\nc\n");
        check_first("a\nb\nc", 100, 9, "a\nb\nc");
        check_first("abcdef\n", 3, 9, "abc");
        check_first("a\u{4f60}\u{4f60}\n", 5, 9, "a\u{4f60}");
        check_first("", 5, 9, "");
    }

    #[test]
    fn an_end_is_cut_before_a_line_or_inside_of_one_that_is_too_long() {
        check_last("a\nb\nc\n", 100, 2, "b\nc\n");
        check_last("a\nb\nc", 100, 2, "b\nc");
        check_last("a\nb\nc\n", 5, 9, "b\nc\n");
        check_last("a\nb\nc\n", 4, 9, "b\nc\n");
        check_last("a\nb\nc\n", 6, 9, "a\nb\nc\n");
        check_last("abcdef\n", 3, 9, "ef\n");
        check_last("a\u{4f60}\u{4f60}\n", 6, 9, "\u{4f60}\n");
        check_last("", 5, 9, "");
    }

    #[test]
    fn a_character_whose_rest_may_still_come_is_left_out() {
        let check = |text: &[u8], whole: usize| assert_eq!(whole_characters(text), whole, "{text:?}");
        check(b"a", 1);
        check(b"a\xe2", 1);
        check(b"a\xe2\x80", 1);
        check(b"a\xe2\x80\x94", 4);
        check(b"a\xff", 2);
        check(b"a\x80", 2);
        check(b"\xf0\x9f\x98", 0);
        check(b"", 0);
    }

    proptest! {
        #[test]
        fn parts_are_within_their_limits_and_never_empty(text in "[a\n\u{4f60}]{1,60}", bytes in 4_usize..40, lines in 1_usize..9) {
            let text = text.as_bytes();
            let (head, tail) = (first(text, bytes, lines), last(text, bytes, lines));
            prop_assert!(0 < head && head <= bytes.min(text.len()) && tail < text.len() && text.len() - tail <= bytes);
            prop_assert!(count(&text[..head]) <= lines as u64 && count(&text[tail..]) <= lines as u64);
            prop_assert!(std::str::from_utf8(&text[..head]).is_ok() && std::str::from_utf8(&text[tail..]).is_ok());
        }
    }
}

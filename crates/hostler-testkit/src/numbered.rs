//! The numbered lines that `hostler-evil` prints: 80 bytes each, so that a reader can tell a lost, doubled, cut or
//! reordered line from a good one.

/// Length of a line in bytes, newline included.
pub const LINE_BYTES: usize = 80;

/// Lines that mode `linger` writes to stdout and to stderr each. Together with the line `ready` they fit into a pipe
/// of 64 KiB, so the root exits at once even if nobody reads.
pub const LINGER_LINES: u64 = 500;

/// How a line of a flooding lingerer begins; no numbered line begins so.
pub const LATE_PREFIX: u8 = b'L';

const DIGITS: usize = 12;
const FILLING: &[u8; LINE_BYTES] =
    b"000000000000 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789-+\n";

/// The line with this number: 12 digits, a blank, a fixed text, a newline.
///
/// ```
/// use hostler_testkit::numbered::{line, number_of};
///
/// assert!(line(42).starts_with(b"000000000042 abc"));
/// assert_eq!(number_of(&line(42)), Some(42));
/// ```
pub fn line(number: u64) -> [u8; LINE_BYTES] {
    let mut line = *FILLING;
    let mut rest = number;
    for digit in line[..DIGITS].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("a decimal digit");
        rest /= 10;
    }
    line
}

/// Number of a line, given with or without its newline; `None` if a single byte of it is wrong.
pub fn number_of(text: &[u8]) -> Option<u64> {
    let (digits, filling) = text.split_at_checked(DIGITS)?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let expected = line(number);
    let (body, newline) = expected[DIGITS..].split_at(LINE_BYTES - DIGITS - 1);
    let filling = filling.strip_suffix(newline).unwrap_or(filling);
    (filling == body && digits == &expected[..DIGITS]).then_some(number)
}

/// The line that a flooding lingerer writes: `L`, then as [`line()`] from the second byte on.
pub fn late_line(number: u64) -> [u8; LINE_BYTES] {
    let mut late = line(number);
    late[0] = LATE_PREFIX;
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_80_bytes_and_gives_its_number_back() {
        for number in [0, 1, 9, 10, 123_456_789_012, 999_999_999_999] {
            let line = line(number);
            assert_eq!((line.len(), line[LINE_BYTES - 1]), (LINE_BYTES, b'\n'));
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            assert_eq!(number_of(&line), Some(number));
            assert_eq!(number_of(&line[..LINE_BYTES - 1]), Some(number));
        }
    }

    #[test]
    fn a_damaged_line_has_no_number() {
        let good = line(77);
        for index in 0..LINE_BYTES {
            let mut bad = good;
            bad[index] = b'~';
            assert_eq!(number_of(&bad), None, "byte {index}");
            assert_eq!(number_of(&good[..index]), (index == LINE_BYTES - 1).then_some(77), "cut to {index}");
        }
        assert_eq!(number_of(&late_line(77)), None);
        assert_eq!(number_of(b"+00000000077 abc"), None);
    }

    #[test]
    fn all_that_a_lingering_root_writes_fits_into_one_pipe() {
        let lines = usize::try_from(LINGER_LINES).unwrap();
        assert!(lines * LINE_BYTES + "ready\n".len() <= 60 * 1024);
    }
}

//! Text into the inside of a JSON string, or of a JSON string inside a JSON string.

use super::DataForm;

/// U+FFFD, which stands for bytes that are no UTF-8.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Appends `text` escaped for `form`; invalid UTF-8 becomes U+FFFD, one for each maximal subpart.
#[inline]
pub(super) fn push_text(form: DataForm, text: &[u8], out: &mut Vec<u8>) {
    if is_plain(text) { out.extend_from_slice(text) } else { push_special_text(form, text, out) }
}

fn push_special_text(form: DataForm, text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Err(error) = std::str::from_utf8(rest) {
        let (valid, invalid) = rest.split_at(error.valid_up_to());
        push_valid_text(form, valid, out);
        out.extend_from_slice(REPLACEMENT);
        rest = &invalid[error.error_len().unwrap_or(invalid.len())..];
    }
    push_valid_text(form, rest, out);
}

/// Appends text that is known to be UTF-8.
fn push_valid_text(form: DataForm, text: &[u8], out: &mut Vec<u8>) {
    // What lies between `copied` and `at` needs no escape.
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = next_special(text, at) {
        let (width, escape) = match text[found] {
            byte @ 0..0x80 => (1, of_ascii(form, byte)),
            _ => of_line_end(form, &text[found..]),
        };
        if !escape.is_empty() {
            out.extend_from_slice(&text[copied..found]);
            out.extend_from_slice(escape);
            copied = found + width;
        }
        at = found + width;
    }
    out.extend_from_slice(&text[copied..]);
}

/// The width and the escape of the Unicode line end that `text` begins with; a byte without escape where it is none.
#[inline]
fn of_line_end(form: DataForm, text: &[u8]) -> (usize, &'static [u8]) {
    let (width, string, object): (usize, &'static [u8], &'static [u8]) = match text {
        [0xc2, 0x85, ..] => (2, br"\\u0085", br"\u0085"),
        [0xe2, 0x80, 0xa8, ..] => (3, br"\\u2028", br"\u2028"),
        [0xe2, 0x80, 0xa9, ..] => (3, br"\\u2029", br"\u2029"),
        _ => (1, b"", b""),
    };
    match form {
        DataForm::String => (width, string),
        DataForm::Object => (width, object),
    }
}

/// The escape of an ASCII character that needs one.
#[inline]
pub(super) fn of_ascii(form: DataForm, byte: u8) -> &'static [u8] {
    static STRING: [Escape; 128] = table(DataForm::String);
    static OBJECT: [Escape; 128] = table(DataForm::Object);
    let escape = match form {
        DataForm::String => &STRING[usize::from(byte & 0x7f)],
        DataForm::Object => &OBJECT[usize::from(byte & 0x7f)],
    };
    &escape.text[..usize::from(escape.length)]
}

#[derive(Clone, Copy)]
struct Escape {
    length: u8,
    text: [u8; 7],
}

impl Escape {
    const fn push(&mut self, byte: u8) {
        self.text[self.length as usize] = byte;
        self.length += 1;
    }

    /// Adds one character of JSON, in the form that it has inside `data`.
    const fn push_json(&mut self, form: DataForm, byte: u8) {
        if matches!(form, DataForm::String) && matches!(byte, b'"' | b'\\') {
            self.push(b'\\');
        }
        self.push(byte);
    }
}

const fn table(form: DataForm) -> [Escape; 128] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut table = [Escape { length: 0, text: [0; 7] }; 128];
    let mut byte = 0;
    while byte < 128 {
        let escape = &mut table[byte as usize];
        escape.push_json(form, b'\\');
        match byte {
            b'"' | b'\\' => escape.push_json(form, byte),
            0x08 => escape.push(b'b'),
            b'\t' => escape.push(b't'),
            b'\n' => escape.push(b'n'),
            0x0c => escape.push(b'f'),
            b'\r' => escape.push(b'r'),
            _ => {
                escape.push(b'u');
                escape.push(b'0');
                escape.push(b'0');
                escape.push(HEX[(byte >> 4) as usize]);
                escape.push(HEX[(byte & 0xf) as usize]);
            }
        }
        byte += 1;
    }
    table
}

/// Whether a text can be copied as it is. Without a branch inside a block, so that the compiler makes vectors of it.
#[inline]
fn is_plain(text: &[u8]) -> bool {
    let (blocks, rest) = text.as_chunks::<32>();
    let mut special = 0;
    for block in blocks {
        special |= block.iter().fold(0, |special, byte| special | special_bit(*byte));
    }
    special | rest.iter().fold(0, |special, byte| special | special_bit(*byte)) == 0
}

#[inline]
fn special_bit(byte: u8) -> u8 {
    u8::from(byte < 0x20) | u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte >= 0x80)
}

/// The place of the first byte from `from` on that may need an escape, in UTF-8: a control character, a quote, a
/// backslash, or one of the two bytes that Unicode line ends begin with.
#[inline]
fn next_special(text: &[u8], from: usize) -> Option<usize> {
    let (words, rest) = text[from..].as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let found = special_bytes(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(from + index * 8 + (found.trailing_zeros() / 8) as usize);
        }
    }
    let at = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\' | 0xc2 | 0xe2))?;
    Some(text.len() - rest.len() + at)
}

/// The high bit of each of eight bytes that may need an escape. A borrow can mark further bytes, but only above a true
/// one, so the lowest mark is exact.
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let below = |limit: u64, word: u64| word.wrapping_sub(ONES * limit) & !word;
    let equals = |byte: u64, word: u64| below(1, word ^ (ONES * byte));
    let control = below(0x20, word);
    let quote = equals(0x22, word);
    let backslash = equals(0x5c, word);
    // 0xc2 and 0xe2 differ in one bit.
    let line_end = equals(0xc2, word & (ONES * 0xdf));
    (control | quote | backslash | line_end) & (ONES * 0x80)
}

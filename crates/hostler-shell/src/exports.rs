//! What `export -p` of bash prints, read back to the byte.
//!
//! Each variable is `declare -x NAME="VALUE"` (with more letters where it has more attributes), or `export NAME="VALUE"` in
//! posix mode. A value stands in double quotes with a backslash before `"`, `$`, `` ` `` and `\`, or as `$'…'` with the
//! escapes of C where it holds what cannot be printed. A variable without a value, or an array, is exported to nobody.

/// Names and values, in the order of the text. What is no such line is skipped: a command can write into the file too.
pub(crate) fn parse(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        match declaration(rest) {
            Some((variable, after)) => {
                found.extend(variable);
                rest = after;
            }
            None => rest = after_line(rest),
        }
    }
    found
}

fn after_line(text: &[u8]) -> &[u8] {
    memchr::memchr(b'\n', text).map_or(&[], |at| &text[at + 1..])
}

type Variable = (Vec<u8>, Vec<u8>);

/// One declaration and what follows its line; no variable where it has no value that is exported.
fn declaration(text: &[u8]) -> Option<(Option<Variable>, &[u8])> {
    let (is_exported, rest) = attributes(text)?;
    let length = name_length(rest);
    let (name, rest) = rest.split_at(length);
    if name.is_empty() {
        return None;
    }
    let Some(value) = rest.strip_prefix(b"=") else {
        return rest.strip_prefix(b"\n").map(|after| (None, after));
    };
    let (value, after) = quoted(value)?;
    let after = if after.is_empty() { after } else { after.strip_prefix(b"\n")? };
    Some((is_exported.then(|| (name.to_vec(), value)), after))
}

/// Whether what is declared has a value that others get, and what comes behind `declare -… `.
fn attributes(text: &[u8]) -> Option<(bool, &[u8])> {
    if let Some(rest) = text.strip_prefix(b"export ") {
        return Some((true, rest));
    }
    let rest = text.strip_prefix(b"declare -")?;
    let end = memchr::memchr(b' ', rest)?;
    let (letters, rest) = rest.split_at(end);
    let is_plain = !letters.iter().any(|letter| matches!(letter, b'a' | b'A'));
    Some((is_plain && letters.contains(&b'x'), &rest[1..]))
}

/// How long the name at the beginning is.
pub(crate) fn name_length(text: &[u8]) -> usize {
    match text.first() {
        Some(first) if first.is_ascii_alphabetic() || *first == b'_' => {
            text.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(text.len())
        }
        Some(_) | None => 0,
    }
}

/// The value at the beginning, and what follows it.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if let Some(rest) = text.strip_prefix(b"$'") {
        return ansi_c(rest);
    }
    let mut rest = text.strip_prefix(b"\"")?;
    let mut value = Vec::new();
    loop {
        let at = memchr::memchr2(b'"', b'\\', rest)?;
        value.extend_from_slice(&rest[..at]);
        if rest[at] == b'"' {
            return Some((value, &rest[at + 1..]));
        }
        value.push(*rest.get(at + 1)?);
        rest = &rest[at + 2..];
    }
}

/// What stands in `$'…'`, and what follows it.
fn ansi_c(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    loop {
        let at = memchr::memchr2(b'\'', b'\\', rest)?;
        value.extend_from_slice(&rest[..at]);
        if rest[at] == b'\'' {
            return Some((value, &rest[at + 1..]));
        }
        let (byte, length) = escape(&rest[at + 1..])?;
        value.push(byte);
        rest = &rest[at + 1 + length..];
    }
}

/// The byte that an escape stands for, without its backslash, and how long it is.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    let byte = match *text.first()? {
        b'a' => 0x07,
        b'b' => 0x08,
        b'e' | b'E' => 0x1b,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        b'x' => return digits(&text[1..], 2, 16).map(|(byte, length)| (byte, length + 1)),
        b'0'..=b'7' => return digits(text, 3, 8),
        other => other,
    };
    Some((byte, 1))
}

fn digits(text: &[u8], most: usize, radix: u32) -> Option<(u8, usize)> {
    let length = text.iter().take(most).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let digits = std::str::from_utf8(&text[..length]).ok()?;
    let value = u32::from_str_radix(digits, radix).ok()?;
    // As bash does with what is too large: the low eight bits.
    Some((value.to_le_bytes()[0], length))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use hostler_testkit::TestEnv;
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &[(&str, &[u8])]) {
        let expected: Vec<Variable> =
            expected.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect();
        assert_eq!(parse(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn both_kinds_of_quotes_and_all_attributes_are_read() {
        check("declare -x A=\"1 2\"\n", &[("A", b"1 2")]);
        check("export A=\"1\"\nexport B\n", &[("A", b"1")]);
        check("declare -irx N=\"5\"\ndeclare -x M\ndeclare -x O=\"\"\n", &[("N", b"5"), ("O", b"")]);
        check("declare -ax L=([0]=\"a\")\ndeclare -x A=\"b\"\n", &[("A", b"b")]);
        check(
            "declare -x A=\"\\\"\\$\\`\\\\ \n=b\"\ndeclare -x C=\"d\"\n",
            &[("A", b"\"$`\\ \n=b"), ("C", b"d")],
        );
        check("declare -x A=$'\\E\\a\\377\\'\\\\\\x41'\n", &[("A", b"\x1b\x07\xff'\\A")]);
    }

    #[test]
    fn what_is_no_declaration_is_skipped() {
        check("nonsense\ndeclare -x A=\"1\"\ndeclare -x B=\"open", &[("A", b"1")]);
        check("declare -x 1A=\"1\"\ndeclare -- B=\"2\"\n=\ndeclare -x C=$'x\n", &[]);
        check("", &[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_bash_prints_is_what_it_was_given(values in proptest::collection::vec(proptest::collection::vec(1_u8..=255, 0..40), 1..8)) {
            let env = TestEnv::new();
            let mut command = env.command("bash");
            command.args(["--noprofile", "--norc", "-c", "export -p"]);
            for (index, value) in values.iter().enumerate() {
                command.env(format!("V{index}"), std::ffi::OsStr::from_bytes(value));
            }
            let printed = command.output().unwrap().stdout;
            let read = parse(&printed);
            for (index, value) in values.iter().enumerate() {
                let name = format!("V{index}").into_bytes();
                let found = read.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
                prop_assert_eq!(found, Some(value), "{}", String::from_utf8_lossy(&printed));
            }
        }

        #[test]
        fn nothing_makes_it_fail(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&[b"declare -x A=", &text[..]].concat());
            parse(&text);
        }
    }
}

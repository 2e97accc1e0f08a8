//! Single fields of a request: raw JSON in, a typed value or what is wrong with it out.
//!
//! The text is known to be JSON already (serde_json split it), so its first byte tells its kind.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::ids::MAX_ID_BYTES;
use super::refusal::{Malformed, Shown};

/// The six kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number.
    Number,
    /// A string.
    Text,
    /// An array.
    List,
    /// An object.
    Object,
}

impl JsonKind {
    /// The kind of a JSON value, told by its first byte; `json` must be JSON without leading space.
    pub(crate) fn of(json: &str) -> Self {
        match json.as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::List,
            Some(b'"') => Self::Text,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'n') | None => Self::Null,
            Some(_) => Self::Number,
        }
    }
}

impl fmt::Display for JsonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::List => "a list",
            Self::Object => "an object",
        })
    }
}

/// What stood in a field that does not take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A value of another kind.
    Kind(JsonKind),
    /// `""` where a text is needed.
    EmptyText,
    /// More bytes than the field takes.
    LongText {
        /// Length of the text in bytes.
        bytes: usize,
    },
    /// A string with half of a surrogate pair: no Unicode text.
    LoneSurrogate,
    /// A number that no float can hold.
    HugeNumber,
    /// A number with a fraction where a whole one is needed.
    Fraction,
    /// A number below zero where none may be.
    Negative,
    /// The same name twice in one object.
    Twice,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "{kind}"),
            Self::EmptyText => f.write_str("an empty string"),
            Self::LongText { bytes } => write!(f, "a string of {bytes} bytes"),
            Self::LoneSurrogate => f.write_str("a string with a lone surrogate"),
            Self::HugeNumber => f.write_str("a number that is out of range"),
            Self::Fraction => f.write_str("a number with a fraction"),
            Self::Negative => f.write_str("a negative number"),
            Self::Twice => f.write_str("the same name twice"),
        }
    }
}

/// Where in a message something is wrong: a field, or a place inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldPath {
    /// The whole field of that name.
    Whole(&'static str),
    /// An element of the list in that field, counted from 0.
    Element(&'static str, usize),
    /// A member of the object in that field.
    Member(&'static str, String),
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(name) => f.write_str(name),
            Self::Element(name, index) => write!(f, "{name}[{index}]"),
            Self::Member(name, member) => write!(f, "{name}[{}]", Shown(member)),
        }
    }
}

/// The nesting that a message may have, its own braces included (the limit that serde_json has, too).
pub(crate) const MAX_DEPTH: usize = 128;

/// Says whether a value inside a message nests deeper than [`MAX_DEPTH`] allows. Reads the text once, without recursion.
pub(crate) fn is_too_deep(json: &str) -> bool {
    if !json.starts_with(['[', '{']) {
        return false;
    }
    let (mut depth, mut in_text, mut escaped) = (1usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth -= 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

/// A typed value in a field, or the complaint about what stood there.
pub(crate) type Read<T> = Result<T, Malformed>;

fn wrong<T>(field: FieldPath, found: Found, expected: &'static str) -> Read<T> {
    Err(Malformed::Field { field, found, expected })
}

fn other_kind<T>(field: FieldPath, raw: &RawValue, expected: &'static str) -> Read<T> {
    wrong(field, Found::Kind(JsonKind::of(raw.get())), expected)
}

/// A string of any content.
pub(crate) fn text(field: &'static str, raw: &RawValue) -> Read<String> {
    text_at(FieldPath::Whole(field), raw)
}

fn text_at(field: FieldPath, raw: &RawValue) -> Read<String> {
    const EXPECTED: &str = "a string";
    if JsonKind::of(raw.get()) != JsonKind::Text {
        return other_kind(field, raw, EXPECTED);
    }
    // Of a text that was split as JSON already, only the surrogates are still unchecked.
    serde_json::from_str(raw.get()).or_else(|_| wrong(field, Found::LoneSurrogate, EXPECTED))
}

/// The `id` of a request: a string that is neither empty nor long.
pub(crate) fn id(field: &'static str, raw: &RawValue) -> Read<String> {
    const EXPECTED: &str = "a string of 1 to 4096 bytes";
    let text = text(field, raw)?;
    match text.len() {
        0 => wrong(FieldPath::Whole(field), Found::EmptyText, EXPECTED),
        1..=MAX_ID_BYTES => Ok(text),
        bytes => wrong(FieldPath::Whole(field), Found::LongText { bytes }, EXPECTED),
    }
}

/// The `proc_id` of a request: a string that is not long.
pub(crate) fn proc_id(field: &'static str, raw: &RawValue) -> Read<String> {
    let text = text(field, raw)?;
    match text.len() {
        0..=MAX_ID_BYTES => Ok(text),
        bytes => wrong(FieldPath::Whole(field), Found::LongText { bytes }, "a string of up to 4096 bytes"),
    }
}

/// `true` or `false`.
pub(crate) fn boolean(field: &'static str, raw: &RawValue) -> Read<bool> {
    match raw.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => other_kind(FieldPath::Whole(field), raw, "true or false"),
    }
}

/// A whole number. What does not fit 64 bits becomes the nearest that does: nobody tells 2⁶³ seconds from 10³⁰.
pub(crate) fn whole_number(field: &'static str, raw: &RawValue) -> Read<i64> {
    const EXPECTED: &str = "a whole number";
    let digits = raw.get();
    if JsonKind::of(digits) != JsonKind::Number {
        return other_kind(FieldPath::Whole(field), raw, EXPECTED);
    }
    if !digits.contains(['.', 'e', 'E']) {
        let saturated = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
        return Ok(digits.parse().unwrap_or(saturated));
    }
    let float: f64 = digits.parse().unwrap_or(f64::INFINITY);
    if float.is_finite() && float.fract() != 0.0 {
        return wrong(FieldPath::Whole(field), Found::Fraction, EXPECTED);
    }
    #[expect(clippy::cast_possible_truncation, reason = "a cast from float saturates")]
    Ok(float as i64)
}

/// A number that a float can hold.
pub(crate) fn float(field: &'static str, raw: &RawValue) -> Read<f64> {
    const EXPECTED: &str = "a number";
    if JsonKind::of(raw.get()) != JsonKind::Number {
        return other_kind(FieldPath::Whole(field), raw, EXPECTED);
    }
    match raw.get().parse::<f64>() {
        Ok(float) if float.is_finite() => Ok(float),
        Ok(_) | Err(_) => wrong(FieldPath::Whole(field), Found::HugeNumber, EXPECTED),
    }
}

/// A list of strings.
pub(crate) fn texts(field: &'static str, raw: &RawValue) -> Read<Vec<String>> {
    const EXPECTED: &str = "a list of strings";
    if JsonKind::of(raw.get()) != JsonKind::List {
        return other_kind(FieldPath::Whole(field), raw, EXPECTED);
    }
    let mut trouble = None;
    let list =
        serde_json::Deserializer::from_str(raw.get()).deserialize_seq(Texts { field, trouble: &mut trouble });
    match (list, trouble) {
        (Ok(list), _) => Ok(list),
        (Err(_), Some(trouble)) => Err(trouble),
        (Err(_), None) => other_kind(FieldPath::Whole(field), raw, EXPECTED),
    }
}

/// An object whose values are strings; a name may stand in it once.
pub(crate) fn text_map(field: &'static str, raw: &RawValue) -> Read<BTreeMap<String, String>> {
    const EXPECTED: &str = "an object of strings";
    if JsonKind::of(raw.get()) != JsonKind::Object {
        return other_kind(FieldPath::Whole(field), raw, EXPECTED);
    }
    let mut trouble = None;
    let map = serde_json::Deserializer::from_str(raw.get())
        .deserialize_map(TextMap { field, trouble: &mut trouble });
    match (map, trouble) {
        (Ok(map), _) => Ok(map),
        (Err(_), Some(trouble)) => Err(trouble),
        // The values are taken raw: what serde_json itself can refuse here is a name.
        (Err(_), None) => wrong(FieldPath::Whole(field), Found::LoneSurrogate, EXPECTED),
    }
}

/// Collects strings up to the first element that is none; `trouble` then says what it was.
struct Texts<'t> {
    field: &'static str,
    trouble: &'t mut Option<Malformed>,
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(raw) = list.next_element::<&RawValue>()? {
            match text_at(FieldPath::Element(self.field, texts.len()), raw) {
                Ok(text) => texts.push(text),
                Err(trouble) => {
                    *self.trouble = Some(trouble);
                    return Err(A::Error::custom("an element is no string"));
                }
            }
        }
        Ok(texts)
    }
}

/// Collects members up to the first that is no string or comes twice; `trouble` then says what it was.
struct TextMap<'t> {
    field: &'static str,
    trouble: &'t mut Option<Malformed>,
}

impl<'de> Visitor<'de> for TextMap<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, raw)) = map.next_entry::<String, &RawValue>()? {
            let path = FieldPath::Member(self.field, name.clone());
            let read = if members.contains_key(&name) {
                wrong(path, Found::Twice, "each name once")
            } else {
                text_at(path, raw)
            };
            match read {
                Ok(text) => members.insert(name, text),
                Err(trouble) => {
                    *self.trouble = Some(trouble);
                    return Err(A::Error::custom("a member is no string"));
                }
            };
        }
        Ok(members)
    }
}

//! The event encoder: bytes of a process in, `proc/read/event` lines out, in one pass.
//!
//! This is the hot path of the host: most of what an agent gets is events. So the envelope is built once for each
//! process and copied for each event, with a counter running in its id; and the text goes through one scan that copies
//! what needs no escape as a block. `data` is JSON inside a JSON string by default, so most escapes are double.
//!
//! It does not decide when to flush and keeps no bytes: what it did not take, the caller offers again, with more behind
//! it. The escapes themselves are in `escape`.
//!
//! Invariants:
//! - The joined texts of a stream are its bytes, invalid UTF-8 replaced as [`String::from_utf8_lossy`] does.
//! - One event per line, its end included; only lines above [`MAX_EVENT_BYTES`] and pieces that the caller asks for are
//!   cut, never inside a character and never between `\r` and `\n` while both are there.
//! - An event is one line, and holds no raw U+0085, U+2028 or U+2029.
//! - The same bytes give the same events, however they are cut into calls with [`Flush::None`].

mod escape;

use memchr::{memchr, memrchr};

pub use crate::wire::Terminal;
use crate::wire::{MessageIds, ProcId, ReqId, Timestamp, count_up, push_json_text};

/// The longest line, end included, that is always one event: 1 MiB.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// How `data` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataForm {
    /// As a JSON string that holds JSON, as the protocol document says.
    String,
    /// As a JSON object, for clients that expect one.
    Object,
}

/// Whether events name the request that started their process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushForm {
    /// `req_id` is the id of the spawn request.
    Correlated,
    /// `req_id` is empty, for clients that take events with one for replies.
    Push,
}

/// The form of a process's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventForm {
    /// How `data` is written.
    pub data: DataForm,
    /// What `req_id` is.
    pub push: PushForm,
}

/// The stream that a text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What to do with bytes behind the last line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Leave them for later, but for pieces of a line that is too long for one event.
    None,
    /// Take them, but for an incomplete character or a `\r` at their end: the process needs room.
    Piece,
    /// Take them all: the stream has ended.
    End,
}

/// Writes the events of one process.
#[derive(Debug)]
pub struct EventEncoder {
    form: DataForm,
    /// An event up to its text, with the id, time and stream of the last one.
    head: Vec<u8>,
    /// Where in `head` the stream stands: both words are six letters.
    stream_at: usize,
    /// An event from its text's end on, for texts without a line end.
    tail: Vec<u8>,
    /// The same for texts with one: the escaped `\n`, then `tail`.
    line_tail: Vec<u8>,
    /// For each stream, how many of the bytes offered next are known to hold no line end.
    searched: [usize; 2],
    max_event_bytes: usize,
}

const BEFORE_ID: &[u8] = br#"{"type":"proc/read/event","id":""#;
const BEFORE_TIME: &[u8] = br#"","version":"1.0","ts":"#;
const ID_END: usize = BEFORE_ID.len() + MessageIds::LEN;
const COUNTER_AT: usize = ID_END - MessageIds::COUNTER_LEN;
const TIME_AT: usize = ID_END + BEFORE_TIME.len();

impl DataForm {
    /// What stands between `"data":` and a text.
    fn before_text(self) -> &'static [u8] {
        match self {
            Self::String => br#""{\"text\":\""#,
            Self::Object => br#"{"text":""#,
        }
    }

    /// What stands between a text and `,"req_id":`.
    fn after_text(self) -> &'static [u8] {
        match self {
            Self::String => br#"\"}""#,
            Self::Object => br#""}"#,
        }
    }
}

impl Stream {
    fn word(self) -> &'static [u8; 6] {
        match self {
            Self::Stdout => b"stdout",
            Self::Stderr => b"stderr",
        }
    }
}

impl EventEncoder {
    /// An encoder for the process `proc_id`, started by the request `req_id`. `ids` must be a lane
    /// of its own ([`MessageIds::lane`]).
    pub fn new(proc_id: &ProcId, req_id: &ReqId, ids: &MessageIds, form: EventForm) -> Self {
        let mut head = [BEFORE_ID, ids.last(), BEFORE_TIME, b"0.0,\"proc_id\":"].concat();
        push_json_text(&mut head, proc_id.as_str());
        head.extend_from_slice(b",\"stream_type\":\"");
        let stream_at = head.len();
        head.extend_from_slice(b"stdout\",\"data\":");
        head.extend_from_slice(form.data.before_text());

        let mut tail = [form.data.after_text(), b",\"req_id\":"].concat();
        push_json_text(
            &mut tail,
            match form.push {
                PushForm::Correlated => req_id.as_str(),
                PushForm::Push => "",
            },
        );
        tail.extend_from_slice(b"}\n");
        let line_tail = [escape::of_ascii(form.data, b'\n'), &tail].concat();
        let (searched, max_event_bytes) = ([0; 2], MAX_EVENT_BYTES);
        Self { form: form.data, head, stream_at, tail, line_tail, searched, max_event_bytes }
    }

    /// Sets the time of the events that follow; once for each batch is enough.
    pub fn set_time(&mut self, now: Timestamp) {
        let end = TIME_AT + self.head[TIME_AT..].iter().take_while(|byte| **byte != b',').count();
        let text = now.to_string();
        if end == TIME_AT + text.len() {
            self.head[TIME_AT..end].copy_from_slice(text.as_bytes());
        } else {
            self.stream_at = self.stream_at + TIME_AT + text.len() - end;
            self.head.splice(TIME_AT..end, text.into_bytes());
        }
    }

    /// Appends to `out` the events of as much of `bytes` as `flush` allows, one for each line, and says how many bytes
    /// that was. `bytes` must begin with what the last call for this stream left.
    pub fn lines(&mut self, stream: Stream, bytes: &[u8], flush: Flush, out: &mut Vec<u8>) -> usize {
        let searched = std::mem::take(&mut self.searched[stream as usize]).min(bytes.len());
        let end = match flush {
            Flush::None => self.complete(bytes, searched),
            Flush::Piece => bytes.len() - held_back(bytes),
            Flush::End => bytes.len(),
        };
        if flush == Flush::None {
            self.searched[stream as usize] = bytes.len() - end;
        }
        self.head[self.stream_at..self.stream_at + 6].copy_from_slice(stream.word());
        let mut rest = &bytes[..end];
        while !rest.is_empty() {
            let (event, later) = rest.split_at(self.event_length(rest));
            self.push_event(event, out);
            rest = later;
        }
        end
    }

    /// Appends the last event of the process.
    pub fn terminal(&mut self, terminal: Terminal, out: &mut Vec<u8>) {
        let (stream, data) = match (terminal, self.form) {
            (Terminal::Exit(0), DataForm::String) => ("stdout", r#""{\"code\":0}""#.to_owned()),
            (Terminal::Exit(0), DataForm::Object) => ("stdout", r#"{"code":0}"#.to_owned()),
            (Terminal::Exit(code), DataForm::String) => ("stderr", format!(r#""{{\"code\":{code}}}""#)),
            (Terminal::Exit(code), DataForm::Object) => ("stderr", format!(r#"{{"code":{code}}}"#)),
            (Terminal::Killed, DataForm::String) => ("killed", r#""{}""#.to_owned()),
            (Terminal::Killed, DataForm::Object) => ("killed", "{}".to_owned()),
        };
        count_up(&mut self.head[COUNTER_AT..ID_END]);
        out.extend_from_slice(&self.head[..self.stream_at]);
        out.extend_from_slice(stream.as_bytes());
        out.extend_from_slice(b"\",\"data\":");
        out.extend_from_slice(data.as_bytes());
        out.extend_from_slice(&self.tail[self.form.after_text().len()..]);
    }

    /// The length of what can go out while the stream goes on: whole lines, and pieces of a line that is too long. The
    /// first `searched` bytes hold no line end.
    fn complete(&self, bytes: &[u8], searched: usize) -> usize {
        let mut end = memrchr(b'\n', &bytes[searched..]).map_or(0, |at| searched + at + 1);
        while bytes.len() - end > self.max_event_bytes {
            end += self.piece_length(&bytes[end..]);
        }
        end
    }

    /// The length of the first event of `rest`: up to its line end, or all of it, or a piece.
    fn event_length(&self, rest: &[u8]) -> usize {
        let window = &rest[..rest.len().min(self.max_event_bytes)];
        match memchr(b'\n', window) {
            Some(at) => at + 1,
            None if rest.len() > self.max_event_bytes => self.piece_length(rest),
            None => rest.len(),
        }
    }

    /// The length of the piece to cut from a line that is too long for one event.
    fn piece_length(&self, line: &[u8]) -> usize {
        let (piece, rest) = line.split_at(self.max_event_bytes);
        match incomplete_character(piece) {
            0 if piece.ends_with(b"\r") && rest.starts_with(b"\n") => piece.len() - 1,
            incomplete => piece.len() - incomplete,
        }
    }

    #[inline]
    fn push_event(&mut self, text: &[u8], out: &mut Vec<u8>) {
        count_up(&mut self.head[COUNTER_AT..ID_END]);
        out.extend_from_slice(&self.head);
        match text.strip_suffix(b"\n") {
            Some(line) => {
                escape::push_text(self.form, line, out);
                out.extend_from_slice(&self.line_tail);
            }
            None => {
                escape::push_text(self.form, text, out);
                out.extend_from_slice(&self.tail);
            }
        }
    }
}

/// How many bytes at the end must wait for what follows them.
fn held_back(bytes: &[u8]) -> usize {
    match incomplete_character(bytes) {
        0 => usize::from(bytes.ends_with(b"\r")),
        incomplete => incomplete,
    }
}

/// How many bytes at the end (at most 3) begin a character that more bytes could complete.
fn incomplete_character(bytes: &[u8]) -> usize {
    const LONGEST: usize = 3;
    let is_lead = |byte: &u8| byte & 0xc0 != 0x80;
    let Some(length) = bytes.iter().rev().take(LONGEST).position(is_lead).map(|at| at + 1) else { return 0 };
    match std::str::from_utf8(&bytes[bytes.len() - length..]) {
        Err(error) if error.error_len().is_none() => length,
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests;

//! Reading millions of events: each line is taken apart by position, nothing is allocated for it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::OwnedFd;

use hostler_testkit::numbered::{LATE_PREFIX, LINE_BYTES, line};
use serde_json::Value;

use crate::client::{Client, wait_readable};
use crate::host::LONG;

/// One message.
#[derive(Debug)]
pub(crate) enum Raw<'a> {
    Event { proc_id: &'a str, stream: Stream, data: RawData<'a> },
    Reply(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawData<'a> {
    /// As it stands on the wire, escapes and all.
    Text(&'a [u8]),
    Code(&'a str),
    Killed,
}

/// How a line end stands on the wire, inside JSON inside JSON.
pub(crate) const LINE_END: &[u8] = br"\\n";

impl RawData<'_> {
    /// Whether this is the numbered line with this number.
    pub(crate) fn is_line(self, number: u64) -> bool {
        let Self::Text(text) = self else { return false };
        let body = text.strip_suffix(LINE_END);
        body.is_some_and(|body| body == &line(number)[..LINE_BYTES - 1])
    }

    /// Whether this is a line of a lingering descendant that floods.
    pub(crate) fn is_late(self) -> bool {
        matches!(self, Self::Text([LATE_PREFIX, ..]))
    }
}

/// The reading side of a client, with a long maximum for each wait.
pub(crate) struct RawReader {
    reader: BufReader<io::Chain<Cursor<Vec<u8>>, Patient>>,
    line: Vec<u8>,
}

struct Patient(File);

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait_readable(&self.0, LONG);
        self.0.read(buffer)
    }
}

impl RawReader {
    /// Takes over the client's reading end.
    pub(crate) fn of(client: &mut Client) -> Self {
        let (from, received): (OwnedFd, Vec<u8>) = client.take_output();
        let chained = Cursor::new(received).chain(Patient(from.into()));
        Self { reader: BufReader::with_capacity(256 * 1024, chained), line: Vec::new() }
    }

    /// Gives it back.
    pub(crate) fn give_back(self, client: &mut Client) {
        let received = self.reader.buffer().to_vec();
        let (rest, from) = self.reader.into_inner().into_inner();
        assert_eq!(rest.position(), rest.get_ref().len() as u64, "that was read first");
        client.give_output(from.0.into(), received);
    }

    /// The next message; there must be one.
    pub(crate) fn next(&mut self) -> Raw<'_> {
        self.line.clear();
        let length = self.reader.read_until(b'\n', &mut self.line).unwrap();
        assert!(length > 0, "the host has ended");
        parse(&self.line)
    }
}

const HEAD: &str = r#"{"type":"proc/read/event","id":""#;
const VERSION: &str = r#"","version":"1.0","ts":"#;
const UUID: usize = 36;

fn parse(line: &[u8]) -> Raw<'_> {
    if !line.starts_with(HEAD.as_bytes()) {
        return Raw::Reply(serde_json::from_slice(line).unwrap());
    }
    parse_event(line)
        .unwrap_or_else(|| panic!("no event: {}", String::from_utf8_lossy(&line[..line.len().min(500)])))
}

fn parse_event(line: &[u8]) -> Option<Raw<'_>> {
    let rest = line.get(HEAD.len() + UUID..)?.strip_prefix(VERSION.as_bytes())?;
    let time = rest.iter().position(|byte| *byte == b',')?;
    let rest = rest[time..].strip_prefix(br#","proc_id":""#)?;
    let (proc_id, rest) = rest.split_at_checked(UUID)?;
    let rest = rest.strip_prefix(br#"","stream_type":""#)?;
    let (word, rest) = rest.split_at_checked(6)?;
    let stream = if word == b"stderr" { Stream::Stderr } else { Stream::Stdout };
    let rest = rest.strip_prefix(br#"","data":"{"#)?.strip_suffix(b"\"}\n")?;
    // Ids of requests hold no quotation mark.
    let quote = rest.iter().rposition(|byte| *byte == b'"')?;
    let data = rest[..quote].strip_suffix(br#"}","req_id":"#)?;
    let data = if let Some(text) = data.strip_prefix(br#"\"text\":\""#) {
        RawData::Text(text.strip_suffix(br#"\""#)?)
    } else if let Some(code) = data.strip_prefix(br#"\"code\":"#) {
        RawData::Code(std::str::from_utf8(code).ok()?)
    } else if data.is_empty() && word == b"killed" {
        RawData::Killed
    } else {
        return None;
    };
    Some(Raw::Event { proc_id: std::str::from_utf8(proc_id).ok()?, stream, data })
}

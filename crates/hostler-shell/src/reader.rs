//! Reading a run's output: the lines that come next, the newest ones, both ends of it, and pages of what is saved.
//!
//! A reader has an offset of its own and holds nothing back. Where bytes are gone it says how many, once.

use std::sync::Arc;

use hostler_core::capture::{Hole, View};
use hostler_core::{ReadError, SharedLog};

use crate::window;

/// How much is looked at in one go.
const PIECE: usize = 64 * 1024;

/// Bytes that nobody can have any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
}

/// What a read has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) bytes: Vec<u8>,
    /// What is missing before it.
    pub(crate) lost: Lost,
    /// More can be read at once.
    pub(crate) more: bool,
}

/// Whether what is behind the last newline may still become a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLine {
    /// It may: it is held back.
    Grows,
    /// The output is complete.
    Whole,
}

/// A place in an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    offset: u64,
    /// Newlines before it.
    lines: u64,
}

impl Place {
    /// Behind the last newline, or the last byte, of what is there.
    pub(crate) fn behind(log: &SharedLog, last_line: LastLine) -> Self {
        let status = log.status();
        let offset = match last_line {
            LastLine::Grows => status.line_end,
            LastLine::Whole => status.end,
        };
        Self { offset, lines: log.totals().lines }
    }

    /// Whether there is something that [`next`](Self::next) would bring.
    pub(crate) fn has_news(&self, log: &SharedLog, last_line: LastLine) -> bool {
        self.offset < self.upto(log, last_line)
    }

    /// Up to where can be read: complete lines, and of one that is longer than a window what there is of it.
    fn upto(&self, log: &SharedLog, last_line: LastLine) -> u64 {
        let status = log.status();
        let is_too_long =
            status.end - status.line_end.max(self.offset).min(status.end) > window::BYTES as u64;
        if last_line == LastLine::Whole || status.ended || is_too_long { status.end } else { status.line_end }
    }

    /// Reads on, at most a window, and moves behind what was read.
    pub(crate) fn next(&mut self, log: &SharedLog, last_line: LastLine) -> Result<Lines, ReadError> {
        let upto = self.upto(log, last_line);
        let mut lost = Lost::default();
        let mut place = *self;
        let mut read = read(log, place.offset, window::BYTES.min(span(place.offset, upto)))?;
        while let Read::Hole(hole) = read {
            let lines = hole.lines_before.unwrap_or(place.lines);
            lost.bytes += hole.to - place.offset;
            lost.lines += lines.saturating_sub(place.lines);
            place = Self { offset: hole.to, lines };
            read = self::read(log, place.offset, window::BYTES.min(span(place.offset, upto)))?;
        }
        let mut bytes = match read {
            Read::Bytes(bytes) => bytes,
            Read::Hole(_) | Read::Nothing => Vec::new(),
        };
        if place.offset + (bytes.len() as u64) < upto {
            bytes.truncate(last_border(&bytes));
        }
        bytes.truncate(window::first(&bytes, window::BYTES, window::LINES));
        place.lines += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        place.offset += bytes.len() as u64;
        *self = place;
        Ok(Lines { bytes, lost, more: place.offset < upto })
    }
}

/// Where a piece that goes on is cut: behind its last newline, or else before a character that is not whole, if there is
/// anything before it.
fn last_border(bytes: &[u8]) -> usize {
    let line = memchr::memrchr(b'\n', bytes).map(|at| at + 1);
    line.or(Some(window::whole_characters(bytes)).filter(|border| *border > 0)).unwrap_or(bytes.len())
}

fn span(from: u64, to: u64) -> usize {
    usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)
}

enum Read {
    Bytes(Vec<u8>),
    Hole(Hole),
    Nothing,
}

/// What is there from an offset on, without a hole, `most` bytes of it.
fn read(log: &SharedLog, from: u64, most: usize) -> Result<Read, ReadError> {
    if most == 0 {
        return Ok(Read::Nothing);
    }
    let mut scratch = Vec::new();
    log.read_with(|log| {
        Ok(match log.view(from, most, &mut scratch)? {
            View::Bytes(bytes) => Read::Bytes(bytes.to_vec()),
            View::Hole(hole) => Read::Hole(hole),
            View::Pending | View::End => Read::Nothing,
        })
    })
}

/// What of an output is shown, and how much there is of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Both ends, or all of it.
    pub(crate) head: Vec<u8>,
    pub(crate) tail: Vec<u8>,
    pub(crate) total_bytes: u64,
    pub(crate) total_lines: u64,
}

impl Shown {
    /// Whether less is shown than there is.
    pub(crate) fn is_cut(&self) -> bool {
        self.left_out().0 > 0
    }

    /// Bytes and lines that are not shown.
    pub(crate) fn left_out(&self) -> (u64, u64) {
        let bytes = (self.head.len() + self.tail.len()) as u64;
        let tail_lines = if self.tail.is_empty() { 0 } else { window::count(&self.tail) };
        let lines = if self.head.is_empty() { tail_lines } else { window::count(&self.head) + tail_lines };
        (self.total_bytes.saturating_sub(bytes), self.total_lines.saturating_sub(lines))
    }
}

/// How much of an output there is, in bytes and lines.
fn totals(log: &SharedLog) -> (u64, u64) {
    let (status, totals) = (log.status(), log.totals());
    (status.end, window::lines_of(totals.lines, status.end - status.line_end))
}

/// Both ends of an output, a window in all.
pub(crate) fn both_ends(log: &SharedLog) -> Result<Shown, ReadError> {
    let (total_bytes, total_lines) = totals(log);
    let shown = |head, tail| Shown { head, tail, total_bytes, total_lines };
    if total_bytes <= window::BYTES as u64 && total_lines <= window::LINES as u64 {
        let all = match read(log, 0, span(0, total_bytes))? {
            Read::Bytes(bytes) => bytes,
            Read::Hole(_) | Read::Nothing => Vec::new(),
        };
        if all.len() as u64 == total_bytes {
            return Ok(shown(all, Vec::new()));
        }
    }
    const HALF_BYTES: usize = window::BYTES / 2;
    const HALF_LINES: usize = window::LINES / 2;
    // What is behind the border tells whether it is one.
    let mut head = match read(log, 0, HALF_BYTES + 1)? {
        Read::Bytes(bytes) => bytes,
        Read::Hole(_) | Read::Nothing => Vec::new(),
    };
    head.truncate(window::first(&head, HALF_BYTES, HALF_LINES));
    let tail = end(log, total_bytes, head.len() as u64, HALF_BYTES, HALF_LINES)?;
    Ok(shown(head, tail))
}

/// The newest part of an output, a window at most.
pub(crate) fn newest(log: &SharedLog, last_line: LastLine) -> Result<Shown, ReadError> {
    let (total_bytes, total_lines) = totals(log);
    let mut tail = end(log, total_bytes, 0, window::BYTES, window::LINES)?;
    if last_line == LastLine::Grows && !log.status().ended {
        tail.truncate(window::whole_characters(&tail));
    }
    Ok(Shown { head: Vec::new(), tail, total_bytes, total_lines })
}

/// What of the bytes from `least` up to `upto` is shown, as the end of an output.
fn end(log: &SharedLog, upto: u64, least: u64, bytes: usize, lines: usize) -> Result<Vec<u8>, ReadError> {
    // One more shows whether a line begins at the border.
    let mut from = upto.saturating_sub(bytes as u64 + 1).max(least);
    loop {
        match read(log, from, span(from, upto))? {
            Read::Bytes(piece) if from + (piece.len() as u64) < upto => from += piece.len() as u64,
            Read::Bytes(piece) => return Ok(piece[window::last(&piece, bytes, lines)..].to_vec()),
            Read::Hole(hole) => from = hole.to,
            Read::Nothing => return Ok(Vec::new()),
        }
    }
}

/// Lines of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Lines before them.
    pub(crate) skip: u64,
    /// How many, at most; a window of bytes is the other limit.
    pub(crate) most: usize,
}

/// A page of what is saved, which is read from its beginning.
pub(crate) async fn page(log: &Arc<SharedLog>, range: Range) -> Result<Lines, ReadError> {
    let mut place = Place::default();
    let mut lost = Lost::default();
    while place.lines < range.skip {
        match read(log, place.offset, PIECE)? {
            Read::Bytes(bytes) => place = skip(place, &bytes, range.skip),
            Read::Hole(hole) => {
                let lines = hole.lines_before.unwrap_or(place.lines);
                lost.bytes += hole.to - place.offset;
                lost.lines += lines.saturating_sub(place.lines);
                place = Place { offset: hole.to, lines };
            }
            Read::Nothing => return Ok(Lines { lost, ..Lines::default() }),
        }
        tokio::task::yield_now().await;
    }
    let end = log.status().end;
    let mut bytes = match read(log, place.offset, window::BYTES + 1)? {
        Read::Bytes(bytes) => bytes,
        Read::Hole(_) | Read::Nothing => Vec::new(),
    };
    bytes.truncate(window::first(&bytes, window::BYTES, range.most));
    let more = place.offset + (bytes.len() as u64) < end;
    Ok(Lines { bytes, lost, more })
}

/// Goes over these bytes, but not beyond the line that is wanted.
fn skip(place: Place, bytes: &[u8], upto: u64) -> Place {
    let wanted = usize::try_from(upto - place.lines).unwrap_or(usize::MAX);
    match memchr::memchr_iter(b'\n', bytes).nth(wanted - 1) {
        Some(at) => Place { offset: place.offset + at as u64 + 1, lines: upto },
        None => Place {
            offset: place.offset + bytes.len() as u64,
            lines: place.lines + memchr::memchr_iter(b'\n', bytes).count() as u64,
        },
    }
}

/// The newest line that is not blank, cut to a length that can be shown.
pub(crate) fn last_line(log: &SharedLog) -> Option<String> {
    const LOOKED_AT: u64 = 4096;
    let end = log.status().end;
    let from = end.saturating_sub(LOOKED_AT);
    let bytes = match read(log, from, span(from, end)).ok()? {
        Read::Bytes(bytes) => bytes,
        Read::Hole(_) | Read::Nothing => return None,
    };
    let text = String::from_utf8_lossy(&bytes[..window::whole_characters(&bytes)]).into_owned();
    let line = text.split(['\n', '\r']).map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests;

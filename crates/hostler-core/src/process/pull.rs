//! How the session's own reader takes a process's output: whole lines, both streams in the order of the reads.

use super::Process;
use crate::capture::{ReadError, Status, Stream, View};
use crate::cursor::{Armed, SharedLog};
use crate::outputs::{Chunk, Flush, Pulled};

/// The most that one call of the consumer's gets.
const CHUNK_BYTES: usize = 256 * 1024;

/// How far the reader is.
#[derive(Debug, Default)]
pub(super) struct Positions {
    stdout: u64,
    stderr: u64,
    finished: bool,
}

impl Positions {
    fn of(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// Something to take now.
struct Due {
    stream: Stream,
    flush: Flush,
    seq: u64,
    /// Where the reads of the other stream come in between.
    run_end: u64,
}

impl Process {
    /// Gives output that is due to `take`, which answers how many bytes it took; what it leaves is given again later.
    /// Stops after about `budget` bytes. A line is due when it is complete, when the stream has ended, when it has
    /// `longest_line` bytes, or when what lies there holds up the process or others.
    ///
    /// # Errors
    /// When bytes on the disk cannot be read now. Nothing is lost: pull again later.
    pub fn pull(
        &self,
        budget: usize,
        longest_line: usize,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(Chunk<'_>) -> usize,
    ) -> Result<Pulled, ReadError> {
        let mut positions = self.0.pull.lock();
        let mut left = budget;
        loop {
            if left == 0 {
                return Ok(Pulled::More);
            }
            match self.next_due(&mut positions, longest_line) {
                Some(due) => {
                    let at = *positions.of(due.stream);
                    let Some(log) = self.0.log(due.stream) else { return Ok(Pulled::Idle) };
                    let taken = give(log, at, &due, longest_line, scratch, &mut take)?;
                    *positions.of(due.stream) = taken;
                    left = left.saturating_sub(usize::try_from(taken - at).unwrap_or(usize::MAX));
                }
                None if self.0.is_finished() && self.all_taken(&mut positions) => {
                    let first = !std::mem::replace(&mut positions.finished, true);
                    return Ok(if first { Pulled::Finished } else { Pulled::Idle });
                }
                None if self.rearm(&mut positions, longest_line) => {
                    self.rest();
                    return Ok(Pulled::Idle);
                }
                None => {}
            }
        }
    }

    fn streams(&self) -> impl Iterator<Item = (Stream, &SharedLog)> {
        [Stream::Stdout, Stream::Stderr].into_iter().filter_map(|s| Some((s, self.0.log(s)?.as_ref())))
    }

    /// Of what is due, what was read first.
    fn next_due(&self, positions: &mut Positions, longest_line: usize) -> Option<Due> {
        let mut first: Option<Due> = None;
        for (stream, log) in self.streams() {
            let at = *positions.of(stream);
            let Some(flush) = flush_of(log, &log.status(), at, longest_line) else { continue };
            let run = log.run_at(at);
            let seq = run.map_or(0, |run| run.seq.number());
            if first.as_ref().is_none_or(|due| seq < due.seq) {
                first = Some(Due { stream, flush, seq, run_end: run.map_or(u64::MAX, |run| run.end) });
            }
        }
        first
    }

    fn all_taken(&self, positions: &mut Positions) -> bool {
        self.streams().all(|(stream, log)| {
            let status = log.status();
            status.ended && *positions.of(stream) >= status.end
        })
    }

    /// Gives back what memory and descriptors the logs do not need while nothing comes.
    fn rest(&self) {
        self.streams().for_each(|(_, log)| log.idle());
    }

    /// Asks to be woken by what comes next; false when something has come already.
    fn rearm(&self, positions: &mut Positions, longest_line: usize) -> bool {
        self.streams().all(|(stream, log)| {
            let seen = log.status();
            let nothing_due = flush_of(log, &seen, *positions.of(stream), longest_line).is_none();
            nothing_due && log.arm(&seen) == Armed::Waiting
        })
    }
}

/// How what lies at `at` is to be taken, if it is due.
fn flush_of(log: &SharedLog, status: &Status, at: u64, longest_line: usize) -> Option<Flush> {
    if at >= status.end {
        return None;
    }
    if status.line_end > at || status.end - at > longest_line as u64 {
        return Some(Flush::Lines);
    }
    if status.ended {
        return Some(Flush::End);
    }
    (status.full || log.holds_others_back()).then_some(Flush::Piece)
}

/// Gives one chunk and returns the new position.
fn give(
    log: &SharedLog,
    at: u64,
    due: &Due,
    longest_line: usize,
    scratch: &mut Vec<u8>,
    take: &mut impl FnMut(Chunk<'_>) -> usize,
) -> Result<u64, ReadError> {
    let stream = due.stream;
    log.read_with(|log| {
        let run = usize::try_from(due.run_end.saturating_sub(at)).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut hand_out =
            |bytes: &[u8], flush| at + take(Chunk { stream, bytes, flush }).min(bytes.len()) as u64;
        let position =
            match log.view(at, if due.flush == Flush::Lines { run } else { usize::MAX }, scratch)? {
                View::Bytes(bytes) => hand_out(bytes, due.flush),
                View::Hole(hole) => {
                    tracing::error!(
                        bytes = hole.to - at,
                        "captured output can no longer be read from the disk"
                    );
                    hole.to
                }
                View::Pending | View::End => at,
            };
        let position =
            if position > at { position } else { give_long_line(log, at, longest_line, scratch, hand_out)? };
        log.take(position);
        Ok(position)
    })
}

/// A line that is longer than the chunk, or that was read in pieces with reads of the other stream in between.
fn give_long_line(
    log: &mut crate::cursor::LogReader<'_>,
    at: u64,
    longest_line: usize,
    scratch: &mut Vec<u8>,
    mut hand_out: impl FnMut(&[u8], Flush) -> u64,
) -> Result<u64, ReadError> {
    Ok(match log.view(at, longest_line + CHUNK_BYTES, scratch)? {
        View::Bytes(bytes) => {
            let line = memchr::memchr(b'\n', bytes).map_or(bytes, |end| &bytes[..=end]);
            hand_out(line, Flush::Lines)
        }
        View::Hole(hole) => hole.to,
        View::Pending | View::End => at,
    })
}

//! How the session's own reader takes a process's output: whole lines, both streams in the order of the reads.

use super::Process;
use crate::capture::{CaptureState, Hole, ReadError, Status, Stream, View};
use crate::cursor::{Armed, SharedLog};
use crate::outputs::{Chunk, Flush, Pulled};

/// The most that one call of the consumer's gets.
const CHUNK_BYTES: usize = 256 * 1024;

/// How far the reader is.
#[derive(Debug, Default)]
pub(super) struct Positions {
    stdout: Position,
    stderr: Position,
    /// Bytes that the disk has lost before the reader could have them.
    lost: u64,
    finished: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    at: u64,
    /// What was offered and not taken, although it was due: it ended there.
    refused: Option<(Flush, u64)>,
}

impl Positions {
    fn of(&mut self, stream: Stream) -> &mut Position {
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
    /// Where what is there ends.
    end: u64,
    seq: u64,
    /// Where the reads of the other stream come in between.
    run_end: u64,
}

/// How far a chunk has brought the reader.
#[derive(Clone, Copy)]
struct Given {
    at: u64,
    /// Bytes before `at` that nobody can have.
    lost: u64,
}

impl Given {
    fn to(at: u64) -> Self {
        Self { at, lost: 0 }
    }

    fn across(hole: Hole, at: u64) -> Self {
        Self { at: hole.to, lost: hole.to - at }
    }
}

/// What is pulled from.
struct Source<'a> {
    stdout: &'a SharedLog,
    stderr: Option<&'a SharedLog>,
    /// Whether the end of the process is reported.
    finished: &'a dyn Fn() -> bool,
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
        take: impl FnMut(Chunk<'_>) -> usize,
    ) -> Result<Pulled, ReadError> {
        let source = Source {
            stdout: &self.0.stdout,
            stderr: self.0.stderr.as_deref(),
            finished: &|| self.0.is_finished(),
        };
        let pulled = source.pull(&mut self.0.pull.lock(), budget, longest_line, scratch, take);
        self.0.taken();
        pulled
    }

    /// Bytes of its output that the disk has lost before the session's reader could have them: it was told where.
    pub fn lost_output(&self) -> u64 {
        self.0.pull.lock().lost
    }
}

impl<'a> Source<'a> {
    fn pull(
        &self,
        positions: &mut Positions,
        budget: usize,
        longest_line: usize,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(Chunk<'_>) -> usize,
    ) -> Result<Pulled, ReadError> {
        let mut left = budget;
        loop {
            if left == 0 {
                return Ok(Pulled::More);
            }
            match self.next_due(positions, longest_line) {
                Some(due) => {
                    let at = positions.of(due.stream).at;
                    let Some(log) = self.log(due.stream) else { return Ok(Pulled::Idle) };
                    let Given { at: taken, lost } = give(log, at, &due, longest_line, scratch, &mut take)?;
                    // A piece may begin with what cannot be cut, such as half a character: it is offered again when
                    // there is more of it, or this loop would never end.
                    let refused = (taken == at).then_some((due.flush, due.end));
                    *positions.of(due.stream) = Position { at: taken, refused };
                    if lost > 0 {
                        positions.lost += lost;
                        return Ok(Pulled::Lost { stream: due.stream, bytes: lost });
                    }
                    left = left.saturating_sub(usize::try_from(taken - at).unwrap_or(usize::MAX));
                }
                None if (self.finished)() && self.all_taken(positions) => {
                    let first = !std::mem::replace(&mut positions.finished, true);
                    return Ok(if first { Pulled::Finished } else { Pulled::Idle });
                }
                None if self.rearm(positions, longest_line) => {
                    self.rest();
                    return Ok(Pulled::Idle);
                }
                None => {}
            }
        }
    }

    fn log(&self, stream: Stream) -> Option<&'a SharedLog> {
        match stream {
            Stream::Stdout => Some(self.stdout),
            Stream::Stderr => self.stderr,
        }
    }

    fn streams(&self) -> impl Iterator<Item = (Stream, &'a SharedLog)> {
        [Stream::Stdout, Stream::Stderr].into_iter().filter_map(|s| Some((s, self.log(s)?)))
    }

    /// Of what is due, what was read first.
    fn next_due(&self, positions: &mut Positions, longest_line: usize) -> Option<Due> {
        let mut first: Option<Due> = None;
        for (stream, log) in self.streams() {
            let status = log.status();
            let Some(flush) = flush_of(log, &status, *positions.of(stream), longest_line) else { continue };
            let run = log.run_at(positions.of(stream).at);
            let seq = run.map_or(0, |run| run.seq.number());
            if first.as_ref().is_none_or(|due| seq < due.seq) {
                let run_end = run.map_or(u64::MAX, |run| run.end);
                first = Some(Due { stream, flush, end: status.end, seq, run_end });
            }
        }
        first
    }

    fn all_taken(&self, positions: &mut Positions) -> bool {
        self.streams().all(|(stream, log)| {
            let status = log.status();
            status.ended && positions.of(stream).at >= status.end
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

/// How what lies at a position is to be taken, if it is due.
fn flush_of(log: &SharedLog, status: &Status, position: Position, longest_line: usize) -> Option<Flush> {
    let Position { at, refused } = position;
    if at >= status.end {
        return None;
    }
    let flush = if status.line_end > at || status.end - at > longest_line as u64 {
        Flush::Lines
    } else if status.ended {
        Flush::End
    } else if status.full || log.holds_others_back() {
        Flush::Piece
    } else {
        return None;
    };
    (refused != Some((flush, status.end))).then_some(flush)
}

/// Gives one chunk, or goes across a hole.
fn give(
    log: &SharedLog,
    at: u64,
    due: &Due,
    longest_line: usize,
    scratch: &mut Vec<u8>,
    take: &mut impl FnMut(Chunk<'_>) -> usize,
) -> Result<Given, ReadError> {
    let stream = due.stream;
    log.read_with(|log| {
        let run = usize::try_from(due.run_end.saturating_sub(at)).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut hand_out =
            |bytes: &[u8], flush| at + take(Chunk { stream, bytes, flush }).min(bytes.len()) as u64;
        let given = match log.view(at, if due.flush == Flush::Lines { run } else { usize::MAX }, scratch)? {
            View::Bytes(bytes) => Given::to(hand_out(bytes, due.flush)),
            // A reader that comes after the one before has gone finds a hole too, and that is no failure.
            View::Hole(hole) => match log.state() {
                CaptureState::Failed => Given::across(hole, at),
                CaptureState::Complete | CaptureState::Limited | CaptureState::RingOnly => Given::to(hole.to),
            },
            View::Pending | View::End => Given::to(at),
        };
        let given =
            if given.at > at { given } else { give_long_line(log, at, longest_line, scratch, hand_out)? };
        log.take(given.at);
        Ok(given)
    })
}

/// A line that is longer than the chunk, or that was read in pieces with reads of the other stream in between, or one
/// whose end was lost: nothing more comes of that.
fn give_long_line(
    log: &mut crate::cursor::LogReader<'_>,
    at: u64,
    longest_line: usize,
    scratch: &mut Vec<u8>,
    mut hand_out: impl FnMut(&[u8], Flush) -> u64,
) -> Result<Given, ReadError> {
    let longest = longest_line + CHUNK_BYTES;
    let len = match log.view(at, longest, scratch)? {
        View::Bytes(bytes) => match memchr::memchr(b'\n', bytes) {
            Some(end) => return Ok(Given::to(hand_out(&bytes[..=end], Flush::Lines))),
            None => bytes.len(),
        },
        View::Hole(hole) => return Ok(Given::across(hole, at)),
        View::Pending | View::End => return Ok(Given::to(at)),
    };
    let is_torn = len < longest && matches!(log.view(at + len as u64, 1, scratch)?, View::Hole(_));
    let flush = if is_torn { Flush::End } else { Flush::Lines };
    Ok(match log.view(at, len, scratch)? {
        View::Bytes(bytes) => Given::to(hand_out(bytes, flush)),
        View::Hole(hole) => Given::across(hole, at),
        View::Pending | View::End => Given::to(at),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;
    use crate::capture::{Budget, BufferPool, Claimed, Disk, FolderDisk, LogOptions, Policy, SeqCounter};

    const LONGEST_LINE: usize = 1000;

    /// Both logs of a process, and a reader that takes what an encoder of lines would.
    struct Rig {
        logs: [Arc<SharedLog>; 2],
        account: Arc<Budget>,
        seq: SeqCounter,
        positions: Positions,
        finished: Cell<bool>,
        /// What was taken, in its order.
        taken: Vec<(Stream, Vec<u8>)>,
    }

    impl Rig {
        fn new() -> Self {
            Self::with(1 << 20, None)
        }

        fn with(buffer_bytes: usize, disk: Option<Arc<dyn Disk>>) -> Self {
            let account = Budget::root(1 << 24);
            let log = |stream| {
                SharedLog::new(LogOptions {
                    stream,
                    policy: Policy::Relay,
                    buffer_bytes,
                    pool: BufferPool::new(0),
                    account: Arc::clone(&account),
                    disk: disk.clone(),
                    name: format!("{stream:?}"),
                })
            };
            let logs = [log(Stream::Stdout), log(Stream::Stderr)];
            let (seq, positions) = (SeqCounter::default(), Positions::default());
            Self { logs, account, seq, positions, finished: Cell::new(false), taken: Vec::new() }
        }

        fn log(&self, stream: Stream) -> &SharedLog {
            match stream {
                Stream::Stdout => &self.logs[0],
                Stream::Stderr => &self.logs[1],
            }
        }

        fn read(&self, stream: Stream, bytes: &[u8]) {
            assert!(self.log(stream).begin_read(bytes.len()) >= bytes.len(), "the quota is far away");
            self.log(stream).append(self.seq.next(), bytes);
        }

        fn end(&self) {
            self.logs.iter().for_each(|log| log.end());
            self.finished.set(true);
        }

        fn pull(&mut self, budget: usize) -> Pulled {
            let finished = || self.finished.get();
            let source = Source { stdout: &self.logs[0], stderr: Some(&self.logs[1]), finished: &finished };
            let taken = &mut self.taken;
            let take = |Chunk { stream, bytes, flush }: Chunk<'_>| {
                assert!(!bytes.is_empty());
                let lines = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
                let count = match flush {
                    Flush::Lines if lines == 0 && bytes.len() > LONGEST_LINE => LONGEST_LINE,
                    Flush::Lines => lines,
                    Flush::Piece if bytes.ends_with(b"\r") => bytes.len() - 1,
                    Flush::Piece | Flush::End => bytes.len(),
                };
                taken.push((stream, bytes[..count].to_vec()));
                count
            };
            let mut scratch = Vec::new();
            source
                .pull(&mut self.positions, budget, LONGEST_LINE, &mut scratch, take)
                .expect("nothing is on a disk")
        }

        /// Pulls until there is nothing more now.
        fn pull_all(&mut self, budget: usize) -> Pulled {
            loop {
                match self.pull(budget) {
                    Pulled::More => {}
                    rest @ (Pulled::Idle | Pulled::Lost { .. } | Pulled::Finished) => return rest,
                }
            }
        }

        fn of(&self, wanted: Stream) -> Vec<u8> {
            let of_it = self.taken.iter().filter(|(stream, _)| *stream == wanted);
            of_it.flat_map(|(_, bytes)| bytes).copied().collect()
        }
    }

    /// What was read from one stream after the other, neighbours of a stream joined.
    fn runs(reads: &[(Stream, Vec<u8>)]) -> Vec<(Stream, Vec<u8>)> {
        let mut runs: Vec<(Stream, Vec<u8>)> = Vec::new();
        for (stream, bytes) in reads.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            match runs.last_mut() {
                Some((last, all)) if last == stream => all.extend_from_slice(bytes),
                Some(_) | None => runs.push((*stream, bytes.clone())),
            }
        }
        runs
    }

    fn stream() -> impl Strategy<Value = Stream> {
        prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)]
    }

    fn lines() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec("[a-z]{0,80}\n", 1..4).prop_map(|lines| lines.concat().into_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn lines_are_taken_in_the_order_of_their_reads_over_both_streams(
            reads in prop::collection::vec((stream(), lines(), prop::bool::ANY), 1..40),
            budget in 1..400_usize,
        ) {
            let mut rig = Rig::new();
            for (stream, bytes, pull) in &reads {
                rig.read(*stream, bytes);
                if *pull {
                    prop_assert_eq!(rig.pull_all(budget), Pulled::Idle);
                }
            }
            rig.end();
            prop_assert_eq!(rig.pull_all(budget), Pulled::Finished);
            let reads: Vec<_> = reads.into_iter().map(|(stream, bytes, _)| (stream, bytes)).collect();
            prop_assert_eq!(runs(&rig.taken), runs(&reads));
        }

        #[test]
        fn every_byte_is_taken_once_and_the_finish_is_said_once(
            reads in prop::collection::vec((stream(), "[a\r\n]{1,3}|[a-c]{900,2500}\n?|[a-c\n]{0,60}", prop::bool::ANY), 0..40),
            budget in 1..4000_usize,
        ) {
            let mut rig = Rig::new();
            for (stream, text, pull) in reads.iter().filter(|(_, text, _)| !text.is_empty()) {
                rig.read(*stream, text.as_bytes());
                if *pull {
                    prop_assert_eq!(rig.pull_all(budget), Pulled::Idle);
                }
            }
            rig.logs.iter().for_each(|log| log.end());
            prop_assert_eq!(rig.pull_all(budget), Pulled::Idle, "the process has not ended");
            rig.finished.set(true);
            prop_assert_eq!(rig.pull_all(budget), Pulled::Finished);
            prop_assert_eq!(rig.pull_all(budget), Pulled::Idle, "said once");
            for wanted in [Stream::Stdout, Stream::Stderr] {
                let all: String = reads.iter().filter(|(s, ..)| *s == wanted).map(|(_, text, _)| text.as_str()).collect();
                prop_assert_eq!(rig.of(wanted), all.into_bytes());
            }
            prop_assert!(rig.account.used() == 0, "all room is given back: {:?}", rig.account);
        }
    }

    #[test]
    fn half_a_line_waits_for_the_other_half_and_holds_up_no_line_of_the_other_stream() {
        let mut rig = Rig::new();
        rig.read(Stream::Stdout, b"first ");
        rig.read(Stream::Stderr, b"error\n");
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(runs(&rig.taken), [(Stream::Stderr, b"error\n".to_vec())]);
        rig.read(Stream::Stdout, b"second\nrest");
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(rig.of(Stream::Stdout), b"first second\n");
        rig.end();
        assert_eq!(rig.pull_all(100), Pulled::Finished);
        assert_eq!(rig.of(Stream::Stdout), b"first second\nrest");
    }

    #[test]
    fn where_a_disk_has_lost_bytes_the_reader_is_told_how_many_and_goes_on_behind_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut rig = Rig::with(8, Some(Arc::new(FolderDisk::new(folder.path()))));
        for piece in [b"one\ntwo\n", b"3333-333", b"3\nfour\n\n", b"tail\n55\n"] {
            rig.read(Stream::Stdout, piece);
        }
        let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(11).unwrap();
        let lost = Pulled::Lost { stream: Stream::Stdout, bytes: 13 };
        assert_eq!(rig.pull_all(100), lost);
        assert_eq!(rig.of(Stream::Stdout), b"one\ntwo\n333", "also half a line, whose end is gone");
        rig.end();
        assert_eq!(rig.pull_all(100), Pulled::Finished);
        assert_eq!(rig.of(Stream::Stdout), b"one\ntwo\n333tail\n55\n");
        assert_eq!(rig.positions.lost, 13);
    }

    #[test]
    fn a_line_beyond_the_longest_goes_out_before_its_end() {
        let mut rig = Rig::new();
        rig.read(Stream::Stdout, &[b'x'; LONGEST_LINE]);
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(rig.of(Stream::Stdout), b"", "it may still be a whole one");
        rig.read(Stream::Stdout, b"xx");
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(rig.of(Stream::Stdout).len(), LONGEST_LINE);
    }

    #[test]
    fn half_a_line_is_given_up_to_whoever_waits_for_room_and_what_cannot_be_cut_stays() {
        let mut rig = Rig::new();
        rig.read(Stream::Stdout, b"50%\r");
        rig.read(Stream::Stderr, b"\r");
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(rig.taken, []);
        let all = rig.account.reserve(u64::MAX);
        let Claimed::Waiting(claim) = rig.account.claim(all, all, Waker::noop()) else {
            panic!("there is no room")
        };
        for _ in 0..3 {
            assert_eq!(rig.pull(100), Pulled::Idle, "what was refused is not offered for ever");
            assert_eq!((rig.of(Stream::Stdout), rig.of(Stream::Stderr)), (b"50%".to_vec(), Vec::new()));
        }
        drop(claim);
        rig.account.release(all);
        rig.read(Stream::Stdout, b"\n");
        rig.read(Stream::Stderr, b"ok\n");
        assert_eq!(rig.pull_all(100), Pulled::Idle);
        assert_eq!(
            (rig.of(Stream::Stdout), rig.of(Stream::Stderr)),
            (b"50%\r\n".to_vec(), b"\rok\n".to_vec())
        );
    }
}

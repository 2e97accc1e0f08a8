//! Which read brought which bytes: runs of consecutive reads of one log.

use std::collections::VecDeque;

use super::{RUN_BYTES, Seq};

/// Bytes of one log between which no other log of the process was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first read in it; runs of a process's logs never overlap in their numbers.
    pub seq: Seq,
    /// The offset after its last byte so far.
    pub end: u64,
}

/// The runs of one log, in order.
#[derive(Debug, Default)]
pub(super) struct Index {
    runs: VecDeque<Run>,
    last: Option<Seq>,
}

impl Index {
    /// A read with this number brought the bytes up to `end`. Returns how many bytes the index has grown.
    pub(super) fn push(&mut self, seq: Seq, end: u64) -> u64 {
        let follows = self.last.is_some_and(|last| last.0 + 1 == seq.0);
        self.last = Some(seq);
        match self.runs.back_mut() {
            Some(run) if follows => {
                run.end = end;
                0
            }
            Some(_) | None => {
                self.runs.push_back(Run { seq, end });
                RUN_BYTES
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// The run that holds the byte at `offset`.
    pub(super) fn at(&self, offset: u64) -> Option<Run> {
        self.runs.get(self.runs.partition_point(|run| run.end <= offset)).copied()
    }

    /// The end of the run at this place from the front.
    pub(super) fn end_of(&self, place: usize) -> Option<u64> {
        self.runs.get(place).map(|run| run.end)
    }

    /// Drops the runs that end at or before `offset`.
    pub(super) fn forget_before(&mut self, offset: u64) {
        while self.runs.front().is_some_and(|run| run.end <= offset) {
            self.runs.pop_front();
        }
    }

    /// Takes the part before `offset` out; a run across it is in both parts afterwards.
    pub(super) fn split_before(&mut self, offset: u64) -> Self {
        let whole = self.runs.partition_point(|run| run.end <= offset);
        let mut head: VecDeque<Run> = self.runs.drain(..whole).collect();
        let reaches = head.back().map_or(0, |run| run.end);
        if let Some(cut) = self.runs.front().filter(|_| reaches < offset) {
            head.push_back(Run { seq: cut.seq, end: offset });
        }
        head.shrink_to_fit();
        Self { runs: head, last: None }
    }

    /// Gives back memory that bursts have left.
    pub(super) fn shrink(&mut self) {
        self.runs.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn merging_runs_keeps_the_order_over_two_streams(reads in prop::collection::vec((any::<bool>(), 1..4_u64), 1..80)) {
            let mut logs = [Index::default(), Index::default()];
            let mut ends = [0_u64; 2];
            let mut origin = [Vec::new(), Vec::new()];
            for (number, (stderr, n)) in reads.iter().enumerate() {
                let log = usize::from(*stderr);
                ends[log] += n;
                logs[log].push(Seq(number as u64), ends[log]);
                origin[log].extend(std::iter::repeat_n(number, *n as usize));
            }
            // A merge by run number gives every byte in the order of the reads.
            let mut at = [0_u64; 2];
            let mut merged = Vec::new();
            loop {
                let next = [logs[0].at(at[0]), logs[1].at(at[1])];
                let pick = match next {
                    [Some(a), Some(b)] => usize::from(b.seq < a.seq),
                    [Some(_), None] => 0,
                    [None, Some(_)] => 1,
                    [None, None] => break,
                };
                let end = next[pick].expect("it was picked").end;
                merged.extend_from_slice(&origin[pick][at[pick] as usize..end as usize]);
                at[pick] = end;
            }
            prop_assert!(merged.is_sorted());
            prop_assert_eq!(merged.len() as u64, ends[0] + ends[1]);
        }

        #[test]
        fn splitting_keeps_every_byte_in_its_run(
            reads in prop::collection::vec((0..3_u64, 1..5_u64), 1..40),
            cut in 0..100_u64,
        ) {
            let mut index = Index::default();
            let (mut seq, mut end) = (0, 0);
            for (skip, n) in reads {
                seq += 1 + skip;
                end += n;
                index.push(Seq(seq), end);
            }
            let cut = cut.min(end);
            let whole: Vec<_> = (0..end).map(|at| index.at(at).map(|run| run.seq)).collect();
            let head = index.split_before(cut);
            let parts: Vec<_> =
                (0..end).map(|at| if at < cut { head.at(at) } else { index.at(at) }.map(|run| run.seq)).collect();
            prop_assert_eq!(whole, parts);
            prop_assert_eq!(head.at(cut), None);
        }
    }

    #[test]
    fn consecutive_reads_of_one_log_are_one_run() {
        let mut index = Index::default();
        assert_eq!(index.push(Seq(4), 10), RUN_BYTES);
        assert_eq!(index.push(Seq(5), 20), 0);
        assert_eq!(index.push(Seq(7), 30), RUN_BYTES);
        assert_eq!(index.at(15), Some(Run { seq: Seq(4), end: 20 }));
        assert_eq!(index.at(20), Some(Run { seq: Seq(7), end: 30 }));
        index.forget_before(20);
        assert_eq!((index.len(), index.at(30)), (1, None));
    }
}

//! Killing to a fixpoint: passes of "find, signal" until two in a row find nothing alive.
//!
//! Processes fork while they are being killed, so one pass proves nothing. A pass that found somebody is followed by
//! another at once; while the same ones merely take their time to die, the pauses grow. A hunt that does not
//! converge within its limit ends as well and names who is left.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::family::Member;
use super::protocol::{KeeperEvent, Pids};
use crate::id::ProcessId;
use crate::sys::{procfs, signal};

/// What is to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quarry {
    /// Everything that belongs to one process.
    Process(ProcessId),
    /// Everything below the keeper.
    Everyone,
}

/// How a pass went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nothing alive, twice in a row.
    Done,
    /// The limit is over and somebody is left.
    GaveUp,
    /// Another pass is due then.
    Again(Instant),
}

const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The pace and the record of one hunt; finding and signalling is the caller's.
#[derive(Debug)]
pub(super) struct Hunt {
    pub(super) ticket: u64,
    pub(super) quarry: Quarry,
    give_up: Instant,
    signalled: BTreeSet<i32>,
    last: HashSet<Member>,
    empty_passes: u8,
    pause: Duration,
    finished: bool,
}

impl Hunt {
    pub(super) fn new(ticket: u64, quarry: Quarry, give_up: Instant) -> Self {
        Self {
            ticket,
            quarry,
            give_up,
            signalled: BTreeSet::new(),
            last: HashSet::new(),
            empty_passes: 0,
            pause: FIRST_PAUSE,
            finished: false,
        }
    }

    /// Adds those who got a milder signal before.
    pub(super) fn also_signalled(&mut self, pids: BTreeSet<i32>) {
        self.signalled.extend(pids);
    }

    /// Marks it as answered.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether it has been answered.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Records what a pass found and signalled, and says what comes next.
    pub(super) fn passed(&mut self, found: &[Member], now: Instant) -> Pass {
        self.signalled.extend(found.iter().map(|m| m.pid));
        let found: HashSet<Member> = found.iter().copied().collect();
        if found.is_empty() {
            self.empty_passes += 1;
            if self.empty_passes >= 2 {
                self.last = found;
                return Pass::Done;
            }
            self.last = found;
            return Pass::Again(now);
        }
        self.empty_passes = 0;
        let newcomers = !found.is_subset(&self.last);
        self.last = found;
        if now >= self.give_up {
            return Pass::GaveUp;
        }
        self.pause = if newcomers { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        Pass::Again(if newcomers { now } else { (now + self.pause).min(self.give_up) })
    }

    /// The answer to whoever asked.
    pub(super) fn receipt(&self, unattributed: Vec<i32>) -> KeeperEvent {
        KeeperEvent::Done {
            ticket: self.ticket,
            signalled: self.signalled.iter().copied().collect(),
            survivors: self.last.iter().map(|m| m.pid).collect::<BTreeSet<_>>().into_iter().collect::<Pids>(),
            unattributed: unattributed.into_iter().collect(),
        }
    }
}

/// Sends a signal to a process that may be anybody's child: its pid is pinned by a descriptor first, and the start
/// time then shows that the descriptor is of the process that was found.
pub(super) fn signal_pinned(member: Member, number: i32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(member.pid) else { return false };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
        return false;
    };
    let same = procfs::stat(member.pid).is_some_and(|stat| stat.start_time == member.start_time);
    same && signal::send_pidfd(pidfd.as_fd(), number).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: i32) -> Member {
        Member { pid, start_time: 1 }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do as the origin of the test's own clock"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn two_empty_passes_in_a_row_end_a_hunt() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_secs(2));
        assert_eq!(hunt.passed(&[member(5)], now), Pass::Again(now));
        assert_eq!(hunt.passed(&[], now), Pass::Again(now));
        assert_eq!(hunt.passed(&[member(6)], now), Pass::Again(now));
        assert_eq!(hunt.passed(&[], now), Pass::Again(now));
        assert_eq!(hunt.passed(&[], now), Pass::Done);
        let pids = |list: &[i32]| Pids { total: list.len() as u32, pids: list.to_vec() };
        assert_eq!(
            hunt.receipt(vec![9]),
            KeeperEvent::Done {
                ticket: 7,
                signalled: pids(&[5, 6]),
                survivors: pids(&[]),
                unattributed: pids(&[9])
            }
        );
    }

    #[test]
    fn a_hunt_that_does_not_converge_names_who_is_left() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_millis(10));
        assert_eq!(hunt.passed(&[member(5)], now), Pass::Again(now));
        assert!(matches!(hunt.passed(&[member(5)], now), Pass::Again(at) if at > now));
        assert_eq!(hunt.passed(&[member(5)], now + Duration::from_millis(10)), Pass::GaveUp);
        let KeeperEvent::Done { survivors, .. } = hunt.receipt(Vec::new()) else { unreachable!() };
        assert_eq!(survivors.pids, [5]);
    }

    #[test]
    fn pauses_grow_while_the_same_ones_take_their_time_and_end_with_newcomers() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_secs(60));
        let mut waits = Vec::new();
        for _ in 0..10 {
            let Pass::Again(at) = hunt.passed(&[member(5)], now) else { unreachable!() };
            waits.push(at - now);
        }
        assert!(waits.is_sorted() && waits.last() == Some(&LONGEST_PAUSE));
        assert_eq!(hunt.passed(&[member(5), member(6)], now), Pass::Again(now));
    }
}

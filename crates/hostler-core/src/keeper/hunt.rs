//! Killing to a fixpoint: passes of "find, signal" until two in a row find nothing alive. A pass that could not look
//! everywhere has not found nothing.
//!
//! Processes fork while they are being killed, so one pass proves nothing. A pass that found somebody is followed by
//! another at once; while the same ones merely take their time to die, the pauses grow. A hunt that does not
//! converge within its limit ends as well and names who is left, or what could not be looked at.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::family::{Look, Member};
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
    /// The limit is over and somebody is left, or may be.
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
    unseen: Option<i32>,
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
            unseen: None,
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

    /// Records who got the signal.
    pub(super) fn killed(&mut self, pid: i32) {
        self.signalled.insert(pid);
    }

    /// Records what a pass found, and says what comes next.
    pub(super) fn passed(&mut self, look: &Look, now: Instant) -> Pass {
        let found: HashSet<Member> = look.members.iter().copied().collect();
        let newcomers = !found.is_subset(&self.last);
        self.last = found;
        self.unseen = look.unseen;
        if self.last.is_empty() && self.unseen.is_none() {
            self.empty_passes += 1;
            return if self.empty_passes >= 2 { Pass::Done } else { Pass::Again(now) };
        }
        self.empty_passes = 0;
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
            unseen: self.unseen,
        }
    }
}

/// Sends a signal to a process that may be anybody's child: its pid is pinned by a descriptor first, and the start
/// time then shows that the descriptor is of the process that was found.
///
/// # Errors
/// `ESRCH` when it is gone, its pid perhaps given to another; whatever else keeps it from being told or signalled.
pub(super) fn signal_pinned(member: Member, number: i32) -> io::Result<()> {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = rustix::process::Pid::from_raw(member.pid).ok_or_else(gone)?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let stat = procfs::stat(member.pid)?;
    stat.filter(|stat| stat.start_time == member.start_time).ok_or_else(gone)?;
    signal::send_pidfd(pidfd.as_fd(), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: i32) -> Member {
        Member { pid, start_time: 1 }
    }

    fn pass(hunt: &mut Hunt, pids: &[i32], now: Instant) -> Pass {
        pids.iter().for_each(|pid| hunt.killed(*pid));
        hunt.passed(&Look { members: pids.iter().copied().map(member).collect(), unseen: None }, now)
    }

    fn failed_pass(hunt: &mut Hunt, now: Instant) -> Pass {
        hunt.passed(&Look { members: Vec::new(), unseen: Some(libc::EMFILE) }, now)
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
        assert_eq!(pass(&mut hunt, &[5], now), Pass::Again(now));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Again(now));
        assert_eq!(pass(&mut hunt, &[6], now), Pass::Again(now));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Again(now));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Done);
        let pids = |list: &[i32]| Pids { total: list.len() as u32, pids: list.to_vec() };
        assert_eq!(
            hunt.receipt(vec![9]),
            KeeperEvent::Done {
                ticket: 7,
                signalled: pids(&[5, 6]),
                survivors: pids(&[]),
                unattributed: pids(&[9]),
                unseen: None,
            }
        );
    }

    #[test]
    fn a_look_that_failed_is_no_empty_pass() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_millis(10));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Again(now));
        assert!(matches!(failed_pass(&mut hunt, now), Pass::Again(at) if at > now));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Again(now));
        assert_eq!(pass(&mut hunt, &[], now), Pass::Done);
    }

    #[test]
    fn a_hunt_that_cannot_look_to_its_end_says_so() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_millis(10));
        assert!(matches!(failed_pass(&mut hunt, now), Pass::Again(at) if at > now));
        assert_eq!(failed_pass(&mut hunt, now + Duration::from_millis(10)), Pass::GaveUp);
        let KeeperEvent::Done { survivors, unseen, .. } = hunt.receipt(Vec::new()) else { unreachable!() };
        assert_eq!((survivors.total, unseen), (0, Some(libc::EMFILE)));
    }

    #[test]
    fn a_hunt_that_does_not_converge_names_who_is_left() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_millis(10));
        assert_eq!(pass(&mut hunt, &[5], now), Pass::Again(now));
        assert!(matches!(pass(&mut hunt, &[5], now), Pass::Again(at) if at > now));
        assert_eq!(pass(&mut hunt, &[5], now + Duration::from_millis(10)), Pass::GaveUp);
        let KeeperEvent::Done { survivors, .. } = hunt.receipt(Vec::new()) else { unreachable!() };
        assert_eq!(survivors.pids, [5]);
    }

    #[test]
    fn pauses_grow_while_the_same_ones_take_their_time_and_end_with_newcomers() {
        let now = origin();
        let mut hunt = Hunt::new(7, Quarry::Everyone, now + Duration::from_secs(60));
        let mut waits = Vec::new();
        for _ in 0..10 {
            let Pass::Again(at) = pass(&mut hunt, &[5], now) else { unreachable!() };
            waits.push(at - now);
        }
        assert!(waits.is_sorted() && waits.last() == Some(&LONGEST_PAUSE));
        assert_eq!(pass(&mut hunt, &[5, 6], now), Pass::Again(now));
    }
}

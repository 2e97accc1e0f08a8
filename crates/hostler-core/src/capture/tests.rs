//! Logs over a disk that fails on purpose, and over a real one.

mod faulty;
mod real_disk;
mod spool;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use faulty::{FaultyDisk, Mounted};
use proptest::prelude::*;

use super::*;

struct Rig {
    disk: Arc<FaultyDisk>,
    account: Arc<Budget>,
    log: Log,
    seq: SeqCounter,
    input: Vec<u8>,
}

impl Rig {
    fn new(policy: Policy, quota: u64, buffer_bytes: usize) -> Self {
        Self::with(policy, Budget::root(1 << 40).child(1 << 30).child(quota), buffer_bytes)
    }

    /// A relay on the same account.
    fn sharing(other: &Self) -> Self {
        Self::with(Policy::Relay, Arc::clone(&other.account), 65_536)
    }

    fn with(policy: Policy, account: Arc<Budget>, buffer_bytes: usize) -> Self {
        let disk = Arc::new(FaultyDisk::default());
        let log = Log::new(LogOptions {
            stream: Stream::Stdout,
            policy,
            buffer_bytes,
            pool: BufferPool::new(0),
            account: Arc::clone(&account),
            disk: Some(Arc::new(Mounted(Arc::clone(&disk)))),
            name: "p1.stdout".to_owned(),
        });
        Self { disk, account, log, seq: SeqCounter::default(), input: Vec::new() }
    }

    /// Reads of which some follow a read of the other stream, with a newline here and there.
    fn bytes(&self, n: usize) -> (Seq, Vec<u8>) {
        let seq = self.seq.next();
        if self.input.len().is_multiple_of(3) {
            self.seq.next();
        }
        let byte = |i: usize| if (i * 7 + i / 5).is_multiple_of(11) { b'\n' } else { b'a' + (i % 23) as u8 };
        (seq, (self.input.len()..self.input.len() + n).map(byte).collect())
    }

    /// Appends up to `n` bytes; returns how many there was room for.
    fn write(&mut self, n: usize) -> usize {
        let granted = self.log.begin_read(n);
        assert!(granted <= n, "more was granted than asked for");
        let (seq, bytes) = self.bytes(granted);
        assert_eq!(self.log.append(seq, &bytes), granted, "what was granted is taken");
        self.input.extend_from_slice(&bytes);
        granted
    }

    /// Reads at `*at`, checks the bytes, moves on; returns how many bytes were in a hole.
    fn read(&mut self, at: &mut u64, max: usize) -> u64 {
        let mut scratch = Vec::new();
        match self.log.view(*at, max, &mut scratch).expect("no passing error was injected") {
            View::Bytes(bytes) => {
                let from = *at as usize;
                assert!(!bytes.is_empty() && bytes.len() <= max.max(1));
                assert_eq!(bytes, &self.input[from..from + bytes.len()], "bytes in order");
                *at += bytes.len() as u64;
                0
            }
            View::Hole(hole) => {
                assert!(hole.to > *at && hole.to <= self.input.len() as u64);
                if let Some(lines) = hole.lines_before {
                    assert_eq!(lines, count_lines(&self.input[..hole.to as usize]), "lines are exact");
                }
                let gone = hole.to - *at;
                *at = hole.to;
                gone
            }
            View::Pending | View::End => {
                assert_eq!(*at, self.input.len() as u64, "only at the end there is nothing");
                0
            }
        }
    }

    fn check_relay_bounds(&self, quota: u64, taken: u64) {
        let in_memory = self.input.len() as u64 - taken;
        assert!(self.account.used() <= quota);
        assert!(self.disk.used() <= quota, "the disk holds more than the quota");
        assert!(in_memory <= quota);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize),
    Read(usize),
    Follow(usize),
    Take(u64),
    Space(u64),
    ReadFault(bool),
    OpenFault(bool),
    Unlink,
    Cut(usize),
    Idle,
}

fn op(faults: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => prop_oneof![1..200_usize, 1..9000_usize].prop_map(Op::Write),
        8 => prop_oneof![1..200_usize, 1..30_000_usize].prop_map(Op::Read),
        3 => (1..9000_usize).prop_map(Op::Follow),
        8 => (0..20_000_u64).prop_map(Op::Take),
        faults => prop_oneof![Just(0), 0..10_000_u64, Just(u64::MAX / 2)].prop_map(Op::Space),
        faults => any::<bool>().prop_map(Op::OpenFault),
        1 => Just(Op::Unlink),
        (faults / 4).max(1) => (0..9000_usize).prop_map(Op::Cut),
        (faults / 4).max(1) => any::<bool>().prop_map(Op::ReadFault),
        2 => Just(Op::Idle),
    ]
}

fn sizes() -> impl Strategy<Value = (u64, usize, usize)> {
    let quota = prop_oneof![100..2000_u64, 20_000..400_000_u64];
    let most = prop_oneof![Just(usize::MAX), 1..5000_usize];
    (quota, prop_oneof![1..100_usize, 1000..20_000_usize], most)
}

/// Runs a relay with one owner and one follower. Returns the owner's holes.
fn run_relay(rig: &mut Rig, quota: u64, ops: Vec<Op>) -> u64 {
    let (mut read, mut taken, mut followed, mut holes) = (0, 0, 0, 0);
    for op in ops {
        match op {
            Op::Write(n) => {
                rig.write(n);
            }
            Op::Read(max) => holes += rig.read(&mut read, max),
            Op::Follow(max) => {
                rig.read(&mut followed, max);
            }
            Op::Take(n) => {
                taken = (taken + n).min(read);
                rig.log.take(taken);
            }
            Op::Space(space) => rig.disk.set_space(space),
            Op::ReadFault(on) => rig.disk.0.lock().read_error = on.then_some(libc::EIO),
            Op::OpenFault(on) => rig.disk.0.lock().open_error = on.then_some(libc::EACCES),
            Op::Unlink => rig.disk.unlink_all(),
            Op::Cut(len) => rig.disk.cut_all(len),
            Op::Idle => rig.log.idle(),
        }
        rig.check_relay_bounds(quota, taken);
    }
    rig.disk.0.lock().open_error = None;
    while read < rig.input.len() as u64 {
        holes += rig.read(&mut read, 5000);
    }
    rig.log.take(read);
    assert!(rig.write(1) == 1, "there is room once everything is taken");
    rig.read(&mut read, 1);
    rig.log.take(read);
    holes
}

proptest! {
    #[test]
    fn relay_delivers_every_byte_within_its_quota_whatever_the_disk_refuses(
        (quota, buffer, most) in sizes(),
        ops in prop::collection::vec(op(4).prop_filter("no lost bytes here", |op| {
            !matches!(op, Op::ReadFault(true) | Op::Cut(_))
        }), 0..150),
    ) {
        let mut rig = Rig::new(Policy::Relay, quota, buffer);
        rig.disk.0.lock().most = most;
        let holes = run_relay(&mut rig, quota, ops);
        prop_assert_eq!(holes, 0);
        let totals = rig.log.totals();
        prop_assert_eq!(totals.dropped, Dropped::NOTHING);
        prop_assert_eq!((totals.bytes, totals.lines), (rig.input.len() as u64, count_lines(&rig.input)));
        prop_assert_eq!(rig.account.used(), 0, "everything was given back");
        prop_assert_eq!(rig.disk.used(), 0);
        drop(rig.log);
        prop_assert!(rig.disk.0.lock().files.is_empty());
    }

    #[test]
    fn relay_counts_what_a_broken_disk_has_lost(
        (quota, buffer, most) in sizes(),
        ops in prop::collection::vec(op(6).prop_filter("the owner looks alone", |op| !matches!(op, Op::Follow(_))), 0..150),
    ) {
        let mut rig = Rig::new(Policy::Relay, quota, buffer);
        rig.disk.0.lock().most = most;
        let holes = run_relay(&mut rig, quota, ops);
        let totals = rig.log.totals();
        prop_assert_eq!(totals.dropped.bytes, holes);
        prop_assert_eq!(totals.state == CaptureState::Failed, holes > 0);
        prop_assert_eq!(rig.account.used(), 0);
        drop(rig.log);
        prop_assert!(rig.disk.0.lock().files.is_empty());
    }

    #[test]
    fn a_closed_relay_counts_what_nobody_took(
        (quota, buffer, most) in sizes(),
        ops in prop::collection::vec((1..9000_usize, 0..9000_u64), 0..40),
    ) {
        let mut rig = Rig::new(Policy::Relay, quota, buffer);
        rig.disk.0.lock().most = most;
        let mut taken = 0;
        for (write, take) in ops {
            rig.write(write);
            taken = (taken + take).min(rig.input.len() as u64);
            rig.log.take(taken);
        }
        rig.log.close();
        let dropped = rig.input.len() as u64 - taken;
        prop_assert_eq!(rig.log.totals().dropped.bytes, dropped);
        prop_assert_eq!((rig.account.used(), rig.disk.used()), (0, 0));
        prop_assert_eq!(rig.log.begin_read(10), 10, "it holds nothing back");
        prop_assert_eq!(rig.log.append(rig.seq.next(), b"after\n"), 0);
        let totals = rig.log.totals();
        prop_assert_eq!((totals.bytes, totals.dropped.bytes), (rig.input.len() as u64 + 6, dropped + 6));
        prop_assert_eq!((rig.account.used(), rig.disk.used()), (0, 0));
        rig.log.end();
        prop_assert_eq!(rig.log.begin_read(10), 0);
    }

    #[test]
    fn a_relay_that_is_cut_delivers_all_before_the_cut_and_counts_the_rest(
        (quota, buffer, most) in sizes(),
        ops in prop::collection::vec((1..9000_usize, 0..9000_u64), 0..40),
        (least, room) in (0..100_000_u64, 0..9000_u64),
    ) {
        let mut rig = Rig::new(Policy::Relay, quota, buffer);
        rig.disk.0.lock().most = most;
        let mut taken = 0;
        for (write, take) in ops {
            rig.write(write);
            taken = (taken + take).min(rig.input.len() as u64);
            rig.log.take(taken);
        }
        let whole = rig.input.len() as u64;
        rig.log.cut(least, least + room);
        rig.log.end();
        let Status { end, line_end, .. } = rig.log.status();
        prop_assert_eq!(rig.log.totals().dropped.bytes, whole - end);
        prop_assert!(least.max(taken).min(whole) <= end && end <= (least + room).max(taken));
        rig.input.truncate(end as usize);
        let last = memchr::memrchr(b'\n', &rig.input).map_or(0, |at| at as u64 + 1);
        prop_assert!(line_end == last || line_end.max(last) <= taken, "{} and {}", line_end, last);
        prop_assert!(end == whole || end == last || last <= least.max(taken), "at a line end where there is one");
        while taken < end {
            prop_assert_eq!(rig.read(&mut taken, 5000), 0);
            rig.log.take(taken);
        }
        prop_assert_eq!((rig.account.used(), rig.disk.used()), (0, 0));
    }

    #[test]
    fn head_gap_and_tail_of_a_record_are_its_input(
        (quota, buffer, most) in sizes(),
        ops in prop::collection::vec(op(1), 0..120),
    ) {
        let mut rig = Rig::new(Policy::Record, quota, buffer);
        rig.disk.0.lock().most = most;
        let (mut slow, mut delivered, mut gaps) = (0, 0, 0);
        for op in ops {
            match op {
                Op::Write(n) => {
                    prop_assert_eq!(rig.write(n), n, "a record holds nothing back");
                }
                Op::Read(max) | Op::Follow(max) => {
                    let before = slow;
                    let gone = rig.read(&mut slow, max);
                    gaps += gone;
                    delivered += slow - before - gone;
                }
                Op::Space(space) => rig.disk.set_space(space),
                Op::ReadFault(on) => rig.disk.0.lock().read_error = on.then_some(libc::EIO),
                Op::OpenFault(on) => rig.disk.0.lock().open_error = on.then_some(libc::EACCES),
                Op::Unlink => rig.disk.unlink_all(),
                Op::Cut(len) => rig.disk.cut_all(len),
                Op::Idle => rig.log.idle(),
                Op::Take(_) => {}
            }
            prop_assert!(rig.account.used() <= quota && rig.disk.used() <= quota);
        }
        rig.log.end();
        rig.log.idle();
        rig.disk.0.lock().read_error = None;
        rig.disk.0.lock().open_error = None;
        while slow < rig.input.len() as u64 {
            let before = slow;
            let gone = rig.read(&mut slow, 4000);
            gaps += gone;
            delivered += slow - before - gone;
        }
        prop_assert_eq!(delivered + gaps, rig.input.len() as u64);
        let (mut fresh, mut holes, mut kept) = (0, Vec::new(), Vec::new());
        while fresh < rig.input.len() as u64 {
            let before = fresh;
            if rig.read(&mut fresh, 4000) > 0 {
                holes.push(before as usize..fresh as usize);
            } else {
                kept.extend(before..fresh);
            }
        }
        let totals = rig.log.totals();
        prop_assert!(holes.len() <= 1);
        let hole = holes.first().cloned().unwrap_or(0..0);
        let lines = count_lines(&rig.input[hole.clone()]);
        prop_assert_eq!(totals.dropped, Dropped { bytes: hole.len() as u64, lines: Some(lines) });
        prop_assert_eq!((totals.bytes, totals.lines), (rig.input.len() as u64, count_lines(&rig.input)));
        prop_assert!(hole.is_empty() || totals.state != CaptureState::Complete);
        for at in kept {
            prop_assert!(rig.log.run_at(at).is_some(), "every byte that is kept knows its read");
        }
        drop(rig.log);
        prop_assert!(rig.disk.0.lock().files.is_empty());
        prop_assert_eq!(rig.account.used(), 0);
    }
}

#[test]
fn a_reader_that_keeps_up_costs_no_disk() {
    let mut rig = Rig::new(Policy::Relay, 16 << 20, 65_536);
    let mut at = 0;
    for _ in 0..200 {
        assert_eq!(rig.write(65_536), 65_536);
        rig.read(&mut at, 65_536);
        rig.log.take(at);
    }
    assert_eq!(rig.disk.0.lock().writes, 0);
}

#[test]
fn a_slow_reader_costs_disk_up_to_the_quota_and_then_the_process_waits() {
    let mut rig = Rig::new(Policy::Relay, 1 << 20, 65_536);
    while rig.write(65_536) > 0 {}
    assert!(rig.log.status().full);
    assert!(rig.input.len() > (1 << 20) - 200, "the quota is used");
    let mut at = 0;
    rig.read(&mut at, 70_000);
    rig.log.take(at);
    assert!(!rig.log.status().full, "a segment behind the reader was given back");
    assert!(rig.write(65_536) > 0);
}

#[test]
fn a_full_disk_leaves_the_ring_and_a_mended_one_is_used_again() {
    let mut rig = Rig::new(Policy::Relay, 1 << 20, 8192);
    rig.disk.set_space(1000);
    while rig.write(4096) > 0 {}
    assert_eq!(rig.input.len(), 8192 + 1000, "a partial write counts exactly");
    assert!(rig.log.status().full);
    let mut at = 0;
    rig.read(&mut at, 1500);
    rig.log.take(at);
    assert!(!rig.log.status().full);
    assert_eq!(rig.write(4096), 1500, "500 in the ring, and 1000 on the disk that were given back");
    rig.disk.set_space(1 << 30);
    assert_eq!(rig.write(4096), 4096);
    assert_eq!(rig.log.totals().dropped, Dropped::NOTHING);
}

#[test]
fn room_in_the_ring_wakes_the_driver_once_somebody_takes() {
    #[derive(Default)]
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for space in [0, u64::MAX / 2] {
        let mut rig = Rig::new(Policy::Relay, 100_000, 8192);
        rig.disk.set_space(space);
        let wakes = Arc::new(Wakes::default());
        rig.log.set_room_waker(&Waker::from(Arc::clone(&wakes)));
        while rig.write(4096) > 0 {}
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        rig.log.take(rig.input.len() as u64);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_grant_that_was_not_used_yet_stays_though_others_wait_for_room() {
    const QUOTA: u64 = 4 * 4096;
    let mut stdout = Rig::new(Policy::Relay, QUOTA, 65_536);
    let mut stderr = Rig::sharing(&stdout);
    while stdout.write(4096) > 0 {}
    assert_eq!((stdout.log.begin_read(4096), stderr.log.begin_read(4096)), (0, 0), "both wait");
    stdout.log.take(2048);
    let granted = stdout.log.begin_read(4096);
    assert!(granted > 0, "the older one is served");
    assert_eq!(stderr.log.begin_read(4096), 0, "and the other waits on");
    // Whoever asks when there is room, and asks again when it reads, must not hand the room to and fro with the other.
    assert_eq!(stdout.log.begin_read(4096), granted);
    assert_eq!(stdout.log.begin_read(1), 1, "never more than is asked for");
    assert_eq!(stdout.write(4096), granted);
}

#[test]
fn a_passing_shortage_of_descriptors_holds_a_relay_back_and_loses_nothing() {
    let mut rig = Rig::new(Policy::Relay, 1 << 20, 4096);
    rig.disk.0.lock().open_error = Some(libc::EMFILE);
    while rig.write(1024) > 0 {}
    assert_eq!(rig.input.len(), 4096, "the ring is all there is");
    rig.disk.0.lock().open_error = None;
    assert_eq!(rig.write(1024), 1024, "a later try finds a descriptor");
    let mut at = 0;
    while at < 5120 {
        assert_eq!(rig.read(&mut at, 10_000), 0);
    }
    assert_eq!(rig.log.state(), CaptureState::Complete);
}

#[test]
fn a_passing_shortage_of_memory_loses_nothing() {
    for policy in [Policy::Record, Policy::Relay] {
        let mut rig = Rig::new(policy, 1 << 20, 4096);
        for _ in 0..10 {
            assert_eq!(rig.write(4096), 4096);
        }
        rig.disk.0.lock().read_error = Some(libc::ENOMEM);
        let mut scratch = Vec::new();
        assert!(rig.log.view(0, 100, &mut scratch).is_err());
        rig.disk.0.lock().read_error = None;
        let mut at = 0;
        while at < 40_960 {
            assert_eq!(rig.read(&mut at, 10_000), 0);
        }
        assert_eq!(rig.log.state(), CaptureState::Complete);
    }
}

#[test]
fn a_file_that_somebody_has_cut_is_a_hole_and_never_zeros() {
    for policy in [Policy::Record, Policy::Relay] {
        let mut rig = Rig::new(policy, 1 << 20, 4096);
        for _ in 0..5 {
            assert_eq!(rig.write(4096), 4096);
        }
        rig.disk.cut_all(1000);
        // The faulty disk refuses to write behind a gap.
        for _ in 0..5 {
            assert_eq!(rig.write(4096), 4096);
        }
        let (mut at, mut gone) = (0, 0);
        while at < 40_960 {
            gone += rig.read(&mut at, 10_000);
        }
        assert!(gone > 0);
        assert_eq!((rig.log.state(), rig.log.totals().dropped.bytes), (CaptureState::Failed, gone));
    }
}

#[test]
fn a_record_at_its_quota_says_limited_and_a_full_disk_failed() {
    let mut rig = Rig::new(Policy::Record, 10_016, 4096);
    rig.write(20_000);
    assert_eq!(rig.log.state(), CaptureState::Limited);
    assert_eq!(rig.disk.used(), 10_000, "the index of reads costs 16 bytes a run");
    let mut rig = Rig::new(Policy::Record, 1 << 20, 4096);
    rig.disk.set_space(10_000);
    rig.write(20_000);
    rig.disk.set_space(u64::MAX / 2);
    rig.write(20_000);
    assert_eq!(rig.log.state(), CaptureState::Failed);
    assert_eq!(rig.disk.used(), 10_000, "nothing follows a gap in the file");
    assert_eq!(rig.account.used(), 10_016);
    assert_eq!(rig.log.artifact_path(), Some(PathBuf::from("/faulty/p1.stdout")));
}

#[test]
fn an_idle_log_holds_no_descriptor_and_no_ring() {
    for policy in [Policy::Record, Policy::Relay] {
        let mut rig = Rig::new(policy, 1 << 20, 65_536);
        assert_eq!(rig.log.memory(), 0);
        rig.write(80);
        assert_eq!(rig.log.memory(), 4096);
        rig.log.take(80);
        rig.log.idle();
        assert_eq!(rig.log.memory(), 0);
        assert!(size_of::<Log>() <= 640, "{}", size_of::<Log>());
    }
}

#[test]
fn late_output_is_kept_by_a_record_and_counted_by_a_relay() {
    let mut record = Rig::new(Policy::Record, 1 << 20, 4096);
    record.log.append_late(record.seq.next(), b"late\n");
    assert_eq!((record.log.totals().late_bytes, record.log.totals().dropped), (5, Dropped::NOTHING));
    let mut relay = Rig::new(Policy::Relay, 1 << 20, 4096);
    relay.log.append_late(relay.seq.next(), b"late\n");
    let totals = relay.log.totals();
    assert_eq!((totals.bytes, totals.late_bytes, totals.lines), (5, 5, 1));
    assert_eq!(totals.dropped, Dropped { bytes: 5, lines: Some(1) });
}

#[test]
fn without_a_folder_the_ring_is_all_and_the_state_says_so() {
    let options = |policy| LogOptions {
        stream: Stream::Stderr,
        policy,
        buffer_bytes: 8,
        pool: BufferPool::new(0),
        account: Budget::root(1 << 20),
        disk: None,
        name: String::new(),
    };
    let seq = SeqCounter::default();
    let mut record = Log::new(options(Policy::Record));
    record.append(seq.next(), b"one\ntwo\nthree\n");
    assert_eq!(record.totals().dropped, Dropped { bytes: 6, lines: Some(1) });
    let mut relay = Log::new(options(Policy::Relay));
    assert_eq!(relay.begin_read(100), 8);
    assert_eq!((record.state(), relay.state()), (CaptureState::RingOnly, CaptureState::RingOnly));
    assert_eq!(record.artifact_path(), None);
}

#[test]
fn a_record_whose_file_cannot_be_read_counts_what_is_lost() {
    let mut rig = Rig::new(Policy::Record, 1 << 20, 4096);
    rig.write(20_000);
    rig.disk.0.lock().read_error = Some(libc::EIO);
    let mut at = 0;
    assert_eq!(rig.read(&mut at, 1000), 20_000 - 4096);
    let lines = count_lines(&rig.input[..20_000 - 4096]);
    assert_eq!(rig.log.totals().dropped, Dropped { bytes: 20_000 - 4096, lines: Some(lines) });
    assert_eq!(rig.log.state(), CaptureState::Failed);
    rig.write(100);
    assert_eq!(rig.disk.used(), 20_000, "nothing follows a gap");
}

#[test]
fn the_index_of_a_tail_stays_as_small_as_the_tail() {
    let mut rig = Rig::new(Policy::Record, 100, 4096);
    for _ in 0..10_000 {
        rig.seq.next();
        rig.write(1);
    }
    assert!(rig.log.index_memory() <= 4096 + RUN_BYTES, "{}", rig.log.index_memory());
    let totals = rig.log.totals();
    assert_eq!((totals.bytes, totals.state), (10_000, CaptureState::Limited));
    let mut at = 0;
    let mut gone = 0;
    while at < 10_000 {
        gone += rig.read(&mut at, 500);
    }
    assert_eq!(totals.dropped.bytes, gone);
}

#[test]
fn closing_a_relay_counts_unreadable_bytes_once() {
    let mut rig = Rig::new(Policy::Relay, 1 << 20, 4096);
    for _ in 0..30 {
        assert_eq!(rig.write(4096), 4096);
    }
    rig.disk.0.lock().read_error = Some(libc::EIO);
    let mut at = 0;
    let lost = rig.read(&mut at, 1000);
    assert!(lost > 0);
    assert_eq!(rig.log.totals().dropped, Dropped { bytes: lost, lines: None });
    rig.log.close();
    assert_eq!(rig.log.totals().dropped.bytes, 30 * 4096);
    assert_eq!(rig.account.used(), 0);
}

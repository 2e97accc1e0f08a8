//! Logs over a disk that fails on purpose, and over a real one.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// A disk in memory with faults.
#[derive(Debug, Default)]
struct FaultyDisk(Mutex<Platter>);

#[derive(Debug)]
struct Platter {
    files: BTreeMap<String, Vec<u8>>,
    /// Bytes that still fit.
    space: u64,
    /// Most bytes that one call moves; every second call is interrupted.
    most: usize,
    calls: usize,
    read_error: Option<i32>,
    open_error: Option<i32>,
    writes: usize,
}

impl Default for Platter {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            space: u64::MAX,
            most: usize::MAX,
            calls: 0,
            read_error: None,
            open_error: None,
            writes: 0,
        }
    }
}

impl FaultyDisk {
    fn used(&self) -> u64 {
        self.0.lock().files.values().map(|file| file.len() as u64).sum()
    }

    fn set_space(&self, space: u64) {
        self.0.lock().space = space;
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: Arc<FaultyDisk>,
    name: String,
}

#[derive(Debug)]
struct Mounted(Arc<FaultyDisk>);

impl Disk for Mounted {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut platter = self.0.0.lock();
        if let Some(error) = platter.open_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        assert!(platter.files.insert(name.to_owned(), Vec::new()).is_none(), "{name} was there already");
        Ok(Box::new(FaultyFile { disk: Arc::clone(&self.0), name: name.to_owned() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let platter = self.0.0.lock();
        if let Some(error) = platter.open_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        assert!(platter.files.contains_key(name), "{name} is not there");
        Ok(Box::new(FaultyFile { disk: Arc::clone(&self.0), name: name.to_owned() }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.0.0.lock();
        let file = platter.files.remove(name).expect("only a file that is there is removed");
        platter.space = platter.space.saturating_add(file.len() as u64);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/faulty").join(name)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut platter = self.disk.0.lock();
        platter.calls += 1;
        if platter.most < usize::MAX && platter.calls.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = bytes.len().min(platter.most).min(usize::try_from(platter.space).unwrap_or(usize::MAX));
        if n == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        platter.writes += 1;
        platter.space -= n as u64;
        let file = platter.files.get_mut(&self.name).expect("the file is there");
        assert_eq!(file.len() as u64, offset, "files are written without gaps");
        file.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut platter = self.disk.0.lock();
        platter.calls += 1;
        if platter.most < usize::MAX && platter.calls.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if let Some(error) = platter.read_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        let file = &platter.files[&self.name];
        let rest = &file[(offset as usize).min(file.len())..];
        let n = rest.len().min(bytes.len()).min(platter.most);
        bytes[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

struct Rig {
    disk: Arc<FaultyDisk>,
    account: Arc<Budget>,
    log: Log,
    seq: SeqCounter,
    input: Vec<u8>,
}

impl Rig {
    fn new(policy: Policy, quota: u64, buffer_bytes: usize) -> Self {
        let disk = Arc::new(FaultyDisk::default());
        let account = Budget::root(1 << 40).child(1 << 30).child(quota);
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
            !matches!(op, Op::ReadFault(true) | Op::OpenFault(true))
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
        prop_assert_eq!(rig.log.totals().dropped.bytes, rig.input.len() as u64 - taken);
        prop_assert_eq!((rig.account.used(), rig.disk.used()), (0, 0));
        prop_assert_eq!(rig.log.begin_read(10), 0);
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
                Op::Idle => rig.log.idle(),
                Op::Take(_) => {}
            }
            prop_assert!(rig.account.used() <= quota && rig.disk.used() <= quota);
        }
        rig.log.close();
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
fn a_passing_shortage_of_descriptors_loses_nothing() {
    for policy in [Policy::Record, Policy::Relay] {
        let mut rig = Rig::new(policy, 1 << 20, 4096);
        for _ in 0..10 {
            assert_eq!(rig.write(4096), 4096);
        }
        rig.log.idle();
        rig.disk.0.lock().open_error = Some(libc::EMFILE);
        let mut scratch = Vec::new();
        assert!(rig.log.view(0, 100, &mut scratch).is_err());
        rig.disk.0.lock().open_error = None;
        let mut at = 0;
        while at < 40_960 {
            assert_eq!(rig.read(&mut at, 10_000), 0);
        }
        assert_eq!(rig.log.state(), CaptureState::Complete);
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

mod on_a_real_disk {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn log(folder: &std::path::Path, policy: Policy) -> Log {
        Log::new(LogOptions {
            stream: Stream::Stdout,
            policy,
            buffer_bytes: 65_536,
            pool: BufferPool::new(1 << 20),
            account: Budget::root(8 << 20),
            disk: Some(Arc::new(FolderDisk::new(folder))),
            name: "p1.stdout".to_owned(),
        })
    }

    fn files(folder: &std::path::Path) -> Vec<std::fs::Metadata> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect()
    }

    #[test]
    fn an_artifact_is_private_whole_and_gone_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), Policy::Record);
        let seq = SeqCounter::default();
        assert_eq!(log.artifact_path(), None);
        let mut input = Vec::new();
        for i in 0..5000 {
            let line = format!("line {i}\n");
            log.append(seq.next(), line.as_bytes());
            input.extend_from_slice(line.as_bytes());
            if i % 1000 == 0 {
                log.idle();
            }
        }
        let path = log.artifact_path().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), input);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let mut scratch = Vec::new();
        assert_eq!(log.view(0, usize::MAX, &mut scratch).unwrap(), View::Bytes(input.as_slice()));
        drop(log);
        assert!(files(folder.path()).is_empty());
    }

    #[test]
    fn segments_behind_the_reader_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), Policy::Relay);
        let seq = SeqCounter::default();
        let (mut written, mut at, mut scratch) = (0_u64, 0_u64, Vec::new());
        let block: Vec<u8> = (0..65_536_u32).map(|i| (i % 251) as u8).collect();
        for round in 0..600 {
            let granted = log.begin_read(65_536);
            let from = (written % 65_536) as usize;
            let bytes: Vec<u8> = block[from..].iter().chain(&block[..from]).copied().take(granted).collect();
            log.append(seq.next(), &bytes);
            written += granted as u64;
            let on_disk: u64 = files(folder.path()).iter().map(MetadataExt::size).sum();
            assert!(on_disk <= 8 << 20, "{on_disk} bytes on the disk");
            if round % 3 == 0
                && let View::Bytes(bytes) = log.view(at, 150_000, &mut scratch).unwrap()
            {
                let mut expected = block.iter().cycle().skip((at % 65_536) as usize);
                assert!(bytes.iter().all(|byte| Some(byte) == expected.next()));
                at += bytes.len() as u64;
                log.take(at);
            }
        }
        assert!(written > 16 << 20, "{written} bytes went through");
        log.take(written);
        assert!(files(folder.path()).is_empty());
    }

    #[test]
    fn a_write_past_the_file_size_limit_is_an_error_and_not_a_signal() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let limit = 1 << 30;
        let old = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, rustix::process::Rlimit { current: Some(limit), ..old.clone() }).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = FolderDisk::new(folder.path()).create("large").unwrap();
        let error = file.write_at(b"x", limit).unwrap_err();
        setrlimit(Resource::Fsize, old).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    }

    #[test]
    fn a_folder_that_went_away_does_not_stop_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = log(&folder.path().join("gone"), Policy::Record);
        let mut relay = log(&folder.path().join("gone"), Policy::Relay);
        let seq = SeqCounter::default();
        record.append(seq.next(), &[b'x'; 100_000]);
        assert_eq!(record.state(), CaptureState::Failed);
        assert_eq!(record.totals().dropped.bytes, 100_000 - 65_536);
        assert_eq!(relay.begin_read(65_536), 65_536);
        relay.append(seq.next(), &[b'x'; 65_536]);
        assert_eq!(relay.begin_read(1), 0);
        relay.take(65_536);
        assert_eq!(relay.begin_read(1), 1);
    }
}

//! What a spool keeps, against the bytes that went in.

use std::sync::Arc;

use proptest::prelude::*;

use super::faulty::{FaultyDisk, Mounted};
use crate::capture::{Disk, Spool, SpoolView};

/// What the file of a spool holds here.
const CAPACITY: u64 = 700_000;
/// The memory that a spool may take when everything may go to its file.
const MEMORY: usize = 512 * 1024;

fn input(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|i| (i * 31 + i / 251) as u8).collect()
}

struct Rig {
    disk: Arc<FaultyDisk>,
    spool: Spool,
}

impl Rig {
    fn new() -> Self {
        let disk = Arc::new(FaultyDisk::default());
        let mounted: Arc<dyn Disk> = Arc::new(Mounted(Arc::clone(&disk)));
        Self { disk, spool: Spool::new(Some(mounted), "said".to_owned(), CAPACITY) }
    }

    fn append(&mut self, len: usize) {
        let end = self.spool.end();
        self.spool.append(&input(end..end + len as u64));
    }

    /// Everything from `at` on, by reads of `piece` bytes; `Err` with where to go on when some of it is gone.
    fn read(&mut self, at: u64, piece: usize) -> Result<Vec<u8>, u64> {
        let (mut all, mut scratch) = (Vec::new(), Vec::new());
        loop {
            match self.spool.view(at + all.len() as u64, piece, &mut scratch).unwrap() {
                SpoolView::Bytes([]) => return Ok(all),
                SpoolView::Bytes(bytes) => all.extend_from_slice(bytes),
                SpoolView::Gone { to } => return Err(to),
            }
        }
    }

    fn holds_from(&mut self, at: u64) {
        let expected = input(at..self.spool.end());
        assert!(self.read(at, 50_000).as_ref() == Ok(&expected), "from {at}");
    }
}

#[derive(Clone, Debug)]
enum Do {
    Append(usize),
    /// In thousandths of what is there.
    Store(u64),
    Release(u64),
    Space(u64),
}

fn step() -> impl Strategy<Value = Do> {
    prop_oneof![
        4 => (0..100_000_usize).prop_map(Do::Append),
        3 => (0..1001_u64).prop_map(Do::Store),
        1 => (0..1001_u64).prop_map(Do::Release),
        1 => prop_oneof![Just(0), 50_000..500_000_u64, Just(u64::MAX)].prop_map(Do::Space),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn everything_from_its_start_on_is_read_back_whatever_the_disk_takes(
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut rig = Rig::new();
        let (mut given_over, mut released, mut space) = (0, 0, u64::MAX);
        for step in steps {
            let (start, end) = (rig.spool.start(), rig.spool.end());
            let part = |thousandths: u64| start + (end - start) * thousandths / 1000;
            match step {
                Do::Append(len) => rig.append(len),
                Do::Store(thousandths) => {
                    given_over = given_over.max(part(thousandths));
                    rig.spool.store_before(given_over);
                }
                Do::Release(thousandths) => {
                    given_over = given_over.max(part(thousandths));
                    rig.spool.release_before(part(thousandths));
                    released = released.max(part(thousandths));
                }
                Do::Space(bytes) => {
                    // What a full disk has cost stays lost.
                    space = bytes.min(space);
                    rig.disk.set_space(bytes);
                }
            }
            prop_assert!(rig.spool.start() <= given_over, "nothing else is ever let go");
            if space == u64::MAX {
                let kept = given_over.saturating_sub(CAPACITY).max(released);
                prop_assert!(rig.spool.start() <= kept, "{} of {}", rig.spool.start(), kept);
            }
            let start = rig.spool.start();
            rig.holds_from(start);
            if start > 0 {
                prop_assert_eq!(rig.read(start - 1, 10), Err(start));
            }
        }
        rig.spool.release_before(u64::MAX);
        prop_assert_eq!(rig.spool.start(), rig.spool.end());
        let Rig { disk, spool } = rig;
        drop(spool);
        prop_assert_eq!(disk.used(), 0, "no file is left");
    }
}

#[test]
fn memory_is_bounded_by_what_was_not_given_over_with_a_disk_and_without_one() {
    let with_disk = Rig::new();
    let without = Rig { disk: Arc::default(), spool: Spool::new(None, "said".to_owned(), CAPACITY) };
    for mut rig in [with_disk, without] {
        for _ in 0..200 {
            rig.append(30_000);
            rig.spool.store_before(rig.spool.end());
            assert!(rig.spool.memory() <= MEMORY, "{} bytes", rig.spool.memory());
        }
        let start = rig.spool.start();
        rig.holds_from(start);
    }
}

#[test]
fn what_was_not_given_over_is_never_on_the_disk_and_what_the_disk_loses_is_said() {
    let mut rig = Rig::new();
    rig.append(3_000_000);
    rig.spool.store_before(500_000);
    assert!(rig.disk.used() < 500_000);
    rig.spool.store_before(1_500_000);
    let start = rig.spool.start();
    assert!((500_000..800_000).contains(&start), "{start}");
    rig.holds_from(start);
    rig.disk.cut_all(10);
    let behind = rig.read(start, 4096).unwrap_err();
    assert!(behind < 1_500_000, "{behind}");
    rig.holds_from(behind);
    assert_eq!(rig.spool.start(), behind, "said once");
    rig.append(10);
    rig.spool.store_before(2_900_000);
    let start = rig.spool.start();
    rig.holds_from(start);
}

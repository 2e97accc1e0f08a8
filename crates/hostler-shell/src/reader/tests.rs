//! Outputs in any pieces, read in any order.

use hostler_core::Stream;
use hostler_core::capture::{Budget, BufferPool, FolderDisk, LogOptions, Policy, SeqCounter};
use proptest::prelude::*;

use super::*;

struct Output {
    log: Arc<SharedLog>,
    seq: SeqCounter,
    _folder: tempfile::TempDir,
}

impl Output {
    /// One of which so many bytes are saved, and the newest 4 KiB kept in memory.
    fn saving(quota: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = FolderDisk::new(folder.path());
        let log = SharedLog::new(LogOptions {
            stream: Stream::Stdout,
            policy: Policy::Record,
            buffer_bytes: 4096,
            pool: BufferPool::new(0),
            account: Budget::root(quota),
            disk: Some(Arc::new(disk)),
            name: "output".to_owned(),
        });
        Self { log, seq: SeqCounter::default(), _folder: folder }
    }

    fn print(&self, text: &str) {
        assert_eq!(self.log.append(self.seq.next(), text.as_bytes()), text.len());
    }

    fn next(&self, place: &mut Place) -> Lines {
        place.next(&self.log, LastLine::Grows).unwrap()
    }

    fn text(&self, place: &mut Place) -> String {
        String::from_utf8(self.next(place).bytes).unwrap()
    }
}

#[test]
fn a_line_is_given_out_once_and_not_before_it_is_whole() {
    let output = Output::saving(u64::MAX);
    let mut place = Place::default();
    output.print("one\ntw");
    assert!(place.has_news(&output.log, LastLine::Grows));
    assert_eq!(output.text(&mut place), "one\n");
    assert_eq!(output.text(&mut place), "");
    assert!(!place.has_news(&output.log, LastLine::Grows));
    output.print("o\nlast");
    assert_eq!(output.text(&mut place), "two\n");
    output.log.end();
    assert_eq!(output.text(&mut place), "last");
    assert_eq!(output.next(&mut place), Lines::default());
}

#[test]
fn more_than_a_window_comes_in_windows_and_a_longer_line_in_pieces() {
    let output = Output::saving(u64::MAX);
    let lines: String = (0..5000).map(|n| format!("{n}\n")).collect();
    output.print(&lines);
    let mut place = Place::default();
    let first = output.next(&mut place);
    assert_eq!((window::count(&first.bytes), first.more), (2000, true));
    let second = output.next(&mut place);
    let third = output.next(&mut place);
    assert_eq!((window::count(&third.bytes), third.more), (1000, false));
    assert_eq!([first.bytes, second.bytes, third.bytes].concat(), lines.as_bytes());
    let long = "\u{4f60}".repeat(40_000);
    output.print(&long);
    let piece = output.text(&mut place);
    assert!(piece.len() > 51_000 && piece.len() <= window::BYTES && long.starts_with(&piece));
}

#[test]
fn what_is_lost_is_counted_once() {
    let output = Output::saving(8192);
    let lines: String = (0..20_000).map(|n| format!("line {n:06}\n")).collect();
    output.print(&lines);
    output.log.end();
    let mut place = Place::default();
    let (mut delivered, mut lost) = (0, Lost::default());
    loop {
        let lines = output.next(&mut place);
        delivered += lines.bytes.len() as u64;
        lost.bytes += lines.lost.bytes;
        lost.lines += lines.lost.lines;
        if !lines.more {
            break;
        }
    }
    assert_eq!(delivered + lost.bytes, lines.len() as u64);
    assert!(lost.lines > 15_000 && lost.bytes > 0);
    assert_eq!(output.next(&mut place), Lines::default());
}

#[test]
fn both_ends_are_shown_and_the_rest_is_counted() {
    let output = Output::saving(u64::MAX);
    let lines: String = (0..10_000).map(|n| format!("row {n}\n")).collect();
    output.print(&lines);
    let shown = both_ends(&output.log).unwrap();
    assert_eq!((window::count(&shown.head), window::count(&shown.tail)), (1000, 1000));
    assert!(lines.as_bytes().starts_with(&shown.head) && lines.as_bytes().ends_with(&shown.tail));
    assert_eq!(shown.left_out().1, 8000);
    let newest = newest(&output.log, LastLine::Whole).unwrap();
    assert_eq!((window::count(&newest.tail), newest.total_lines), (2000, 10_000));
}

#[test]
fn peeking_shows_the_line_that_grows_but_no_half_of_a_character() {
    let output = Output::saving(u64::MAX);
    assert_eq!(output.log.append(output.seq.next(), b"a \xe2\x80"), 4);
    assert_eq!(newest(&output.log, LastLine::Grows).unwrap().tail, b"a ");
    assert_eq!(newest(&output.log, LastLine::Whole).unwrap().tail, b"a \xe2\x80");
}

#[tokio::test]
async fn pages_have_no_gap_and_end() {
    let output = Output::saving(u64::MAX);
    let lines: String = (0..7000).map(|n| format!("n {n}\n")).collect();
    output.print(&lines);
    let mut all = Vec::new();
    for skip in (0..7000).step_by(1500) {
        let page = page(&output.log, Range { skip, most: 1500 }).await.unwrap();
        assert_eq!(page.more, skip + 1500 < 7000);
        all.extend(page.bytes);
    }
    assert_eq!(all, lines.as_bytes());
    assert_eq!(page(&output.log, Range { skip: 7000, most: 3 }).await.unwrap(), Lines::default());
    assert_eq!(page(&output.log, Range { skip: 10, most: 2 }).await.unwrap().bytes, b"n 10\nn 11\n");
}

#[test]
fn the_last_line_is_the_newest_that_is_not_blank() {
    let output = Output::saving(u64::MAX);
    assert_eq!(last_line(&output.log), None);
    output.print("one\n 10%\r 20%\r\n \n");
    assert_eq!(last_line(&output.log).as_deref(), Some("20%"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn reading_on_gives_every_byte_once_in_order(
        pieces in proptest::collection::vec(("[ab\n\u{4f60}]{0,900}", any::<bool>()), 1..30),
    ) {
        let output = Output::saving(u64::MAX);
        let mut place = Place::default();
        let (mut printed, mut read) = (String::new(), Vec::new());
        for (piece, reads) in &pieces {
            output.print(piece);
            printed += piece;
            if *reads {
                let lines = output.next(&mut place);
                prop_assert!(lines.bytes.len() <= window::BYTES && window::count(&lines.bytes) <= window::LINES as u64);
                read.extend(lines.bytes);
                prop_assert!(read.is_empty() || read.ends_with(b"\n"));
            }
        }
        output.log.end();
        loop {
            let lines = output.next(&mut place);
            read.extend(lines.bytes);
            if !lines.more { break; }
        }
        prop_assert_eq!(String::from_utf8(read).unwrap(), printed);
    }
}

//! The audit file on a real file system.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};
use tempfile::TempDir;

use std::time::Duration;

use super::super::tests::{numbers, with_entry};
use super::super::{AuditEntry, line_of};
use super::*;
use crate::wire::{Outcome, ReqId, SessionId, Timestamp};

fn log(path: &Path, max_bytes: u64, backup_count: u32) -> AuditFile {
    AuditFile::open(AuditOptions { path: path.to_owned(), max_bytes, backup_count }).unwrap()
}

/// The error that is news, if there is one.
fn trouble(news: Option<AuditNews>) -> Option<AuditError> {
    match news? {
        AuditNews::Trouble(error) => Some(error),
        AuditNews::Recovered { lost } => panic!("recovered, {lost} lost"),
    }
}

fn note(log: &mut AuditFile, number: u32) -> Option<AuditNews> {
    with_entry(number, |entry| log.append(&line_of(entry)))
}

#[test]
fn entries_are_buffered_in_order_and_written_at_flush_and_drop() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let mut log = log(&path, 0, 5);
    assert!((0..10).all(|number| note(&mut log, number).is_none()));
    assert_eq!(numbers(&path), [0; 0]);
    assert!(log.flush().is_none());
    assert_eq!(numbers(&path), (0..10).collect::<Vec<_>>());
    assert!((10..200).all(|number| note(&mut log, number).is_none()));
    drop(log);
    assert_eq!(numbers(&path), (0..200).collect::<Vec<_>>());
}

#[test]
fn files_are_private_even_if_they_were_not() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let mut log = log(&path, 400, 2);
    for number in 0..5 {
        assert!(note(&mut log, number).is_none());
        assert!(log.flush().is_none());
    }
    for file in [path.clone(), numbered(&path, 1), numbered(&path, 2)] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn full_files_move_on_and_the_oldest_goes() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let mut log = log(&path, 400, 2);
    assert!((0..9).all(|number| note(&mut log, number).is_none()));
    drop(log);
    // Two entries fit into a file.
    assert_eq!(numbers(&numbered(&path, 2)), [4, 5]);
    assert_eq!(numbers(&numbered(&path, 1)), [6, 7]);
    assert_eq!(numbers(&path), [8]);
    assert!(!numbered(&path, 3).exists());
    assert!(fs::metadata(numbered(&path, 1)).unwrap().len() <= 400);
}

#[test]
fn without_backups_a_full_file_starts_anew() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let mut log = log(&path, 400, 0);
    assert!((0..5).all(|number| note(&mut log, number).is_none()));
    drop(log);
    assert_eq!(numbers(&path), [4]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_largest_entry_there_can_be_fits_into_the_smallest_file() {
    // What is written longest: six bytes for one.
    let id = "\u{1}".repeat(crate::wire::MAX_ID_BYTES);
    let mut line = Vec::new();
    let entry = AuditEntry {
        ts: Timestamp::from_unix(Duration::MAX),
        session_id: &SessionId::new("f".repeat(32)),
        req_id: &ReqId::new(id.as_str()),
        correlation_id: &id,
        outcome: Outcome::Failure(Some("capability_missing")),
        duration: Duration::MAX,
        input_bytes: u64::MAX,
        output_bytes: u64::MAX,
    };
    crate::wire::push_json(&mut line, &entry);
    assert!((48 << 10..60_000).contains(&line.len()), "{}", line.len());
}

#[test]
fn an_entry_larger_than_a_file_may_be_is_still_noted() {
    // No agent can send one and no configuration asks for such files; who embeds the log may.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let mut log = log(&path, 10, 1);
    assert!((0..3).all(|number| note(&mut log, number).is_none()));
    drop(log);
    assert_eq!((numbers(&numbered(&path, 1)), numbers(&path)), (vec![1], vec![2]));
}

#[test]
fn what_cannot_be_written_is_an_error_before_anything_is_noted() {
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (path, kind) in [
        (folder.path().join("missing/audit"), Some(io::ErrorKind::NotFound)),
        (folder.path().to_owned(), Some(io::ErrorKind::IsADirectory)),
        // No reader.
        (fifo, None),
    ] {
        let error = AuditFile::open(AuditOptions { path: path.clone(), max_bytes: 0, backup_count: 5 });
        let Err(AuditError::Open { path: named, source }) = error else { panic!("{error:?}") };
        assert_eq!(named, path);
        assert!(kind.is_none_or(|kind| kind == source.kind()), "{source:?}");
    }
}

#[test]
fn an_error_is_reported_once_until_writing_works_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("folder/audit");
    let lose = || fs::remove_dir_all(folder.path().join("folder")).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    let mut log = log(&path, 0, 5);
    lose();
    assert!(note(&mut log, 0).is_none());
    let error = trouble(log.flush()).unwrap();
    assert_eq!(error.to_string(), format!("failed to open the audit file {}", path.display()));
    assert!(note(&mut log, 1).is_none());
    assert!(log.flush().is_none());
    assert!(log.flush().is_none());
    assert_eq!(log.lost(), 2);

    fs::create_dir(folder.path().join("folder")).unwrap();
    assert!(note(&mut log, 2).is_none());
    assert!(matches!(log.flush(), Some(AuditNews::Recovered { lost: 2 })));
    assert_eq!(numbers(&path), [2]);

    lose();
    assert!(note(&mut log, 3).is_none());
    assert!(trouble(log.flush()).is_some());
    assert_eq!(log.lost(), 3);
}

/// A pipe with a name, and its reader.
fn fifo(folder: &TempDir) -> (PathBuf, fs::File) {
    let path = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut options = OpenOptions::new();
    let reader = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path).unwrap();
    (path, reader)
}

#[test]
fn a_pipe_whose_reader_reads_loses_nothing_however_much_comes_at_once() {
    let folder = TempDir::new().unwrap();
    let (path, reader) = fifo(&folder);
    rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
    let lines = "x\n".repeat(1 << 20);
    let mut log = log(&path, 0, 5);
    let reading = std::thread::spawn(move || std::io::read_to_string(reader).unwrap());
    assert!(log.append(lines.as_bytes()).is_none());
    drop(log);
    assert!(reading.join().unwrap() == lines);
}

#[test]
fn a_pipe_whose_reader_is_behind_is_not_waited_for_again_and_again() {
    let folder = TempDir::new().unwrap();
    let (path, mut reader) = fifo(&folder);
    let mut log = log(&path, 0, 5);
    let errors: Vec<_> = (0..2000).filter_map(|number| trouble(note(&mut log, number))).collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].source().unwrap().to_string().contains("its reader is behind"));
    assert!(log.lost() > 0);
    // The pipe stays open: its reader has all that is in it, and sees no end.
    let mut read = Vec::new();
    let end = reader.read_to_end(&mut read).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
    assert!(!read.is_empty());
}

#[test]
fn a_full_device_is_reported_once_and_costs_no_memory() {
    let mut log = log(Path::new("/dev/full"), 0, 5);
    let errors: Vec<_> = (0..200).filter_map(|number| trouble(note(&mut log, number))).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), "failed to write to the audit file /dev/full");
    assert!(log.lost() > 0);
    assert!(log.buffer.len() < BUFFER_BYTES);
}

#[test]
fn a_file_that_cannot_be_moved_away_is_written_on() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    fs::create_dir(numbered(&path, 1)).unwrap();
    let mut log = log(&path, 400, 1);
    let errors: Vec<_> = (0..6)
        .filter_map(|number| {
            assert!(note(&mut log, number).is_none());
            trouble(log.flush())
        })
        .collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), format!("failed to rotate the audit file {}", path.display()));
    drop(log);
    assert_eq!(numbers(&path), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn several_hosts_on_one_file_lose_nothing_and_keep_to_its_size() {
    const WRITERS: u32 = 4;
    const EACH: u32 = 100;
    const MAX_BYTES: u64 = 1000;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut log = log(&path, MAX_BYTES, 1000);
            scope.spawn(move || {
                for number in 0..EACH {
                    assert!(note(&mut log, writer * EACH + number).is_none());
                    // Some write each entry, some many at once.
                    assert!(number % (writer + 1) > 0 || log.flush().is_none());
                }
            });
        }
    });
    let older = (1..).map(|number| numbered(&path, number)).take_while(|file| file.exists());
    let mut files: Vec<_> = [path.clone()].into_iter().chain(older).collect();
    files.reverse();
    assert_eq!(files.len(), fs::read_dir(folder.path()).unwrap().count());
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for file in &files {
        let length = fs::metadata(file).unwrap().len();
        assert!(length <= MAX_BYTES, "{length} bytes in {file:?}");
        for number in numbers(file) {
            found.entry(number / EACH).or_default().push(number);
        }
    }
    let all = (0..WRITERS).map(|writer| (writer, (writer * EACH..(writer + 1) * EACH).collect()));
    assert_eq!(found, all.collect(), "each once, and those of a host in their order");
}

#[test]
fn a_file_that_somebody_else_has_moved_away_is_not_written_any_more() {
    let folder = TempDir::new().unwrap();
    let (path, moved) = (folder.path().join("audit"), folder.path().join("moved"));
    let mut log = log(&path, 0, 5);
    assert!(note(&mut log, 1).is_none() && log.flush().is_none());
    fs::rename(&path, &moved).unwrap();
    assert!(note(&mut log, 2).is_none() && log.flush().is_none());
    assert_eq!((numbers(&moved), numbers(&path)), (vec![1], vec![2]));
    fs::remove_file(&path).unwrap();
    assert!(note(&mut log, 3).is_none() && log.flush().is_none());
    assert_eq!(numbers(&path), [3]);
}

#[test]
fn a_lock_that_somebody_keeps_costs_no_entry_and_is_reported_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let mut log = log(&path, 400, 5);
    let other = fs::File::open(&path).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    let errors: Vec<_> = (0..4)
        .filter_map(|number| {
            assert!(note(&mut log, number).is_none());
            trouble(log.flush())
        })
        .collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), format!("failed to lock the audit file {}", path.display()));
    assert_eq!(numbers(&path), [0, 1, 2, 3]);
    drop(other);
    assert!(note(&mut log, 4).is_none() && log.flush().is_none());
    assert_eq!((numbers(&numbered(&path, 1)), numbers(&path)), (vec![0, 1, 2, 3], vec![4]));
    assert_eq!(log.lost(), 0);
}

#[test]
fn an_entry_after_a_torn_one_begins_a_new_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    fs::write(&path, "{\"ts\":4.").unwrap();
    let mut log = log(&path, 0, 5);
    log.line_end = LineEnd::Torn;
    assert!(note(&mut log, 7).is_none());
    drop(log);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(text.starts_with("{\"ts\":4.\n{\"ts\":4.2,"));
}

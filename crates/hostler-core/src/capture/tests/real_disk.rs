//! Logs in a temporary folder.

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
    setrlimit(Resource::Fsize, rustix::process::Rlimit { current: Some(limit), ..old }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = FolderDisk::new(folder.path()).create("large").unwrap();
    let error = file.write_at(b"x", limit).unwrap_err();
    setrlimit(Resource::Fsize, old).unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
}

/// What can happen to a folder while a reader is behind, that its files outlive.
fn calamities() -> [fn(&std::path::Path); 3] {
    [
        |folder| std::fs::remove_dir_all(folder).unwrap(),
        |folder| std::fs::rename(folder, folder.with_extension("moved")).unwrap(),
        |folder| {
            std::fs::remove_dir_all(folder).unwrap();
            std::os::unix::fs::symlink("/dev/null", folder).unwrap();
        },
    ]
}

#[test]
fn what_waits_in_a_folder_is_read_after_the_folder_has_gone() {
    for policy in [Policy::Relay, Policy::Record] {
        for calamity in calamities() {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("spool");
            std::fs::create_dir(&folder).unwrap();
            let mut log = log(&folder, policy);
            let (seq, mut input) = (SeqCounter::default(), Vec::new());
            let mut fill = |log: &mut Log, most: usize| {
                while input.len() < most {
                    let granted = log.begin_read(65_536);
                    if granted == 0 {
                        break;
                    }
                    let from = input.len();
                    input.extend((from..from + granted).map(|i| (i % 251) as u8));
                    log.append(seq.next(), &input[from..]);
                }
                input.len()
            };
            assert!(fill(&mut log, 3 << 20) >= 3 << 20);
            log.idle();
            calamity(&folder);
            let end = fill(&mut log, 4 << 20);
            let (mut at, mut scratch) = (0, Vec::new());
            while at < end as u64 {
                let view = log.view(at, 150_000, &mut scratch).unwrap();
                let View::Bytes(bytes) = view else { panic!("{view:?} at {at} of {end}") };
                let mut expected = (at..).map(|i| (i % 251) as u8);
                assert!(bytes.iter().all(|byte| Some(*byte) == expected.next()));
                at += bytes.len() as u64;
                log.take(at);
            }
            assert_eq!(log.totals().dropped, Dropped::NOTHING);
        }
    }
}

#[test]
fn a_relay_that_nobody_waits_for_holds_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = log(folder.path(), Policy::Relay);
    let seq = SeqCounter::default();
    for _ in 0..50 {
        let granted = log.begin_read(65_536);
        log.append(seq.next(), &vec![b'x'; granted]);
    }
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        links
            .filter_map(|link| std::fs::read_link(link).ok())
            .filter(|to| to.starts_with(folder.path()))
            .count()
    };
    assert!((1..=8).contains(&open()), "{} for {} bytes", open(), log.status().end);
    log.take(log.status().end);
    assert_eq!(open(), 0);
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

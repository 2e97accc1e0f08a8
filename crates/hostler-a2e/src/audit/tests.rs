//! Entries, and the thread that writes them.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

pub(super) fn with_entry<T>(number: u32, take: impl FnOnce(&AuditEntry<'_>) -> T) -> T {
    take(&AuditEntry {
        ts: Timestamp::from_unix(Duration::from_millis(4200)),
        session_id: &SessionId::new("s1"),
        req_id: &ReqId::new(format!("p{number:03}")),
        correlation_id: "c0ffee",
        outcome: Outcome::Success,
        duration: Duration::from_micros(12_999),
        input_bytes: 120,
        output_bytes: 98,
    })
}

/// The numbers of the entries in a file, each of which must be whole.
pub(super) fn numbers(path: &Path) -> Vec<u32> {
    let number = |line: &str| {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        entry["req_id"].as_str().unwrap()[1..].parse().unwrap()
    };
    fs::read_to_string(path).unwrap().lines().filter(|line| !line.is_empty()).map(number).collect()
}

#[test]
fn an_entry_is_one_line_of_json() {
    let (session_id, req_id) = (SessionId::new("s1"), ReqId::new("p\n4"));
    let entry = |outcome| AuditEntry {
        ts: Timestamp::from_unix(Duration::from_millis(4200)),
        session_id: &session_id,
        req_id: &req_id,
        correlation_id: "c0ffee",
        outcome,
        duration: Duration::from_micros(12_999),
        input_bytes: 120,
        output_bytes: 98,
    };
    let line = |outcome| serde_json::to_string(&entry(outcome)).unwrap();
    insta::assert_snapshot!(line(Outcome::Success), @r#"{"ts":4.2,"session_id":"s1","req_id":"p\n4","correlation_id":"c0ffee","success":true,"duration_ms":12,"error_code":null,"input_bytes":120,"output_bytes":98}"#);
    insta::assert_snapshot!(line(Outcome::Failure(Some("proc_dead"))), @r#"{"ts":4.2,"session_id":"s1","req_id":"p\n4","correlation_id":"c0ffee","success":false,"duration_ms":12,"error_code":"proc_dead","input_bytes":120,"output_bytes":98}"#);
    insta::assert_snapshot!(line(Outcome::Failure(None)), @r#"{"ts":4.2,"session_id":"s1","req_id":"p\n4","correlation_id":"c0ffee","success":false,"duration_ms":12,"error_code":null,"input_bytes":120,"output_bytes":98}"#);
}

#[test]
fn what_any_handle_has_noted_is_written_when_the_last_one_goes() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let log = AuditLog::open(AuditOptions { path: path.clone(), max_bytes: 0, backup_count: 5 }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let log = log.clone();
            scope.spawn(move || (0..500).for_each(|number| with_entry(number, |entry| log.append(entry))));
        }
    });
    drop(log);
    let mut seen = numbers(&path);
    seen.sort_unstable();
    let expected: Vec<u32> = (0..500).flat_map(|number| [number; 4]).collect();
    assert_eq!(seen, expected);
}

#[test]
fn noting_does_not_wait_for_who_writes_and_what_finds_no_room_is_lost() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit");
    let channel = Arc::new(Channel::default());
    let log = AuditLog(Arc::new(Handle(Arc::clone(&channel))));
    let length = with_entry(100, |entry| line_of(entry).len());
    let room = QUEUE_BYTES / length;
    // Nobody writes yet.
    (0..room + 7).for_each(|_| with_entry(100, |entry| log.append(entry)));
    assert_eq!(channel.queue.lock().refused, 7);
    let file = AuditFile::open(AuditOptions { path: path.clone(), max_bytes: 0, backup_count: 5 }).unwrap();
    let writer = std::thread::spawn(move || channel.write_to(file));
    drop(log);
    writer.join().unwrap();
    assert_eq!(numbers(&path), vec![100; room]);
}

//! The audit: one line for each `proc/*` request that was handled, whatever came of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hostler_testkit::wait_until;
use serde_json::{Value, json};

use crate::client::{Client, Data};
use crate::host::{Host, LONG, Setup};

fn entries(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until as many entries are there, while the host runs on.
fn wait_for_entries(path: &Path, count: usize) -> Vec<Value> {
    wait_until("audit entries", LONG, || {
        let found = entries(path);
        if found.len() >= count { Ok(found) } else { Err(found.len()) }
    })
}

/// Request, what it is about, success, code.
type Expected<'a> = (&'a str, &'a str, bool, Option<&'a str>);

fn check_entry(entry: &Value, session_id: &str, &(req_id, about, success, code): &Expected<'_>) {
    let fields: Vec<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
    let all = [
        "correlation_id",
        "duration_ms",
        "error_code",
        "input_bytes",
        "output_bytes",
        "req_id",
        "session_id",
        "success",
        "ts",
    ];
    assert_eq!(fields, all, "{entry}");
    assert_eq!((&entry["session_id"], &entry["req_id"]), (&json!(session_id), &json!(req_id)), "{entry}");
    assert_eq!((&entry["success"], &entry["error_code"]), (&json!(success), &json!(code)), "{entry}");
    assert_eq!(entry["correlation_id"], about, "{entry}");
    assert!(entry["duration_ms"].as_u64().unwrap() < 60_000, "{entry}");
    assert!(entry["input_bytes"].as_u64().unwrap() > 30, "{entry}");
    assert!(entry["output_bytes"].as_u64().unwrap() > 100, "{entry}");
}

#[test]
fn each_request_about_processes_is_noted_with_all_fields_and_no_other_request_is() {
    let setup = Setup::new("audit");
    let path = setup.env().work().join("audit.jsonl");
    let (host, mut client) = setup.flag("--audit").flag(path.as_os_str()).start();
    // Before the handshake: refused, and noted as that.
    client.send("proc/status/req", json!({}));
    client.greet();
    client.ping();
    client.write(b"no json\n{\"type\":\"proc/fly/req\",\"id\":\"unknown\"}\n");
    let echo = client.evil(&host, &["echo"]);
    let refused = client.send("proc/spawn/req", json!({"cmd": ["rm"]}));
    client.reply(&refused);
    let written = client.send("proc/write/req", json!({"proc_id": echo.id, "data": "12345\n", "eof": true}));
    client.reply(&written);
    assert_eq!(client.finish(&echo).end, Data::Code(0));
    let dead = client.send("proc/write/req", json!({"proc_id": echo.id, "data": "x"}));
    let unknown = client.send("proc/kill/req", json!({"proc_id": "nope"}));
    let status = client.send("proc/status/req", json!({"proc_id": echo.id}));
    let all = client.send("proc/status/req", json!({}));
    let wrong = client.send("proc/kill/req", json!({"proc_id": 7}));
    for id in [&dead, &unknown, &status, &all, &wrong] {
        client.reply(id);
    }
    client.ping();

    let expected: [Expected<'_>; 9] = [
        ("q1", "", false, Some("unauthorized")),
        (&echo.req_id, &echo.id, true, None),
        (&refused, "", false, None),
        (&written, &echo.id, true, None),
        (&dead, &echo.id, false, Some("proc_dead")),
        (&unknown, "nope", false, Some("unknown_proc")),
        (&status, &echo.id, true, None),
        (&all, "", true, None),
        (&wrong, "", false, Some("schema_violation")),
    ];
    let found = wait_for_entries(&path, expected.len());
    for (entry, expected) in found.iter().zip(&expected) {
        check_entry(entry, &client.session_id, expected);
    }
    let times: Vec<f64> = found.iter().map(|entry| entry["ts"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "in the order of the answers: {times:?}");
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    host.end(client);
}

/// Requests that are under way when the client leaves, and what is noted of them when the host has ended.
fn leaves_with(test: &str, leave: impl FnOnce(&Host, &mut Client)) {
    let setup = Setup::new(test);
    let path = setup.env().work().join("audit.jsonl");
    let (mut host, mut client) = setup.flag("--audit").flag(path.as_os_str()).start_greeted();
    let deaf = client.evil(&host, &["pause"]);
    let stubborn = client.evil(&host, &["ignore-term"]);
    let write = client.send_write(&deaf, &"x".repeat(1 << 20));
    let kill = client.send("proc/kill/req", json!({"proc_id": stubborn.id, "signal": "SIGTERM"}));
    client.ping();
    host.note_helpers();
    leave(&host, &mut client);
    let mut noted = host.ends_well_then(|| entries(&path));
    noted.retain(|entry| entry["req_id"] == *write || entry["req_id"] == *kill);
    noted.sort_by_key(|entry| entry["req_id"].to_string());
    let about =
        |entry: &Value| (entry["req_id"].clone(), entry["success"].clone(), entry["error_code"].clone());
    let expected =
        [(json!(write), json!(false), json!("proc_dead")), (json!(kill), json!(true), Value::Null)];
    assert_eq!(noted.iter().map(about).collect::<Vec<_>>(), expected, "{noted:#?}");
}

#[test]
fn what_is_under_way_when_the_client_vanishes_is_noted() {
    leaves_with("vanishes with requests", |_, client| {
        client.close_output();
        client.close_input();
    });
}

#[test]
fn what_is_under_way_when_a_client_leaves_that_does_not_read_is_noted() {
    leaves_with("leaves unread", |host, client| {
        // More than a pipe holds, so that what comes after it cannot be said.
        let flood = client.evil(host, &["flood"]);
        client.text(&flood);
        client.close_input();
    });
}

#[test]
fn a_full_file_is_moved_away_and_the_oldest_is_dropped() {
    let setup = Setup::new("audit rotation");
    let path = setup.env().work().join("audit.jsonl");
    let setup = setup
        .variable("HOSTLER_A2E_AUDIT_ENABLED", "true")
        .variable("HOSTLER_A2E_AUDIT_PATH", path.as_os_str())
        .variable("HOSTLER_A2E_AUDIT_MAX_BYTES", "65536")
        .variable("HOSTLER_A2E_AUDIT_BACKUP_COUNT", "2");
    let (host, mut client) = setup.start_greeted();
    let ids: Vec<String> = (0..1200).map(|_| ask(&mut client)).collect();
    let work = host.env().work();
    let noted = host.ends_after(client, || {
        let file =
            |number: u32| if number == 0 { path.clone() } else { work.join(format!("audit.jsonl.{number}")) };
        assert!(!file(3).exists(), "two are kept");
        for number in 0..3 {
            let data = fs::metadata(file(number)).unwrap();
            assert!(data.len() <= 65536 && data.permissions().mode() & 0o777 == 0o600, "{number}: {data:?}");
        }
        (0..3).rev().flat_map(|number| entries(&file(number))).collect::<Vec<_>>()
    });
    let noted: Vec<&str> = noted.iter().map(|entry| entry["req_id"].as_str().unwrap()).collect();
    assert!(noted.len() > 500, "{noted:?}");
    assert_eq!(noted, ids[ids.len() - noted.len()..], "the last ones, without a gap");
}

fn ask(client: &mut Client) -> String {
    let id = client.send("proc/status/req", json!({}));
    client.reply(&id);
    id
}

#[test]
fn nothing_is_noted_unless_it_was_asked_for() {
    let (host, mut client) = Setup::new("no audit").start_greeted();
    let proc = client.evil(&host, &["exit", "0"]);
    client.finish(&proc);
    let root = host.env().root().to_owned();
    let files = host.ends_after(client, || files_below(&root));
    assert_eq!(files, ["stderr"], "the log of the test alone");
}

#[test]
fn an_audit_that_cannot_be_written_is_reported_and_the_host_goes_on() {
    let (host, mut client) = Setup::new("audit fails").flag("--audit").flag("/dev/full").start_greeted();
    let proc = client.evil(&host, &["exit", "0"]);
    assert_eq!(client.finish(&proc).end, Data::Code(0));
    ask(&mut client);
    crate::client::until("a report", || host.log().contains("the audit is incomplete"));
    ask(&mut client);
    let log = host.env().root().join("stderr");
    let log = host.ends_after(client, || fs::read_to_string(log).unwrap());
    assert_eq!(log.matches("the audit is incomplete").count(), 1, "{log}");
    assert!(log.contains("the audit has ended; entries are missing lost=3"), "{log}");
}

/// Names of all files below a folder that are not the host's own state.
fn files_below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> = entries
        .flat_map(|entry| match entry.metadata().unwrap().is_dir() {
            true => files_below(&entry.path()),
            false => vec![entry.file_name().into_string().unwrap()],
        })
        .collect();
    names.sort();
    names
}

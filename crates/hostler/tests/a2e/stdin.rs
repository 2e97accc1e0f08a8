//! Writing to processes: large, many, slowly read, never read.

use std::fs;

use serde_json::json;

use crate::client::{Data, Innocent};
use crate::host::Setup;

const MIB: usize = 1 << 20;

/// Waits for a file before it reads, and says then how much there was and whether it is what was sent.
const LATE_READER: &str = "
import hashlib, os, sys, time
print('ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.005)
data = sys.stdin.buffer.read()
print(len(data), sum(data[::997]), data[:3].decode(), data[-3:].decode())
";

#[test]
fn sixteen_mib_for_a_process_that_reads_late_arrive_whole_and_hold_up_nobody() {
    let (host, mut client) = Setup::new("late reader").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let go = host.env().work().join("go");
    let late = client.spawn(&["python3", "-c", LATE_READER, go.to_str().unwrap(), host.token().as_str()]);
    assert_eq!(client.text(&late), "ready\n");
    // A line of a request must not be longer than 16 MiB, so there are two of them.
    let halves = ["abc".repeat(8 * MIB / 3 + 1), "xyz".repeat(8 * MIB / 3 + 1)];
    let first = client.send("proc/write/req", json!({"proc_id": late.id, "data": halves[0]}));
    let second = client.send("proc/write/req", json!({"proc_id": late.id, "data": halves[1], "eof": true}));
    for _ in 0..20 {
        innocent.answers(&mut client);
        assert_eq!(client.status(&late), "running");
    }
    let other = client.evil(&host, &["exit", "4"]);
    assert_eq!(client.finish(&other).end, Data::Code(4));
    assert!(
        !client.has_reply(&first) && !client.has_reply(&second),
        "nothing was read, so nothing is written"
    );
    fs::write(&go, "").unwrap();
    assert_eq!(client.reply(&first)["ok"], true);
    assert_eq!(client.reply(&second)["ok"], true);
    let all = halves.concat();
    let sum: u64 = all.bytes().step_by(997).map(u64::from).sum();
    let finished = client.finish(&late);
    assert_eq!(finished.stdout, [format!("{} {sum} abc xyz\n", all.len())]);
    assert_eq!(finished.end, Data::Code(0));
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn three_hundred_writes_without_waiting_arrive_in_order_and_each_is_answered_in_order() {
    let (host, mut client) = Setup::new("many writes").start_greeted();
    let go = host.env().work().join("go");
    let script = "
import os, sys, time
print('ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.005)
for line in sys.stdin: print(line.split(' ')[0], len(line), flush=True)
";
    let proc = client.spawn(&["python3", "-c", script, go.to_str().unwrap(), host.token().as_str()]);
    assert_eq!(client.text(&proc), "ready\n");
    // Sizes around those of pipes and pages; in all far more than a pipe holds.
    let length = |number: usize| [1, 4095, 4096, 17, 65_536, 300][number % 6];
    let ids: Vec<String> = (0..300)
        .map(|number| {
            let data = format!("{number} {}\n", "x".repeat(length(number)));
            client.send("proc/write/req", json!({"proc_id": proc.id, "data": data, "eof": number == 299}))
        })
        .collect();
    client.ping();
    fs::write(&go, "").unwrap();
    for id in &ids {
        assert_eq!(client.reply(id)["ok"], true);
    }
    let expected: Vec<String> =
        (0..300).map(|n: usize| format!("{n} {}\n", length(n) + n.to_string().len() + 2)).collect();
    assert_eq!(client.finish(&proc).stdout, expected);
    host.end(client);
}

#[test]
fn a_write_that_is_blocked_when_its_process_is_killed_is_refused() {
    let (host, mut client) = Setup::new("blocked write").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    for signal in ["SIGKILL", "SIGTERM", "SIGINT"] {
        let deaf = client.evil(&host, &["pause"]);
        let blocked: Vec<String> = (0..3).map(|_| client.send_write(&deaf, &"x".repeat(MIB))).collect();
        innocent.answers(&mut client);
        assert!(blocked.iter().all(|id| !client.has_reply(id)), "nobody reads");
        assert_eq!(client.kill(&deaf, signal)["state"], "killed");
        for id in &blocked {
            let reply = client.reply(id);
            assert_eq!(reply["ok"], false, "{reply}");
            assert!(reply["error"].as_str().unwrap().starts_with("proc_dead"), "{reply}");
        }
        assert_eq!(client.finish(&deaf).end, Data::Killed);
        innocent.answers(&mut client);
    }
    host.end(client);
}

#[test]
fn a_write_that_is_blocked_when_its_process_closes_stdin_is_refused_and_the_process_runs_on() {
    let (host, mut client) = Setup::new("stdin closes").start_greeted();
    let go = host.env().work().join("go");
    let script = "
import os, sys, time
print('ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.005)
os.close(0)
print('closed', flush=True)
time.sleep(600)
";
    let proc = client.spawn(&["python3", "-c", script, go.to_str().unwrap(), host.token().as_str()]);
    assert_eq!(client.text(&proc), "ready\n");
    let blocked = client.send_write(&proc, &"x".repeat(MIB));
    client.ping();
    assert!(!client.has_reply(&blocked));
    fs::write(&go, "").unwrap();
    let reply = client.reply(&blocked);
    assert_eq!(reply["ok"], false, "{reply}");
    assert!(reply["error"].as_str().unwrap().contains("closed its stdin"), "{reply}");
    assert_eq!(client.text(&proc), "closed\n");
    assert_eq!(client.status(&proc), "running");
    host.end(client);
}

#[test]
fn what_waits_for_all_processes_is_bounded_too_and_room_comes_back_with_the_end_of_one() {
    let (host, mut client) = Setup::new("too much waits in all").start_greeted();
    let chunk = "x".repeat(15 * MIB);
    let deaf: Vec<_> = (0..5).map(|_| client.evil(&host, &["pause"])).collect();
    let ids: Vec<String> = (0..20).map(|number| client.send_write(&deaf[number / 4], &chunk)).collect();
    // Seventeen of them may wait.
    for id in &ids[17..] {
        let reply = client.reply(id);
        assert_eq!(reply["ok"], false, "{reply}");
        let error = reply["error"].as_str().unwrap();
        assert!(
            error.contains("for processes of this session") && error.contains("stop a process"),
            "{reply}"
        );
    }
    assert!(host.rss_kib() < 340 * 1024, "{} KiB", host.rss_kib());
    client.kill(&deaf[0], "SIGKILL");
    assert_eq!(client.finish(&deaf[0]).end, Data::Killed);
    let waits = client.send_write(&deaf[4], &chunk);
    client.ping();
    assert!(!client.has_reply(&waits), "there is room again");
    host.end(client);
}

#[test]
fn what_waits_to_be_read_is_bounded_and_the_surplus_is_refused() {
    let (host, mut client) = Setup::new("too much waits").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let chunk = "x".repeat(15 * MIB);
    let mut after_first = None;
    for _ in 0..2 {
        let deaf = client.evil(&host, &["pause"]);
        let ids: Vec<String> = (0..5).map(|_| client.send_write(&deaf, &chunk)).collect();
        // Four of them may wait, so the fifth is refused at once.
        let reply = client.reply(&ids[4]);
        assert_eq!(reply["ok"], false, "{reply}");
        assert!(reply["error"].as_str().unwrap().contains("wait for those writes first"), "{reply}");
        innocent.answers(&mut client);
        client.kill(&deaf, "SIGKILL");
        assert_eq!(client.finish(&deaf).end, Data::Killed);
        assert!(ids[..4].iter().all(|id| client.reply(id)["ok"] == false));
        let first = *after_first.get_or_insert(host.rss_kib());
        assert!(host.rss_kib() < first + 32 * 1024, "from {first} to {} KiB", host.rss_kib());
    }
    host.end(client);
}

//! A client that asks without reading the answers: the host's memory stays bounded, its processes go on, and whoever reads
//! again gets every answer.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::client::{Client, Data, Innocent, until};
use crate::host::{Host, Setup};
use crate::stalled::{pause, wait_until_all_wait};

/// What answers may take: 16 MiB that wait, room to move them, and what the allocator keeps.
const ROOM_KIB: u64 = 48 * 1024;

/// Makes the list of processes long, in bytes: each question for it is answered by some 170 KB.
fn fill_list(client: &mut Client) {
    let argument = "x".repeat(4000);
    for _ in 0..40 {
        let proc = client.spawn(&["bash", "-c", ":", &argument]);
        assert_eq!(client.finish(&proc).end, Data::Code(0));
    }
}

/// Asks for far more than the host may hold, in few bytes, and waits until it waits for us.
fn ask_much(host: &Host, client: &mut Client, times: usize) -> Vec<String> {
    let ids: Vec<String> = (0..times).map(|_| client.send("proc/status/req", json!({}))).collect();
    wait_until_all_wait(host);
    ids
}

#[test]
fn answers_that_nobody_reads_cost_no_memory_and_hold_up_nothing_and_none_is_lost() {
    let (host, mut client) = Setup::new("answers that wait").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    fill_list(&mut client);
    let rss = host.rss_kib();
    let limited = client.spawn_with(&host.evil_command(&["pause"]), json!({"timeout": 1}));
    assert_eq!(client.text(&limited), "ready\n");
    let ids = ask_much(&host, &mut client, 500);
    let now = host.rss_kib();
    assert!(now <= rss + ROOM_KIB, "from {rss} to {now} KiB");
    // The host and the innocent one.
    until("the end at its time limit", || match host.token().pids().len() {
        2 => Ok(()),
        count => Err(count),
    });
    pause(|| assert!(host.rss_kib() <= now + 1024, "memory grows while nobody reads"));
    for id in &ids {
        let reply = client.reply(id);
        assert_eq!(reply["procs"].as_array().map(Vec::len), Some(42), "{id}");
    }
    assert_eq!(client.finish(&limited).end, Data::Killed);
    innocent.answers(&mut client);
    host.end(client);
}

/// Asks too much, then for one thing more, hangs up, and reads nothing any more.
fn hangs_up_unheard(setup: Setup, start: impl FnOnce(Setup) -> (Host, Client)) {
    let path = setup.env().work().join("audit.jsonl");
    let (mut host, mut client) = start(setup.flag("--audit").flag(path.as_os_str()));
    client.greet();
    fill_list(&mut client);
    let mut ids = ask_much(&host, &mut client, 200);
    ids.push(client.send("proc/kill/req", json!({"proc_id": "nobody", "signal": "SIGKILL"})));
    host.note_helpers();
    client.close_input();
    let noted = host.ends_well_then(|| fs::read_to_string(&path).unwrap());
    let noted: Vec<Value> = noted.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let noted: Vec<&str> = noted.iter().map(|entry| entry["req_id"].as_str().unwrap()).collect();
    assert_eq!(noted[noted.len() - ids.len()..], ids, "all were carried out in their order");
}

#[test]
fn the_end_of_a_pipe_is_noticed_while_answers_wait_and_what_was_asked_before_is_carried_out() {
    hangs_up_unheard(Setup::new("pipe hangs up"), Setup::start);
}

#[test]
fn the_end_of_a_pipe_of_another_user_is_noticed_while_answers_wait() {
    hangs_up_unheard(Setup::nobody("pipe of another hangs up"), Setup::start);
}

#[test]
fn the_end_of_a_socket_is_noticed_while_answers_wait_and_what_was_asked_before_is_carried_out() {
    hangs_up_unheard(Setup::new("socket hangs up"), |setup| {
        let (ours_in, theirs_in) = UnixStream::pair().unwrap();
        let (ours_out, theirs_out) = UnixStream::pair().unwrap();
        let host = setup.start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
        (host, Client::new(ours_in.into(), ours_out.into()))
    });
}

#[test]
fn a_client_that_hangs_up_and_reads_on_gets_all_answers() {
    let (mut host, mut client) = Setup::new("hangs up and reads").start_greeted();
    fill_list(&mut client);
    let ids = ask_much(&host, &mut client, 200);
    host.note_helpers();
    client.close_input();
    for id in &ids {
        client.reply(id);
    }
    assert_eq!(client.rest(), []);
    host.ends_well();
}

/// Reads a little every now and then, for longer than a client may take nothing, and then the rest as fast as it comes.
fn read_slowly_then_all(client: &mut Client) -> Vec<Value> {
    let (from, mut bytes) = client.take_output();
    let mut from = fs::File::from(from);
    for _ in 0..2 {
        pause(|| {
            let mut piece = [0; 256];
            from.read_exact(&mut piece).unwrap();
            bytes.extend_from_slice(&piece);
        });
    }
    from.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(b"\n"), "the last line is whole");
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn a_client_that_hangs_up_and_reads_slowly_gets_all_answers() {
    const ANSWERS: usize = 16 << 20;
    const LAST: usize = 500;
    let (mut host, mut client) = Setup::new("hangs up and reads slowly").start_greeted();
    for _ in 0..8 {
        fill_list(&mut client);
    }
    // Nearly as many answers as may wait, and one that is so long that it takes many seconds to read down to there again.
    let pong = client.call("ping", json!({})).to_string().len();
    let pings = (ANSWERS - 300_000) / pong;
    client.write("{\"type\":\"ping\"}\n".repeat(pings).as_bytes());
    let long = client.send("proc/status/req", json!({}));
    let last: Vec<String> = (0..LAST).map(|_| client.send("ping", json!({}))).collect();
    host.note_helpers();
    client.close_input();
    let answers = read_slowly_then_all(&mut client);
    let expected =
        std::iter::repeat_n("", pings).chain([long.as_str()]).chain(last.iter().map(String::as_str));
    let found: Vec<&str> = answers.iter().map(|answer| answer["req_id"].as_str().unwrap()).collect();
    assert!(found == expected.collect::<Vec<_>>(), "{} of {} answers", found.len(), pings + 1 + LAST);
    host.ends_well();
}

#[test]
fn a_client_that_reads_slowly_after_the_end_gets_what_is_left() {
    let (mut host, mut client) = Setup::new("slow farewell").start_greeted();
    fill_list(&mut client);
    let ids: Vec<String> = (0..10).map(|_| client.send("proc/status/req", json!({}))).collect();
    host.note_helpers();
    client.close_input();
    let answers = read_slowly_then_all(&mut client);
    let found: Vec<&str> = answers.iter().map(|answer| answer["req_id"].as_str().unwrap()).collect();
    assert_eq!(found, ids);
    host.ends_well();
}

#[test]
fn a_client_that_has_gone_ends_the_session_though_answers_wait_and_input_is_open() {
    let (mut host, mut client) = Setup::new("gone while answers wait").start_greeted();
    fill_list(&mut client);
    client.evil(&host, &["ignore-term"]);
    ask_much(&host, &mut client, 200);
    host.note_helpers();
    client.close_output();
    host.ends_well();
}

//! A client that asks without reading the answers: the host's memory stays bounded, its processes go on, and whoever reads
//! again gets every answer.

use serde_json::json;

use crate::client::{Client, Data, Innocent, until};
use crate::host::{Host, Setup};
use crate::stalled::wait_until_all_wait;

/// What answers may take: 16 MiB that wait, room to move them, and what the allocator keeps.
const ROOM_KIB: u64 = 48 * 1024;

/// Makes the list of processes long, in bytes: each question for it is answered by some 800 KB.
fn fill_list(client: &mut Client) {
    let argument = "x".repeat(100_000);
    for _ in 0..8 {
        let proc = client.spawn(&["bash", "-c", ":", &argument]);
        assert_eq!(client.finish(&proc).end, Data::Code(0));
    }
}

/// Asks for far more than the host may hold, in few bytes, and waits until it waits for us.
fn ask_much(host: &Host, client: &mut Client) -> Vec<String> {
    let ids: Vec<String> = (0..100).map(|_| client.send("proc/status/req", json!({}))).collect();
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
    let ids = ask_much(&host, &mut client);
    let now = host.rss_kib();
    assert!(now <= rss + ROOM_KIB, "from {rss} to {now} KiB");
    // The host and the innocent one.
    until("the end at its time limit", || match host.token().pids().len() {
        2 => Ok(()),
        count => Err(count),
    });
    for id in &ids {
        let reply = client.reply(id);
        assert_eq!(reply["procs"].as_array().map(Vec::len), Some(10), "{id}");
    }
    assert_eq!(client.finish(&limited).end, Data::Killed);
    innocent.answers(&mut client);
    host.end(client);
}

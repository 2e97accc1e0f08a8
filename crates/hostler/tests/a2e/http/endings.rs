//! How sessions end, and that everything ends with them.

use hostler_testkit::wait_until;
use rustix::process::Signal;
use serde_json::json;

use super::agent::{Agent, ask};
use super::routes::end;
use crate::host::{Host, LONG, Setup};

/// Waits until a session is unknown, by asking for a stream that it would refuse: that is no sign of life.
fn until_unknown(url: &str, session_id: &str) {
    wait_until("an unknown session", LONG, || {
        let headers = [("X-Session-Id", session_id), ("Last-Event-ID", "none")];
        let answer = ask(url, "GET", "/stream", &headers, b"");
        if answer.status == 404 { Ok(()) } else { Err(answer) }
    });
}

/// Whether a program runs that was started through the host, which has the token in its environment itself.
fn runs(host: &Host) -> bool {
    let evil = std::path::Path::new(host.evil()).file_name().unwrap().to_str().unwrap();
    host.token()
        .processes()
        .iter()
        .any(|process| process.cmdline.contains(evil) && !process.cmdline.contains("--allow"))
}

#[test]
fn shutdown_ends_the_session_with_its_tree_says_the_rest_and_makes_it_unknown() {
    let (host, url) = Setup::new("http_shutdown").start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    let stubborn = agent.spawn(&mut stream, &host.evil_command(&["ignore-term"]));
    agent.send("shutdown", json!({"timeout": 0}));
    // From its answer on.
    let answer = agent.post(br#"{"type":"ping","id":"x"}"#);
    assert_eq!(answer.status, 404, "{answer:?}");
    let (_, last) = stream.finish(&stubborn);
    assert_eq!(last["stream_type"], "killed");
    stream.ends();
    end(host);
}

#[test]
fn a_session_without_a_handshake_ends_and_one_with_stays() {
    let setup = Setup::new("http_no_handshake").variable("HOSTLER_A2E_HTTP_HANDSHAKE_TIMEOUT_S", "1");
    let (host, url) = setup.start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    let silent = Agent::join(&url);
    let mut busy = Agent::join(&url);
    let busy_stream = busy.stream(None);
    busy.send("ping", json!({}));
    until_unknown(&url, &silent.session_id);
    until_unknown(&url, &busy.session_id);
    drop(busy_stream);
    assert_eq!(agent.call(&mut stream, "ping", json!({}))["type"], "pong");
    end(host);
}

#[test]
fn a_session_whose_client_stays_away_ends_sooner_without_processes_than_with() {
    let setup = Setup::new("http_idle")
        .variable("HOSTLER_A2E_HTTP_IDLE_TIMEOUT_S", "1")
        .variable("HOSTLER_A2E_HTTP_BUSY_TIMEOUT_S", "3");
    let (host, url) = setup.start_http();
    let (idle, idle_stream) = Agent::greet(&url);
    let (mut busy, mut busy_stream) = Agent::greet(&url);
    let (mut listening, mut stream) = Agent::greet(&url);
    busy.spawn(&mut busy_stream, &host.evil_command(&["pause"]));
    drop((idle_stream, busy_stream));
    until_unknown(&url, &idle.session_id);
    assert!(runs(&host), "the process of the other one lives");
    wait_until("the end of the busy session", LONG, || if runs(&host) { Err("it runs") } else { Ok(()) });
    until_unknown(&url, &busy.session_id);
    assert_eq!(listening.call(&mut stream, "ping", json!({}))["type"], "pong", "whoever listens is there");
    end(host);
}

#[test]
fn the_end_of_the_host_is_the_end_of_every_session_and_each_is_told() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut host, url) = Setup::new("http_end").start_http();
        let mut streams = Vec::new();
        for _ in 0..3 {
            let (mut agent, mut stream) = Agent::greet(&url);
            let proc_id = agent.spawn(&mut stream, &host.evil_command(&["setsid"]));
            streams.push((stream, proc_id));
        }
        host.note_helpers();
        host.signal(signal);
        for (mut stream, proc_id) in streams {
            assert_eq!(stream.finish(&proc_id).1["stream_type"], "killed");
            stream.ends();
        }
        host.ends_well();
    }
}

#[test]
fn nothing_outlives_a_host_that_is_killed() {
    let (mut host, url) = Setup::new("http_killed").start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    agent.spawn(&mut stream, &host.evil_command(&["hard-daemon"]));
    host.note_helpers();
    host.signal(Signal::KILL);
    host.wait();
    wait_until(
        "the end of all that it had started",
        LONG,
        || if runs(&host) { Err("it runs") } else { Ok(()) },
    );
}

#[test]
fn sessions_are_bounded_and_one_that_ends_makes_room() {
    let setup = Setup::new("http_sessions").variable("HOSTLER_A2E_HTTP_MAX_SESSIONS", "2");
    let (host, url) = setup.start_http();
    let (mut first, stream) = Agent::greet(&url);
    let (_second, _stream) = Agent::greet(&url);
    let refused = ask(&url, "POST", "/session", &[], b"");
    assert_eq!(refused.status, 503);
    assert!(refused.detail().contains("max_sessions"), "{refused:?}");
    first.send("shutdown", json!({}));
    stream.ends();
    wait_until("room for one more", LONG, || {
        let answer = ask(&url, "POST", "/session", &[], b"");
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    });
    end(host);
}

#[test]
fn every_request_about_processes_is_in_the_audit_of_all_sessions() {
    let setup = Setup::new("http_audit");
    let path = setup.env().root().join("audit.jsonl");
    let (mut host, url) = setup.flag("--audit").flag(&path).start_http();
    let sessions: Vec<String> = (0..3)
        .map(|_| {
            let (mut agent, mut stream) = Agent::greet(&url);
            agent.call(&mut stream, "proc/status/req", json!({}));
            agent.call(&mut stream, "proc/kill/req", json!({"proc_id": "none", "signal": "SIGTERM"}));
            agent.session_id
        })
        .collect();
    host.note_helpers();
    host.signal(Signal::TERM);
    let entries = host.ends_well_then(|| std::fs::read_to_string(&path).unwrap());
    for session in sessions {
        let own = entries.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let own: Vec<bool> = own
            .filter(|entry| entry["session_id"] == session.as_str())
            .map(|entry| entry["success"] == true)
            .collect();
        assert_eq!(own, [true, false]);
    }
}

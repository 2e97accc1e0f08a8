//! What each route takes and answers.

use hostler_testkit::wait_until;
use serde_json::json;

use super::agent::{Agent, ask};
use crate::host::{LONG, Setup};

#[test]
fn every_route_answers_as_the_protocol_document_says() {
    let (host, url) = Setup::new("http_routes").start_http();
    let health = ask(&url, "GET", "/health", &[], b"");
    assert_eq!((health.status, health.body.as_str()), (200, r#"{"status":"ok"}"#));
    for (method, path, headers, status) in [
        ("POST", "/health", &[][..], 405),
        ("GET", "/session", &[], 405),
        ("GET", "/send", &[], 405),
        ("POST", "/stream", &[], 405),
        ("OPTIONS", "/send", &[], 405),
        ("GET", "/", &[], 404),
        ("GET", "/health/", &[], 404),
        ("GET", "//health", &[], 404),
        ("GET", "/health/../send", &[], 404),
        ("GET", "/%68ealth", &[], 404),
        ("POST", "/send", &[], 400),
        ("POST", "/send", &[("X-Session-Id", "a"), ("X-Session-Id", "a")], 400),
        ("POST", "/send", &[("X-Session-Id", "unknown")], 404),
        ("GET", "/stream", &[], 400),
        ("GET", "/stream", &[("X-Session-Id", "unknown")], 404),
        ("GET", "/stream", &[("X-Session-Id", "../x")], 404),
    ] {
        let answer = ask(&url, method, path, headers, b"");
        assert_eq!(answer.status, status, "{method} {path} {headers:?}: {answer:?}");
        assert!(!answer.detail().is_empty());
        assert!(!answer.head.contains("access-control"), "{answer:?}");
    }
    end(host);
}

/// Ends a host that listens.
pub(super) fn end(mut host: crate::host::Host) {
    host.note_helpers();
    host.signal(rustix::process::Signal::TERM);
    host.ends_well();
}

#[test]
fn a_message_is_taken_whatever_it_holds_and_a_body_that_is_none_is_not() {
    let (host, url) = Setup::new("http_bodies").start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    for (body, code) in [
        (&b"{nope"[..], "parse_error"),
        (b"[1]", "invalid_message"),
        (b"\xff", "parse_error"),
        (br#"{"type":"nonsense","id":"n"}"#, "invalid_message"),
        (&[b"[".repeat(100_000), b"]".repeat(100_000)].concat(), "invalid_message"),
    ] {
        assert_eq!(agent.post(body).status, 200);
        assert_eq!(stream.next().unwrap().json()["code"], code);
    }
    for blank in [&b""[..], b"\n", b" \r\n\t"] {
        assert_eq!(agent.post(blank).status, 400);
    }
    let pretty = "{\n  \"type\": \"ping\",\r\n  \"id\": \"p\"\n}\r\n";
    assert_eq!(agent.post(pretty.as_bytes()).status, 200);
    assert_eq!(stream.reply("p")["type"], "pong");
    // 16 MiB are one message; a byte more is none.
    let filled = |length: usize| {
        let (head, tail) = (r#"{"type":"ping","id":"big","x":""#, r#""}"#);
        format!("{head}{}{tail}", "x".repeat(length - head.len() - tail.len()))
    };
    assert_eq!(agent.post(filled(16 << 20).as_bytes()).status, 200);
    assert_eq!(stream.reply("big")["type"], "pong");
    let session = agent.session_id.clone();
    let too_large = filled((16 << 20) + 1);
    let answer = ask(&url, "POST", "/send", &[("X-Session-Id", &session)], too_large.as_bytes());
    assert_eq!(answer.status, 413, "{answer:?}");
    let answer = ask(&url, "POST", "/send", &[("X-Session-Id", &session)], &vec![b'x'; 17 << 20]);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert_eq!(agent.call(&mut stream, "ping", json!({}))["type"], "pong", "it goes on");
    end(host);
}

#[test]
fn a_unix_socket_serves_as_well() {
    let setup = Setup::new("http_unix");
    let path = setup.env().root().join("a2e.sock");
    let address = format!("unix:{}", path.display());
    let (host, url) = setup.http_at(&address).start_listening();
    assert_eq!(url, address);
    let (mut agent, mut stream) = Agent::greet(&url);
    let proc_id = agent.spawn(&mut stream, &["bash", "-c", "echo here"]);
    assert_eq!(stream.finish(&proc_id).0, "here\n");
    end(host);
    assert!(!path.exists());
}

#[test]
fn requests_of_a_session_are_begun_in_the_order_in_which_they_come() {
    let (host, url) = Setup::new("http_order").start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    let proc_id = agent.spawn(&mut stream, &host.evil_command(&["echo"]));
    let mut expected = "ready\n".to_owned();
    for number in 0..300 {
        let line = format!("{number}\n");
        agent.send("proc/write/req", json!({"proc_id": proc_id, "data": line}));
        expected += &line;
    }
    agent.send("proc/write/req", json!({"proc_id": proc_id, "data": "", "eof": true}));
    assert_eq!(stream.finish(&proc_id).0, expected);
    end(host);
}

#[test]
fn sessions_know_nothing_of_each_other() {
    let (host, url) = Setup::new("http_isolation").start_http();
    let (mut first, mut first_stream) = Agent::greet(&url);
    let (mut second, mut second_stream) = Agent::greet(&url);
    let proc_id = first.spawn(&mut first_stream, &host.evil_command(&["echo"]));
    let write = second.call(&mut second_stream, "proc/write/req", json!({"proc_id": proc_id, "data": "x\n"}));
    assert_eq!((&write["ok"], &write["error"]), (&json!(false), &json!("unknown_proc")));
    let kill =
        second.call(&mut second_stream, "proc/kill/req", json!({"proc_id": proc_id, "signal": "SIGKILL"}));
    assert_eq!((&kill["ok"], &kill["state"]), (&json!(false), &json!("not_found")));
    let status = second.call(&mut second_stream, "proc/status/req", json!({"proc_id": proc_id}));
    assert_eq!(status["status"], "not_found");
    let all = second.call(&mut second_stream, "proc/status/req", json!({}));
    assert_eq!(all["procs"], json!([]));
    let spawn = json!({"cmd": ["ls"], "session_id": first.session_id});
    let spawned = second.call(&mut second_stream, "proc/spawn/req", spawn);
    assert_eq!(spawned["ok"], false, "{spawned}");
    second.send("shutdown", json!({}));
    second_stream.ends();
    assert_eq!(
        first.call(&mut first_stream, "proc/status/req", json!({"proc_id": proc_id}))["status"],
        "running"
    );
    end(host);
}

#[test]
fn replies_that_nobody_takes_are_bounded_and_a_stream_makes_room() {
    // It says nothing of itself, and a busy machine takes its time.
    let setup = Setup::new("http_answers").variable("HOSTLER_A2E_HTTP_HANDSHAKE_TIMEOUT_S", "86400");
    let (host, url) = setup.start_http();
    let mut agent = Agent::join(&url);
    // Each answer repeats the id of its request.
    let message = json!({"type": "ping", "id": "i".repeat(4000)}).to_string();
    let most = (16 << 20) / 4000;
    let refused = (0..2 * most).find_map(|number| {
        let answer = agent.post(message.as_bytes());
        (answer.status != 200).then_some((number, answer))
    });
    let (number, answer) = refused.expect("a bound");
    assert!((most / 2..most + 2).contains(&number), "{number}");
    assert_eq!(answer.status, 503);
    assert!(answer.detail().contains("GET /stream"), "{answer:?}");
    let mut stream = agent.stream(None);
    for _ in 0..number {
        assert_eq!(stream.next().unwrap().json()["type"], "pong");
    }
    assert_eq!(agent.post(message.as_bytes()).status, 200);
    end(host);
}

#[test]
fn large_messages_of_many_agents_at_once_are_all_taken_in_bounded_memory() {
    let (host, url) = Setup::new("http_large_bodies").start_http();
    let (head, tail) = (r#"{"type":"ping","id":"big","x":""#, r#""}"#);
    let message = format!("{head}{}{tail}", "x".repeat((12 << 20) - 100));
    let before = host.rss_kib();
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                let (mut agent, mut stream) = Agent::greet(&url);
                // Whoever waits too long for room is told to come back.
                wait_until("room for a message", LONG, || match agent.post(message.as_bytes()) {
                    answer if answer.status == 200 => Ok(()),
                    answer => {
                        assert_eq!(answer.status, 503, "{answer:?}");
                        Err(answer)
                    }
                });
                assert_eq!(stream.reply("big")["type"], "pong");
            });
        }
    });
    // 480 MiB were sent; half of that may be held at a time.
    assert!(host.rss_kib() < before + 400 * 1024, "{} KiB, and {before} before", host.rss_kib());
    end(host);
}

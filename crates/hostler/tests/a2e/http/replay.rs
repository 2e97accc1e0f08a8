//! Streams that break: what a client has missed it gets, once and in order.

use std::collections::HashMap;
use std::sync::mpsc;

use hostler_testkit::{numbered, wait_until};
use serde_json::{Value, json};

use super::agent::{Agent, Framed, certify};
use super::routes::end;
use crate::host::{Host, LONG, Setup};

const PROCESSES: usize = 20;
const LINES: u64 = 10_000;
const CUTS: usize = 200;

/// What a client has got of many processes.
#[derive(Default)]
struct Seen {
    next: HashMap<String, u64>,
    ended: usize,
    /// Replies by the id of their request: how often.
    replies: HashMap<String, usize>,
}

impl Seen {
    fn take(&mut self, framed: &Framed) {
        let message = framed.json();
        if message["type"] != "proc/read/event" {
            assert_eq!(message["type"], "pong", "{message}");
            *self.replies.entry(message["req_id"].as_str().unwrap().to_owned()).or_default() += 1;
            return;
        }
        let next = self.next.entry(message["proc_id"].as_str().unwrap().to_owned()).or_default();
        let data: Value = serde_json::from_str(message["data"].as_str().unwrap()).unwrap();
        match data["text"].as_str() {
            Some("ready\n") => assert_eq!(*next, 0),
            Some(text) => {
                assert_eq!(text.as_bytes(), numbered::line(*next), "line {next} of {}", message["proc_id"]);
                *next += 1;
            }
            None => {
                assert_eq!((*next, &data["code"]), (LINES, &json!(0)), "{message}");
                self.ended += 1;
            }
        }
    }
}

/// What an event is to a process.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Text,
    Last,
}

/// Deterministic, and different every time.
fn cut_after(number: usize) -> usize {
    const LARGEST: u64 = 500_000;
    let mixed = (number as u64 + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed % LARGEST) as usize
}

/// Starts the processes, and cuts the stream again and again while they print.
fn run_with_cuts(host: &Host, url: &str) -> Seen {
    let (mut agent, mut stream) = Agent::greet(url);
    let cmd = host.evil_command(&["lines", &LINES.to_string()]);
    let mut seen = Seen::default();
    let spawns: Vec<String> =
        (0..PROCESSES).map(|_| agent.send("proc/spawn/req", json!({"cmd": cmd}))).collect();
    for id in spawns {
        assert_eq!(stream.reply(&id)["ok"], true);
    }
    let mut last_id = None;
    for number in 0..CUTS {
        let ping = agent.send("ping", json!({}));
        seen.replies.insert(ping, 0);
        let after = stream.last_id;
        let got = stream.read_then_cut(cut_after(number));
        last_id = got.iter().filter_map(|framed| framed.id).next_back().or(after).max(last_id);
        got.iter().for_each(|framed| seen.take(framed));
        stream = agent.stream(last_id);
    }
    // The rest comes without a cut.
    let last = agent.send("ping", json!({}));
    seen.replies.insert(last.clone(), 0);
    while seen.ended < PROCESSES || seen.replies[&last] == 0 {
        seen.take(&stream.next().expect("the stream goes on"));
    }
    seen
}

#[test]
fn two_hundred_cuts_cost_a_client_that_says_what_it_has_got_nothing() {
    cuts_cost_nothing(Setup::new("http_cuts"));
}

#[test]
fn two_hundred_cuts_cost_nothing_over_tls_either() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certify(folder.path());
    let setup = Setup::new("https_cuts")
        .variable("HOSTLER_A2E_HTTP_TLS_CERT", certificate.to_str().unwrap())
        .variable("HOSTLER_A2E_HTTP_TLS_KEY", key.to_str().unwrap());
    cuts_cost_nothing(setup);
}

fn cuts_cost_nothing(setup: Setup) {
    let (host, url) = setup.variable("HOSTLER_A2E_MAX_PROCESSES", "64").start_http();
    let seen = run_with_cuts(&host, &url);
    assert_eq!(seen.next.len(), PROCESSES);
    assert!(seen.next.values().all(|next| *next == LINES));
    assert!(seen.replies.values().all(|count| *count == 1), "{:?}", seen.replies);
    assert_eq!(seen.replies.len(), CUTS + 1);
    end(host);
}

#[test]
fn a_client_that_says_nothing_gets_nothing_twice_and_nothing_out_of_order() {
    let (host, url) = Setup::new("http_cuts_unsaid").start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    // Without an end: what lies in the buffers of a connection is lost with it, and that is much.
    let proc_id = agent.spawn(&mut stream, &host.evil_command(&["flood"]));
    let (mut next, mut last) = (0_u64, None);
    let mut take = |framed: &Framed| {
        assert!(framed.id > last, "{:?} after {last:?}", framed.id);
        last = framed.id;
        let message = framed.json();
        if message["type"] != "proc/read/event" {
            return Event::Text;
        }
        assert_eq!(message["proc_id"], proc_id.as_str());
        let data: Value = serde_json::from_str(message["data"].as_str().unwrap()).unwrap();
        let Some(text) = data["text"].as_str() else { return Event::Last };
        if let Some(number) = numbered::number_of(text.as_bytes()) {
            assert!(number >= next, "{number} after {next}");
            next = number + 1;
        }
        Event::Text
    };
    for number in 0..CUTS {
        for framed in stream.read_then_cut(cut_after(number) / 4) {
            assert_eq!(take(&framed), Event::Text);
        }
        stream = agent.stream(None);
    }
    agent.send("proc/kill/req", json!({"proc_id": proc_id, "signal": "SIGKILL"}));
    while take(&stream.next().expect("the last event")) == Event::Text {}
    assert!(next > 1000, "{next}");
    end(host);
}

#[test]
fn what_happens_while_no_stream_is_open_is_kept_and_output_holds_its_process_back() {
    let setup = Setup::new("http_away").variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_PROCESS", "1048576");
    let (host, url) = setup.start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    let proc_id = agent.spawn(&mut stream, &host.evil_command(&["lines", "100000"]));
    stream.read_then_cut(50_000);
    let ping = agent.send("ping", json!({}));
    let before = host.rss_kib();
    // Eight MiB would come; one is held, and the process waits.
    let mut watcher = Agent::join(&url);
    let mut other = watcher.stream(None);
    watcher.call(&mut other, "handshake/req", json!({"agent_caps": ["proc"]}));
    wait_until("a process that waits", LONG, || {
        let spooled = spooled_bytes(&host);
        if spooled > 700_000 { Ok(()) } else { Err(spooled) }
    });
    assert!(host.rss_kib() < before + 32 * 1024, "{} KiB, and {before} before", host.rss_kib());
    let mut stream = agent.stream(None);
    assert_eq!(stream.reply(&ping)["type"], "pong");
    let (text, last) = stream.finish(&proc_id);
    assert_eq!(last["data"], r#"{"code":0}"#);
    assert!(text.ends_with(std::str::from_utf8(&numbered::line(99_999)).unwrap()));
    end(host);
}

/// Bytes in the files of the host's state folder.
fn spooled_bytes(host: &Host) -> u64 {
    fn below(folder: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let size = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        };
        entries.map(size).sum()
    }
    below(host.env().root())
}

#[test]
fn a_newer_stream_replaces_the_older_one() {
    let (host, url) = Setup::new("http_newer").start_http();
    let (mut agent, stream) = Agent::greet(&url);
    let after = stream.last_id;
    let mut newer = agent.stream(None);
    stream.ends();
    assert_eq!(agent.call(&mut newer, "ping", json!({}))["type"], "pong");
    // One that wants what is not there is refused, and replaces nothing.
    for (bad, status) in [("x", 400), ("-1", 400), ("999999", 400), ("3", 400), ("01", 400)] {
        let answer = agent.try_stream(Some(bad)).err().unwrap();
        assert_eq!(answer.status, status, "{bad}: {answer:?}");
    }
    assert_eq!(agent.call(&mut newer, "ping", json!({}))["type"], "pong");
    // From the beginning, and from where the first stream was.
    let first = agent.stream(Some(0)).next().unwrap();
    assert_eq!(first.json()["type"], "handshake/resp");
    assert_eq!(first.id, after);
    assert_eq!(agent.stream(after).next().unwrap().json()["type"], "pong");
    end(host);
}

#[test]
fn what_is_older_than_the_window_is_said_to_be_missing_and_its_replies_come() {
    let setup = Setup::new("http_window").variable("HOSTLER_A2E_HTTP_REPLAY_BYTES", "1000000");
    let (host, url) = setup.start_http();
    let (mut agent, mut stream) = Agent::greet(&url);
    let after = stream.last_id.unwrap();
    let ping = agent.send("ping", json!({}));
    let proc_id = agent.spawn(&mut stream, &host.evil_command(&["lines", "20000"]));
    stream.finish(&proc_id);
    drop(stream);
    let mut again = agent.stream(Some(after));
    let gap = again.next().unwrap();
    assert_eq!((gap.id, &gap.json()["code"]), (None, &json!("replay_gap")));
    let from = gap.json()["detail"]["from"].as_u64().unwrap();
    assert_eq!(gap.json()["detail"]["after"], after);
    assert_eq!(again.reply(&ping)["type"], "pong");
    let mut first_line = None;
    loop {
        let framed = again.next().unwrap();
        if framed.text.contains("proc/spawn/resp") {
            continue;
        }
        let id = framed.id.unwrap();
        if first_line.is_none() {
            assert_eq!(id - (framed.text.len() as u64 + 1), from, "it begins where the error says");
            first_line = Some(id);
        }
        if framed.text.contains(r#"\"code\":0"#) {
            break;
        }
    }
    end(host);
}

#[test]
fn a_stream_that_says_nothing_shows_that_it_is_alive() {
    let (host, url) = Setup::new("http_alive").start_http();
    let agent = Agent::join(&url);
    let (sender, opened) = mpsc::channel();
    // The head alone would do; a comment right behind it shows proxies, too, that the stream stands.
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(agent.stream(None).read_then_cut(3)).unwrap());
        assert_eq!(opened.recv_timeout(super::agent::MOMENT).unwrap(), []);
    });
    end(host);
}

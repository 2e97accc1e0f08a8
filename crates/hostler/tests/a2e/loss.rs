//! Exits with descendants that hold the pipes: not one byte of the root's is lost, and the exit event is the last.

use std::collections::HashMap;

use hostler_testkit::numbered::LINGER_LINES;
use serde_json::json;

use crate::client::Client;
use crate::host::{Host, Setup};
use crate::raw::{LINE_END, Raw, RawData, RawReader, Stream};

/// How many run at a time, and how many in all.
#[derive(Clone, Copy)]
struct Load {
    in_flight: usize,
    exits: usize,
}

/// What was seen of one process.
#[derive(Debug, Default)]
struct Seen {
    stdout: Lines,
    stderr: Lines,
    ended: bool,
}

/// What was seen of one of its streams.
#[derive(Debug, Default)]
struct Lines {
    ready: bool,
    /// Number of the root's next line.
    next: u64,
    /// A line may come in pieces where others wait for room.
    partial: Vec<u8>,
}

impl Lines {
    fn take(&mut self, text: &[u8]) {
        self.partial.extend_from_slice(text);
        if !self.partial.ends_with(LINE_END) {
            return;
        }
        let line = std::mem::take(&mut self.partial);
        if line == br"ready\\n" && !self.ready && self.next == 0 {
            self.ready = true;
        } else if !RawData::Text(&line).is_late() {
            let is_next = RawData::Text(&line).is_line(self.next);
            assert!(is_next, "{:?} instead of line {}", String::from_utf8_lossy(&line), self.next);
            self.next += 1;
        }
    }

    /// All of the root's lines are there; a descendant may have been cut off inside one of its own.
    fn is_complete(&self) -> bool {
        self.next == LINGER_LINES && (self.partial.is_empty() || RawData::Text(&self.partial).is_late())
    }
}

impl Seen {
    fn take(&mut self, stream: Stream, data: RawData<'_>) {
        assert!(!self.ended, "{data:?} after the last event: {self:?}");
        match (data, stream) {
            (RawData::Text(text), Stream::Stdout) => self.stdout.take(text),
            (RawData::Text(text), Stream::Stderr) => self.stderr.take(text),
            (end @ (RawData::Code(_) | RawData::Killed), stream) => {
                assert_eq!((end, stream), (RawData::Code("3"), Stream::Stderr), "{self:?}");
                assert!(
                    self.stdout.ready && self.stdout.is_complete() && self.stderr.is_complete(),
                    "{self:?}"
                );
                self.ended = true;
            }
        }
    }
}

fn send(host: &Host, client: &mut Client, arguments: &[&str]) {
    client.send_spawn(&host.evil_command(arguments), json!({}));
}

/// Runs the helper child so often, always some at a time, and checks all that comes.
fn nothing_is_lost(setup: Setup, arguments: &[&str], Load { in_flight, exits }: Load) {
    let (host, mut client) = setup.flag("--max-processes=2000").start_greeted();
    let mut reader = RawReader::of(&mut client);
    let mut seen: HashMap<String, Seen> = HashMap::new();
    let (mut sent, mut ended) = (in_flight, 0);
    for _ in 0..in_flight {
        send(&host, &mut client, arguments);
    }
    while ended < exits {
        let finished = match reader.next() {
            Raw::Reply(reply) => {
                assert_eq!(reply["ok"], true, "{reply}");
                let proc_id = reply["proc_id"].as_str().unwrap().to_owned();
                assert!(seen.insert(proc_id, Seen::default()).is_none(), "each id once");
                false
            }
            Raw::Event { proc_id, stream, data } => {
                let process = seen.get_mut(proc_id).expect("the answer comes before the first event");
                process.take(stream, data);
                process.ended
            }
        };
        if finished {
            ended += 1;
            if sent < exits {
                sent += 1;
                send(&host, &mut client, arguments);
            }
        }
    }
    // Nothing is on its way any more that could show a late event.
    let ping = client.send("ping", json!({}));
    let last = reader.next();
    assert!(matches!(&last, Raw::Reply(reply) if reply["req_id"] == *ping), "after all have ended: {last:?}");
    assert_eq!(seen.len(), exits);
    reader.give_back(&mut client);
    host.end(client);
}

#[test]
fn nothing_is_lost_when_a_silent_descendant_holds_the_pipes() {
    let load = Load { in_flight: 32, exits: 450 };
    nothing_is_lost(Setup::new("silent lingerers"), &["linger", "silent", "5"], load);
}

#[test]
fn nothing_is_lost_and_nothing_comes_late_when_a_flooding_descendant_holds_the_pipes() {
    let load = Load { in_flight: 10, exits: 50 };
    // Small quotas, so that the floods of all wait for room and for each other.
    let setup = Setup::new("flooding lingerers")
        .variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_PROCESS", "524288")
        .variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_SESSION", "1048576");
    nothing_is_lost(setup, &["linger", "flood", "1.5"], load);
}

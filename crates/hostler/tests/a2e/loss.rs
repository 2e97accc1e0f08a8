//! Exits with descendants that hold the pipes: not one byte of the root's is lost, and the exit event is the last.

use std::collections::HashMap;

use hostler_testkit::numbered::LINGER_LINES;
use serde_json::json;

use crate::client::Client;
use crate::host::{Host, Setup};
use crate::raw::{Raw, RawData, RawReader, Stream};

const IN_FLIGHT: usize = 24;

/// What was seen of one process.
#[derive(Debug)]
struct Seen {
    req_id: String,
    ready: bool,
    next: HashMap<&'static str, u64>,
    late: u64,
    ended: bool,
}

impl Seen {
    fn take(&mut self, stream: Stream, data: RawData<'_>) {
        assert!(!self.ended, "{data:?} after the last event: {self:?}");
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        if data == RawData::Text(br"ready\\n") && !self.ready && stream == Stream::Stdout {
            self.ready = true;
        } else if data.is_late() {
            self.late += 1;
        } else if let RawData::Text(_) = data {
            let next = self.next.entry(name).or_default();
            assert!(data.is_line(*next), "{data:?} instead of line {next} on {name}");
            *next += 1;
        } else {
            assert_eq!((data, stream), (RawData::Code("3"), Stream::Stderr), "{self:?}");
            assert_eq!(self.next, HashMap::from([("stdout", LINGER_LINES), ("stderr", LINGER_LINES)]), "{self:?}");
            assert!(self.ready);
            self.ended = true;
        }
    }
}

fn send(host: &Host, client: &mut Client, arguments: &[&str]) {
    client.send_spawn(&host.evil_command(arguments), json!({}));
}

/// Runs the helper child so often, always some at a time, and checks all that comes.
fn nothing_is_lost(test: &str, arguments: &[&str], exits: usize) {
    let (host, mut client) = Setup::new(test).flag("--max-processes=2000").start_greeted();
    let mut reader = RawReader::of(&mut client);
    let mut seen: HashMap<String, Seen> = HashMap::new();
    let (mut sent, mut ended) = (IN_FLIGHT, 0);
    for _ in 0..IN_FLIGHT {
        send(&host, &mut client, arguments);
    }
    while ended < exits {
        let finished = match reader.next() {
            Raw::Reply(reply) => {
                assert_eq!(reply["ok"], true, "{reply}");
                let text = |field: &str| reply[field].as_str().unwrap().to_owned();
                let new = Seen { req_id: text("req_id"), ready: false, next: HashMap::new(), late: 0, ended: false };
                assert!(seen.insert(text("proc_id"), new).is_none(), "each id once");
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
    loop {
        match reader.next() {
            Raw::Reply(reply) if reply["req_id"] == *ping => break,
            message => panic!("after all have ended: {message:?}"),
        }
    }
    assert_eq!(seen.len(), exits);
    reader.give_back(&mut client);
    host.end(client);
}

#[test]
fn nothing_is_lost_when_a_silent_descendant_holds_the_pipes() {
    nothing_is_lost("silent lingerers", &["linger", "silent", "5"], 400);
}

#[test]
fn nothing_is_lost_and_nothing_comes_late_when_a_flooding_descendant_holds_the_pipes() {
    nothing_is_lost("flooding lingerers", &["linger", "flood", "3"], 100);
}

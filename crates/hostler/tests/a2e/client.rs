//! A small A2E client: sends requests, sorts what comes back, waits for facts with a long maximum.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hostler_testkit::{Observation, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::host::{Host, LONG};

/// One message of the host's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Event(Event),
    Reply(Value),
}

/// A `proc/read/event`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) proc_id: String,
    pub(crate) req_id: String,
    pub(crate) stream: String,
    pub(crate) data: Data,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Text(String),
    Code(i64),
    Killed,
}

impl Data {
    pub(crate) fn is_terminal(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Code(_) | Self::Killed => true,
        }
    }
}

#[derive(Deserialize)]
struct WireEvent {
    proc_id: String,
    req_id: String,
    stream_type: String,
    data: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireData {
    text: Option<String>,
    code: Option<i64>,
}

const EVENT_START: &[u8] = br#"{"type":"proc/read/event""#;

impl Message {
    fn parse(line: &[u8]) -> Self {
        let shown = || String::from_utf8_lossy(&line[..line.len().min(500)]).into_owned();
        if !line.starts_with(EVENT_START) {
            return Self::Reply(serde_json::from_slice(line).unwrap_or_else(|e| panic!("{e}: {}", shown())));
        }
        let event: WireEvent = serde_json::from_slice(line).unwrap_or_else(|e| panic!("{e}: {}", shown()));
        let data: WireData = match event.data {
            Value::String(text) => serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {}", shown())),
            object @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)) => {
                serde_json::from_value(object).unwrap_or_else(|e| panic!("{e}: {}", shown()))
            }
        };
        let data = match (data.text, data.code, event.stream_type.as_str()) {
            (Some(text), None, "stdout" | "stderr") => Data::Text(text),
            (None, Some(0), "stdout") => Data::Code(0),
            (None, Some(code), "stderr") if code != 0 => Data::Code(code),
            (None, None, "killed") => Data::Killed,
            _ => panic!("no event of the protocol: {}", shown()),
        };
        Self::Event(Event { proc_id: event.proc_id, req_id: event.req_id, stream: event.stream_type, data })
    }

    fn answers(&self, id: &str) -> bool {
        matches!(self, Self::Reply(reply) if reply["req_id"] == id)
    }

    fn is_event_of(&self, proc_id: &str) -> bool {
        matches!(self, Self::Event(event) if event.proc_id == proc_id)
    }
}

/// A process that was started.
#[derive(Clone, Debug)]
pub(crate) struct Proc {
    pub(crate) id: String,
    pub(crate) req_id: String,
}

/// All that came from a process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
    pub(crate) end: Data,
}

/// One end of a conversation. What comes while something else is awaited is kept, in its order.
#[derive(Debug)]
pub(crate) struct Client {
    to: Option<OwnedFd>,
    from: Option<OwnedFd>,
    received: Vec<u8>,
    kept: VecDeque<Message>,
    next_id: u64,
    pub(crate) session_id: String,
}

impl Client {
    pub(crate) fn new(to: OwnedFd, from: OwnedFd) -> Self {
        let (received, kept, session_id) = (Vec::new(), VecDeque::new(), String::new());
        Self { to: Some(to), from: Some(from), received, kept, next_id: 0, session_id }
    }

    /// A good handshake.
    pub(crate) fn greet(&mut self) {
        let reply = self.call("handshake/req", json!({"agent_caps": ["proc"]}));
        assert_eq!(reply["ok"], true, "{reply}");
        reply["session_id"].as_str().unwrap().clone_into(&mut self.session_id);
    }

    /// Writes bytes as they are.
    pub(crate) fn write(&self, mut bytes: &[u8]) {
        let to = self.to.as_ref().unwrap();
        while !bytes.is_empty() {
            match rustix::io::write(to, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
            }
        }
    }

    /// A request as a line, and its id.
    pub(crate) fn line(&mut self, kind: &str, fields: Value) -> (String, Vec<u8>) {
        self.next_id += 1;
        let id = format!("q{}", self.next_id);
        let mut message = json!({"type": kind, "id": id});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        (id, line)
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, kind: &str, fields: Value) -> String {
        let (id, line) = self.line(kind, fields);
        self.write(&line);
        id
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(&mut self, kind: &str, fields: Value) -> Value {
        let id = self.send(kind, fields);
        self.reply(&id)
    }

    /// The answer to a request.
    pub(crate) fn reply(&mut self, id: &str) -> Value {
        match self.take_first(&format!("the answer to {id}"), |message| message.answers(id)) {
            Message::Reply(reply) => reply,
            Message::Event(event) => panic!("no answer: {event:?}"),
        }
    }

    /// Whether the answer to a request is among what has come so far.
    pub(crate) fn has_reply(&self, id: &str) -> bool {
        self.kept.iter().any(|message| message.answers(id))
    }

    /// How many messages have come that nobody has looked at.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The next event of a process.
    pub(crate) fn event(&mut self, proc: &Proc) -> Event {
        let what = format!("an event of {proc:?}");
        match self.take_first(&what, |message| message.is_event_of(&proc.id)) {
            Message::Event(event) => event,
            Message::Reply(reply) => panic!("no event: {reply}"),
        }
    }

    /// The text of the next event of a process.
    pub(crate) fn text(&mut self, proc: &Proc) -> String {
        match self.event(proc).data {
            Data::Text(text) => text,
            end @ (Data::Code(_) | Data::Killed) => panic!("{proc:?} has ended: {end:?}"),
        }
    }

    /// Everything that comes from a process, up to its last event.
    pub(crate) fn finish(&mut self, proc: &Proc) -> Finished {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let event = self.event(proc);
            assert_eq!(event.req_id, proc.req_id);
            match (event.data, event.stream.as_str()) {
                (Data::Text(text), "stdout") => stdout.push(text),
                (Data::Text(text), _) => stderr.push(text),
                (end @ (Data::Code(_) | Data::Killed), _) => return Finished { stdout, stderr, end },
            }
        }
    }

    /// The next message, whatever it is; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.kept.pop_front().or_else(|| self.receive())
    }

    /// All that is still to come, up to the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// The next message, which must be an event, as it stands on the wire.
    pub(crate) fn raw_event(&mut self) -> Value {
        assert!(self.kept.is_empty(), "{:?}", self.kept);
        let line = self.receive_line().unwrap();
        assert!(line.starts_with(EVENT_START));
        serde_json::from_slice(&line).unwrap()
    }

    fn take_first(&mut self, what: &str, wanted: impl Fn(&Message) -> bool) -> Message {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).unwrap();
        }
        loop {
            let Some(message) = self.receive() else { panic!("the host has ended instead of {what}") };
            if wanted(&message) {
                return message;
            }
            self.kept.push_back(message);
        }
    }

    fn receive(&mut self) -> Option<Message> {
        self.receive_line().map(|line| Message::parse(&line))
    }

    /// Reads one line, without its end.
    fn receive_line(&mut self) -> Option<Vec<u8>> {
        let mut searched = 0;
        loop {
            let end = self.received[searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| searched + end) {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.truncate(end);
                return Some(line);
            }
            searched = self.received.len();
            if !self.read_more() {
                assert_eq!(self.received, b"", "the last line has its end");
                return None;
            }
        }
    }

    fn read_more(&mut self) -> bool {
        let from = self.from.as_ref().unwrap();
        let mut buffer = [0; 64 * 1024];
        wait_readable(from, LONG);
        match rustix::io::read(from, &mut buffer) {
            // A terminal whose other side has gone.
            Ok(0) | Err(rustix::io::Errno::IO | rustix::io::Errno::CONNRESET) => false,
            Ok(n) => {
                self.received.extend_from_slice(&buffer[..n]);
                true
            }
            Err(error) => panic!("failed to read from the host: {error}"),
        }
    }

    /// Starts a process and returns it.
    pub(crate) fn spawn(&mut self, cmd: &[impl AsRef<str>]) -> Proc {
        self.spawn_with(cmd, json!({}))
    }

    /// The same with further fields.
    pub(crate) fn spawn_with(&mut self, cmd: &[impl AsRef<str>], fields: Value) -> Proc {
        let id = self.send_spawn(cmd, fields);
        self.spawned(&id)
    }

    pub(crate) fn send_spawn(&mut self, cmd: &[impl AsRef<str>], mut fields: Value) -> String {
        fields["cmd"] = cmd.iter().map(AsRef::as_ref).collect();
        self.send("proc/spawn/req", fields)
    }

    /// The process that a spawn request has started.
    pub(crate) fn spawned(&mut self, req_id: &str) -> Proc {
        let reply = self.reply(req_id);
        assert_eq!(reply["ok"], true, "{reply}");
        assert!(reply["pid"].as_i64().unwrap() > 1, "{reply}");
        Proc { id: reply["proc_id"].as_str().unwrap().to_owned(), req_id: req_id.to_owned() }
    }

    /// Starts the helper child and waits until it is ready.
    pub(crate) fn evil(&mut self, host: &Host, arguments: &[&str]) -> Proc {
        let proc = self.spawn(&host.evil_command(arguments));
        assert_eq!(self.text(&proc), "ready\n", "{arguments:?}");
        proc
    }

    pub(crate) fn send_write(&mut self, proc: &Proc, data: &str) -> String {
        self.send("proc/write/req", json!({"proc_id": proc.id, "data": data}))
    }

    pub(crate) fn write_to(&mut self, proc: &Proc, data: &str) -> Value {
        let id = self.send_write(proc, data);
        self.reply(&id)
    }

    pub(crate) fn kill(&mut self, proc: &Proc, signal: &str) -> Value {
        self.call("proc/kill/req", json!({"proc_id": proc.id, "signal": signal}))
    }

    pub(crate) fn status(&mut self, proc: &Proc) -> String {
        let reply = self.call("proc/status/req", json!({"proc_id": proc.id}));
        reply["status"].as_str().unwrap().to_owned()
    }

    /// The states of all processes that are known, in order of their start.
    pub(crate) fn states(&mut self) -> Vec<String> {
        let reply = self.call("proc/status/req", json!({}));
        let procs = reply["procs"].as_array().unwrap();
        procs.iter().map(|entry| entry["state"].as_str().unwrap().to_owned()).collect()
    }

    /// The host answers: a fact by which everything sent before has been read.
    pub(crate) fn ping(&mut self) {
        let reply = self.call("ping", json!({}));
        assert_eq!(reply["type"], "pong", "{reply}");
    }

    pub(crate) fn close_input(&mut self) {
        self.to = None;
    }

    pub(crate) fn close_output(&mut self) {
        self.from = None;
    }

    /// The reading end, with what was read of it and belongs to nobody yet, for a reader that counts bytes.
    pub(crate) fn take_output(&mut self) -> (OwnedFd, Vec<u8>) {
        assert!(self.kept.is_empty(), "{} messages were not looked at", self.kept.len());
        (self.from.take().unwrap(), std::mem::take(&mut self.received))
    }

    pub(crate) fn give_output(&mut self, from: OwnedFd, received: Vec<u8>) {
        (self.from, self.received) = (Some(from), received);
    }
}

/// Waits until there is something to read, or the end of it.
#[track_caller]
pub(crate) fn wait_readable(from: impl AsFd, max: Duration) {
    let timeout = Timespec::try_from(max).unwrap();
    match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&timeout)) {
        Ok(0) => panic!("nothing came within {max:?}"),
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("failed to wait for the host: {error}"),
    }
}

/// A process that has nothing to do with what a test does to others, and must not notice it.
pub(crate) struct Innocent {
    proc: Proc,
    asked: u32,
}

impl Innocent {
    pub(crate) fn start(host: &Host, client: &mut Client) -> Self {
        Self { proc: client.evil(host, &["echo"]), asked: 0 }
    }

    /// It answers, and so does the host.
    #[track_caller]
    pub(crate) fn answers(&mut self, client: &mut Client) {
        self.asked += 1;
        let word = format!("still here {}\n", self.asked);
        let reply = client.write_to(&self.proc, &word);
        assert_eq!(reply["ok"], true, "{reply}");
        assert_eq!(client.text(&self.proc), word);
    }
}

/// Waits for a fact that shows without the client reading anything.
#[track_caller]
pub(crate) fn until<O: Observation<Fact = ()>>(what: &str, look: impl FnMut() -> O) {
    wait_until(what, LONG, look);
}

/// Shows what differs without megabytes of it.
#[track_caller]
pub(crate) fn assert_same_lines<L: AsRef<str> + Debug, R: AsRef<str> + Debug>(found: &[L], expected: &[R]) {
    let first = found.iter().zip(expected).position(|(a, b)| a.as_ref() != b.as_ref());
    if let Some(at) = first {
        panic!(
            "line {at} of {} and {}: {:?} is not {:?}",
            found.len(),
            expected.len(),
            found[at],
            expected[at]
        );
    }
    assert_eq!(found.len(), expected.len(), "only the number of lines differs");
}

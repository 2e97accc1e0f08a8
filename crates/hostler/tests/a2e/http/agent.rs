//! An agent that comes by HTTP: requests over one connection, streams that it opens and cuts as a test wants.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::host::LONG;

/// A connection of either kind.
pub(crate) trait Connection: Read + Write + Send + Sync {}
impl<T: Read + Write + Send + Sync> Connection for T {}

/// An answer that is no stream.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What a refusal says, which is what to do.
    pub(crate) fn detail(&self) -> String {
        let detail = self.json()["detail"].as_str().map(str::to_owned);
        detail.unwrap_or_else(|| panic!("no detail: {self:?}"))
    }
}

/// Connects to a URL as the host announces it.
pub(crate) fn connect(url: &str) -> Box<dyn Connection> {
    if let Some(path) = url.strip_prefix("unix:") {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        return Box::new(stream);
    }
    let (scheme, address) = url.split_once("://").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    match scheme {
        "http" => Box::new(stream),
        "https" => {
            let config = Arc::clone(TRUST.get().expect("a certificate that is trusted"));
            let session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
            Box::new(StreamOwned::new(session, stream))
        }
        _ => panic!("{url}"),
    }
}

/// How hosts with TLS are known.
static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();

/// Makes a certificate for `localhost`, which is trusted from here on; writes it and its key into a folder.
pub(crate) fn certify(folder: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TRUST.set(Arc::new(config)).expect("one certificate in a test");
    (certificate, key)
}

/// Sends one request over a connection of its own.
pub(crate) fn ask(url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut connection = BufReader::new(connect(url));
    exchange(&mut connection, method, path, headers, body)
}

fn exchange(
    connection: &mut BufReader<Box<dyn Connection>>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let head = request_head(method, path, headers, Some(body.len()));
    // A host that refuses early may have closed by then; its answer is there all the same.
    let _ = connection.get_mut().write_all(&[head.as_bytes(), body].concat());
    read_answer(connection)
}

pub(crate) fn request_head(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    length: Option<usize>,
) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        head += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(length) = length {
        head += &format!("Content-Length: {length}\r\n");
    }
    head + "\r\n"
}

/// Reads an answer with a length.
pub(crate) fn read_answer(connection: &mut impl BufRead) -> Answer {
    let (status, head) = read_head(connection);
    let field = |line: &str| Some(line.strip_prefix("content-length: ")?.trim().parse::<usize>().unwrap());
    let length = head.lines().find_map(field).unwrap_or_else(|| panic!("no length: {head}"));
    let mut body = vec![0; length];
    connection.read_exact(&mut body).unwrap();
    Answer { status, head, body: String::from_utf8(body).unwrap() }
}

fn read_head(connection: &mut impl BufRead) -> (u16, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(connection.read_line(&mut head).unwrap() > 0, "the host has closed the connection: {head:?}");
    }
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap();
    (status.parse().unwrap(), head)
}

/// A session, and whoever has opened it.
pub(crate) struct Agent {
    url: String,
    pub(crate) session_id: String,
    /// Sent with every request.
    headers: Vec<(String, String)>,
    requests: BufReader<Box<dyn Connection>>,
    next_id: u64,
}

impl Agent {
    /// Opens a session.
    pub(crate) fn join(url: &str) -> Self {
        Self::join_with(url, &[])
    }

    /// The same, with these headers in every request.
    pub(crate) fn join_with(url: &str, headers: &[(&str, &str)]) -> Self {
        let mut requests = BufReader::new(connect(url));
        let answer = exchange(&mut requests, "POST", "/session", headers, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let session_id = answer.json()["session_id"].as_str().unwrap().to_owned();
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { url: url.to_owned(), session_id, headers, requests, next_id: 0 }
    }

    /// Opens a session, shakes hands and opens the stream.
    pub(crate) fn greet(url: &str) -> (Self, Stream) {
        let mut agent = Self::join(url);
        let mut stream = agent.stream(None);
        let reply = agent.call(&mut stream, "handshake/req", json!({"agent_caps": ["proc"]}));
        assert_eq!((&reply["ok"], &reply["session_id"]), (&json!(true), &json!(agent.session_id)), "{reply}");
        (agent, stream)
    }

    fn with_session<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        own.chain([("X-Session-Id", self.session_id.as_str())]).chain(more.iter().copied()).collect()
    }

    /// Posts this body.
    pub(crate) fn post(&mut self, body: &[u8]) -> Answer {
        let head = request_head("POST", "/send", &self.with_session(&[]), Some(body.len()));
        self.requests.get_mut().write_all(&[head.as_bytes(), body].concat()).unwrap();
        read_answer(&mut self.requests)
    }

    /// Sends a message and returns its id.
    pub(crate) fn send(&mut self, kind: &str, fields: Value) -> String {
        self.next_id += 1;
        let id = format!("q{}", self.next_id);
        let mut message = json!({"type": kind, "id": id});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = self.post(message.to_string().as_bytes());
        assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"ok":true}"#), "{message}: {answer:?}");
        id
    }

    /// Sends a message and waits for its answer on the stream.
    pub(crate) fn call(&mut self, stream: &mut Stream, kind: &str, fields: Value) -> Value {
        let id = self.send(kind, fields);
        stream.reply(&id)
    }

    /// Starts a program; the id of the process.
    pub(crate) fn spawn(&mut self, stream: &mut Stream, cmd: &[impl AsRef<str>]) -> String {
        let cmd: Vec<&str> = cmd.iter().map(AsRef::as_ref).collect();
        let reply = self.call(stream, "proc/spawn/req", json!({"cmd": cmd}));
        assert_eq!(reply["ok"], true, "{reply}");
        reply["proc_id"].as_str().unwrap().to_owned()
    }

    /// Opens the stream, behind the frame with this id.
    pub(crate) fn stream(&self, after: Option<u64>) -> Stream {
        self.try_stream(after.map(|id| id.to_string()).as_deref())
            .unwrap_or_else(|answer| panic!("{answer:?}"))
    }

    /// The same, or what is answered in its place.
    pub(crate) fn try_stream(&self, after: Option<&str>) -> Result<Stream, Answer> {
        let more: Vec<(&str, &str)> = after.map(|id| ("Last-Event-ID", id)).into_iter().collect();
        let mut connection = BufReader::new(connect(&self.url));
        let head = request_head("GET", "/stream", &self.with_session(&more), None);
        connection.get_mut().write_all(head.as_bytes()).unwrap();
        let begin = connection.fill_buf().unwrap();
        if !begin.starts_with(b"HTTP/1.1 200 ") {
            return Err(read_answer(&mut connection));
        }
        let (_, head) = read_head(&mut connection);
        for expected in [
            "content-type: text/event-stream; charset=utf-8\r\n",
            "transfer-encoding: chunked\r\n",
            "cache-control: no-store\r\n",
        ] {
            assert!(head.contains(expected), "{head}");
        }
        Ok(Stream {
            connection,
            received: Vec::new(),
            chunk_left: 0,
            begun: false,
            last_id: after.and_then(|id| id.parse().ok()),
            kept: VecDeque::new(),
        })
    }
}

/// A message as a frame brought it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Framed {
    pub(crate) id: Option<u64>,
    pub(crate) text: String,
}

impl Framed {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A stream that is open.
pub(crate) struct Stream {
    connection: BufReader<Box<dyn Connection>>,
    /// Bytes of the body that make no whole frame yet.
    received: Vec<u8>,
    chunk_left: usize,
    begun: bool,
    /// The id of the last frame that has one.
    pub(crate) last_id: Option<u64>,
    kept: VecDeque<Framed>,
}

impl Stream {
    /// The next message; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Framed> {
        self.kept.pop_front().or_else(|| self.receive())
    }

    /// The answer to a request; what comes before is kept.
    pub(crate) fn reply(&mut self, id: &str) -> Value {
        let is_it = |framed: &Framed| {
            !framed.text.contains(r#""type":"proc/read/event""#) && framed.json()["req_id"] == id
        };
        if let Some(at) = self.kept.iter().position(is_it) {
            return self.kept.remove(at).unwrap().json();
        }
        loop {
            let framed =
                self.receive().unwrap_or_else(|| panic!("the stream has ended instead of an answer to {id}"));
            if is_it(&framed) {
                return framed.json();
            }
            self.kept.push_back(framed);
        }
    }

    /// All texts of a process up to its last event, and that.
    pub(crate) fn finish(&mut self, proc_id: &str) -> (String, Value) {
        let mut text = String::new();
        loop {
            let event = self.next().expect("its last event").json();
            if event["proc_id"] != proc_id || event["type"] != "proc/read/event" {
                continue;
            }
            let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
            match data["text"].as_str() {
                Some(piece) => text += piece,
                None => return (text, event),
            }
        }
    }

    /// The end of the stream; nothing comes before it.
    pub(crate) fn ends(mut self) {
        assert_eq!(self.next(), None);
    }

    fn receive(&mut self) -> Option<Framed> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.received, b"\n\n") {
                let frame: Vec<u8> = self.received.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap();
                let field =
                    |name: &str| frame.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
                if let Some(text) = field("data: ") {
                    let id = field("id: ").map(|id| id.parse::<u64>().unwrap());
                    assert!(id.is_none() || id > self.last_id, "ids grow: {id:?} after {:?}", self.last_id);
                    self.last_id = id.or(self.last_id);
                    return Some(Framed { id, text });
                }
                assert!(frame.starts_with(": "), "a comment: {frame:?}");
                continue;
            }
            if !self.read_chunk() {
                assert_eq!(self.received, b"", "the last frame is whole");
                return None;
            }
        }
    }

    /// Reads a piece of the body; false at its end, or where the connection was cut.
    fn read_chunk(&mut self) -> bool {
        if self.chunk_left == 0 {
            let mut line = String::new();
            if std::mem::replace(&mut self.begun, true) {
                self.connection.read_line(&mut line).unwrap();
                line.clear();
            }
            if self.connection.read_line(&mut line).unwrap_or(0) == 0 {
                self.received.clear();
                return false;
            }
            self.chunk_left = usize::from_str_radix(line.trim_end(), 16).unwrap();
            if self.chunk_left == 0 {
                return false;
            }
        }
        let there = self.connection.fill_buf().unwrap_or_default();
        let length = there.len().min(self.chunk_left);
        self.received.extend_from_slice(&there[..length]);
        self.connection.consume(length);
        self.chunk_left -= length;
        if length == 0 {
            self.received.clear();
        }
        length > 0
    }

    /// Reads so many bytes of the body, whatever they are, and leaves.
    pub(crate) fn read_then_cut(mut self, bytes: usize) -> Vec<Framed> {
        let mut read = 0;
        while read < bytes {
            let before = self.received.len();
            if !self.read_chunk() {
                break;
            }
            read += self.received.len() - before;
        }
        let mut messages = Vec::from(std::mem::take(&mut self.kept));
        while memchr::memmem::find(&self.received, b"\n\n").is_some() {
            messages.extend(self.receive_buffered());
        }
        messages
    }

    fn receive_buffered(&mut self) -> Option<Framed> {
        let end = memchr::memmem::find(&self.received, b"\n\n")?;
        let is_data = self.received[..end].windows(6).any(|six| six == b"data: ");
        if is_data {
            return self.receive();
        }
        self.received.drain(..end + 2);
        None
    }
}

/// A while in which nothing should happen is never waited for; this is how long something may take that must.
pub(crate) const MOMENT: Duration = Duration::from_secs(30);

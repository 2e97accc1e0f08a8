//! What `docs/a2e.md` says is what the host does: its examples are handled as they stand, and no word of the protocol is
//! missing.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what the tests share fails as loudly as they do")]

use std::time::Duration;

use hostler_a2e::codec::Item;
use hostler_a2e::encode::{DataForm, EventEncoder, EventForm, Flush, PushForm, Stream, Terminal};
use hostler_a2e::protocol::{Connection, ConnectionOptions, Step};
use hostler_a2e::wire::{
    Denied, EnvelopeCode, Fate, HandshakeRefusal, MessageIds, ProcCode, ProcId, ProcStatus, Reply, ReqId,
    RequestType, SessionId, StatusWord, Timestamp,
};
use serde_json::{Map, Value};

const PAGE: &str = include_str!("../../../docs/a2e.md");

/// The lines of the conversations, without their mark.
fn lines(mark: &str) -> impl Iterator<Item = &'static str> {
    PAGE.lines().filter_map(move |line| line.strip_prefix(mark))
}

fn connection() -> Connection {
    let mut connection = Connection::new(ConnectionOptions {
        session_id: SessionId::new("s"),
        allowed_commands: vec!["python3".to_owned()],
        auth_token: None,
        data_form: DataForm::String,
        push_form: PushForm::Correlated,
        default_timeout: None,
    });
    let hello = r#"{"type":"handshake/req","id":"h","agent_caps":["proc"]}"#;
    assert!(matches!(connection.handle(Item::Line(hello), Duration::ZERO), Step::Reply(_)));
    assert!(connection.is_welcome());
    connection
}

fn sent(reply: &Reply) -> Map<String, Value> {
    let mut line = Vec::new();
    reply.push_line(&mut MessageIds::new(1), Timestamp::from_unix(Duration::ZERO), &mut line);
    serde_json::from_slice(&line).unwrap()
}

fn fields(line: &str) -> Map<String, Value> {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn every_request_on_the_page_is_one_that_the_host_takes_or_refuses_as_the_page_says() {
    let mut connection = connection();
    let mut count = 0;
    for line in lines("> ") {
        count += 1;
        let refused = match connection.handle(Item::Line(line), Duration::ZERO) {
            Step::Reply(reply) => Some(sent(&reply)).filter(|reply| reply["type"] == "error"),
            Step::Spawn(_)
            | Step::Write { .. }
            | Step::Kill { .. }
            | Step::StatusOne { .. }
            | Step::StatusAll { .. }
            | Step::Shutdown { .. } => None,
        };
        let id = &fields(line)["id"];
        let on_page =
            lines("< ").map(fields).find(|answer| answer["type"] == "error" && answer["req_id"] == *id);
        assert_eq!(
            refused.as_ref().map(|e| &e["message"]),
            on_page.as_ref().map(|e| &e["message"]),
            "{line}"
        );
    }
    assert!(count >= 8, "{count}");
}

/// One of each answer and event that the host sends, to compare their fields with.
fn real() -> Vec<Map<String, Value>> {
    let (req, proc_id) = (|| ReqId::new("r"), || ProcId::new("p"));
    let entry =
        ProcStatus::new(proc_id(), String::new(), 1, Fate::Running, Timestamp::from_unix(Duration::ZERO));
    let replies = [
        Reply::welcome(req(), SessionId::new("s"), hostler_a2e::wire::Accepted::Proc),
        Reply::pong(req(), Duration::ZERO),
        Reply::spawned(req(), proc_id(), 1),
        Reply::written(req(), proc_id(), 1),
        Reply::kill_settled(req(), Fate::Running, hostler_a2e::wire::Left::default()),
        Reply::status(req(), proc_id(), Fate::Running),
        Reply::status_all(req(), vec![entry], 0),
        Reply::denied(req(), Denied::Unauthorized),
    ];
    let form = EventForm { data: DataForm::String, push: PushForm::Correlated };
    let mut encoder = EventEncoder::new(&proc_id(), &req(), &MessageIds::new(1).lane(), form);
    let mut event = Vec::new();
    encoder.set_time(Timestamp::from_unix(Duration::ZERO));
    encoder.lines(Stream::Stdout, b"x\n", Flush::None, &mut event);
    encoder.terminal(Terminal::Exit(0), &mut event);
    let events = String::from_utf8(event).unwrap();
    replies.iter().map(sent).chain(events.lines().map(fields)).collect()
}

#[test]
fn every_answer_on_the_page_has_the_fields_that_the_host_sends() {
    let real = real();
    let mut count = 0;
    for line in lines("< ") {
        count += 1;
        let shown = fields(line);
        let keys = |message: &Map<String, Value>| message.keys().cloned().collect::<Vec<_>>();
        let same = real.iter().any(|sent| sent["type"] == shown["type"] && keys(sent) == keys(&shown));
        assert!(same, "{line}");
    }
    assert!(count >= 10, "{count}");
}

#[test]
fn every_word_of_the_protocol_is_on_the_page() {
    let fates = [
        Fate::Running,
        Fate::Exited { code: 0 },
        Fate::Exited { code: 1 },
        Fate::Killed { code: 0 },
        Fate::TimedOut { code: 0 },
        Fate::Lost,
    ];
    let requests = [
        RequestType::Handshake,
        RequestType::Ping,
        RequestType::Shutdown,
        RequestType::Spawn,
        RequestType::Write,
        RequestType::Kill,
        RequestType::Status,
    ];
    let envelope = [
        EnvelopeCode::ParseError,
        EnvelopeCode::InvalidMessage,
        EnvelopeCode::SchemaViolation,
        EnvelopeCode::Unauthorized,
        EnvelopeCode::CapabilityMissing,
    ];
    let codes = [ProcCode::UnknownProc, ProcCode::ProcDead, ProcCode::ProcLimit];
    let words = (fates.iter().map(|fate| fate.status().word()))
        .chain(fates.iter().map(|fate| fate.state().word()))
        .chain(requests.map(RequestType::word))
        .chain(envelope.map(EnvelopeCode::word))
        .chain(codes.map(ProcCode::word))
        .chain([
            StatusWord::NotFound.word(),
            "proc.data.object",
            "proc.event.push",
            "survivors",
            "unattributed",
        ]);
    let refusals = [HandshakeRefusal::VersionMismatch, HandshakeRefusal::AuthFailed];
    let missing: Vec<String> = words
        .map(ToOwned::to_owned)
        .chain(refusals.map(|refusal| refusal.to_string()))
        .filter(|word| {
            !PAGE.contains(&format!("`{word}`")) && !PAGE.contains(&format!("\"type\":\"{word}\""))
        })
        .collect();
    assert_eq!(missing, [] as [String; 0]);
}

/// The rows of the table of ends: status, state, last event.
#[test]
fn the_table_of_ends_is_that_of_the_host() {
    let table = [
        (Fate::Exited { code: 0 }, "`stdout` `{\"code\":0}`"),
        (Fate::Exited { code: 1 }, "`stderr` `{\"code\":N}`"),
        (Fate::Killed { code: -9 }, "`killed` `{}`"),
        (Fate::TimedOut { code: -9 }, "`killed` `{}`"),
        (Fate::Lost, "`stderr` `{\"code\":-9}`"),
    ];
    for (fate, last) in table {
        let terminal = match fate.terminal() {
            Some(Terminal::Exit(0)) => "`stdout` `{\"code\":0}`",
            Some(Terminal::Exit(-9)) => "`stderr` `{\"code\":-9}`",
            Some(Terminal::Exit(_)) => "`stderr` `{\"code\":N}`",
            Some(Terminal::Killed) => "`killed` `{}`",
            None => "",
        };
        assert_eq!(terminal, last, "{fate:?}");
        let row = format!("| `{}` | `{}` | {last} |", fate.status().word(), fate.state().word());
        assert!(PAGE.contains(&row), "no row ends with {row}");
    }
}

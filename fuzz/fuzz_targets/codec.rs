//! Whatever a client sends, in whatever chunks: nothing panics, and a good ping afterwards is answered.
//!
//! The input is taken as pieces of one length byte and so many bytes of the stream.
#![no_main]

use std::time::Duration;

use hostler_a2e::codec::LineCodec;
use hostler_a2e::encode::{DataForm, PushForm};
use hostler_a2e::protocol::{Connection, ConnectionOptions, Step};
use hostler_a2e::wire::{MessageIds, Reply, Secret, SessionId, Timestamp};
use libfuzzer_sys::fuzz_target;

/// Short, so that lines beyond it are found.
const LIMIT: usize = 256;
const HELLO: &[u8] =
    b"{\"type\":\"handshake/req\",\"id\":\"h\",\"agent_caps\":[\"proc\"],\"auth_token\":\"t\"}\n";
const PING: &[u8] = b"\n{\"type\":\"ping\",\"id\":\"still here\"}\n";

fuzz_target!(|data: &[u8]| {
    let mut connection = Connection::new(ConnectionOptions {
        session_id: SessionId::new("s1"),
        allowed_commands: vec!["ls".to_owned()],
        auth_token: Some(Secret::new("t")),
        data_form: DataForm::String,
        push_form: PushForm::Correlated,
        default_timeout: None,
    });
    let mut codec = LineCodec::new(LIMIT);
    let Some((&first, mut rest)) = data.split_first() else { return };
    if first & 1 == 1 {
        feed(&mut codec, &mut connection, HELLO);
    }
    while let Some((&length, stream)) = rest.split_first() {
        let (chunk, later) = stream.split_at(stream.len().min(usize::from(length)));
        feed(&mut codec, &mut connection, chunk);
        rest = later;
    }
    let pong = feed(&mut codec, &mut connection, PING).expect("a good ping is answered");
    let pong: serde_json::Value = serde_json::from_slice(&pong).expect("a reply is JSON");
    assert_eq!((&pong["type"], &pong["req_id"]), (&"pong".into(), &"still here".into()));
});

/// Feeds a chunk; gives the line of the last reply.
fn feed(codec: &mut LineCodec, connection: &mut Connection, chunk: &[u8]) -> Option<Vec<u8>> {
    let mut rest = chunk;
    let mut last = None;
    while let Some(item) = codec.next_item(&mut rest) {
        last = match connection.handle(item, Duration::ZERO) {
            Step::Reply(reply) => Some(line(&reply)),
            Step::Spawn(_)
            | Step::Write { .. }
            | Step::Kill { .. }
            | Step::StatusOne { .. }
            | Step::StatusAll { .. }
            | Step::Shutdown { .. } => None,
        };
    }
    assert!(rest.is_empty());
    last
}

fn line(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.push_line(&mut MessageIds::new(0), Timestamp::from_unix(Duration::ZERO), &mut out);
    assert_eq!(out.iter().position(|byte| *byte == b'\n'), Some(out.len() - 1), "a reply is one line");
    out
}

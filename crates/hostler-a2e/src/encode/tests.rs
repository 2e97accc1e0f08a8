//! The encoder against a slow one that is built on serde_json, and against the rules of the protocol.

use std::time::Duration;

use proptest::prelude::*;
use serde::Serialize;
use serde_json::value::RawValue;

use super::*;
use crate::wire::push_json;

const PROC_ID: &str = "c0\"f\u{2028}fee";
const REQ_ID: &str = "p\\1";
const STRING: EventForm = EventForm { data: DataForm::String, push: PushForm::Correlated };
const OBJECT: EventForm = EventForm { data: DataForm::Object, push: PushForm::Push };

fn encoder(form: EventForm) -> EventEncoder {
    let mut encoder = EventEncoder::new(&ProcId::new("c0ffee"), &ReqId::new("p1"), &MessageIds::new(0), form);
    encoder.set_time(Timestamp::from_unix(Duration::from_millis(4200)));
    encoder
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// One event from scratch, by serde_json.
fn reference(form: EventForm, number: u64, stream: &str, data: &impl Serialize, out: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Event<'a, D: Serialize> {
        #[serde(rename = "type")]
        kind: &'a str,
        id: String,
        version: &'a str,
        ts: &'a RawValue,
        proc_id: &'a str,
        stream_type: &'a str,
        data: D,
        req_id: &'a str,
    }
    let ts = RawValue::from_string("4.200000".to_owned()).unwrap();
    let req_id = if form.push == PushForm::Push { "" } else { REQ_ID };
    let id = format!("00000000-0000-8000-8000-{number:012x}");
    let mut inner = Vec::new();
    push_json(&mut inner, data);
    let inner = text(inner);
    let (kind, version, proc_id, stream_type) = ("proc/read/event", "1.0", PROC_ID, stream);
    match form.data {
        DataForm::String => {
            push_json(out, &Event { kind, id, version, ts: &ts, proc_id, stream_type, data: inner, req_id });
        }
        DataForm::Object => {
            let data = RawValue::from_string(inner).unwrap();
            push_json(out, &Event { kind, id, version, ts: &ts, proc_id, stream_type, data, req_id });
        }
    }
    out.push(b'\n');
}

fn reference_lines(form: EventForm, stream: &str, bytes: &[u8]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Text {
        text: String,
    }
    let mut out = Vec::new();
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let line = Text { text: String::from_utf8_lossy(line).into_owned() };
        reference(form, index as u64 + 1, stream, &line, &mut out);
    }
    out
}

/// The texts of events, parsed back by serde_json.
fn texts(form: EventForm, events: &[u8]) -> Vec<String> {
    let text_of = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let data = match form.data {
            DataForm::String => serde_json::from_str(event["data"].as_str().unwrap()).unwrap(),
            DataForm::Object => event["data"].clone(),
        };
        data["text"].as_str().unwrap().to_owned()
    };
    std::str::from_utf8(events).unwrap().lines().map(text_of).collect()
}

#[test]
fn an_event_of_each_form_and_stream_is_written_as_in_the_protocol() {
    let mut out = Vec::new();
    let mut string = encoder(STRING);
    assert_eq!(string.lines(Stream::Stdout, b"hi\n", Flush::None, &mut out), 3);
    assert_eq!(string.lines(Stream::Stderr, b"a\t\"b\"\\\x01\xc2\x85\n", Flush::None, &mut out), 10);
    let mut object = encoder(OBJECT);
    assert_eq!(object.lines(Stream::Stdout, b"a\t\"b\"\\\x01\xe2\x80\xa8\r\n", Flush::None, &mut out), 12);
    string.terminal(Terminal::Exit(0), &mut out);
    string.terminal(Terminal::Exit(-9), &mut out);
    string.terminal(Terminal::Killed, &mut out);
    object.terminal(Terminal::Exit(0), &mut out);
    object.terminal(Terminal::Exit(3), &mut out);
    object.terminal(Terminal::Killed, &mut out);
    insta::assert_snapshot!(text(out), @r#"
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000001","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stdout","data":"{\"text\":\"hi\\n\"}","req_id":"p1"}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000002","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stderr","data":"{\"text\":\"a\\t\\\"b\\\"\\\\\\u0001\\u0085\\n\"}","req_id":"p1"}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000001","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stdout","data":{"text":"a\t\"b\"\\\u0001\u2028\r\n"},"req_id":""}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000003","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stdout","data":"{\"code\":0}","req_id":"p1"}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000004","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stderr","data":"{\"code\":-9}","req_id":"p1"}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000005","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"killed","data":"{}","req_id":"p1"}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000002","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stdout","data":{"code":0},"req_id":""}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000003","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"stderr","data":{"code":3},"req_id":""}
    {"type":"proc/read/event","id":"00000000-0000-8000-8000-000000000004","version":"1.0","ts":4.200000,"proc_id":"c0ffee","stream_type":"killed","data":{},"req_id":""}
    "#);
}

#[test]
fn the_event_of_the_protocol_document_is_written_but_for_id_and_time() {
    let mut out = Vec::new();
    let id = MessageIds::new(0);
    let mut encoder = EventEncoder::new(&ProcId::new("proc_abc123"), &ReqId::new("p1"), &id, STRING);
    encoder.set_time(Timestamp::from_unix(Duration::from_millis(1_716_123_457_150)));
    encoder.lines(Stream::Stdout, b"hello\n", Flush::None, &mut out);
    let ours: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let mut example: serde_json::Value = serde_json::from_str(
        r#"{"type":"proc/read/event","id":"p4","version":"1.0","ts":1716123457.150,"proc_id":"proc_abc123","stream_type":"stdout","data":"{\"text\":\"hello\\n\"}","req_id":"p1"}"#,
    )
    .unwrap();
    example["id"] = "00000000-0000-8000-8000-000000000001".into();
    assert_eq!(ours, example);
}

#[test]
fn incomplete_lines_wait_unless_flushed() {
    type Case = (Flush, &'static [u8], usize, &'static [&'static str]);
    let table: [Case; 14] = [
        (Flush::None, b"a\nbc", 2, &["a\n"]),
        (Flush::None, b"abc", 0, &[]),
        (Flush::None, b"", 0, &[]),
        (Flush::None, b"\n\n", 2, &["\n", "\n"]),
        (Flush::Piece, b"a\nbc", 4, &["a\n", "bc"]),
        (Flush::Piece, b"bc\r", 2, &["bc"]),
        (Flush::Piece, b"\r", 0, &[]),
        (Flush::Piece, b"a\xe2\x82", 1, &["a"]),
        (Flush::Piece, b"\xf0\x9f\x98", 0, &[]),
        (Flush::Piece, b"a\x80\x80\x80\x80", 5, &["a\u{fffd}\u{fffd}\u{fffd}\u{fffd}"]),
        (Flush::Piece, b"\xe2\x82\xac\xff", 4, &["€\u{fffd}"]),
        (Flush::End, b"a\nb\r", 4, &["a\n", "b\r"]),
        (Flush::End, b"a\xe2\x82", 3, &["a\u{fffd}"]),
        (Flush::End, b"", 0, &[]),
    ];
    for (flush, bytes, consumed, expected) in table {
        let mut out = Vec::new();
        let got = encoder(STRING).lines(Stream::Stdout, bytes, flush, &mut out);
        assert_eq!(
            (got, texts(STRING, &out)),
            (consumed, expected.iter().map(|&t| t.to_owned()).collect()),
            "{bytes:?}"
        );
    }
}

#[test]
fn a_line_up_to_the_limit_is_one_event_and_a_longer_one_is_cut_between_characters() {
    let line = |length: usize, end: &str| "x".repeat(length - end.len()) + end;
    let limit = MAX_EVENT_BYTES;
    let lengths = |input: &str, flush| {
        let mut out = Vec::new();
        encoder(OBJECT).lines(Stream::Stdout, input.as_bytes(), flush, &mut out);
        texts(OBJECT, &out).iter().map(String::len).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&line(limit, "\n"), Flush::None), [limit]);
    assert_eq!(lengths(&line(limit, ""), Flush::None), [0; 0]);
    assert_eq!(lengths(&line(limit, ""), Flush::End), [limit]);
    assert_eq!(lengths(&line(limit + 1, "\n"), Flush::None), [limit, 1]);
    assert_eq!(lengths(&line(limit + 1, "\r\n"), Flush::None), [limit - 1, 2]);
    assert_eq!(lengths(&line(limit + 1, ""), Flush::None), [limit]);
    assert_eq!(lengths(&line(2 * limit + 5, "\n"), Flush::None), [limit, limit, 5]);
    assert_eq!(lengths(&line(limit + 1, "€"), Flush::None), [limit - 2]);
    assert_eq!(lengths(&line(limit + 1, "€"), Flush::End), [limit - 2, 3]);
}

#[test]
fn the_time_may_grow_by_a_digit_between_batches() {
    let mut out = Vec::new();
    let mut encoder = encoder(STRING);
    for seconds in [9, 10, 1_716_123_456, 3] {
        encoder.set_time(Timestamp::from_unix(Duration::from_secs(seconds)));
        encoder.lines(Stream::Stderr, b"x\n", Flush::None, &mut out);
    }
    let seen: Vec<(f64, String)> = text(out)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| (event["ts"].as_f64().unwrap(), event["stream_type"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(seen, [9.0, 10.0, 1_716_123_456.0, 3.0].map(|ts| (ts, "stderr".to_owned())));
}

#[test]
fn bytes_that_were_searched_before_are_searched_again_when_the_caller_drops_some() {
    let mut out = Vec::new();
    let mut encoder = encoder(STRING);
    assert_eq!(encoder.lines(Stream::Stdout, b"abcdef", Flush::None, &mut out), 0);
    assert_eq!(encoder.lines(Stream::Stdout, b"abcdef", Flush::Piece, &mut out), 6);
    assert_eq!(encoder.lines(Stream::Stdout, b"g\nh", Flush::None, &mut out), 2);
    assert_eq!(texts(STRING, &out), ["abcdef", "g\n"]);
}

/// Bytes as processes print them: text with what needs escapes, line ends of all kinds, and bytes that are no UTF-8.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[ -~]{0,40}".prop_map(String::into_bytes),
        2 => Just(b"\n".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => prop::sample::select(vec!["\u{85}", "\u{2028}", "\u{2029}", "é", "€", "‧", "😀", "漢字", "\\\"", "\u{7f}", "\u{c2}", "\u{e2}"])
            .prop_map(|text| text.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..12),
        1 => prop::collection::vec(prop::sample::select(vec![0xe2u8, 0x80, 0xa8, 0xc2, 0x85, 0xf0, 0x9f, 0xed, 0xa0, 0xf4, 0x90, 0xff]), 0..8),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn form() -> impl Strategy<Value = EventForm> {
    prop::sample::select(vec![STRING, OBJECT])
}

proptest! {
    #[test]
    fn events_equal_those_of_a_slow_encoder_byte_for_byte(bytes in output(), form in form()) {
        let mut ours = Vec::new();
        let mut encoder = EventEncoder::new(&ProcId::new(PROC_ID), &ReqId::new(REQ_ID), &MessageIds::new(0), form);
        encoder.set_time(Timestamp::from_unix(Duration::from_millis(4200)));
        prop_assert_eq!(encoder.lines(Stream::Stderr, &bytes, Flush::End, &mut ours), bytes.len());
        prop_assert_eq!(text(ours), text(reference_lines(form, "stderr", &bytes)));
    }

    #[test]
    fn joined_texts_are_the_output_and_no_event_holds_a_raw_line_end(bytes in output(), form in form()) {
        let mut out = Vec::new();
        encoder(form).lines(Stream::Stdout, &bytes, Flush::End, &mut out);
        prop_assert_eq!(texts(form, &out).concat(), String::from_utf8_lossy(&bytes).into_owned());
        let out = text(out);
        let has_raw_end = out.contains(['\u{85}', '\u{2028}', '\u{2029}', '\r']);
        prop_assert!(!has_raw_end);
        prop_assert_eq!(out.matches('\n').count(), bytes.split_inclusive(|byte| *byte == b'\n').count());
    }

    #[test]
    fn any_cutting_into_chunks_gives_the_same_events(
        bytes in output(),
        form in form(),
        cuts in prop::collection::vec(1usize..20, 1..20),
        // Two pieces must be longer than the limit together: a piece may be three bytes short of it.
        max_event_bytes in prop::sample::select(vec![7usize, 8, 11, 64, MAX_EVENT_BYTES]),
    ) {
        let mut whole = EventEncoder { max_event_bytes, ..encoder(form) };
        let mut expected = Vec::new();
        whole.lines(Stream::Stdout, &bytes, Flush::End, &mut expected);

        let mut cut = EventEncoder { max_event_bytes, ..encoder(form) };
        let (mut out, mut offered, mut taken) = (Vec::new(), 0, 0);
        for step in cuts.iter().cycle() {
            offered = bytes.len().min(offered + step);
            taken += cut.lines(Stream::Stdout, &bytes[taken..offered], Flush::None, &mut out);
            if offered == bytes.len() {
                break;
            }
        }
        cut.lines(Stream::Stdout, &bytes[taken..], Flush::End, &mut out);
        prop_assert_eq!(text(out), text(expected));
    }

    #[test]
    fn pieces_lose_nothing_and_cut_no_character_and_no_line_end(
        bytes in output(),
        form in form(),
        cuts in prop::collection::vec(1usize..20, 1..20),
    ) {
        let mut encoder = encoder(form);
        let (mut out, mut offered, mut taken) = (Vec::new(), 0, 0);
        for step in cuts.iter().cycle() {
            offered = bytes.len().min(offered + step);
            taken += encoder.lines(Stream::Stdout, &bytes[taken..offered], Flush::Piece, &mut out);
            prop_assert!(offered - taken <= 3);
            if offered == bytes.len() {
                break;
            }
        }
        encoder.lines(Stream::Stdout, &bytes[taken..], Flush::End, &mut out);
        let texts = texts(form, &out);
        prop_assert_eq!(texts.concat(), String::from_utf8_lossy(&bytes).into_owned());
        for pair in texts.windows(2) {
            prop_assert!(!(pair[0].ends_with('\r') && pair[1].starts_with('\n')));
        }
        prop_assert!(texts.iter().all(|text| !text.is_empty() && !text.as_bytes()[..text.len() - 1].contains(&b'\n')));
    }
}

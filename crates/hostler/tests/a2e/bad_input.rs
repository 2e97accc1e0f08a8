//! Bad input: each gets its error, the host lives, and a process that has nothing to do with it answers after it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::client::{Client, Data, Innocent, Message};
use crate::host::Setup;

const MIB: usize = 1 << 20;

/// Sends bytes and expects one error envelope for them.
#[track_caller]
fn is_refused(client: &mut Client, bytes: &[u8], code: &str, req_id: &str) {
    client.write(bytes);
    let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
    let Some(Message::Reply(reply)) = client.next() else { panic!("no reply to {}", shown()) };
    assert_eq!(
        (&reply["type"], &reply["code"], &reply["req_id"]),
        (&json!("error"), &json!(code), &json!(req_id)),
        "{}: {reply}",
        shown()
    );
    let message = reply["message"].as_str().unwrap();
    assert!(!message.is_empty() && message.len() < 1000, "{}: {message}", shown());
}

/// A line, the code of its error, and the id that the error names.
const BAD_LINES: &[(&str, &str, &str)] = &[
    ("{\n", "parse_error", ""),
    ("ls\n", "parse_error", ""),
    ("{\"type\":\"ping\",\"id\":\"a\"\n", "parse_error", ""),
    ("{\"type\":\"ping\",\"id\":\"a\"}}\n", "parse_error", ""),
    ("{\"type\":\"ping\",\"id\":\"a\0\"}\n", "parse_error", ""),
    ("\0\n", "parse_error", ""),
    ("[{\"type\":\"ping\",\"id\":\"a\"}]\n", "invalid_message", ""),
    ("\"ping\"\n", "invalid_message", ""),
    ("null\n", "invalid_message", ""),
    ("{}\n", "invalid_message", ""),
    ("{\"id\":\"a\"}\n", "invalid_message", "a"),
    ("{\"type\":null,\"id\":\"a\"}\n", "invalid_message", "a"),
    ("{\"type\":\"proc/fly/req\",\"id\":\"a\"}\n", "invalid_message", "a"),
    ("{\"type\":\"proc/spawn/resp\",\"id\":\"a\"}\n", "invalid_message", "a"),
    ("{\"type\":\"proc/read/event\",\"id\":\"a\"}\n", "invalid_message", "a"),
    ("{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":\"ls\"}\n", "schema_violation", "a"),
    ("{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":[\"ls\",1]}\n", "schema_violation", "a"),
    ("{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":null}\n", "schema_violation", "a"),
    (
        "{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":[\"ls\"],\"env\":{\"A\":1}}\n",
        "schema_violation",
        "a",
    ),
    ("{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":[\"ls\"],\"env\":[]}\n", "schema_violation", "a"),
    (
        "{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":[\"ls\"],\"timeout\":\"1\"}\n",
        "schema_violation",
        "a",
    ),
    ("{\"type\":\"proc/spawn/req\",\"id\":\"a\",\"cmd\":[\"ls\"],\"cwd\":7}\n", "schema_violation", "a"),
    ("{\"type\":\"proc/write/req\",\"id\":\"a\",\"proc_id\":\"x\",\"data\":5}\n", "schema_violation", "a"),
    (
        "{\"type\":\"proc/write/req\",\"id\":\"a\",\"proc_id\":\"x\",\"data\":\"\",\"eof\":\"yes\"}\n",
        "schema_violation",
        "a",
    ),
    ("{\"type\":\"proc/kill/req\",\"id\":\"a\",\"proc_id\":{}}\n", "schema_violation", "a"),
    ("{\"type\":\"proc/status/req\",\"id\":\"a\",\"proc_id\":null}\n", "schema_violation", "a"),
];

/// The same for lines that are too long or too deep, all of them without an id that can be read.
fn long_and_deep_lines() -> Vec<(String, &'static str)> {
    const DEEP: usize = 100_000;
    let around = |open: &str, inside: &str, close: &str| open.repeat(DEEP) + inside + &close.repeat(DEEP);
    let field = |value: String| format!("{{\"type\":\"ping\",\"id\":\"a\",\"x\":{value}}}\n");
    vec![
        (around("[", "", "]") + "\n", "invalid_message"),
        ("[".repeat(DEEP) + "\n", "parse_error"),
        (field(around("[", "", "]")), "parse_error"),
        (field(around("{\"a\":", "1", "}")), "parse_error"),
        ("x".repeat(17 * MIB) + "\n", "invalid_message"),
        (field(format!("\"{}\"", "y".repeat(17 * MIB))), "invalid_message"),
    ]
}

#[test]
fn each_bad_line_gets_its_error_and_nobody_else_notices() {
    let (host, mut client) = Setup::new("bad lines").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let long = long_and_deep_lines();
    let long = long.iter().map(|(line, code)| (line.as_str(), *code, ""));
    for (line, code, req_id) in BAD_LINES.iter().copied().chain(long) {
        is_refused(&mut client, line.as_bytes(), code, req_id);
        innocent.answers(&mut client);
    }
    is_refused(&mut client, b"{\"type\":\"ping\",\"id\":\"\xff\"}\n", "parse_error", "");
    is_refused(&mut client, b"{\"type\":\"ping\",\"id\":\"a\",\"x\":\"\xed\xa0\x80\"}\n", "parse_error", "");
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn blank_lines_and_carriage_returns_are_no_messages() {
    let (host, mut client) = Setup::new("blank lines").start_greeted();
    client.write(b"\n\r\n  \n{\"type\":\"ping\",\"id\":\"one\"}\r\n\n");
    assert_eq!(client.reply("one")["type"], "pong");
    client.ping();
    host.end(client);
}

/// A spawn request with these fields, and what its refusal must say.
struct Refusal(Value, &'static str);

#[test]
fn what_cannot_be_started_is_refused_in_words_and_leaves_nothing() {
    let setup = Setup::new("refused spawns");
    let file = |name: &str, text: &str, mode: u32| {
        let path = setup.env().work().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (plain, garbage) = (file("plain", "#!/bin/sh\n", 0o644), file("garbage", "\u{1}\u{2}\u{3}", 0o755));
    let folder = setup.env().work().to_str().unwrap().to_owned();
    let missing = format!("{folder}/missing");
    let setup = [&plain, &garbage, &folder, &missing].into_iter().fold(setup, Setup::allow);
    let (host, mut client) = setup.allow("no-such-program").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let long = "x".repeat(131_072);
    let cases = [
        Refusal(json!({"cmd": []}), "cmd is empty"),
        Refusal(json!({}), "cmd is empty"),
        Refusal(json!({"cmd": [""]}), "\"\" is not allowed"),
        Refusal(json!({"cmd": ["rm", "-rf", "/"]}), "\"rm\" is not allowed"),
        Refusal(json!({"cmd": ["/bin/ls"]}), "\"/bin/ls\" is not allowed"),
        Refusal(json!({"cmd": ["ls\0"]}), "cmd[0] holds a NUL"),
        Refusal(json!({"cmd": ["ls", "a\0b"]}), "cmd[1] holds a NUL"),
        Refusal(json!({"cmd": ["ls"], "cwd": "/a\0"}), "cwd holds a NUL"),
        Refusal(json!({"cmd": ["ls"], "cwd": missing}), "No such file or directory"),
        Refusal(json!({"cmd": ["ls"], "cwd": plain}), "Not a directory"),
        Refusal(json!({"cmd": ["no-such-program"]}), "was not found on the host's PATH"),
        Refusal(json!({"cmd": [missing]}), "No such file or directory"),
        Refusal(json!({"cmd": [plain]}), "Permission denied"),
        Refusal(json!({"cmd": [folder]}), "Permission denied"),
        Refusal(json!({"cmd": [garbage]}), "Exec format error"),
        Refusal(json!({"cmd": ["ls", long]}), "131072"),
        Refusal(json!({"cmd": ["ls"], "env": {"": "x"}}), "env name \"\" is refused"),
        Refusal(json!({"cmd": ["ls"], "env": {"A=B": "x"}}), "env name \"A=B\" is refused"),
        Refusal(json!({"cmd": ["ls"], "env": {"A\0": "x"}}), "NUL"),
        Refusal(json!({"cmd": ["ls"], "env": {"A": "x\0"}}), "env[\"A\"] holds a NUL"),
        Refusal(json!({"cmd": ["ls"], "stdin_mode": "tty"}), "stdin_mode \"tty\" is not known"),
        Refusal(json!({"cmd": ["ls"], "timeout": -1}), "timeout -1 is negative"),
        Refusal(json!({"cmd": ["ls"], "session_id": "other"}), "\"other\" is not this session"),
    ];
    for Refusal(fields, words) in cases {
        let reply = client.call("proc/spawn/req", fields.clone());
        let shown = |value: &Value| value.to_string().chars().take(300).collect::<String>();
        let (fields, text) = (shown(&fields), reply["error"].as_str().unwrap_or_default().to_owned());
        assert_eq!(reply["type"], "proc/spawn/resp", "{fields}: {reply}");
        assert_eq!(
            (&reply["ok"], &reply["proc_id"], &reply["pid"]),
            (&json!(false), &json!(""), &json!(0)),
            "{fields}: {reply}"
        );
        assert!(text.contains(words), "{fields}: {text}");
        innocent.answers(&mut client);
    }
    assert_eq!(client.states(), ["running"], "only the innocent one was ever started");
    host.end(client);
}

#[test]
fn requests_about_processes_that_cannot_take_them_are_refused_and_the_processes_run_on() {
    let (host, mut client) = Setup::new("refused requests").start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let refused = |client: &mut Client, kind: &str, fields: Value, words: &str| {
        let reply = client.call(kind, fields);
        assert_eq!(reply["ok"], false, "{reply}");
        assert!(reply["error"].as_str().unwrap().starts_with(words), "{words}: {reply}");
    };
    let write = |proc_id: &str| json!({"proc_id": proc_id, "data": "x\n"});

    let deaf = client.evil(&host, &["close-stdin"]);
    refused(&mut client, "proc/write/req", write(&deaf.id), "the process has closed its stdin");
    refused(&mut client, "proc/write/req", write(&deaf.id), "the process has closed its stdin");
    innocent.answers(&mut client);

    let shut = client.evil(&host, &["pause"]);
    let eof = client.call("proc/write/req", json!({"proc_id": shut.id, "data": "last\n", "eof": true}));
    assert_eq!(eof["ok"], true, "{eof}");
    refused(&mut client, "proc/write/req", write(&shut.id), "stdin is closed");
    refused(
        &mut client,
        "proc/write/req",
        json!({"proc_id": shut.id, "data": "", "eof": true}),
        "stdin is closed",
    );
    innocent.answers(&mut client);

    let none = client.spawn_with(&host.evil_command(&["pause"]), json!({"stdin_mode": "null"}));
    assert_eq!(client.text(&none), "ready\n");
    refused(&mut client, "proc/write/req", write(&none.id), "the process has no stdin");
    for proc in [&deaf, &shut, &none] {
        refused(
            &mut client,
            "proc/kill/req",
            json!({"proc_id": proc.id, "signal": "SIGHUP"}),
            "signal \"SIGHUP\"",
        );
        refused(&mut client, "proc/kill/req", json!({"proc_id": proc.id, "signal": "9"}), "signal \"9\"");
        assert_eq!(client.status(proc), "running");
    }

    for unknown in ["nope", "../etc", &deaf.id[1..], &deaf.id.to_uppercase()] {
        if unknown == deaf.id {
            continue;
        }
        refused(&mut client, "proc/write/req", write(unknown), "unknown_proc");
        refused(&mut client, "proc/kill/req", json!({"proc_id": unknown}), "unknown_proc");
        let status = client.call("proc/status/req", json!({"proc_id": unknown}));
        assert_eq!((&status["status"], &status["error"]), (&json!("not_found"), &json!("unknown_proc")));
    }

    let dead = client.evil(&host, &["exit", "7"]);
    assert_eq!(client.finish(&dead).end, Data::Code(7));
    refused(&mut client, "proc/write/req", write(&dead.id), "proc_dead");
    let kill = client.kill(&dead, "SIGKILL");
    assert_eq!((&kill["ok"], &kill["state"]), (&json!(false), &json!("failed")), "{kill}");
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn requests_may_come_byte_by_byte_or_many_in_one_write() {
    let (host, mut client) = Setup::new("pieces").start();
    for kind in ["handshake/req", "ping", "proc/spawn/req"] {
        let fields = json!({"agent_caps": ["proc"], "cmd": ["bash", "-c", "echo \u{e9}\u{1f40e}"]});
        let (id, line) = client.line(kind, fields);
        for byte in line {
            client.write(&[byte]);
        }
        let reply = client.reply(&id);
        assert!(kind == "ping" || reply["ok"] == true, "{kind}: {reply}");
    }
    let mut innocent = Innocent::start(&host, &mut client);
    let (ids, lines): (Vec<_>, Vec<_>) = (0..50).map(|_| client.line("ping", json!({}))).unzip();
    client.write(&lines.concat());
    let answered: Vec<_> = std::iter::from_fn(|| client.next())
        .filter_map(|message| match message {
            Message::Reply(reply) => Some(reply["req_id"].as_str().unwrap().to_owned()),
            Message::Event(_) => None,
        })
        .take(ids.len())
        .collect();
    assert_eq!(answered, ids, "each once and in order");
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn a_last_line_without_its_end_is_a_request() {
    let (host, mut client) = Setup::new("last line").start_greeted();
    client.write(b"{\"type\":\"ping\",\"id\":\"last\"}");
    client.close_input();
    assert_eq!(client.reply("last")["type"], "pong");
    assert_eq!(client.rest(), []);
    drop(client);
    host.ends_well();
}

//! The rules of a connection, line by line.

mod bad_lines;
mod examples;

use proptest::prelude::*;

use super::*;
use crate::codec::{LineCodec, MAX_LINE_BYTES};
use crate::wire::{MessageIds, Timestamp};

fn options() -> ConnectionOptions {
    ConnectionOptions {
        session_id: SessionId::new("s1"),
        allowed_commands: ["python3", "bash", "ls"].map(str::to_owned).to_vec(),
        auth_token: None,
        data_form: DataForm::String,
        push_form: PushForm::Correlated,
        default_timeout: None,
    }
}

/// What a line leads to: the reply (without the fields that all have in common), or the step.
fn say_bytes(connection: &mut Connection, line: &[u8]) -> String {
    let mut codec = LineCodec::new(MAX_LINE_BYTES);
    let mut rest = line;
    let item = codec.next_item(&mut rest);
    let item = if item.is_none() { codec.finish() } else { item };
    match connection.handle(item.unwrap(), Duration::from_millis(1500)) {
        Step::Reply(reply) => {
            let mut out = Vec::new();
            reply.push_line(
                &mut MessageIds::new(0),
                Timestamp::from_unix(Duration::from_millis(4100)),
                &mut out,
            );
            let common = r#""id":"00000000-0000-8000-8000-000000000001","version":"1.0","ts":4.1,"#;
            String::from_utf8(out).unwrap().trim_end().replacen(common, "", 1)
        }
        step @ (Step::Spawn(_)
        | Step::Write { .. }
        | Step::Kill { .. }
        | Step::StatusOne { .. }
        | Step::StatusAll { .. }
        | Step::Shutdown { .. }) => format!("{step:?}"),
    }
}

fn say(connection: &mut Connection, line: &str) -> String {
    assert!(!line.contains('\n'));
    say_bytes(connection, line.as_bytes())
}

fn shaken(options: ConnectionOptions, caps: &str) -> Connection {
    let mut connection = Connection::new(options);
    let reply = say(&mut connection, &format!(r#"{{"type":"handshake/req","id":"h1","agent_caps":{caps}}}"#));
    assert!(reply.contains(r#""ok":true"#), "{reply}");
    connection
}

fn agent() -> Connection {
    shaken(options(), r#"["proc"]"#)
}

/// The answers of a fresh agent's connection to several lines.
fn answers<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut connection = agent();
    lines.into_iter().map(|line| say(&mut connection, line)).collect::<Vec<_>>().join("\n")
}

/// The `message` of an `error` reply, together with its code and request id.
fn trouble(connection: &mut Connection, line: &[u8]) -> (String, String, String) {
    let reply: serde_json::Value = serde_json::from_str(&say_bytes(connection, line)).unwrap();
    assert_eq!(reply["type"], "error");
    let field = |name: &str| reply[name].as_str().unwrap().to_owned();
    (field("req_id"), field("code"), field("message"))
}

fn spawn_of(connection: &mut Connection, line: &str) -> SpawnRequest {
    let mut codec = LineCodec::new(MAX_LINE_BYTES);
    let line = format!("{line}\n");
    let item = codec.next_item(&mut line.as_bytes()).map(|item| connection.handle(item, Duration::ZERO));
    match item {
        Some(Step::Spawn(request)) => request,
        other => panic!("no spawn: {other:?}"),
    }
}

#[test]
fn a_stranger_may_ping_and_shut_down_and_nothing_else() {
    let mut connection = Connection::new(options());
    let said = [
        r#"{"type":"ping","id":"a"}"#,
        r#"{"type":"proc/spawn/req","id":"b","cmd":["ls"]}"#,
        r#"{"type":"proc/write/req","id":"c","proc_id":5}"#,
        r#"{"type":"proc/kill/req","id":"d","proc_id":"x"}"#,
        r#"{"type":"proc/status/req","id":"e"}"#,
        r#"{"type":"shutdown","id":"f"}"#,
    ]
    .map(|line| say(&mut connection, line))
    .join("\n");
    assert!(!connection.is_welcome());
    insta::assert_snapshot!(said, @r#"
    {"type":"pong","req_id":"a","uptime_seconds":1.5}
    {"type":"error","req_id":"b","code":"unauthorized","message":"no handshake yet; send handshake/req with \"proc\" in agent_caps first","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"c","code":"unauthorized","message":"no handshake yet; send handshake/req with \"proc\" in agent_caps first","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"d","code":"unauthorized","message":"no handshake yet; send handshake/req with \"proc\" in agent_caps first","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"e","code":"unauthorized","message":"no handshake yet; send handshake/req with \"proc\" in agent_caps first","detail":{},"retryable":false,"capability_name":""}
    Shutdown { grace: 1s }
    "#);
}

#[test]
fn a_guest_without_proc_is_told_which_capability_is_missing() {
    let mut connection = shaken(options(), r#"["memory","no-such-cap"]"#);
    assert!(connection.is_welcome());
    insta::assert_snapshot!(say(&mut connection, r#"{"type":"proc/spawn/req","id":"b","cmd":["ls"]}"#), @r#"{"type":"error","req_id":"b","code":"capability_missing","message":"capability proc was not negotiated; send handshake/req again with \"proc\" in agent_caps","detail":{},"retryable":false,"capability_name":"proc"}"#);
}

#[test]
fn versions_of_another_major_number_are_refused() {
    for (version, ok) in [
        (r#""1.0""#, true),
        (r#""1""#, true),
        (r#""1.7""#, true),
        (r#""1.0.3""#, true),
        (r#""2.0""#, false),
        (r#""10.0""#, false),
        (r#""0.9""#, false),
        (r#""""#, false),
        (r#""1.""#, false),
        (r#""1.x""#, false),
        (r#""v1""#, false),
    ] {
        let mut connection = Connection::new(options());
        let line =
            format!(r#"{{"type":"handshake/req","id":"h","version":{version},"agent_caps":["proc"]}}"#);
        let reply = say(&mut connection, &line);
        assert_eq!(reply.contains(r#""ok":true,"reason":"""#), ok, "{version}: {reply}");
        assert_eq!(reply.contains(r#""session_id":"","accepted_caps":[],"max_parallel":4,"ok":false,"reason":"version_mismatch""#), !ok);
    }
}

#[test]
fn a_token_must_match_as_a_whole() {
    let guarded = ConnectionOptions { auth_token: Some(Secret::new("sesame")), ..options() };
    for (token, ok) in [
        ("sesame", true),
        ("sesamex", false),
        ("sesam", false),
        ("", false),
        ("Sesame", false),
        ("sesamesesame", false),
    ] {
        let mut connection = Connection::new(guarded.clone());
        let line =
            format!(r#"{{"type":"handshake/req","id":"h","agent_caps":["proc"],"auth_token":"{token}"}}"#);
        let reply = say(&mut connection, &line);
        assert_eq!(reply.contains(r#""ok":true"#), ok, "{token}: {reply}");
        assert_eq!(
            reply.contains(
                r#""session_id":"","accepted_caps":[],"max_parallel":4,"ok":false,"reason":"auth_failed""#
            ),
            !ok
        );
        assert_eq!(connection.is_welcome(), ok);
    }
}

#[test]
fn a_refused_handshake_changes_nothing_and_a_further_good_one_replaces_the_capabilities() {
    let guarded = ConnectionOptions { auth_token: Some(Secret::new("sesame")), ..options() };
    let mut connection = Connection::new(guarded);
    let hello = |token: &str, caps: &str| {
        format!(r#"{{"type":"handshake/req","id":"h","agent_caps":{caps},"auth_token":"{token}"}}"#)
    };
    let status = r#"{"type":"proc/status/req","id":"s"}"#;
    let is_served = |connection: &mut Connection| say(connection, status).starts_with("StatusAll");

    say(&mut connection, &hello("wrong", r#"["proc"]"#));
    assert!(!is_served(&mut connection));
    say(&mut connection, &hello("sesame", r#"["proc"]"#));
    assert!(is_served(&mut connection));
    say(&mut connection, &hello("wrong", "[]"));
    assert!(is_served(&mut connection));
    let second = say(&mut connection, &hello("sesame", "[]"));
    assert!(second.contains(r#""session_id":"s1","accepted_caps":[]"#), "{second}");
    assert!(!is_served(&mut connection));
}

#[test]
fn capability_words_choose_the_form_of_events_and_are_never_listed() {
    let by_option = ConnectionOptions { data_form: DataForm::Object, push_form: PushForm::Push, ..options() };
    for (options, caps, data, push) in [
        (options(), r#"["proc"]"#, DataForm::String, PushForm::Correlated),
        (options(), r#"["proc.data.object","proc"]"#, DataForm::Object, PushForm::Correlated),
        (options(), r#"["proc","proc.event.push"]"#, DataForm::String, PushForm::Push),
        (by_option, r#"["proc"]"#, DataForm::Object, PushForm::Push),
    ] {
        let mut connection = Connection::new(options);
        let reply =
            say(&mut connection, &format!(r#"{{"type":"handshake/req","id":"h","agent_caps":{caps}}}"#));
        assert!(reply.contains(r#""accepted_caps":[{"capability":"proc","#));
        assert!(!reply.contains("proc.data") && !reply.contains("proc.event"), "{reply}");
        let request = spawn_of(&mut connection, r#"{"type":"proc/spawn/req","id":"b","cmd":["ls"]}"#);
        assert_eq!(request.events, EventForm { data, push }, "{caps}");
    }
    // The words alone do not stand for the capability itself.
    let mut connection = shaken(self::options(), r#"["proc.data.object","proc.event.push"]"#);
    let (_, code, _) = trouble(&mut connection, br#"{"type":"proc/status/req","id":"s"}"#);
    assert_eq!(code, "capability_missing");
}

#[test]
fn a_spawn_request_is_taken_with_all_its_defaults_or_none() {
    let mut connection = agent();
    let request = spawn_of(&mut connection, r#"{"type":"proc/spawn/req","id":"b","cmd":["ls"]}"#);
    let defaults = SpawnRequest {
        req_id: ReqId::new("b"),
        argv: vec!["ls".to_owned()],
        cwd: None,
        env: vec![],
        stdin: StdinSource::Pipe,
        timeout: None,
        events: EventForm { data: DataForm::String, push: PushForm::Correlated },
    };
    assert_eq!(request, defaults);
    let request = spawn_of(
        &mut connection,
        r#"{"type":"proc/spawn/req","cmd":["ls","$(id)",""],"session_id":"s1","cwd":"/usr","env":{"B":"","A":"v 1=é"},"stdin_mode":"null","timeout":7,"x":[null]}"#,
    );
    let all = SpawnRequest {
        req_id: ReqId::new(""),
        argv: ["ls", "$(id)", ""].map(str::to_owned).to_vec(),
        cwd: Some(PathBuf::from("/usr")),
        env: vec![("A".to_owned(), "v 1=é".to_owned()), ("B".to_owned(), String::new())],
        stdin: StdinSource::Null,
        timeout: Some(Duration::from_secs(7)),
        ..defaults
    };
    assert_eq!(request, all);
}

#[test]
fn a_spawn_that_cannot_be_is_refused_in_its_typed_reply() {
    let spawn = |fields: &str| format!(r#"{{"type":"proc/spawn/req","id":"b",{fields}}}"#);
    let lines = [
        r#""cmd":[]"#,
        r#""cwd":"/""#,
        r#""cmd":["sleep","1"]"#,
        r#""cmd":["/bin/ls"]"#,
        r#""cmd":["ls "]"#,
        r#""cmd":["LS"]"#,
        r#""cmd":[""]"#,
        r#""cmd":["ls","a\u0000b"]"#,
        r#""cmd":["ls\u0000"]"#,
        r#""cmd":["ls"],"cwd":"/\u0000""#,
        r#""cmd":["ls"],"env":{"A":"\u0000"}"#,
        r#""cmd":["ls"],"env":{"A\u0000":""}"#,
        r#""cmd":["ls"],"env":{"":"x"}"#,
        r#""cmd":["ls"],"env":{"A=B":"x"}"#,
        r#""cmd":["ls"],"stdin_mode":"inherit""#,
        r#""cmd":["ls"],"stdin_mode":"""#,
        r#""cmd":["ls"],"timeout":-1"#,
        r#""cmd":["ls"],"timeout":-1e99"#,
        r#""cmd":["ls"],"session_id":"other""#,
    ]
    .map(spawn);
    insta::assert_snapshot!(answers(lines.iter().map(String::as_str)), @r#"
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"cmd is empty; send the command and its arguments as a list, for example [\"ls\", \"/\"]"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"cmd is empty; send the command and its arguments as a list, for example [\"ls\", \"/\"]"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"command \"sleep\" is not allowed (it is compared as it is, no path); allowed: python3, bash, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"command \"/bin/ls\" is not allowed (it is compared as it is, no path); allowed: python3, bash, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"command \"ls \" is not allowed (it is compared as it is, no path); allowed: python3, bash, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"command \"LS\" is not allowed (it is compared as it is, no path); allowed: python3, bash, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"command \"\" is not allowed (it is compared as it is, no path); allowed: python3, bash, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"cmd[1] holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"cmd[0] holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"cwd holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"env[\"A\"] holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"env[\"A\\0\"] holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"env name \"\" is refused; a name must not be empty and must not hold \"=\""}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"env name \"A=B\" is refused; a name must not be empty and must not hold \"=\""}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"stdin_mode \"inherit\" is not known; use \"pipe\" or \"null\""}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"stdin_mode \"\" is not known; use \"pipe\" or \"null\""}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"timeout -1 is negative; use 0 for no limit, or the seconds after which to kill the process"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"timeout -9223372036854775808 is negative; use 0 for no limit, or the seconds after which to kill the process"}
    {"type":"proc/spawn/resp","req_id":"b","proc_id":"","ok":false,"pid":0,"error":"session_id \"other\" is not this session; send the session_id of the handshake or \"\""}
    "#);
}

#[test]
fn large_time_limits_saturate_and_zero_means_the_default() {
    let limit = |default, text: &str| {
        let mut connection =
            shaken(ConnectionOptions { default_timeout: default, ..options() }, r#"["proc"]"#);
        let line = format!(r#"{{"type":"proc/spawn/req","id":"b","cmd":["ls"],"timeout":{text}}}"#);
        spawn_of(&mut connection, &line).timeout
    };
    let day = Some(Duration::from_secs(86_400));
    assert_eq!(limit(None, "0"), None);
    assert_eq!(limit(None, "-0"), None);
    assert_eq!(limit(day, "0"), day);
    assert_eq!(limit(day, "5"), Some(Duration::from_secs(5)));
    assert_eq!(limit(None, "100000"), Some(Duration::from_secs(100_000)));
    assert_eq!(limit(None, "2.0"), Some(Duration::from_secs(2)));
    assert_eq!(limit(None, "1e3"), Some(Duration::from_secs(1000)));
    for huge in ["9223372036854775807", "18446744073709551616", "1e30", "1e999"] {
        assert_eq!(limit(None, huge), Some(MAX_TIMEOUT), "{huge}");
    }
    assert_eq!(limit(Some(Duration::MAX), "0"), Some(MAX_TIMEOUT));
}

#[test]
fn kill_takes_three_signals_by_name_and_term_by_default() {
    let kill = |fields: &str| format!(r#"{{"type":"proc/kill/req","id":"k","proc_id":"x"{fields}}}"#);
    let lines = [
        "",
        r#","signal":"SIGTERM""#,
        r#","signal":"SIGKILL""#,
        r#","signal":"SIGINT""#,
        r#","signal":"SIGFOO""#,
        r#","signal":"""#,
        r#","signal":"SIGSTOP""#,
        r#","signal":"sigterm""#,
    ]
    .map(kill);
    insta::assert_snapshot!(answers(lines.iter().map(String::as_str)), @r#"
    Kill { req_id: ReqId("k"), proc_id: ProcId("x"), signal: Term }
    Kill { req_id: ReqId("k"), proc_id: ProcId("x"), signal: Term }
    Kill { req_id: ReqId("k"), proc_id: ProcId("x"), signal: Kill }
    Kill { req_id: ReqId("k"), proc_id: ProcId("x"), signal: Int }
    {"type":"proc/kill/resp","req_id":"k","ok":false,"state":"","error":"signal \"SIGFOO\" is not known; use SIGTERM, SIGINT or SIGKILL"}
    {"type":"proc/kill/resp","req_id":"k","ok":false,"state":"","error":"signal \"\" is not known; use SIGTERM, SIGINT or SIGKILL"}
    {"type":"proc/kill/resp","req_id":"k","ok":false,"state":"","error":"signal \"SIGSTOP\" is not known; use SIGTERM, SIGINT or SIGKILL"}
    {"type":"proc/kill/resp","req_id":"k","ok":false,"state":"","error":"signal \"sigterm\" is not known; use SIGTERM, SIGINT or SIGKILL"}
    "#);
}

#[test]
fn writes_carry_their_text_as_it_is() {
    insta::assert_snapshot!(answers([
        r#"{"type":"proc/write/req","id":"w","proc_id":"x","data":"a\u0000\ud83d\ude00\r\n","eof":true}"#,
        r#"{"type":"proc/write/req","id":"w"}"#,
    ]), @r#"
    Write { req_id: ReqId("w"), proc_id: ProcId("x"), data: "a\0😀\r\n", eof: true }
    Write { req_id: ReqId("w"), proc_id: ProcId(""), data: "", eof: false }
    "#);
}

#[test]
fn shutdown_waits_a_second_at_most() {
    insta::assert_snapshot!(answers([
        r#"{"type":"shutdown"}"#,
        r#"{"type":"shutdown","timeout":0}"#,
        r#"{"type":"shutdown","timeout":1e99}"#,
        r#"{"type":"shutdown","id":"x","timeout":-1}"#,
    ]), @r#"
    Shutdown { grace: 1s }
    Shutdown { grace: 0ns }
    Shutdown { grace: 1s }
    {"type":"error","req_id":"x","code":"schema_violation","message":"field timeout: found a negative number, expected seconds, 0 or more","detail":{},"retryable":false,"capability_name":""}
    "#);
}

#[test]
fn a_request_without_id_is_served() {
    insta::assert_snapshot!(answers([r#"{"type":"ping"}"#, r#"{"type":"proc/status/req"}"#]), @r#"
    {"type":"pong","req_id":"","uptime_seconds":1.5}
    StatusAll { req_id: ReqId("") }
    "#);
}

proptest! {
    #[test]
    fn no_line_ends_the_connection(
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 1..60),
                r#"\{"type":"(ping|handshake/req|proc/(spawn|write|kill|status)/req|shutdown)","id":"?[a-z]{0,2}"?,"(cmd|env|timeout|data|agent_caps|auth_token)":[\[\]{}":,a-z0-9.\\-]{0,12}\}"#
                    .prop_map(String::into_bytes),
            ],
            1..8,
        ),
        welcome in any::<bool>(),
    ) {
        let mut connection = if welcome { agent() } else { Connection::new(options()) };
        let mut codec = LineCodec::new(MAX_LINE_BYTES);
        for mut line in lines {
            line.push(b'\n');
            let mut rest = &line[..];
            while let Some(item) = codec.next_item(&mut rest) {
                let step = connection.handle(item, Duration::ZERO);
                let is_proc = match step {
                    Step::Spawn(_)
                    | Step::Write { .. }
                    | Step::Kill { .. }
                    | Step::StatusOne { .. }
                    | Step::StatusAll { .. } => true,
                    Step::Reply(_) | Step::Shutdown { .. } => false,
                };
                prop_assert!(connection.is_welcome() || !is_proc);
            }
        }
        let pong = say(&mut connection, r#"{"type":"ping","id":"still here"}"#);
        let is_answered = pong.starts_with(r#"{"type":"pong","req_id":"still here""#);
        prop_assert!(is_answered);
    }
}

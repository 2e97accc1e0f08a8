//! Lines that are no usable request: each is answered by an `error` that names what is wrong.

use super::*;

/// For each line the request id, the code and the message of its answer; after each the connection goes on.
fn complaints<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut connection = agent();
    let mut said: Vec<String> = Vec::new();
    for line in lines {
        let (req_id, code, message) = trouble(&mut connection, line);
        let known =
            "handshake/req, ping, shutdown, proc/spawn/req, proc/write/req, proc/kill/req, proc/status/req";
        said.push(format!("{req_id:1} {code}: {}", message.replace(known, "(types)")));
        let pong = say(&mut connection, r#"{"type":"ping","id":"still here"}"#);
        assert!(pong.contains(r#""req_id":"still here""#));
    }
    said.join("\n")
}

#[test]
fn lines_that_are_no_message() {
    let lines: [&[u8]; 19] = [
        br#"{"type":"ping""#,
        b"hello",
        br#"{"type":"ping","id":}"#,
        br#"{"type":"ping"} {}"#,
        b"{\"type\":\"ping\",\"id\":\"\xff\"}",
        b"[1,2]",
        b"42",
        br#""x""#,
        b" null",
        b"true",
        br#"{"id":"i","cmd":["ls"]}"#,
        br#"{"id":"i","type":5}"#,
        br#"{"id":"i","type":"\ud800"}"#,
        br#"{"id":7,"type":"proc/teleport/req"}"#,
        br#"{"id":"i","type":"proc/teleport/req"}"#,
        br#"{"id":"i","type":"proc/spawn/resp"}"#,
        br#"{"id":"i","type":"pong"}"#,
        br#"{"id":"i","type":"error"}"#,
        b"{\"type\":\"ping\",\"id\":\"i\",\"x\":\"a\tb\"}",
    ];
    insta::assert_snapshot!(complaints(lines), @r#"
      parse_error: the line is no JSON (EOF while parsing an object at line 1 column 14); send one JSON object per line
      parse_error: the line is no JSON (expected value at line 1 column 1); send one JSON object per line
      parse_error: the line is no JSON (expected value at line 1 column 21); send one JSON object per line
      parse_error: the line is no JSON (trailing characters at line 1 column 17); send one JSON object per line
      parse_error: the line is no UTF-8 from byte 21 on; send one JSON object per line in UTF-8
      invalid_message: a message must be a JSON object; this line is a list
      invalid_message: a message must be a JSON object; this line is a number
      invalid_message: a message must be a JSON object; this line is a string
      invalid_message: a message must be a JSON object; this line is null
      invalid_message: a message must be a JSON object; this line is a boolean
    i invalid_message: the message has no type; expected one of (types)
    i invalid_message: field type: found a number, expected one of (types)
    i invalid_message: field type: found a string with a lone surrogate, expected one of (types)
      invalid_message: type "proc/teleport/req" is not known; expected one of (types)
    i invalid_message: type "proc/teleport/req" is not known; expected one of (types)
    i invalid_message: only a host sends messages of type proc/spawn/resp; expected one of (types)
    i invalid_message: only a host sends messages of type pong; expected one of (types)
    i invalid_message: only a host sends messages of type error; expected one of (types)
      parse_error: the line is no JSON (control character (\u0000-\u001F) found while parsing a string at line 1 column 30); send one JSON object per line
    "#);
}

#[test]
fn fields_of_every_message() {
    let lines: [&[u8]; 8] = [
        br#"{"type":"ping","id":""}"#,
        br#"{"type":"ping","id":null}"#,
        br#"{"type":"ping","id":17}"#,
        br#"{"type":"ping","id":"i","id":"j"}"#,
        br#"{"type":"ping","id":"i","type":"ping"}"#,
        br#"{"type":"ping","id":"i","version":1.0}"#,
        br#"{"type":"ping","id":"i","ts":"now"}"#,
        br#"{"type":"ping","id":"i","ts":1e999}"#,
    ];
    insta::assert_snapshot!(complaints(lines), @r#"
      schema_violation: field id: found an empty string, expected a string of 1 to 4096 bytes
      schema_violation: field id: found null, expected a string
      schema_violation: field id: found a number, expected a string
    i schema_violation: field id: found the same name twice, expected each field once
    i schema_violation: field type: found the same name twice, expected each field once
    i schema_violation: field version: found a number, expected a string
    i schema_violation: field ts: found a string, expected a number
    i schema_violation: field ts: found a number that is out of range, expected a number
    "#);
}

#[test]
fn fields_of_one_message() {
    let lines: [&[u8]; 21] = [
        br#"{"type":"handshake/req","id":"i","agent_caps":"proc"}"#,
        br#"{"type":"handshake/req","id":"i","agent_caps":["proc",null]}"#,
        br#"{"type":"handshake/req","id":"i","auth_token":null}"#,
        br#"{"type":"proc/spawn/req","id":"i","cmd":"ls /"}"#,
        br#"{"type":"proc/spawn/req","id":"i","cmd":{"0":"ls"}}"#,
        br#"{"type":"proc/spawn/req","id":"i","cmd":null}"#,
        br#"{"type":"proc/spawn/req","id":"i","cmd":["ls",5]}"#,
        br#"{"type":"proc/spawn/req","id":"i","cmd":["ls","\ud800"]}"#,
        br#"{"type":"proc/spawn/req","id":"i","env":["A"]}"#,
        br#"{"type":"proc/spawn/req","id":"i","env":{"A":1}}"#,
        br#"{"type":"proc/spawn/req","id":"i","env":{"A":"","A":""}}"#,
        br#"{"type":"proc/spawn/req","id":"i","env":{"\udc00":""}}"#,
        br#"{"type":"proc/spawn/req","id":"i","timeout":"5"}"#,
        br#"{"type":"proc/spawn/req","id":"i","timeout":1.5}"#,
        br#"{"type":"proc/spawn/req","id":"i","timeout":true}"#,
        br#"{"type":"proc/write/req","id":"i","proc_id":5,"data":["x"],"eof":"maybe"}"#,
        br#"{"type":"proc/write/req","id":"i","proc_id":"x","data":["x"]}"#,
        br#"{"type":"proc/write/req","id":"i","proc_id":"x","eof":"maybe"}"#,
        br#"{"type":"proc/write/req","id":"i","proc_id":"x","data":"\ud83d"}"#,
        br#"{"type":"proc/kill/req","id":"i","signal":15}"#,
        br#"{"type":"proc/status/req","id":"i","proc_id":{"a":1}}"#,
    ];
    insta::assert_snapshot!(complaints(lines), @r#"
    i schema_violation: field agent_caps: found a string, expected a list of strings
    i schema_violation: field agent_caps[1]: found null, expected a string
    i schema_violation: field auth_token: found null, expected a string
    i schema_violation: field cmd: found a string, expected a list of strings
    i schema_violation: field cmd: found an object, expected a list of strings
    i schema_violation: field cmd: found null, expected a list of strings
    i schema_violation: field cmd[1]: found a number, expected a string
    i schema_violation: field cmd[1]: found a string with a lone surrogate, expected a string
    i schema_violation: field env: found a list, expected an object of strings
    i schema_violation: field env["A"]: found a number, expected a string
    i schema_violation: field env["A"]: found the same name twice, expected each name once
    i schema_violation: field env: found a string with a lone surrogate, expected an object of strings
    i schema_violation: field timeout: found a string, expected a whole number
    i schema_violation: field timeout: found a number with a fraction, expected a whole number
    i schema_violation: field timeout: found a boolean, expected a whole number
    i schema_violation: field proc_id: found a number, expected a string
    i schema_violation: field data: found a list, expected a string
    i schema_violation: field eof: found a string, expected true or false
    i schema_violation: field data: found a string with a lone surrogate, expected a string
    i schema_violation: field signal: found a number, expected a string
    i schema_violation: field proc_id: found an object, expected a string
    "#);
}

#[test]
fn an_id_that_would_burden_every_event_is_refused() {
    let ping = |length: usize| format!(r#"{{"type":"ping","id":"{}"}}"#, "i".repeat(length));
    assert!(say(&mut agent(), &ping(4096)).starts_with(r#"{"type":"pong","#));
    insta::assert_snapshot!(complaints([ping(4097).as_bytes()]), @"  schema_violation: field id: found a string of 4097 bytes, expected a string of 1 to 4096 bytes");
}

#[test]
fn a_proc_id_that_would_fill_the_audit_is_refused() {
    for kind in ["write", "kill", "status"] {
        let line = |length: usize| {
            format!(r#"{{"type":"proc/{kind}/req","id":"i","proc_id":"{}"}}"#, "p".repeat(length))
        };
        assert!(!say(&mut agent(), &line(4096)).contains("error"), "{kind}");
        assert_eq!(
            complaints([line(4097).as_bytes()]),
            "i schema_violation: field proc_id: found a string of 4097 bytes, expected a string of up to 4096 bytes"
        );
    }
}

#[test]
fn deep_nesting_is_refused_without_recursion() {
    // The message itself is one level, so that 127 lists are as deep as a message may be.
    let line = |levels: usize| {
        format!(r#"{{"type":"ping","id":"i","x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels))
    };
    assert!(say(&mut agent(), &line(127)).starts_with(r#"{"type":"pong","#));
    let too_deep = [128, 100_000].map(line);
    let not_closed = format!(r#"{{"type":"ping","id":"i","cmd":{}"#, "[{\"a\":".repeat(100_000));
    let lines = too_deep.iter().chain([&not_closed]).map(String::as_bytes);
    insta::assert_snapshot!(complaints(lines), @r#"
    parse_error: the message nests deeper than 128 levels
    parse_error: the message nests deeper than 128 levels
    parse_error: the line is no JSON (EOF while parsing a value at line 1 column 600030); send one JSON object per line
    "#);
}

#[test]
fn unknown_fields_and_fields_of_other_requests_are_ignored() {
    let lines = [
        r#"{"type":"ping","id":"i","cmd":5,"eof":null,"x":{"a":[1e999,"\ud800",null]},"x":1}"#,
        r#" { "id" : "i" , "type" : "p\u0069ng" } "#,
    ];
    for line in lines {
        let pong = say(&mut agent(), line);
        assert!(pong.starts_with(r#"{"type":"pong","req_id":"i","#), "{pong}");
    }
}

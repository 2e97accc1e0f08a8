//! Each example of the protocol documents: the requests as a client sends them, the answers as we write them.

use super::*;
use crate::wire::{Fate, Left, ProcStatus, WriteRefusal, shown_command};

#[test]
fn the_examples_of_the_protocol_document_are_understood() {
    insta::assert_snapshot!(answers([
        r#"{"type":"proc/spawn/req","id":"p1","version":"1.0","ts":1716123456.789,"session_id":"s1","cmd":["python3","-i"],"cwd":"","env":{},"stdin_mode":"pipe","timeout":0}"#,
        r#"{"type":"proc/write/req","id":"p3","version":"1.0","ts":1716123457.100,"proc_id":"proc_abc123","data":"print('hello')\n","eof":false}"#,
        r#"{"type":"proc/kill/req","id":"p5","version":"1.0","ts":1716123458.100,"proc_id":"proc_abc123","signal":"SIGTERM"}"#,
    ]), @r#"
    Spawn(SpawnRequest { req_id: ReqId("p1"), argv: ["python3", "-i"], cwd: None, env: [], stdin: Pipe, timeout: None, events: EventForm { data: String, push: Correlated } })
    Write { req_id: ReqId("p3"), proc_id: ProcId("proc_abc123"), data: "print('hello')\n", eof: false }
    Kill { req_id: ReqId("p5"), proc_id: ProcId("proc_abc123"), signal: Term }
    "#);
}

#[test]
fn the_examples_of_the_wire_facts_are_understood() {
    let mut connection = Connection::new(options());
    let mut said = vec![say(
        &mut connection,
        r#"{"type":"handshake/req","id":"h1","version":"1.0","ts":1.0,"agent_id":"a","agent_caps":["proc"],"auth_token":""}"#,
    )];
    said.extend(
        [
            r#"{"type":"proc/spawn/req","id":"p1","version":"1.0","ts":3.0,"session_id":"s1","cmd":["python3","-c","print(input())"],"cwd":"","env":{},"stdin_mode":"pipe","timeout":0}"#,
            r#"{"type":"proc/write/req","id":"p2","version":"1.0","ts":4.0,"proc_id":"c0ffee","data":"hi\n","eof":true}"#,
            r#"{"type":"proc/status/req","id":"p3","version":"1.0","ts":5.0,"proc_id":""}"#,
            r#"{"type":"proc/write/req","id":"p4","version":"1.0","ts":6.0,"proc_id":"c0ffee","data":"x"}"#,
            r#"{"type":"proc/kill/req","id":"p5","version":"1.0","ts":7.0,"proc_id":"nope","signal":"SIGTERM"}"#,
        ]
        .map(|line| say(&mut connection, line)),
    );
    insta::assert_snapshot!(said.join("\n"), @r#"
    {"type":"handshake/resp","req_id":"h1","session_id":"s1","accepted_caps":[{"capability":"proc","enabled":true,"metadata":{"name":"proc","type":"proc","priority":5,"exclusive":false}}],"max_parallel":4,"ok":true,"reason":""}
    Spawn(SpawnRequest { req_id: ReqId("p1"), argv: ["python3", "-c", "print(input())"], cwd: None, env: [], stdin: Pipe, timeout: None, events: EventForm { data: String, push: Correlated } })
    Write { req_id: ReqId("p2"), proc_id: ProcId("c0ffee"), data: "hi\n", eof: true }
    StatusAll { req_id: ReqId("p3") }
    Write { req_id: ReqId("p4"), proc_id: ProcId("c0ffee"), data: "x", eof: false }
    Kill { req_id: ReqId("p5"), proc_id: ProcId("nope"), signal: Term }
    "#);
}

/// The answers in the examples, from the constructor that the executor calls for each, with their times.
fn answers_of_the_executor() -> [(Reply, u64, &'static str); 8] {
    let (req, proc) = (ReqId::new, || ProcId::new("c0ffee"));
    let argv = ["python3", "-c", "print(input())"];
    let entry = ProcStatus::new(
        proc(),
        shown_command(argv, 100),
        4711,
        Fate::Exited { code: 0 },
        Timestamp::from_unix(Duration::from_millis(3100)),
    );
    [
        (
            Reply::welcome(req("h1"), SessionId::new("s1"), Accepted::Proc),
            2000,
            r#"{"type":"handshake/resp","id":"..","version":"1.0","ts":2.0,"req_id":"h1","session_id":"s1","accepted_caps":[{"capability":"proc","enabled":true,"metadata":{"name":"proc","type":"proc","priority":5,"exclusive":false}}],"max_parallel":4,"ok":true,"reason":""}"#,
        ),
        (
            Reply::spawned(req("p1"), proc(), 4711),
            3100,
            r#"{"type":"proc/spawn/resp","id":"..","version":"1.0","ts":3.1,"req_id":"p1","proc_id":"c0ffee","ok":true,"pid":4711,"error":""}"#,
        ),
        (
            Reply::written(req("p2"), proc(), 4711),
            4100,
            r#"{"type":"proc/write/resp","id":"..","version":"1.0","ts":4.1,"req_id":"p2","proc_id":"c0ffee","ok":true,"pid":4711,"error":""}"#,
        ),
        (
            Reply::status_all(req("p3"), vec![entry], 0),
            5100,
            r#"{"type":"proc/status/resp","id":"..","version":"1.0","ts":5.1,"req_id":"p3","proc_id":"","status":"completed","error":"","procs":[{"proc_id":"c0ffee","cmd":"python3 -c 'print(input())'","state":"stopped","pid":4711,"exit_code":0,"started_at":3.1}]}"#,
        ),
        (
            Reply::write_refused(req("p4"), proc(), &WriteRefusal::ProcDead),
            6100,
            r#"{"type":"proc/write/resp","id":"..","version":"1.0","ts":6.1,"req_id":"p4","proc_id":"c0ffee","ok":false,"pid":0,"error":"proc_dead"}"#,
        ),
        (
            Reply::kill_unknown(req("p5")),
            7100,
            r#"{"type":"proc/kill/resp","id":"..","version":"1.0","ts":7.1,"req_id":"p5","ok":false,"state":"not_found","error":"unknown_proc"}"#,
        ),
        (
            Reply::spawned(req("p1"), ProcId::new("proc_abc123"), 12345),
            1_716_123_456_900,
            r#"{"type":"proc/spawn/resp","id":"..","version":"1.0","ts":1716123456.9,"req_id":"p1","proc_id":"proc_abc123","ok":true,"pid":12345,"error":""}"#,
        ),
        (
            Reply::kill_settled(req("p5"), Fate::Killed { code: -15 }, Left::default()),
            1_716_123_458_200,
            r#"{"type":"proc/kill/resp","id":"..","version":"1.0","ts":1716123458.2,"req_id":"p5","ok":true,"state":"killed"}"#,
        ),
    ]
}

#[test]
fn the_answers_of_the_examples_are_written_but_for_id_and_time() {
    for (reply, millis, example) in answers_of_the_executor() {
        let mut out = Vec::new();
        reply.push_line(
            &mut MessageIds::new(0),
            Timestamp::from_unix(Duration::from_millis(millis)),
            &mut out,
        );
        let line = String::from_utf8(out).unwrap();
        assert_eq!(line.trim_end().replace("00000000-0000-8000-8000-000000000001", ".."), example);
    }
}

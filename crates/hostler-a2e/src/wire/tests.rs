//! Every reply and every refusal as it stands on the wire.

use std::io;
use std::time::Duration;

use super::*;

fn line(reply: &Reply) -> String {
    let mut out = Vec::new();
    reply.push_line(&mut MessageIds::new(0), Timestamp::from_unix(Duration::from_millis(4100)), &mut out);
    let line = String::from_utf8(out).unwrap();
    assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
    line.trim_end().to_owned()
}

/// Replies below each other, without the fields that all have in common.
fn lines(replies: impl IntoIterator<Item = Reply>) -> String {
    let common = r#""id":"00000000-0000-8000-8000-000000000001","version":"1.0","ts":4.1,"#;
    let short = |reply: &Reply| line(reply).replacen(common, "", 1);
    replies.into_iter().map(|reply| short(&reply)).collect::<Vec<_>>().join("\n")
}

fn req() -> ReqId {
    ReqId::new("p1")
}

fn proc() -> ProcId {
    ProcId::new("c0ffee")
}

fn no_such_file() -> io::Error {
    io::Error::from_raw_os_error(2)
}

#[test]
fn replies_have_the_fields_of_the_protocol_in_its_order() {
    insta::assert_snapshot!(line(&Reply::pong(ReqId::new("h0"), Duration::from_millis(1500))), @r#"{"type":"pong","id":"00000000-0000-8000-8000-000000000001","version":"1.0","ts":4.1,"req_id":"h0","uptime_seconds":1.5}"#);
    let session = || SessionId::new("s1");
    insta::assert_snapshot!(
        lines([
            Reply::welcome(req(), session(), Accepted::Proc),
            Reply::welcome(req(), session(), Accepted::Nothing),
            Reply::unwelcome(req(), HandshakeRefusal::VersionMismatch),
            Reply::unwelcome(req(), HandshakeRefusal::AuthFailed),
            Reply::spawned(req(), proc(), 4711),
            Reply::written(req(), proc(), 4711),
        ]),
        @r#"
    {"type":"handshake/resp","req_id":"p1","session_id":"s1","accepted_caps":[{"capability":"proc","enabled":true,"metadata":{"name":"proc","type":"proc","priority":5,"exclusive":false}}],"max_parallel":4,"ok":true,"reason":""}
    {"type":"handshake/resp","req_id":"p1","session_id":"s1","accepted_caps":[],"max_parallel":4,"ok":true,"reason":""}
    {"type":"handshake/resp","req_id":"p1","session_id":"","accepted_caps":[],"max_parallel":4,"ok":false,"reason":"version_mismatch"}
    {"type":"handshake/resp","req_id":"p1","session_id":"","accepted_caps":[],"max_parallel":4,"ok":false,"reason":"auth_failed"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"c0ffee","ok":true,"pid":4711,"error":""}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":true,"pid":4711,"error":""}
    "#
    );
}

fn left(survivors: &[u32], unattributed: &[u32]) -> Left {
    Left { survivors: survivors.to_vec(), unattributed: unattributed.to_vec() }
}

#[test]
fn replies_to_kill_name_the_end_and_never_claim_success_over_survivors() {
    insta::assert_snapshot!(
        lines([
            Reply::kill_settled(req(), Fate::Killed { code: -15 }, Left::default()),
            Reply::kill_settled(req(), Fate::Running, Left::default()),
            Reply::kill_settled(req(), Fate::Killed { code: -9 }, left(&[], &[79])),
            Reply::kill_settled(req(), Fate::Killed { code: -9 }, left(&[77, 78], &[])),
            Reply::kill_settled(req(), Fate::Running, left(&[77], &[79, 80])),
            Reply::kill_unknown(req()),
            Reply::kill_ended(req(), Fate::Exited { code: 0 }),
            Reply::kill_ended(req(), Fate::TimedOut { code: -15 }),
            Reply::kill_refused(req(), &KillRefusal::Signal { name: "SIGFOO".to_owned() }),
            Reply::kill_unconfirmed(req(), Fate::Lost, io::Error::other("the keeper was lost"), left(&[77], &[])),
        ]),
        @r#"
    {"type":"proc/kill/resp","req_id":"p1","ok":true,"state":"killed"}
    {"type":"proc/kill/resp","req_id":"p1","ok":true,"state":"running"}
    {"type":"proc/kill/resp","req_id":"p1","ok":true,"state":"killed","unattributed":[79]}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"killed","error":"2 of the processes below it survived SIGKILL; their pids are in survivors","survivors":[77,78]}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"running","error":"1 of the processes below it survived SIGKILL; their pids are in survivors","survivors":[77],"unattributed":[79,80]}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"not_found","error":"unknown_proc"}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"completed","error":"proc_dead"}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"timedout","error":"proc_dead"}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"","error":"signal \"SIGFOO\" is not known; use SIGTERM, SIGINT or SIGKILL"}
    {"type":"proc/kill/resp","req_id":"p1","ok":false,"state":"error","error":"the keeper was lost","survivors":[77]}
    "#
    );
}

#[test]
fn replies_to_status_tell_of_one_process_or_of_all() {
    let entry = |proc_id: &str, pid, fate| {
        let cmd = shown_command(["python3", "-c", "print(input())"], 100);
        ProcStatus::new(
            ProcId::new(proc_id),
            cmd,
            pid,
            fate,
            Timestamp::from_unix(Duration::from_millis(3100)),
        )
    };
    insta::assert_snapshot!(
        lines([
            Reply::status(req(), proc(), Fate::Running),
            Reply::status(req(), proc(), Fate::Exited { code: 0 }),
            Reply::status(req(), proc(), Fate::Exited { code: 1 }),
            Reply::status(req(), proc(), Fate::Killed { code: -15 }),
            Reply::status(req(), proc(), Fate::TimedOut { code: -15 }),
            Reply::status(req(), proc(), Fate::Lost),
            Reply::status_unknown(req(), ProcId::new("nope")),
            Reply::status_all(req(), vec![], 0),
            Reply::status_all(req(), vec![entry("a", 7, Fate::Exited { code: 3 }), entry("b", 8, Fate::Running)], 0),
        ]),
        @r#"
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"running","error":""}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"completed","error":""}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"failed","error":""}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"killed","error":""}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"timedout","error":""}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"c0ffee","status":"error","error":"the keeper that watched the process was lost, and its exit code with it"}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"nope","status":"not_found","error":"unknown_proc"}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"","status":"completed","error":"","procs":[]}
    {"type":"proc/status/resp","req_id":"p1","proc_id":"","status":"running","error":"","procs":[{"proc_id":"a","cmd":"python3 -c 'print(input())'","state":"crashed","pid":7,"exit_code":3,"started_at":3.1},{"proc_id":"b","cmd":"python3 -c 'print(input())'","state":"running","pid":8,"exit_code":null,"started_at":3.1}]}
    "#
    );
}

#[test]
fn refused_spawns_say_what_to_do() {
    let refused = |refusal: SpawnRefusal| Reply::spawn_refused(req(), &refusal);
    let text = |text: &str| text.to_owned();
    insta::assert_snapshot!(
        lines([
            refused(SpawnRefusal::OtherSession { session_id: text("other") }),
            refused(SpawnRefusal::EmptyCommand),
            refused(SpawnRefusal::NotAllowed { command: text("/bin/ls"), allowed: vec![text("python3"), text("ls")] }),
            refused(SpawnRefusal::Nul { place: FieldPath::Element("cmd", 1) }),
            refused(SpawnRefusal::EnvName { name: text("A=B") }),
            refused(SpawnRefusal::StdinMode { word: text("inherit") }),
            refused(SpawnRefusal::NegativeTimeout { seconds: -5 }),
            refused(SpawnRefusal::Limit { limit: 64 }),
            refused(SpawnRefusal::HostLimit { limit: 4096 }),
            refused(SpawnRefusal::OpenFiles { limit: 80 }),
            refused(SpawnRefusal::SystemFiles),
            refused(SpawnRefusal::Resources { reason: io::Error::from_raw_os_error(11) }),
            refused(SpawnRefusal::Resources { reason: io::Error::from_raw_os_error(12) }),
            refused(SpawnRefusal::WorkingDirectory { cwd: text("/no/such"), reason: no_such_file() }),
            refused(SpawnRefusal::NotFound { command: text("python3") }),
            refused(SpawnRefusal::Start { command: text("ls"), reason: io::Error::from_raw_os_error(7) }),
            refused(SpawnRefusal::NotStarted { reason: io::Error::other("the session's keeper was lost") }),
            refused(SpawnRefusal::SessionEnding),
        ]),
        @r#"
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"session_id \"other\" is not this session; send the session_id of the handshake or \"\""}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"cmd is empty; send the command and its arguments as a list, for example [\"ls\", \"/\"]"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"command \"/bin/ls\" is not allowed (it is compared as it is, no path); allowed: python3, ls; the host's operator sets allowed_commands"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"cmd[1] holds a NUL character; no argument, path or environment entry can hold one"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"env name \"A=B\" is refused; a name must not be empty and must not hold \"=\""}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"stdin_mode \"inherit\" is not known; use \"pipe\" or \"null\""}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"timeout -5 is negative; use 0 for no limit, or the seconds after which to kill the process"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"proc_limit: 64 processes of this session are live, all that max_processes allows; wait until one ends or kill one"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"proc_limit: 4096 processes of all sessions are live, all that max_processes_total allows; wait until one ends or kill one"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"proc_limit: the host's limit of 80 open files has no room for another process; wait until one ends, kill one, or start the host with a higher hard limit (`ulimit -Hn`)"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"proc_limit: the machine has as many open files as it may; try again later, or raise its fs.file-max"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"the system cannot start another process: Resource temporarily unavailable (os error 11); end some, or raise the number of processes and threads that the host's user (`ulimit -u`) and its control group (pids.max) may have"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"the system cannot start another process: Cannot allocate memory (os error 12); end some, or raise what memory the host may have"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"cwd \"/no/such\": No such file or directory (os error 2); use a directory that exists, or \"\" for the host's own"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"command \"python3\" was not found on the host's PATH"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"failed to start \"ls\": Argument list too long (os error 7)"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"the process was not started: the session's keeper was lost"}
    {"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"pid":0,"error":"the session is ending and starts nothing any more; open a new one"}
    "#
    );
}

#[test]
fn refused_writes_start_with_their_code() {
    let refused = |refusal: WriteRefusal| Reply::write_refused(req(), proc(), &refusal);
    insta::assert_snapshot!(
        lines([
            refused(WriteRefusal::UnknownProc),
            refused(WriteRefusal::ProcDead),
            refused(WriteRefusal::AfterEof),
            refused(WriteRefusal::NoStdin),
            refused(WriteRefusal::ClosedByProcess),
            refused(WriteRefusal::TooMany { limit: 3 }),
            refused(WriteRefusal::TooManyInSession { limit: 3 }),
            refused(WriteRefusal::Write { reason: io::Error::from_raw_os_error(5) }),
        ]),
        @r#"
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"unknown_proc"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"proc_dead"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"stdin is closed: an earlier write had eof set"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"the process has no stdin: it was started with stdin_mode \"null\""}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"the process has closed its stdin; it runs on"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"3 writes wait for the process to read, and no more are taken; wait for their answers before the next"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"3 writes wait for processes of this session to read, and no more are taken; wait for their answers before the next, or kill a process that does not read"}
    {"type":"proc/write/resp","req_id":"p1","proc_id":"c0ffee","ok":false,"pid":0,"error":"failed to write to stdin: Input/output error (os error 5)"}
    "#
    );
}

#[test]
fn error_envelopes_have_every_field() {
    insta::assert_snapshot!(
        lines([
            Reply::denied(req(), Denied::Unauthorized),
            Reply::denied(req(), Denied::CapabilityMissing),
            Reply::malformed(ReqId::new(""), &Malformed::LineTooLong { limit: 16 << 20 }),
            Reply::malformed(ReqId::new(""), &Malformed::NotUtf8 { offset: 12 }),
            Reply::output_lost(proc(), "stdout", 4711),
        ]),
        @r#"
    {"type":"error","req_id":"p1","code":"unauthorized","message":"no handshake yet; send handshake/req with \"proc\" in agent_caps first","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"p1","code":"capability_missing","message":"capability proc was not negotiated; send handshake/req again with \"proc\" in agent_caps","detail":{},"retryable":false,"capability_name":"proc"}
    {"type":"error","req_id":"","code":"invalid_message","message":"the line is longer than 16777216 bytes; split the data over several messages","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"","code":"parse_error","message":"the line is no UTF-8 from byte 12 on; send one JSON object per line in UTF-8","detail":{},"retryable":false,"capability_name":""}
    {"type":"error","req_id":"","code":"output_lost","message":"4711 bytes of stdout are missing here: the file in the state folder in which they waited for the client was cut, or its disk fails; read faster, or set HOSTLER_RUNTIME_STATE_DIR to another place","detail":{"proc_id":"c0ffee","stream_type":"stdout","bytes":4711},"retryable":false,"capability_name":"proc"}
    "#
    );
}

#[test]
fn a_refusal_whose_text_starts_with_a_code_has_that_code_for_the_audit() {
    let spawn =
        |refusal: SpawnRefusal| (refusal.to_string(), Reply::spawn_refused(req(), &refusal).outcome());
    let write = |refusal: WriteRefusal| {
        (refusal.to_string(), Reply::write_refused(req(), proc(), &refusal).outcome())
    };
    let codes = ["unknown_proc", "proc_dead", "proc_limit"];
    for (text, outcome) in [
        spawn(SpawnRefusal::Limit { limit: 1 }),
        spawn(SpawnRefusal::HostLimit { limit: 1 }),
        spawn(SpawnRefusal::OpenFiles { limit: 1 }),
        spawn(SpawnRefusal::SystemFiles),
        spawn(SpawnRefusal::EmptyCommand),
        write(WriteRefusal::UnknownProc),
        write(WriteRefusal::ProcDead),
        write(WriteRefusal::AfterEof),
    ] {
        let code = codes.into_iter().find(|code| text == *code || text.starts_with(&format!("{code}: ")));
        assert_eq!(outcome, Outcome::Failure(code), "{text}");
    }
    assert_eq!(Reply::spawned(req(), proc(), 1).outcome(), Outcome::Success);
    assert_eq!(Reply::kill_unknown(req()).outcome(), Outcome::Failure(Some("unknown_proc")));
    assert_eq!(
        Reply::kill_ended(req(), Fate::Exited { code: 0 }).outcome(),
        Outcome::Failure(Some("proc_dead"))
    );
    assert_eq!(Reply::denied(req(), Denied::Unauthorized).outcome(), Outcome::Failure(Some("unauthorized")));
}

#[test]
fn a_reply_holds_no_raw_line_end_even_if_the_client_sent_some() {
    let name = "\u{2028}\u{85}\n".to_owned();
    let reply = Reply::write_refused(ReqId::new(name.clone()), ProcId::new(name), &WriteRefusal::UnknownProc);
    let line = line(&reply);
    assert!(line.contains(r#""proc_id":"\u2028\u0085\n""#), "{line}");
    assert!(!line.contains(['\u{85}', '\u{2028}', '\u{2029}']));
}

#[test]
fn a_long_text_of_a_client_is_cut_inside_a_message() {
    let refusal = SpawnRefusal::StdinMode { word: "é".repeat(1000) };
    assert_eq!(
        refusal.to_string(),
        format!("stdin_mode \"{}\"… is not known; use \"pipe\" or \"null\"", "é".repeat(80))
    );
}

#[test]
fn secrets_are_not_shown() {
    assert_eq!(format!("{:?}", Secret::new("sesame")), "Secret(..)");
}

//! Requests that are under way at once: how many, and what becomes of more.
#![expect(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]

use std::time::Duration;

use hostler_a2e::audit::{AuditLog, AuditOptions};
use hostler_a2e::codec::Item;
use hostler_a2e::encode::{DataForm, PushForm};
use hostler_a2e::protocol::{Connection, ConnectionOptions};
use hostler_a2e::session::{A2eSession, Flow, Wanted};
use hostler_a2e::wire::SessionId;
use hostler_core::{HelperProgram, Host, HostOptions, Nursery, SessionOptions};
use hostler_testkit::{NoProcessLeft, Token, bin, evil};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);
/// What a session may have under way beyond its processes.
const MORE: usize = 1024;
const PROCESSES: usize = 2;

/// A session without a transport.
struct Bare {
    session: A2eSession,
    token: Token,
    next: u64,
    out: Vec<u8>,
}

impl Bare {
    fn open(host: &Host, token: &Token, audit: AuditLog) -> Self {
        let session =
            host.open_session(SessionOptions { max_processes: PROCESSES, ..SessionOptions::relay() });
        let session_id = SessionId::new("s");
        let connection = Connection::new(ConnectionOptions {
            session_id: session_id.clone(),
            allowed_commands: vec![evil().to_str().unwrap().to_owned()],
            auth_token: None,
            data_form: DataForm::Object,
            push_form: PushForm::Correlated,
            default_timeout: None,
        });
        let session = A2eSession::new(connection, session, session_id, PROCESSES, 7, Some(audit));
        let mut bare = Self { session, token: token.clone(), next: 0, out: Vec::new() };
        bare.send("handshake/req", json!({"agent_caps": ["proc"]}));
        bare.messages();
        bare
    }

    fn send(&mut self, kind: &str, mut fields: Value) -> String {
        self.next += 1;
        let id = format!("q{}", self.next);
        (fields["type"], fields["id"]) = (json!(kind), json!(id));
        let line = fields.to_string();
        assert_eq!(self.session.handle(Item::Line(&line), line.len(), &mut self.out), Flow::Continue);
        id
    }

    /// What was said since the last look.
    fn messages(&mut self) -> Vec<Value> {
        let text = String::from_utf8(std::mem::take(&mut self.out)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for the next answers.
    async fn answers(&mut self) -> Vec<Value> {
        let event = tokio::time::timeout(LONG, self.session.next(Wanted::Answers)).await.unwrap();
        self.session.take(event, &mut self.out);
        self.messages()
    }

    /// Starts one of the helper child's modes and returns its id.
    async fn start(&mut self, mode: &str) -> String {
        let cmd = json!([evil().to_str().unwrap(), mode, self.token.as_str()]);
        self.send("proc/spawn/req", json!({"cmd": cmd}));
        let answers = self.answers().await;
        assert_eq!(answers[0]["ok"], true, "{answers:?}");
        answers[0]["proc_id"].as_str().unwrap().to_owned()
    }

    async fn end(self) {
        self.session.close(Duration::ZERO).await;
    }
}

fn with_session(test: &str, check: impl AsyncFnOnce(&mut Bare)) {
    with_audited_session(test, check);
}

/// The same, and returns what the audit has noted when the session is gone, as request, success and code.
fn with_audited_session(test: &str, check: impl AsyncFnOnce(&mut Bare)) -> Vec<(Value, Value, Value)> {
    let token = Token::new(test);
    let _left = NoProcessLeft::new(&token);
    let (nursery, state) =
        (Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap(), tempfile::tempdir().unwrap());
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let options = HostOptions { state_dir: Some(state.path().to_owned()), ..HostOptions::default() };
        let host = Host::start(nursery, options).unwrap();
        let path = state.path().join("audit.jsonl");
        let options = AuditOptions { path: path.clone(), max_bytes: 0, backup_count: 0 };
        let mut bare = Bare::open(&host, &token, AuditLog::open(options).unwrap());
        check(&mut bare).await;
        bare.end().await;
        host.shutdown().await;
        let noted = std::fs::read_to_string(path).unwrap();
        let entry = |line| -> Value { serde_json::from_str(line).unwrap() };
        noted
            .lines()
            .map(entry)
            .map(|entry| (entry["req_id"].clone(), entry["success"].clone(), entry["error_code"].clone()))
            .collect()
    })
}

#[test]
fn what_is_under_way_when_the_session_is_dropped_is_noted_as_that_in_its_order() {
    let mut asked = Vec::new();
    let noted = with_audited_session("unanswered", async |bare| {
        let deaf = bare.start("pause").await;
        asked.push(bare.send("proc/write/req", json!({"proc_id": deaf, "data": "x".repeat(1 << 20)})));
        asked.push(bare.send("proc/spawn/req", json!({"cmd": [evil().to_str().unwrap(), "pause"]})));
        asked.push(bare.send("proc/kill/req", json!({"proc_id": deaf, "signal": "SIGKILL"})));
    });
    let expected = asked.into_iter().map(|id| (json!(id), json!(false), json!("session_ended")));
    assert_eq!(noted[1..], expected.collect::<Vec<_>>(), "after the first start");
}

#[test]
fn there_is_room_for_a_thousand_and_one_start_a_process_and_again_when_they_are_done() {
    with_session("room", async |bare| {
        let stubborn = bare.start("ignore-term").await;
        let mut sent = 0;
        while bare.session.has_room() {
            bare.send("proc/kill/req", json!({"proc_id": stubborn, "signal": "SIGTERM"}));
            sent += 1;
        }
        assert_eq!((sent, bare.messages()), (MORE + PROCESSES, vec![]));
        let mut answered = 0;
        while answered < sent {
            let answers = bare.answers().await;
            assert!(answers.iter().all(|answer| answer["ok"] == true), "{answers:?}");
            answered += answers.len();
            assert!(bare.session.has_room());
        }
        assert_eq!(answered, sent);
    });
}

#[test]
fn a_session_is_running_while_a_start_is_under_way() {
    with_session("start under way", async |bare| {
        bare.send("proc/status/req", json!({}));
        assert_eq!(bare.messages()[0]["status"], "completed");
        bare.send(
            "proc/spawn/req",
            json!({"cmd": [evil().to_str().unwrap(), "exit", "0", bare.token.as_str()]}),
        );
        bare.send("proc/status/req", json!({}));
        let answer = bare.messages().remove(0);
        assert_eq!((&answer["status"], &answer["procs"]), (&json!("running"), &json!([])));
        assert_eq!(bare.answers().await[0]["ok"], true);
    });
}

#[test]
fn starts_that_are_refused_make_room_again_by_themselves() {
    with_session("refused starts", async |bare| {
        bare.start("pause").await;
        bare.start("pause").await;
        let mut sent = 0;
        while bare.session.has_room() {
            bare.send("proc/spawn/req", json!({"cmd": [evil().to_str().unwrap(), "pause"]}));
            sent += 1;
        }
        for _ in 0..sent {
            let answers = bare.answers().await;
            assert!(answers[0]["error"].as_str().unwrap().starts_with("proc_limit"), "{answers:?}");
        }
        assert!(bare.session.has_room());
    });
}

#[test]
fn writes_that_wait_are_refused_beyond_a_number_and_keep_no_kill_out() {
    const MOST: usize = 16 * 1024;
    with_session("waiting writes", async |bare| {
        let deaf = bare.start("pause").await;
        let echo = bare.start("echo").await;
        bare.send("proc/write/req", json!({"proc_id": deaf, "data": "x".repeat(1 << 20)}));
        for _ in 1..MOST {
            bare.send("proc/write/req", json!({"proc_id": deaf, "data": "x"}));
        }
        assert_eq!(bare.messages(), [] as [Value; 0]);
        bare.send("proc/write/req", json!({"proc_id": deaf, "data": "x"}));
        let refused = bare.messages();
        let expected = "16384 writes wait for the process to read, and no more are taken; wait for their answers before the next";
        assert_eq!((&refused[0]["ok"], &refused[0]["error"]), (&json!(false), &json!(expected)));
        assert!(bare.session.has_room(), "for a kill");
        bare.send("proc/write/req", json!({"proc_id": echo, "data": "x\n"}));
        assert_eq!(bare.messages()[0]["ok"], true, "others are not held up");

        let kill = bare.send("proc/kill/req", json!({"proc_id": deaf, "signal": "SIGKILL"}));
        let (mut killed, mut lost) = (0, 0);
        while killed + lost < MOST + 1 {
            for answer in bare.answers().await {
                if answer["req_id"] == *kill {
                    assert_eq!(answer["state"], "killed");
                    killed += 1;
                } else {
                    assert!(answer["error"].as_str().unwrap().starts_with("proc_dead"), "{answer}");
                    lost += 1;
                }
            }
        }
        assert_eq!((killed, lost), (1, MOST));
    });
}

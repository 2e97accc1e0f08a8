//! Two agents of one host: what one has is unknown to the other, and the end of one is nothing to the other.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hostler_a2e::encode::{DataForm, PushForm};
use hostler_a2e::protocol::{Connection, ConnectionOptions};
use hostler_a2e::session::A2eSession;
use hostler_a2e::stdio::{Ending, ServeError, serve};
use hostler_a2e::wire::SessionId;
use hostler_core::{HelperProgram, Host, HostOptions, Nursery, SessionOptions};
use hostler_testkit::{NoProcessLeft, Token, bin, evil};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(60);

/// One agent, and the session that serves it.
struct Agent {
    to: OwnedWriteHalf,
    from: Lines<BufReader<OwnedReadHalf>>,
    session_id: String,
    served: JoinHandle<Result<Ending, ServeError>>,
    next: u64,
    token: Token,
}

impl Agent {
    async fn join(host: &Host, token: &Token) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let session = host.open_session(SessionOptions { max_processes: 3, ..SessionOptions::relay() });
        let session_id = SessionId::new(session.id().to_string());
        let connection = Connection::new(ConnectionOptions {
            session_id: session_id.clone(),
            allowed_commands: vec![evil().to_str().unwrap().to_owned()],
            auth_token: None,
            data_form: DataForm::Object,
            push_form: PushForm::Correlated,
            default_timeout: None,
        });
        let session = A2eSession::new(connection, session, session_id, 3, 7, None);
        let (input, output) = (OwnedFd::from(theirs.try_clone().unwrap()), OwnedFd::from(theirs));
        let served = tokio::spawn(serve(session, input, output, std::future::pending()));
        ours.set_nonblocking(true).unwrap();
        let (from, to) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
        let from = BufReader::new(from).lines();
        let mut agent = Self { to, from, session_id: String::new(), served, next: 0, token: token.clone() };
        let reply = agent.call("handshake/req", json!({"agent_caps": ["proc"]})).await;
        reply["session_id"].as_str().unwrap().clone_into(&mut agent.session_id);
        agent
    }

    async fn message(&mut self) -> Value {
        let line = tokio::time::timeout(LONG, self.from.next_line()).await.expect("a message in time");
        serde_json::from_str(&line.unwrap().expect("the session lives")).unwrap()
    }

    /// Sends a request; the next message must be its answer.
    async fn call(&mut self, kind: &str, mut fields: Value) -> Value {
        self.next += 1;
        let id = format!("q{}", self.next);
        (fields["type"], fields["id"]) = (json!(kind), json!(id));
        self.to.write_all(format!("{fields}\n").as_bytes()).await.unwrap();
        let reply = self.message().await;
        assert_eq!(reply["req_id"], *id, "nothing else was due: {reply}");
        reply
    }

    async fn spawn(&mut self, mode: &str) -> Value {
        let cmd = json!([evil().to_str().unwrap(), mode, self.token.as_str()]);
        self.call("proc/spawn/req", json!({"cmd": cmd})).await
    }

    /// Starts one that echoes, and returns its id.
    async fn echo(&mut self) -> String {
        let reply = self.spawn("echo").await;
        assert_eq!(reply["ok"], true, "{reply}");
        let event = self.message().await;
        assert_eq!((&event["proc_id"], &event["data"]), (&reply["proc_id"], &json!({"text": "ready\n"})));
        reply["proc_id"].as_str().unwrap().to_owned()
    }

    async fn echoes(&mut self, proc_id: &str) {
        let reply = self.call("proc/write/req", json!({"proc_id": proc_id, "data": "x\n"})).await;
        assert_eq!(reply["ok"], true, "{reply}");
        let event = self.message().await;
        assert_eq!((&event["proc_id"], &event["data"]), (&json!(proc_id), &json!({"text": "x\n"})));
    }

    /// Goes without a word.
    async fn leave(self) {
        drop((self.to, self.from));
        let ending = tokio::time::timeout(LONG, self.served).await.expect("an end in time").unwrap().unwrap();
        assert_eq!(ending, Ending::ClientGone);
    }
}

fn nursery() -> Nursery {
    Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap()
}

fn options(state: &TempDir) -> HostOptions {
    HostOptions { state_dir: Some(state.path().to_owned()), ..HostOptions::default() }
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn with_host(max_processes: usize, test: impl AsyncFnOnce(&Host)) {
    let (nursery, state) = (nursery(), tempfile::tempdir().unwrap());
    block_on(async {
        let host = Host::start(nursery, HostOptions { max_processes, ..options(&state) }).unwrap();
        test(&host).await;
        host.shutdown().await;
    });
}

#[test]
fn what_one_agent_has_is_unknown_to_another() {
    let token = Token::new("unknown to another");
    let _left = NoProcessLeft::new(&token);
    with_host(100, async |host| {
        let mut one = Agent::join(host, &token).await;
        let mut other = Agent::join(host, &token).await;
        assert_ne!(one.session_id, other.session_id);
        let proc_id = one.echo().await;
        for kind in ["proc/write/req", "proc/kill/req", "proc/status/req"] {
            let theirs = other.call(kind, json!({"proc_id": proc_id, "data": "x"})).await;
            let nobodys = other.call(kind, json!({"proc_id": "nobody", "data": "x"})).await;
            assert_eq!(theirs["error"], "unknown_proc");
            assert_eq!(theirs["error"], nobodys["error"], "in the same words");
        }
        let list = other.call("proc/status/req", json!({})).await;
        assert_eq!((&list["procs"], &list["status"]), (&json!([]), &json!("completed")));
        let fields =
            json!({"cmd": [evil().to_str().unwrap(), "pause", token.as_str()], "session_id": one.session_id});
        let refused = other.call("proc/spawn/req", fields).await;
        assert_eq!(refused["ok"], false, "{refused}");
        one.echoes(&proc_id).await;
        // Had an event of the first come to the second, this answer would not be the next message.
        other.call("ping", json!({})).await;
        one.leave().await;
        other.leave().await;
    });
}

#[test]
fn the_end_of_one_agent_is_nothing_to_another() {
    let token = Token::new("end of one");
    let _left = NoProcessLeft::new(&token);
    with_host(100, async |host| {
        let mut stays = Agent::join(host, &token).await;
        let mut goes = Agent::join(host, &token).await;
        let kept = stays.echo().await;
        for _ in 0..3 {
            goes.echo().await;
        }
        goes.leave().await;
        assert_eq!(host.live(), 1);
        assert_eq!(token.pids().len(), 1, "those of the one that has left are gone");
        stays.echoes(&kept).await;
        stays.leave().await;
    });
}

#[test]
fn a_shutdown_without_a_line_end_counts_with_its_timeout() {
    let token = Token::new("unended shutdown");
    let _left = NoProcessLeft::new(&token);
    with_host(100, async |host| {
        let mut agent = Agent::join(host, &token).await;
        agent.echo().await;
        agent.to.write_all(b"{\"type\":\"shutdown\",\"timeout\":0}").await.unwrap();
        drop(agent.to);
        let ending = tokio::time::timeout(LONG, agent.served).await.expect("an end in time");
        assert_eq!(ending.unwrap().unwrap(), Ending::Shutdown);
    });
}

#[test]
fn the_end_of_a_session_is_nothing_to_another_host_in_the_same_program() {
    let token = Token::new("two hosts");
    let _left = NoProcessLeft::new(&token);
    let (nurseries, states) =
        ([nursery(), nursery()], [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
    block_on(async {
        let [first, second] = nurseries;
        let hosts = [
            Host::start(first, options(&states[0])).unwrap(),
            Host::start(second, options(&states[1])).unwrap(),
        ];
        let (mut goes, mut stays) =
            (Agent::join(&hosts[0], &token).await, Agent::join(&hosts[1], &token).await);
        goes.echo().await;
        let kept = stays.echo().await;
        goes.leave().await;
        stays.echoes(&kept).await;
        let [first, second] = hosts;
        first.shutdown().await;
        stays.echoes(&kept).await;
        stays.leave().await;
        second.shutdown().await;
    });
}

#[test]
fn each_session_has_its_quota_and_all_together_have_the_hosts() {
    let token = Token::new("two quotas");
    let _left = NoProcessLeft::new(&token);
    with_host(4, async |host| {
        let mut one = Agent::join(host, &token).await;
        let mut other = Agent::join(host, &token).await;
        for _ in 0..3 {
            one.echo().await;
        }
        let refused = one.spawn("pause").await;
        assert!(
            refused["error"].as_str().unwrap().starts_with("proc_limit: 3 processes of this session"),
            "{refused}"
        );
        let proc_id = other.echo().await;
        let refused = other.spawn("pause").await;
        assert!(
            refused["error"].as_str().unwrap().starts_with("proc_limit: 4 processes of all sessions"),
            "{refused}"
        );
        other.echoes(&proc_id).await;
        one.leave().await;
        other.echo().await;
        other.leave().await;
    });
}

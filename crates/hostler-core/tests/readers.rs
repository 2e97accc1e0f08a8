//! What becomes of a session's processes when their reader goes, is too slow, or changes.
#![expect(clippy::unwrap_used, reason = "what the tests share fails as loudly as they do")]

use std::sync::Weak;
use std::time::Duration;

use hostler_core::{
    HelperProgram, Host, HostOptions, Nursery, Outputs, Places, Process, Pulled, Session, SessionOptions,
    SharedLog, SpawnSpec, Stream, Then,
};
use hostler_testkit::{NoProcessLeft, TestEnv, Token, bin, evil, wait_until_async};

/// Longer than anything here takes, also where the machine is busy.
const MAX: Duration = Duration::from_secs(30);

fn start_host(env: &TestEnv) -> Host {
    let nursery = Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap();
    let places = Places { xdg_state_home: Some(env.state_home()), home: None, tmpdir: Some(env.tmp()) };
    Host::start(nursery, HostOptions { places, env: env.vars(), ..HostOptions::default() }).unwrap()
}

async fn spawn_evil(session: &Session, mode: &[&str], token: &Token) -> Process {
    let program = evil().into_os_string();
    let rest = mode.iter().copied().chain([token.as_str()]).map(Into::into);
    session.spawn(SpawnSpec::new(std::iter::once(program).chain(rest))).await.unwrap()
}

/// A process's log lives as long as anybody has the process.
fn log_of(process: &Process) -> Weak<SharedLog> {
    std::sync::Arc::downgrade(process.cursor(Stream::Stdout).unwrap().log())
}

async fn all_gone(logs: &[Weak<SharedLog>]) {
    wait_until_async("the end of every process's log", MAX, async || {
        let left = logs.iter().filter(|log| log.strong_count() > 0).count();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_goes_with_news_in_its_queue_keeps_no_process() {
    let (env, token) = (TestEnv::new(), Token::new("queued"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let mut logs = Vec::new();
    for _ in 0..5 {
        let session = host.open_session(SessionOptions::relay());
        let outputs = session.outputs();
        let process = spawn_evil(&session, &["lines", "100"], &token).await;
        outputs.attach(&process);
        logs.push(log_of(&process));
        process.finished().await;
        drop(outputs);
        session.close(Duration::ZERO).await;
    }
    all_gone(&logs).await;
    host.shutdown().await;
}

/// Pulls from whatever is ready until the process says that it has finished; returns what it printed.
async fn read_to_the_end(outputs: &Outputs) -> Vec<u8> {
    let (mut all, mut scratch) = (Vec::new(), Vec::new());
    let reading = async {
        loop {
            let process = outputs.ready().await;
            let pulled = process.pull(1 << 16, 1 << 20, &mut scratch, |chunk| {
                all.extend_from_slice(chunk.bytes);
                chunk.bytes.len()
            });
            match pulled.unwrap() {
                Pulled::More => process.requeue(),
                Pulled::Idle => {}
                Pulled::Finished => return,
            }
        }
    };
    tokio::time::timeout(MAX, reading).await.unwrap();
    all
}

#[tokio::test]
async fn a_reader_that_takes_over_hears_of_what_the_one_before_left_in_its_queue() {
    let (env, token) = (TestEnv::new(), Token::new("second"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::relay());
    let (first, second) = (session.outputs(), session.outputs());
    let process = spawn_evil(&session, &["echo"], &token).await;
    first.attach(&process);
    process.write(b"one\n", Then::KeepOpen).done().await.unwrap();
    wait_until_async("its greeting and the first line", MAX, async || process.status().stdout.lines == 2)
        .await;
    second.attach(&process);
    assert!(first.try_ready().is_none(), "it is the other reader's");
    drop(first);
    process.write(b"two\n", Then::Close).done().await.unwrap();
    assert_eq!(read_to_the_end(&second).await, b"ready\none\ntwo\n");
    session.close(Duration::ZERO).await;
}

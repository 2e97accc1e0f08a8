//! What becomes of a session's processes when their reader goes, is too slow, or changes.
#![expect(clippy::unwrap_used, reason = "what the tests share fails as loudly as they do")]

use std::sync::Weak;
use std::time::Duration;

use hostler_core::{
    HelperProgram, Host, HostOptions, Nursery, Outputs, Places, Process, Pulled, Session, SessionOptions,
    SharedLog, SpawnSpec, Stream, Then,
};
use hostler_testkit::{NoProcessLeft, TestEnv, Token, bin, evil, fd_count, wait_until, wait_until_async};

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
                // Those who read here compare what they get.
                Pulled::More | Pulled::Lost { .. } => process.requeue(),
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

const QUOTA: u64 = 1 << 20;

fn open_small_relay(host: &Host) -> Session {
    host.open_session(SessionOptions { bytes_per_process: QUOTA, ..SessionOptions::relay() })
}

/// Waits until the process has printed so much that it is held back.
async fn at_the_quota(process: &Process) {
    // What is granted for a read counts as well, and that may be as much as one reads at a time.
    let nearly = QUOTA - (QUOTA / 8);
    wait_until_async("a process at its quota", MAX, async || {
        let bytes = process.status().stdout.bytes;
        if bytes >= nearly { Ok(()) } else { Err(bytes) }
    })
    .await;
}

async fn finishes(process: &Process) {
    let finished = tokio::time::timeout(MAX, process.finished()).await;
    assert!(finished.is_ok(), "its end is never reported: {:?}", process.status());
}

#[tokio::test]
async fn a_process_at_its_quota_is_finished_and_leaves_nothing_when_its_reader_has_gone() {
    let (env, token) = (TestEnv::new(), Token::new("no-reader"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let own = i32::try_from(std::process::id()).unwrap();
    let before = fd_count(own).unwrap();
    let mut logs = Vec::new();
    for goes in ["before the end", "after the end", "never came"] {
        let session = open_small_relay(&host);
        let process = spawn_evil(&session, &["flood"], &token).await;
        let outputs = (goes != "never came").then(|| session.outputs());
        if let Some(outputs) = &outputs {
            outputs.attach(&process);
        }
        at_the_quota(&process).await;
        logs.push(log_of(&process));
        let kept = outputs.filter(|_| goes == "after the end");
        if goes == "never came" {
            drop(session);
        } else {
            session.close(Duration::ZERO).await;
        }
        drop(kept);
        finishes(&process).await;
        let stdout = process.status().stdout;
        assert_eq!(stdout.dropped.bytes, stdout.bytes, "{goes}");
    }
    assert_eq!(host.live(), 0);
    all_gone(&logs).await;
    // A keeper and its sockets take the place of those before; pipes of a process would be two and more.
    wait_until_async("the descriptors", MAX, async || {
        let after = fd_count(own).unwrap();
        if after <= before + 6 { Ok(()) } else { Err((before, after)) }
    })
    .await;
    host.shutdown().await;
}

#[tokio::test]
async fn a_process_whose_reader_has_gone_runs_on_to_its_end_and_what_it_prints_is_counted() {
    const LINES: &str = "100000";
    let (env, token) = (TestEnv::new(), Token::new("runs-on"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let (read, unread) = (open_small_relay(&host), open_small_relay(&host));
    let (kept, dropped) = (read.outputs(), unread.outputs());
    let whole = spawn_evil(&read, &["lines", LINES], &token).await;
    kept.attach(&whole);
    let process = spawn_evil(&unread, &["lines", LINES], &token).await;
    dropped.attach(&process);
    at_the_quota(&process).await;
    drop(dropped);
    finishes(&process).await;
    let printed = read_to_the_end(&kept).await.len() as u64;
    assert!(printed > 2 * QUOTA);
    let stdout = process.status().stdout;
    assert_eq!((stdout.bytes, stdout.dropped.bytes), (printed, printed));
    assert_eq!(whole.status().stdout.dropped.bytes, 0);
    for session in [read, unread] {
        session.close(Duration::ZERO).await;
    }
}

/// As an adapter does that is told of a start when it has ended the session already.
#[tokio::test]
async fn a_reader_that_lives_may_take_a_process_after_the_end_of_the_session_and_loses_nothing() {
    let (env, token) = (TestEnv::new(), Token::new("late"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = open_small_relay(&host);
    let outputs = session.outputs();
    let process = spawn_evil(&session, &["flood"], &token).await;
    at_the_quota(&process).await;
    session.close(Duration::ZERO).await;
    outputs.attach(&process);
    let printed = read_to_the_end(&outputs).await.len() as u64;
    let stdout = process.status().stdout;
    assert_eq!((stdout.bytes, stdout.dropped.bytes), (printed, 0));
}

/// On the one thread of this test's runtime, as a host has one.
#[tokio::test]
async fn a_pipe_that_is_never_empty_leaves_others_their_turn() {
    const PIPE: usize = 1 << 20;
    let (env, token) = (TestEnv::new(), Token::new("turns"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = spawn_evil(&session, &["lines", "200000"], &token).await;
    let pipe = std::fs::File::open(format!("/proc/{}/fd/1", process.pid().unwrap())).unwrap();
    rustix::pipe::fcntl_setpipe_size(&pipe, PIPE).unwrap();
    // Nobody reads meanwhile: this holds the thread.
    wait_until("a full pipe", MAX, || {
        let bytes = rustix::io::ioctl_fionread(&pipe).unwrap();
        if bytes > (PIPE * 3 / 4) as u64 { Ok(()) } else { Err(bytes) }
    });
    drop(pipe);
    let (mut seen, mut longest) = (process.status().stdout.bytes, 0);
    while process.end().is_none() {
        tokio::task::yield_now().await;
        let bytes = process.status().stdout.bytes;
        longest = longest.max(bytes - seen);
        seen = bytes;
    }
    assert!(seen > PIPE as u64);
    assert!(longest <= PIPE as u64 / 2, "{longest} bytes were read at a stretch");
    session.close(Duration::ZERO).await;
}

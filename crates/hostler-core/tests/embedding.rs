//! What `docs/embedding.md` promises to those who embed the library.
#![expect(clippy::unwrap_used, reason = "what the tests share fails as loudly as they do")]

use std::sync::Arc;
use std::time::Duration;

use hostler_core::{
    CursorRead, Flush, HelperProgram, Host, HostOptions, NotReady, Nursery, NurseryError, Outcome, Places,
    Process, Pulled, Session, SessionOptions, SpawnError, SpawnSpec, StartError, StopCause, Stream, Then,
    outcome,
};
use hostler_testkit::{NoProcessLeft, ProcessInfo, TestEnv, Token, bin, children_of, evil, wait_until_async};
use tokio::sync::Barrier;

/// Longer than anything here takes, also where the machine is busy.
const MAX: Duration = Duration::from_secs(30);

#[test]
fn the_page_shows_the_example_as_it_is() {
    let page = include_str!("../../../docs/embedding.md");
    let example = include_str!("../examples/two_minutes.rs");
    let block = format!("```rust,standalone_crate\n{example}```\n");
    assert!(page.contains(&block), "docs/embedding.md and examples/two_minutes.rs differ");
}

/// The embedder of these tests has no main of its own: it names a binary that has.
fn start_host(env: &TestEnv) -> Host {
    let nursery = Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap();
    let places =
        Places { xdg_state_home: Some(env.root().join("state")), home: None, tmpdir: Some(env.tmp()) };
    Host::start(nursery, HostOptions { places, ..HostOptions::default() }).unwrap()
}

#[test]
fn a_program_that_is_no_helper_is_found_out_at_the_start() {
    let started = Nursery::start(HelperProgram::Path("/bin/true".into()));
    let error = started.unwrap_err();
    assert!(
        error.to_string().contains("/bin/true") && error.to_string().contains("run_if_helper"),
        "{error}"
    );
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "it ended (exit status: 0)");
    // This test program has no hook in its main: its copy runs no test, as there is none of that name.
    let error = Nursery::start(HelperProgram::CurrentExe).unwrap_err();
    assert!(matches!(error, NurseryError::NoHelper { source: NotReady::Ended(_), .. }), "{error:?}");
}

#[test]
fn a_host_outside_a_runtime_is_an_error() {
    let nursery = Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap();
    let error = Host::start(nursery, HostOptions::default()).unwrap_err();
    assert!(matches!(error, StartError::NoRuntime), "{error:?}");
}

/// More than a pipe holds, and different for each.
fn text(seed: usize) -> Vec<u8> {
    (0..20_000).flat_map(|n| format!("{seed} {n}\n").into_bytes()).collect()
}

async fn cat(session: &Session, seed: usize) -> Process {
    let cat = session.spawn(SpawnSpec::new(["cat"])).await.unwrap();
    // The answer may come after the output was read: dropping it takes nothing back.
    drop(cat.write(&text(seed), Then::Close));
    cat
}

async fn read_by_cursor(process: &Process) -> Vec<u8> {
    let mut cursor = process.cursor(Stream::Stdout).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 65536]);
    while let CursorRead::Chunk(n) = cursor.next(&mut buffer).await.unwrap() {
        bytes.extend_from_slice(&buffer[..n]);
    }
    bytes
}

/// A session whose processes are read by one cursor each; one of them is stopped.
async fn recorded(session: Session, seeds: std::ops::Range<usize>, token: String) {
    let argv = [evil().into_os_string(), "ignore-term".into(), token.into()];
    let stubborn = session.spawn(SpawnSpec::new(argv)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for seed in seeds {
        let session = session.clone();
        tasks.spawn(async move {
            let cat = cat(&session, seed).await;
            assert!(read_by_cursor(&cat).await == text(seed), "the output of {seed} is not its input");
            assert_eq!(outcome(cat.finished().await), Some(Outcome::Completed));
        });
    }
    let receipt = stubborn.stop(StopCause::Request, Duration::from_millis(50)).await;
    assert_eq!(receipt.survivors.total, 0);
    assert_eq!(outcome(stubborn.finished().await), Some(Outcome::Killed));
    tasks.join_all().await;
    assert_eq!(session.close(Duration::from_secs(1)).await.survivors.total, 0);
}

/// A session whose one reader takes the output of all processes.
async fn relayed(session: Session, seeds: std::ops::Range<usize>) {
    let outputs = session.outputs();
    let mut expected = std::collections::BTreeMap::new();
    for seed in seeds {
        let cat = cat(&session, seed).await;
        outputs.attach(&cat);
        expected.insert(cat.id(), (text(seed), Vec::new()));
    }
    let (mut scratch, mut left) = (Vec::new(), expected.len());
    while left > 0 {
        let process = outputs.ready().await;
        let (_, got) = expected.get_mut(&process.id()).unwrap();
        let pulled = process.pull(65536, 1 << 20, &mut scratch, |chunk| {
            let whole = chunk.bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let taken = if chunk.flush == Flush::Lines { whole } else { chunk.bytes.len() };
            got.extend_from_slice(&chunk.bytes[..taken]);
            taken
        });
        match pulled.unwrap() {
            // What is lost is missing in the comparison below.
            Pulled::More | Pulled::Lost { .. } => process.requeue(),
            Pulled::Idle => {}
            Pulled::Finished => left -= 1,
        }
    }
    for (text, got) in expected.values() {
        assert!(text == got, "a process's output is not its input");
    }
    assert_eq!(session.close(Duration::from_secs(1)).await.survivors.total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_runtime_of_several_threads_serves_many_sessions_at_once() {
    let (env, token) = (TestEnv::new(), Token::new("threads"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let mut sessions = tokio::task::JoinSet::new();
    for number in 0..4 {
        let seeds = number * 100..number * 100 + 10;
        let record = host.open_session(SessionOptions::record());
        sessions.spawn(recorded(record, seeds.clone(), token.as_str().to_owned()));
        sessions.spawn(relayed(host.open_session(SessionOptions::relay()), seeds));
    }
    sessions.join_all().await;
    assert_eq!(host.live(), 0);
    host.shutdown().await;
}

#[tokio::test]
async fn a_start_that_the_end_of_the_session_overtakes_is_refused_as_one_in_a_closed_session() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let mut refused = 0;
    for _ in 0..20 {
        let session = host.open_session(SessionOptions::relay());
        let spawning: Vec<_> = (0..10).map(|_| session.spawn(SpawnSpec::new(["true"]))).collect();
        let closing = session.close(Duration::ZERO);
        for spawning in spawning {
            match spawning.await {
                Ok(_) => {}
                Err(SpawnError::SessionClosed) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        closing.await;
    }
    assert!(refused > 0, "each start was faster than its session's end");
    host.shutdown().await;
}

/// Two threads that find no spare keeper at the same time each ask for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn sessions_that_are_opened_at_once_leave_one_spare_keeper() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let mut nursery = 0;
    for _ in 0..12 {
        let start = Arc::new(Barrier::new(8));
        let mut sessions = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (host, start) = (host.clone(), Arc::clone(&start));
            sessions.spawn(async move {
                start.wait().await;
                let session = host.open_session(SessionOptions::relay());
                let cat = session.spawn(SpawnSpec::new(["cat"])).await.unwrap();
                drop(cat);
                session
            });
        }
        for session in sessions.join_all().await {
            let keeper = wait_until_async("its keeper", MAX, async || session.keeper_pid()).await;
            nursery = ProcessInfo::of(keeper).unwrap().parent;
            let _ = session.close(Duration::ZERO).await;
        }
    }
    wait_until_async("the spare keeper alone", MAX, async || {
        let keepers = children_of(nursery);
        if keepers.len() == 1 { Ok(()) } else { Err(keepers) }
    })
    .await;
    host.shutdown().await;
}

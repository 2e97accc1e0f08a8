//! Helpers that are killed or stopped, and who must not notice.

use std::time::{Duration, Instant};

use hostler_core::{
    Outcome, SessionOptions, Signal as ProcessSignal, Signalled, SpawnError, SpawnSpec, State, outcome,
};
use hostler_testkit::{Embedder, NoProcessLeft, TestEnv, Token, bin, is_alive, wait_until, wait_until_async};
use rustix::process::Signal;

use crate::{
    GRACE, MAX, NoDescriptors, evil_path, evil_process, keeper_of, kill, parent_of, run, start_host,
};

#[test]
fn an_embedder_s_own_child_and_other_sessions_notice_nothing_of_lost_helpers_and_closed_sessions() {
    let env = TestEnv::new();
    let (token, own) = (Token::new("not-ours"), Token::new("own-child"));
    let (_left, _own_left) = (NoProcessLeft::new(&token), NoProcessLeft::new(&own));
    let mut host = Embedder::start(env.command(bin("embedder")));
    let evil = evil_path();
    let child: i32 = host.ask(&["child", &evil, "double-fork", own.as_str()]).parse().unwrap();
    let members = wait_until("the embedder's own tree", MAX, || {
        let (pids, parents): (Vec<i32>, Vec<i32>) =
            own.processes().into_iter().map(|process| (process.pid, process.parent)).unzip();
        // The process between the two is gone when nobody has the child as parent.
        if pids.len() == 2 && !parents.contains(&child) { Ok(pids) } else { Err(pids) }
    });
    assert!(members.contains(&child));
    for session in ["a", "b", "c"] {
        host.session(session);
        host.spawn(session, session, &[&evil, "double-fork", token.as_str()]);
        host.first_line(session);
    }
    let (keeper, other) = (host.keeper("a"), host.keeper("b"));
    kill(keeper, Signal::KILL);
    let end = host.ask(&["finished", "a"]);
    assert!(end.contains("KeeperLost"), "{end}");
    host.close("c", GRACE);
    // The embedder's tree makes this its second child.
    let nursery = parent_of(other);
    kill(nursery, Signal::KILL);
    wait_until("another nursery", MAX, || host.ask(&["nurseries"]) == "1");
    assert_eq!((own.pids(), token.pids().len()), (members, 2));
    assert_eq!(host.ask(&["state", "b"]), "Running");
    assert_eq!(host.keeper("b"), other);
    host.close("b", GRACE);
    token.wait_until_gone(MAX).unwrap();
    assert_eq!(own.pids().len(), 2);
    own.kill_all();
}

#[tokio::test]
async fn a_keeper_that_is_lost_after_its_nursery_is_reported_and_its_roots_die() {
    let (env, token) = (TestEnv::new(), Token::new("both-lost"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let roots =
        [evil_process(&session, "pause", &token).await, evil_process(&session, "pause", &token).await];
    let keeper = keeper_of(&session).await;
    kill(parent_of(keeper), Signal::KILL);
    wait_until_async("another nursery", MAX, async || host.nursery_replacements() == 1).await;
    kill(keeper, Signal::KILL);
    for root in &roots {
        assert_eq!(outcome(root.finished().await), Some(Outcome::Lost));
    }
    token.wait_until_gone(MAX).expect("the host kills what it holds itself");
    assert_eq!(run(&session, "echo again").await, "again\n");
    session.close(GRACE).await;
}

#[tokio::test]
async fn a_keeper_without_room_for_a_program_s_pipes_refuses_that_program_alone() {
    let (env, token) = (TestEnv::new(), Token::new("no-room-for-pipes"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let running = evil_process(&session, "pause", &token).await;
    let full = NoDescriptors::new(keeper_of(&session).await);
    match session.spawn(SpawnSpec::new(["true"])).await {
        Err(SpawnError::Resources(error)) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE)),
        other => panic!("{other:?}"),
    }
    assert_eq!(running.state(), State::Running);
    drop(full);
    assert_eq!(run(&session, "echo fine").await, "fine\n");
    assert_eq!(running.state(), State::Running);
    session.close(GRACE).await;
}

#[tokio::test]
async fn a_keeper_that_can_start_nothing_any_more_is_lost_and_the_session_goes_on() {
    let (env, token) = (TestEnv::new(), Token::new("lost-spawner"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let running = evil_process(&session, "double-fork", &token).await;
    let keeper = keeper_of(&session).await;
    let full = NoDescriptors::new(keeper);
    // Its bytes come in a file, for which there is no room: the keeper cannot even tell what was asked.
    let argv = ["true".to_owned(), "x".repeat(100_000), "x".repeat(100_000)];
    let refused = session.spawn(SpawnSpec::new(argv)).await;
    assert!(matches!(refused, Err(SpawnError::KeeperLost)), "{refused:?}");
    assert_eq!(outcome(running.finished().await), Some(Outcome::Lost));
    assert_eq!((running.status().doubt, token.pids()), (None, vec![]));
    drop(full);
    assert_eq!(run(&session, "echo again").await, "again\n");
    assert_ne!(keeper_of(&session).await, keeper);
    session.close(GRACE).await;
}

#[tokio::test]
async fn a_kill_through_a_keeper_that_stands_still_gives_the_keeper_up() {
    let (env, token) = (TestEnv::new(), Token::new("stopped-kill"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let (a, b) = (host.open_session(SessionOptions::record()), host.open_session(SessionOptions::record()));
    let daemon = evil_process(&a, "double-fork", &token).await;
    let stranger = evil_process(&b, "pause", &token).await;
    let keeper = keeper_of(&a).await;
    kill(keeper, Signal::STOP);
    let began = Instant::now();
    let killing = daemon.signal(ProcessSignal::Kill, Duration::from_secs(1));
    assert_eq!(run(&b, "echo meanwhile").await, "meanwhile\n");
    let said = killing.await;
    assert!(began.elapsed() < Duration::from_secs(20), "{said:?} after {:?}", began.elapsed());
    assert!(matches!(said, Signalled::Ended { .. } | Signalled::Alive { .. }), "{said:?}");
    daemon.finished().await;
    wait_until_async("only the stranger is left", MAX, async || {
        let left = token.pids();
        if left == [stranger.pid().unwrap()] { Ok(()) } else { Err(left) }
    })
    .await;
    assert!(!is_alive(keeper));
    assert_eq!(run(&a, "echo again").await, "again\n");
    a.close(GRACE).await;
    b.close(GRACE).await;
}

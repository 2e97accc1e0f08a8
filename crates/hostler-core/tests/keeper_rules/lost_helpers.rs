//! Helpers that are killed or stopped, and who must not notice.

use std::fs;
use std::time::{Duration, Instant};

use hostler_core::{
    Outcome, SessionOptions, Signal as ProcessSignal, Signalled, SpawnError, SpawnSpec, State, outcome,
};
use hostler_testkit::{
    Embedder, NoProcessLeft, TestEnv, Token, bin, children_of, is_alive, wait_until, wait_until_async,
};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

use crate::{
    GRACE, MAX, NoDescriptors, Stopped, evil_path, evil_process, keeper_of, kill, parent_of, run, start_host,
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

/// Its bytes are more than a packet holds, and come in a file.
fn large() -> SpawnSpec {
    SpawnSpec::new(["true".to_owned(), "x".repeat(100_000), "x".repeat(100_000)])
}

#[tokio::test]
async fn a_keeper_without_room_for_a_program_s_descriptors_refuses_that_program_alone() {
    let (env, token) = (TestEnv::new(), Token::new("no-room-for-pipes"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let running = evil_process(&session, "pause", &token).await;
    let keeper = keeper_of(&session).await;
    for (spec, wanted) in [(SpawnSpec::new(["true"]), 3), (large(), 4)] {
        for room in 0..wanted {
            let full = NoDescriptors::but(keeper, room);
            match session.spawn(spec.clone()).await {
                Err(SpawnError::Resources(error)) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE)),
                other => panic!("room for {room} of {wanted}: {other:?}"),
            }
            drop(full);
            assert_eq!(running.state(), State::Running, "room for {room} of {wanted}");
        }
        session.spawn(spec).await.unwrap();
    }
    assert_eq!(run(&session, "echo fine").await, "fine\n");
    assert_eq!((running.state(), keeper_of(&session).await), (State::Running, keeper));
    session.close(GRACE).await;
}

#[test]
fn a_keeper_that_cannot_read_what_its_session_is_like_is_replaced() {
    let env = TestEnv::new();
    let mut command = env.command(bin("embedder"));
    for name in ["LONG_A", "LONG_B"] {
        command.env(name, "x".repeat(100_000));
    }
    let mut host = Embedder::start(command);
    let nursery = host.nursery();
    let spare = wait_until("the spare keeper", MAX, || children_of(nursery).first().copied());
    // It raises its own limit while it comes up, and sleeps when it is done with that.
    wait_until("a keeper that has come up", MAX, || {
        fs::read_dir(format!("/proc/{spare}/task")).is_ok_and(|threads| threads.count() == 2)
    });
    let full = NoDescriptors::new(spare);
    host.session("a");
    let refused = host.request(&["spawn", "a", "refused", "0", "true"]).unwrap_err();
    assert!(refused.contains("keeper"), "{refused}");
    wait_until("the end of that keeper", MAX, || !is_alive(spare));
    drop(full);
    host.spawn("a", "a", &["true"]);
    assert!(host.ask(&["finished", "a"]).contains("Completed"));
    host.close("a", GRACE);
}

/// The keeper reads no request any more.
fn end_requests(keeper: i32) {
    let pidfd = pidfd_open(Pid::from_raw(keeper).unwrap(), PidfdFlags::empty()).unwrap();
    // What it opens first is its end of the spawn socket.
    let socket = pidfd_getfd(pidfd, 3, PidfdGetfdFlags::empty()).unwrap();
    shutdown(socket, Shutdown::Both).unwrap();
}

#[tokio::test]
async fn a_keeper_that_can_start_nothing_any_more_is_lost_and_the_session_goes_on() {
    let (env, token) = (TestEnv::new(), Token::new("lost-spawner"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let running = evil_process(&session, "double-fork", &token).await;
    let keeper = keeper_of(&session).await;
    end_requests(keeper);
    assert_eq!(outcome(running.finished().await), Some(Outcome::Lost));
    assert_eq!((running.status().doubt, token.pids()), (None, vec![]));
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
    // It would let the keeper go on.
    let nursery = Stopped::new(parent_of(keeper));
    kill(keeper, Signal::STOP);
    let began = Instant::now();
    let killing = daemon.signal(ProcessSignal::Kill, Duration::from_secs(1));
    assert_eq!(run(&b, "echo meanwhile").await, "meanwhile\n");
    let killing = tokio::spawn(killing);
    wait_until_async("a keeper that is given up", MAX, async || !is_alive(keeper)).await;
    drop(nursery);
    let said = killing.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{said:?} after {:?}", began.elapsed());
    // The second is over by then: whether the end has been told as well is a matter of moments, what was left is not.
    let (Signalled::Ended { receipt, .. } | Signalled::Alive { receipt }) = &said else {
        panic!("{said:?}");
    };
    assert_eq!((receipt.survivors.total, receipt.doubt), (0, None), "{said:?}");
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

#[tokio::test]
async fn a_keeper_that_somebody_stops_goes_on_at_once() {
    let (env, token) = (TestEnv::new(), Token::new("stopped-goes-on"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let daemon = evil_process(&session, "double-fork", &token).await;
    let keeper = keeper_of(&session).await;
    for _ in 0..20 {
        kill(keeper, Signal::STOP);
        assert_eq!(run(&session, "echo on").await, "on\n");
    }
    kill(keeper, Signal::STOP);
    let said = daemon.signal(ProcessSignal::Kill, MAX).await;
    let Signalled::Ended { receipt, .. } = &said else { panic!("{said:?}") };
    assert_eq!((receipt.survivors.total, receipt.doubt), (0, None), "{said:?}");
    assert_eq!(keeper_of(&session).await, keeper, "it is the same one");
    kill(keeper, Signal::STOP);
    assert_eq!(session.close(GRACE).await.doubt, None);
}

#[tokio::test]
async fn a_nursery_that_somebody_stops_starts_the_next_keepers() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let first = host.open_session(SessionOptions::record());
    assert_eq!(run(&first, "echo first").await, "first\n");
    let nursery = parent_of(keeper_of(&first).await);
    // The spare keeper does for one of them.
    for _ in 0..3 {
        kill(nursery, Signal::STOP);
        let session = host.open_session(SessionOptions::record());
        assert_eq!(run(&session, "echo next").await, "next\n");
        session.close(GRACE).await;
    }
    assert_eq!(host.nursery_replacements(), 0);
}

#[test]
fn helpers_that_were_stopped_do_not_outlive_their_host() {
    let env = TestEnv::new();
    let token = Token::new("stopped-helpers");
    let _left = NoProcessLeft::new(&token);
    let mut host = Embedder::start(env.command(bin("embedder")));
    for session in ["a", "b"] {
        host.session(session);
        host.spawn(session, session, &[&evil_path(), "double-fork", token.as_str()]);
        host.first_line(session);
    }
    let (helpers, keeper) = (host.helpers(), host.keeper("a"));
    // The nursery is the first of them, or it would let the others go on.
    helpers.iter().for_each(|pid| kill(*pid, Signal::STOP));
    host.kill();
    // A keeper that stands still sees nothing: somebody lets one of them go on, and that wakes the rest.
    kill(keeper, Signal::CONT);
    token.wait_until_gone(MAX).expect("both sessions end");
    wait_until("nursery and keepers are gone", MAX, || helpers.iter().all(|pid| !is_alive(*pid)));
}

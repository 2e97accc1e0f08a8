//! Receipts where something is wrong: they say what nobody knows, and claim nothing.

use std::time::Duration;

use hostler_core::{Doubt, Outcome, SessionOptions, Signal as ProcessSignal, Signalled, StopCause, outcome};
use hostler_testkit::{NoProcessLeft, TestEnv, Token};
use rustix::process::Signal;

use crate::{GRACE, MAX, NoDescriptors, Stopped, evil_process, keeper_of, kill, parent_of, run, start_host};

/// Longer than anything here takes: the programs ignore SIGTERM, so nothing ends before it.
const LONG_GRACE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_keeper_that_cannot_look_says_so_and_goes_on_once_it_can() {
    let (env, token) = (TestEnv::new(), Token::new("blind-keeper"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "ignore-term", &token).await;
    let (root, keeper) = (process.pid().unwrap(), keeper_of(&session).await);
    let blind = NoDescriptors::new(keeper);
    let Signalled::Ended { receipt, .. } = process.signal(ProcessSignal::Kill, MAX).await else {
        panic!("the root is a child, for whose death nobody needs to look")
    };
    assert_eq!(receipt.doubt, Some(Doubt::Unseen { errno: libc::EMFILE }), "{receipt:?}");
    assert_eq!(receipt.signalled.pids, [root]);
    assert_eq!(process.status().survivors.total, 1, "somebody, nobody knows who");
    assert!(!token.pids().is_empty());
    drop(blind);
    let receipt = process.stop(StopCause::Request, GRACE).await;
    assert_eq!((receipt.doubt, receipt.survivors.total, token.pids()), (None, 0, vec![]), "{receipt:?}");
    let receipt = session.close(GRACE).await;
    assert_eq!((receipt.doubt, receipt.survivors.total, receipt.unattributed.total), (None, 0, 0));
}

#[tokio::test]
async fn a_nursery_that_is_out_of_descriptors_sweeps_up_all_the_same() {
    let (env, token) = (TestEnv::new(), Token::new("poor-nursery"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "hard-daemon", &token).await;
    let keeper = keeper_of(&session).await;
    let poor = NoDescriptors::new(parent_of(keeper));
    kill(keeper, Signal::KILL);
    assert_eq!(outcome(process.finished().await), Some(Outcome::Lost));
    assert_eq!((process.status().doubt, token.pids()), (None, vec![]));
    drop(poor);
    assert_eq!(run(&session, "echo again").await, "again\n");
    session.close(GRACE).await;
}

#[tokio::test]
async fn a_keeper_that_is_lost_during_a_close_leaves_a_receipt_once_its_remains_are_dead() {
    let (env, token) = (TestEnv::new(), Token::new("lost-in-close"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "ignore-term", &token).await;
    let keeper = keeper_of(&session).await;
    let closing = session.close(LONG_GRACE);
    kill(keeper, Signal::KILL);
    let receipt = closing.await;
    assert_eq!((receipt.doubt, token.pids()), (None, vec![]), "{receipt:?}");
    assert_eq!(outcome(process.finished().await), Some(Outcome::Lost));
}

#[tokio::test]
async fn a_close_whose_keeper_is_lost_and_not_swept_up_after_says_that_nobody_knows() {
    let (env, token) = (TestEnv::new(), Token::new("unswept-close"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "double-fork", &token).await;
    let keeper = keeper_of(&session).await;
    let nursery = Stopped::new(parent_of(keeper));
    let _stands_still = Stopped::new(keeper);
    let closing = session.close(LONG_GRACE);
    kill(keeper, Signal::KILL);
    let receipt = closing.await;
    assert_eq!(receipt.doubt, Some(Doubt::KeeperLost), "{receipt:?}");
    assert_eq!(outcome(process.finished().await), Some(Outcome::Lost));
    assert_eq!(process.status().doubt, Some(Doubt::KeeperLost));
    drop(nursery);
    token.wait_until_gone(MAX).expect("the nursery goes on");
}

#[tokio::test]
async fn a_stop_whose_keeper_is_lost_and_not_swept_up_after_says_that_nobody_knows() {
    let (env, token) = (TestEnv::new(), Token::new("unswept-stop"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "double-fork", &token).await;
    let keeper = keeper_of(&session).await;
    let nursery = Stopped::new(parent_of(keeper));
    let _stands_still = Stopped::new(keeper);
    let stopping = process.stop(StopCause::Request, LONG_GRACE);
    kill(keeper, Signal::KILL);
    let receipt = stopping.await;
    assert_eq!(receipt.doubt, Some(Doubt::KeeperLost), "{receipt:?}");
    // Who asks after that is told the same.
    assert_eq!(process.stop(StopCause::Request, GRACE).await.doubt, Some(Doubt::KeeperLost));
    drop(nursery);
    token.wait_until_gone(MAX).expect("the nursery goes on");
    assert_eq!(run(&session, "echo again").await, "again\n");
    assert_eq!(session.close(GRACE).await.doubt, None);
}

#[tokio::test]
async fn who_closes_a_session_again_waits_for_the_same_end() {
    let (env, token) = (TestEnv::new(), Token::new("closed-twice"));
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    evil_process(&session, "ignore-term", &token).await;
    let first = session.close(GRACE);
    let second = session.close(GRACE).await;
    assert_eq!(token.pids(), [] as [i32; 0]);
    assert!(second.signalled.total > 0, "{second:?}");
    assert_eq!(first.await, second);
    assert_eq!(session.close(GRACE).await, second);
}

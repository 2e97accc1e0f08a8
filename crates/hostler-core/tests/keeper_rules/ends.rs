//! Ends of sessions that race with starts and with forks, and stops of what hides from the keeper's own list.

use std::time::Duration;

use hostler_core::{SessionOptions, SpawnError, SpawnSpec, StopCause};
use hostler_testkit::{NoProcessLeft, SharedCounter, TestEnv, Token, wait_until};
use rustix::process::Signal;

use crate::{GRACE, MAX, evil_path, evil_process, kill, run, start_host, start_host_without_groups};

const RACES: usize = 150;

#[tokio::test]
async fn a_start_that_races_with_its_session_s_end_does_not_happen_or_ends_with_it() {
    let env = TestEnv::new();
    let host = start_host(&env);
    for race in 0..RACES {
        let token = Token::new("start-and-end");
        let _left = NoProcessLeft::new(&token);
        let session = host.open_session(SessionOptions::record());
        if race % 2 == 0 {
            run(&session, ":").await;
        }
        let ignores_term = "trap '' TERM; read never";
        let started = session.spawn(SpawnSpec::new(["sh", "-c", ignores_term, token.as_str()]));
        let receipt = session.close(Duration::ZERO).await;
        assert_eq!((receipt.survivors.total, receipt.doubt), (0, None), "race {race}");
        assert_eq!(token.pids(), [0_i32; 0], "race {race}: alive after the receipt");
        match started.await {
            Ok(_) | Err(SpawnError::SessionClosed | SpawnError::Canceled) => {}
            Err(other) => panic!("race {race}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn many_chains_of_forks_at_once_end_with_their_session_and_hold_nobody_up() {
    let env = TestEnv::new();
    let host = start_host_without_groups(&env);
    for chains in ["10", "30"] {
        let token = Token::new("fork-chains");
        let _left = NoProcessLeft::new(&token);
        let counter = SharedCounter::create(&env.work(), &format!("counter-{chains}"));
        let session = host.open_session(SessionOptions::record());
        let path = counter.path().to_str().unwrap().to_owned();
        let argv = [evil_path(), "fork-chains".into(), chains.into(), path, token.as_str().to_owned()];
        let bomb = session.spawn(SpawnSpec::new(argv)).await.unwrap();
        crate::ready(&bomb).await;
        // A neighbour is reported all the same.
        assert_eq!(run(&session, "echo beside").await, "beside\n");
        let receipt = session.close(GRACE).await;
        assert_eq!((receipt.survivors.total, receipt.doubt), (0, None), "{chains} chains");
        let links = counter.value();
        counter.wait_for_silence(GRACE, MAX);
        assert_eq!(counter.value(), links, "{chains} chains: some went on after the receipt");
        assert_eq!(token.pids(), [0_i32; 0], "{chains} chains");
    }
}

#[tokio::test]
async fn a_child_that_was_given_to_the_keeper_itself_is_stopped_with_its_process() {
    let env = TestEnv::new();
    for host in [start_host(&env), start_host_without_groups(&env)] {
        let token = Token::new("clone-parent");
        let _left = NoProcessLeft::new(&token);
        let session = host.open_session(SessionOptions::record());
        let process = evil_process(&session, "clone-parent", &token).await;
        assert_eq!(token.pids().len(), 2);
        let receipt = process.stop(StopCause::Request, GRACE).await;
        assert_eq!((receipt.survivors.total, receipt.doubt), (0, None));
        assert_eq!(token.pids(), [0_i32; 0], "alive after the receipt");
        // Left behind by its root, it lingers as any other descendant.
        let process = evil_process(&session, "clone-parent", &token).await;
        kill(process.pid().unwrap(), Signal::KILL);
        process.ended().await;
        assert_eq!(process.status().survivors.total, 1);
        let receipt = process.stop(StopCause::Request, GRACE).await;
        assert_eq!((receipt.survivors.total, receipt.doubt), (0, None));
        assert_eq!(token.pids(), [0_i32; 0], "alive after the receipt");
        // One that is left until the end of its session does not hold that up.
        evil_process(&session, "clone-parent", &token).await;
        let receipt = session.close(GRACE).await;
        assert_eq!((receipt.survivors.total, receipt.doubt), (0, None));
        assert_eq!(token.pids(), [0_i32; 0]);
    }
}

#[tokio::test]
async fn the_place_of_a_lingerer_is_free_when_its_kill_is_answered() {
    let env = TestEnv::new();
    for host in [start_host(&env), start_host_without_groups(&env)] {
        let token = Token::new("place-of-lingerer");
        let _left = NoProcessLeft::new(&token);
        let session = host.open_session(SessionOptions { max_processes: 1, ..SessionOptions::record() });
        for round in 0..RACES {
            // The root ends at once; the child that holds its pipes, and with them its place, is killed.
            let script = "sleep 600 & exit 3";
            let started = session.spawn(SpawnSpec::new(["sh", "-c", script, token.as_str()])).await;
            let process = started.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            process.ended().await;
            let receipt = process.stop(StopCause::Request, Duration::ZERO).await;
            assert_eq!((receipt.survivors.total, receipt.doubt), (0, None), "round {round}");
        }
        session.close(GRACE).await;
    }
}

#[tokio::test]
async fn a_private_folder_goes_with_its_session_and_with_a_keeper_whose_host_has_hung_up() {
    let env = TestEnv::new();
    let host = start_host(&env);
    for started in [false, true] {
        let folder = env.root().join(format!("secret-{started}"));
        let options = SessionOptions { private_folder: Some(folder.clone()), ..SessionOptions::record() };
        let session = host.open_session(options);
        std::fs::create_dir_all(folder.join("run")).unwrap();
        if started {
            session.spawn(SpawnSpec::new(["true"])).await.unwrap().finished().await;
        }
        assert!(folder.exists());
        session.close(GRACE).await;
        drop(session);
        wait_until("the folder to go", MAX, || if folder.exists() { Err("there") } else { Ok(()) });
    }
}

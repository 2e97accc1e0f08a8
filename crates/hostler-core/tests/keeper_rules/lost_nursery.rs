//! A nursery that cannot be started again: nobody spins, everybody is told why, and it is over once its cause is.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use hostler_core::{Host, NoKeeper, SessionOptions, SpawnError, SpawnSpec};
use hostler_testkit::{TestEnv, bin, wait_until_async};
use rustix::process::Signal;

use crate::{GRACE, MAX, NoDescriptors, keeper_of, kill, parent_of, run, start_host_with};

/// Lets the name stand for another program, in one step.
fn become_link_to(helper: &Path, program: &Path) {
    let new = helper.with_extension("new");
    symlink(program, &new).unwrap();
    fs::rename(new, helper).unwrap();
}

/// The answer to a session's first program, in sessions of their own: a session that has a keeper needs no nursery.
async fn refusal(host: &Host) -> Option<NoKeeper> {
    let session = host.open_session(SessionOptions::record());
    let started = session.spawn(SpawnSpec::new(["true"])).await;
    session.close(GRACE).await;
    match started {
        Err(SpawnError::NoKeeper(reason)) => Some(reason),
        // The spare keeper was left, or the request was on its way when the nursery died.
        Ok(_) | Err(SpawnError::KeeperLost) => None,
        Err(other) => unreachable!("{other:?}"),
    }
}

#[tokio::test]
async fn a_nursery_without_room_for_a_keeper_s_sockets_says_so_and_goes_on_once_there_is() {
    let env = TestEnv::new();
    let host = start_host_with(&env, bin("embedder"));
    let session = host.open_session(SessionOptions::record());
    assert_eq!(run(&session, "echo before").await, "before\n");
    let full = NoDescriptors::new(parent_of(keeper_of(&session).await));
    wait_until_async("a refusal that names the cause", MAX, async || match refusal(&host).await {
        Some(NoKeeper::NotStarted { errno }) if errno == libc::EMFILE => Ok(()),
        other => Err(other),
    })
    .await;
    drop(full);
    let again = host.open_session(SessionOptions::record());
    wait_until_async("a keeper", MAX, async || again.spawn(SpawnSpec::new(["true"])).await).await;
    session.close(GRACE).await;
    again.close(GRACE).await;
    assert_eq!(host.nursery_replacements(), 0);
}

async fn check(helper_text: &str, expected: &str, starts: impl Fn(&TestEnv) -> usize) {
    let env = TestEnv::new();
    let (helper, broken) = (env.work().join("helper"), env.work().join("broken"));
    fs::write(&broken, helper_text.replace("COUNT", env.work().join("count").to_str().unwrap())).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(bin("embedder"), &helper).unwrap();
    let host = start_host_with(&env, helper.clone());
    let session = host.open_session(SessionOptions::record());
    assert_eq!(run(&session, "echo before").await, "before\n");
    become_link_to(&helper, &broken);
    kill(parent_of(keeper_of(&session).await), Signal::KILL);
    let said = |reason: &NoKeeper| reason.to_string().contains(expected);
    wait_until_async("a refusal that names the cause", MAX, async || {
        let reason = refusal(&host).await;
        if reason.as_ref().is_some_and(said) { Ok(()) } else { Err(reason) }
    })
    .await;
    let mut refused = 0;
    while refused < 200 {
        refused += usize::from(refusal(&host).await.is_some());
    }
    // With pauses of 0, 100, 200, 400 ms and so on up to 5 s there is no time for more.
    assert!(starts(&env) < 20, "{} starts", starts(&env));
    assert_eq!(run(&session, "echo meanwhile").await, "meanwhile\n");
    become_link_to(&helper, &bin("embedder"));
    let again = host.open_session(SessionOptions::record());
    wait_until_async("another nursery", MAX, async || again.spawn(SpawnSpec::new(["true"])).await).await;
    assert_eq!(run(&again, "echo again").await, "again\n");
    session.close(GRACE).await;
    again.close(GRACE).await;
    drop((session, again));
    host.shutdown().await;
}

#[tokio::test]
async fn a_nursery_that_ends_at_once_is_tried_with_pauses_and_its_end_is_named() {
    let starts = |env: &TestEnv| fs::read_to_string(env.work().join("count")).unwrap().lines().count();
    check("#!/bin/sh\necho start >>COUNT\nexit 3\n", "exit status: 3", starts).await;
}

#[tokio::test]
async fn a_nursery_that_cannot_be_executed_is_tried_with_pauses_and_the_error_is_named() {
    check("neither a binary nor a script", "Exec format error", |_| 0).await;
}

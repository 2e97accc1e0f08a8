//! An exec that the kernel never finishes: vfork stops the thread that called it, and nothing else may stand still.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use hostler_core::{CursorRead, Session, SessionOptions, SpawnSpec, Stream, Then};
use hostler_testkit::{
    DeadFuse, Embedder, NoProcessLeft, TestEnv, Token, bin, children_of, evil, wait_until, wait_until_async,
    without_clone3,
};

use crate::{GRACE, MAX, evil_path, evil_process, keeper_of, run, start_host_with, wait_for_helpers};

/// `None`, with a word about it, where none can be mounted.
#[expect(clippy::print_stderr, reason = "for people who read the output of a test")]
fn dead_fuse() -> Option<DeadFuse> {
    DeadFuse::mount()
        .inspect_err(|error| eprintln!("skipped: no file system that makes an exec hang: {error}"))
        .ok()
}

/// The child of a keeper that is neither of those.
fn hanging_child(keeper: i32, known: &[i32]) -> Option<i32> {
    children_of(keeper).into_iter().find(|pid| !known.contains(pid))
}

/// Starts what hangs, and waits until the kernel has it.
async fn hang(session: &Session, fuse: &DeadFuse, known: &[i32]) {
    tokio::spawn(session.spawn(SpawnSpec::new([fuse.program()])));
    let keeper = keeper_of(session).await;
    wait_until_async("a child that hangs in exec", MAX, async || hanging_child(keeper, known)).await;
}

/// A helper program for which, and for whose keepers, there is no clone3(2): they start programs by clone(2).
fn helper_without_clone3(env: &TestEnv) -> PathBuf {
    let path = env.work().join("helper-without-clone3");
    let [evil, helper] = [evil(), bin("embedder")].map(|path| path.display().to_string());
    fs::write(&path, format!("#!/bin/sh\nexec '{evil}' without-clone3 '{helper}' \"$@\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn beside_an_exec_that_hangs_running_processes_talk_on_and_the_session_ends_in_time() {
    running_processes_talk_on_and_the_session_ends(&TestEnv::new(), |_| bin("embedder")).await;
}

#[tokio::test]
async fn without_clone3_running_processes_talk_on_and_the_session_ends_in_time_as_well() {
    running_processes_talk_on_and_the_session_ends(&TestEnv::new(), helper_without_clone3).await;
}

async fn running_processes_talk_on_and_the_session_ends(env: &TestEnv, helper: fn(&TestEnv) -> PathBuf) {
    let Some(fuse) = dead_fuse() else { return };
    let token = Token::new("hung-beside");
    let _left = NoProcessLeft::new(&token);
    let host = start_host_with(env, helper(env));
    let (a, b) = (host.open_session(SessionOptions::record()), host.open_session(SessionOptions::record()));
    let echo = evil_process(&a, "echo", &token).await;
    let daemon = evil_process(&a, "hard-daemon", &token).await;
    let exiting = a.spawn(SpawnSpec::new(["sh", "-c", "read line; exit 7"])).await.unwrap();
    let known = [&echo, &daemon, &exiting].map(|process| process.pid().unwrap());
    // Daemons of the session are the keeper's children as well.
    let keeper = keeper_of(&a).await;
    let before = [&known[..], &children_of(keeper)].concat();
    hang(&a, &fuse, &before).await;
    echo.write(b"still here\n", Then::Close).done().await.unwrap();
    let mut cursor = echo.cursor(Stream::Stdout).unwrap();
    let mut buffer = [0; 64];
    let mut text = Vec::new();
    while let CursorRead::Chunk(n) = cursor.next(&mut buffer).await.unwrap() {
        text.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(String::from_utf8_lossy(&text), "ready\nstill here\n");
    exiting.close_stdin().done().await.unwrap();
    let end = format!("{:?}", exiting.finished().await);
    assert!(end.contains("Code(7)"), "an exit is noticed: {end}");
    assert_eq!(run(&b, "echo other session").await, "other session\n");
    let receipt = tokio::time::timeout(Duration::from_secs(10), a.close(GRACE)).await.unwrap();
    assert_eq!(receipt.survivors.total, 0, "{receipt:?}");
    token.wait_until_gone(MAX).unwrap();
    wait_for_helpers(&[keeper]);
    b.close(GRACE).await;
}

#[test]
fn an_exec_that_hangs_does_not_hide_the_host_s_death() {
    the_host_s_death_is_seen(|command| command);
}

#[test]
fn without_clone3_it_does_not_hide_the_host_s_death_either() {
    the_host_s_death_is_seen(|command| without_clone3(&command));
}

fn the_host_s_death_is_seen(wrapped: fn(Command) -> Command) {
    let Some(fuse) = dead_fuse() else { return };
    let (env, token) = (TestEnv::new(), Token::new("hung-host-kill"));
    let _left = NoProcessLeft::new(&token);
    let mut host = Embedder::start(wrapped(env.command(bin("embedder"))));
    host.session("a");
    let plain = host.spawn("a", "plain", &[&evil_path(), "plain", token.as_str()]);
    host.first_line("plain");
    let keeper = host.keeper("a");
    // Never answered: the embedder waits for it when it is killed.
    host.send(&["spawn", "a", "hanging", "0", fuse.program().to_str().unwrap()]);
    let hanging = wait_until("a child that hangs in exec", MAX, || hanging_child(keeper, &[plain.pid]));
    let helpers = [host.helpers(), vec![hanging]].concat();
    host.kill();
    token.wait_until_gone(MAX).unwrap();
    wait_for_helpers(&helpers);
}

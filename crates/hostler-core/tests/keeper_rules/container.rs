//! A host that is pid 1 of a container: the kernel gives it the orphans of everybody there.

use std::process::Command;

use hostler_testkit::{
    Embedder, NoProcessLeft, TestEnv, Token, bin, children_of, descendants, is_alive, wait_until,
};
use rustix::process::Signal;

use crate::{GRACE, MAX, evil_path, kill, parent_of};

/// `command` as pid 1 of a namespace with a /proc of its own; killed with its parent, so that a failed test leaves nothing.
fn as_pid_1(env: &TestEnv, program: &str) -> Command {
    let mut command = env.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", program]);
    command
}

#[test]
fn orphans_that_a_container_gives_to_its_pid_1_are_not_touched() {
    let env = TestEnv::new();
    if !as_pid_1(&env, "true").status().unwrap().success() {
        eprintln!("skipped: no pid namespace can be made here");
        return;
    }
    let (token, other) = (Token::new("in-container"), Token::new("container-orphan"));
    let (_left, _other_left) = (NoProcessLeft::new(&token), NoProcessLeft::new(&other));
    let program = bin("embedder");
    let mut host = Embedder::start(as_pid_1(&env, program.to_str().unwrap()));
    let evil = evil_path();
    host.ask(&["child", "sh", "-c", "\"$0\" pause \"$1\" &", &evil, other.as_str()]);
    // All pids that are looked at here are those outside.
    let unshare = host.pid();
    let pid_1 = wait_until("the host in its container", MAX, || children_of(unshare).first().copied());
    let orphan = wait_until("an orphan below pid 1", MAX, || {
        let bearers = other.processes();
        match bearers.as_slice() {
            // The shell bears the token as well, and is a child of pid 1 until it ends.
            [orphan] if orphan.parent == pid_1 && orphan.cmdline.starts_with(&evil) => Ok(orphan.pid),
            _ => Err(bearers),
        }
    });
    for session in ["a", "b"] {
        host.session(session);
        host.spawn(session, session, &[&evil, "pause", token.as_str()]);
        host.first_line(session);
    }
    let [first, second] = token.pids().try_into().unwrap();
    let nursery = parent_of(parent_of(first));
    assert!(descendants(pid_1).contains(&nursery));
    kill(parent_of(first), Signal::KILL);
    let end = host.ask(&["finished", "a"]);
    assert!(end.contains("KeeperLost"), "{end}");
    assert!(is_alive(orphan) && is_alive(second));
    // Its keepers become children of pid 1 as well, and go on.
    kill(nursery, Signal::KILL);
    wait_until("another nursery", MAX, || host.ask(&["nurseries"]) == "1");
    host.spawn("b", "more", &[&evil, "double-fork", token.as_str()]);
    host.first_line("more");
    assert_eq!(host.close("b", GRACE).survivors, 0);
    token.wait_until_gone(MAX).unwrap();
    host.session("c");
    host.spawn("c", "true", &["true"]);
    assert!(host.ask(&["finished", "true"]).contains("Code(0)"));
    host.close("c", GRACE);
    assert!(is_alive(orphan));
    other.kill_all();
}

//! Hosts that somebody has started carelessly, and what of that reaches helpers and programs.

use std::fs;

use hostler_testkit::{Embedder, NoProcessLeft, TestEnv, Token, bin, wait_until};
use rustix::process::Signal;

use crate::{GRACE, MAX, evil_path, kill};

/// The embedder behind `env`, which can block and ignore signals in what it becomes.
fn embedder_behind_env(env: &TestEnv, options: &[&str]) -> Embedder {
    let mut command = env.command("env");
    command.args(options).arg(bin("embedder"));
    Embedder::start(command)
}

#[test]
fn signals_that_the_host_blocks_reach_children_unblocked() {
    let (env, token) = (TestEnv::new(), Token::new("blocked"));
    let _left = NoProcessLeft::new(&token);
    let mut host = embedder_behind_env(&env, &["--block-signal=INT,QUIT,HUP,TERM,USR1,ALRM,CHLD,PIPE"]);
    host.session("a");
    host.spawn("a", "report", &[&evil_path(), "print-signals", token.as_str()]);
    let signals = host.ask(&["output", "report"]);
    assert!(signals.contains("SigBlk 0000000000000000|SigIgn 0000000000000000"), "{signals}");
    // A program that INT is sent to dies of it.
    host.spawn("a", "pause", &[&evil_path(), "pause", token.as_str()]);
    host.first_line("pause");
    assert_eq!(host.signal("pause", "INT").0, "ended");
    host.close("a", GRACE);
}

#[test]
fn a_host_whose_children_the_kernel_reaps_hears_of_every_end() {
    let (env, token) = (TestEnv::new(), Token::new("ignored-chld"));
    let _left = NoProcessLeft::new(&token);
    let mut host = embedder_behind_env(&env, &["--ignore-signal=CHLD"]);
    host.session("a");
    host.spawn("a", "three", &["sh", "-c", "(exit 2); exit $(($? + 1))"]);
    let end = host.ask(&["finished", "three"]);
    assert!(end.contains("Code(3)"), "{end}");
    kill(host.nursery(), Signal::KILL);
    wait_until("another nursery", MAX, || host.ask(&["nurseries"]) == "1");
    host.session("b");
    host.spawn("b", "pause", &[&evil_path(), "pause", token.as_str()]);
    assert_eq!(host.first_line("pause"), "ready");
    host.kill();
}

#[test]
fn programs_get_the_host_s_environment_and_the_id_and_helpers_get_nothing_of_the_host() {
    let (env, token) = (TestEnv::new(), Token::new("scrubbed"));
    let _left = NoProcessLeft::new(&token);
    let mut command = env.command("sh");
    // A descriptor that the host was started with and does not know.
    command.arg("-c").arg("exec \"$0\" 7</dev/zero").arg(bin("embedder")).env("SECRET", "of-the-host");
    let mut host = Embedder::start(command);
    host.session("a");
    let pause = host.spawn("a", "pause", &[&evil_path(), "pause", token.as_str()]);
    host.first_line("pause");
    let block = fs::read_to_string(format!("/proc/{}/environ", pause.pid)).unwrap();
    let mut names: Vec<&str> =
        block.split_terminator('\0').map(|entry| entry.split_once('=').unwrap().0).collect();
    names.retain(|name| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_"));
    names.sort_unstable();
    let mut expected: Vec<String> =
        env.vars().into_iter().map(|(name, _)| name.into_string().unwrap()).collect();
    expected.extend(["HOSTLER_PROCESS_ID".to_owned(), "SECRET".to_owned()]);
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(block.contains(&format!("HOSTLER_PROCESS_ID={}\0", pause.id)), "{block}");
    // The host's own folder may be unmounted while its helpers live.
    for helper in host.helpers() {
        assert_eq!(fs::read_to_string(format!("/proc/{helper}/environ")).unwrap(), "");
        assert_eq!(fs::read_link(format!("/proc/{helper}/cwd")).unwrap().to_str(), Some("/"));
        let fds = fs::read_dir(format!("/proc/{helper}/fd")).unwrap().flatten();
        let targets: Vec<_> = fds.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        assert!(!targets.iter().any(|target| target.ends_with("zero")), "{targets:?}");
        assert!(targets.iter().any(|target| target.to_string_lossy().starts_with("socket:")), "{targets:?}");
    }
    host.close("a", GRACE);
}

//! What a keeper does for programs on good days, each by what can be seen from outside.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hostler_core::{End, Exit, Outcome, SessionOptions, SpawnError, SpawnSpec, StopCause, outcome};
use hostler_testkit::{
    DeadFuse, Embedder, NoProcessLeft, TestEnv, Token, bin, children_of, evil, fd_count, is_alive, wait_until,
};
use rustix::process::Signal;

use crate::{GRACE, MAX, evil_process, keeper_of, kill, output, ready, run, start_host};

/// The embedder after `setup` has run in the shell that becomes it.
fn embedder_after(env: &TestEnv, setup: &str) -> Embedder {
    let mut command: Command = env.command("sh");
    command.arg("-c").arg(format!("{setup}; exec \"$0\"")).arg(bin("embedder"));
    Embedder::start(command)
}

#[test]
fn signals_that_the_host_ignores_do_not_reach_children_and_limits_are_the_original_ones() {
    let env = TestEnv::new();
    let token = Token::new("clean-start");
    let _left = NoProcessLeft::new(&token);
    // A descriptor that the host was started with and does not know.
    let mut host = embedder_after(&env, "trap '' INT HUP USR1 PIPE; ulimit -Sn 400; exec 7</dev/zero");
    host.session("a");
    let evil = evil().to_string_lossy().into_owned();
    let mut output = |mode: &str| {
        host.spawn("a", mode, &[&evil, mode, token.as_str()]);
        host.ask(&["output", mode])
    };
    let signals = output("print-signals");
    for set in ["SigBlk", "SigIgn", "SigCgt"] {
        let line =
            signals.split('|').find(|line| line.starts_with(set)).unwrap_or_else(|| panic!("{signals}"));
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    let limits = output("print-limits");
    assert!(limits.contains("400"), "{limits}");
    let ids = output("print-ids");
    let numbers: Vec<i64> =
        ids.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|word| word.parse().ok()).collect();
    assert_eq!((numbers[0], numbers[0]), (numbers[1], numbers[2]), "its own group and session: {ids}");
    let own: i64 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    assert_eq!(numbers[3], (own + 200).min(1000), "{ids}");
    let fds = output("print-fds");
    assert_eq!((fds.matches("pipe:").count(), fds.split('|').count()), (3, 4), "{fds}");
    // Starts that fail at the clone's child, too: the keeper's own score is what it was.
    let nothing = host.request(&["spawn", "a", "nothing", "0", "/none/such"]);
    assert!(nothing.is_err(), "{nothing:?}");
    let of_keeper = fs::read_to_string(format!("/proc/{}/oom_score_adj", host.keeper("a"))).unwrap();
    assert_eq!(of_keeper.trim().parse(), Ok(own), "the keeper goes after its programs");
    host.close("a", GRACE);
}

#[tokio::test]
async fn a_lost_keeper_ends_its_session_s_processes_and_the_session_goes_on() {
    let env = TestEnv::new();
    let token = Token::new("keeper-lost");
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let (a, b) = (host.open_session(SessionOptions::record()), host.open_session(SessionOptions::record()));
    let first = evil_process(&a, "double-fork", &token).await;
    let second = evil_process(&a, "ignore-term", &token).await;
    let stranger = evil_process(&b, "pause", &token).await;
    let keeper = keeper_of(&a).await;
    kill(keeper, Signal::KILL);
    for process in [&first, &second] {
        assert_eq!(outcome(process.finished().await), Some(Outcome::Lost));
        assert!(!is_alive(process.pid().unwrap()));
    }
    wait_until("only the stranger is left", MAX, || token.pids() == [stranger.pid().unwrap()]);
    assert_eq!(run(&a, "echo again").await, "again\n");
    assert_ne!(a.keeper_pid(), Some(keeper));
    assert_eq!(host.live(), 1);
    a.close(GRACE).await;
    assert!(is_alive(stranger.pid().unwrap()));
    assert_eq!(b.close(GRACE).await.survivors.total, 0);
}

#[test]
fn a_dead_nursery_leaves_sessions_whole_and_is_replaced() {
    let env = TestEnv::new();
    let token = Token::new("nursery-lost");
    let _left = NoProcessLeft::new(&token);
    let mut host = embedder_after(&env, ":");
    let evil = evil().to_string_lossy().into_owned();
    host.session("a");
    let before = host.spawn("a", "before", &[&evil, "double-fork", token.as_str()]);
    host.first_line("before");
    let nursery = host.nursery();
    kill(nursery, Signal::KILL);
    wait_until("another nursery", MAX, || host.ask(&["nurseries"]) == "1");
    assert!(is_alive(before.pid));
    host.session("b");
    host.spawn("b", "after", &[&evil, "hard-daemon", token.as_str()]);
    host.first_line("after");
    host.spawn("a", "more", &[&evil, "pause", token.as_str()]);
    host.first_line("more");
    host.kill();
    token.wait_until_gone(MAX).expect("nothing outlives the host");
}

#[test]
fn a_keeper_notices_the_host_s_death_though_another_process_holds_its_sockets() {
    let env = TestEnv::new();
    let (token, holder) = (Token::new("held-socket"), Token::new("socket-holder"));
    let (_left, _holder) = (NoProcessLeft::new(&token), NoProcessLeft::new(&holder));
    let mut host = embedder_after(&env, ":");
    let evil = evil().to_string_lossy().into_owned();
    host.session("a");
    host.spawn("a", "daemon", &[&evil, "hard-daemon", token.as_str()]);
    host.first_line("daemon");
    let helpers = host.helpers();
    let held: i32 = host.ask(&["fork-holder", holder.as_str()]).parse().unwrap();
    host.kill();
    token.wait_until_gone(MAX).expect("the keeper has noticed");
    wait_until("nursery and keepers are gone", MAX, || helpers.iter().all(|pid| !is_alive(*pid)));
    assert!(is_alive(held), "the embedder's own child is nobody's business");
    holder.kill_all();
}

#[tokio::test]
async fn a_keeper_that_stands_still_holds_nobody_up_for_ever() {
    let env = TestEnv::new();
    let token = Token::new("keeper-stopped");
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "plain", &token).await;
    kill(keeper_of(&session).await, Signal::STOP);
    let began = Instant::now();
    session.close(GRACE).await;
    token.wait_until_gone(MAX).expect("the nursery kills what a given-up keeper leaves");
    assert!(began.elapsed() < Duration::from_secs(30));
    let _ = process.finished().await;
}

#[tokio::test]
async fn failures_to_start_name_the_program_and_the_reason() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let file = env.work().join("no-script");
    fs::write(&file, "no interpreter line").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = file.to_string_lossy().into_owned();
    let cases = [
        ("no-such-program", libc::ENOENT),
        ("/no/such/program", libc::ENOENT),
        ("/etc/passwd", libc::EACCES),
        ("/", libc::EACCES),
        (file.as_str(), libc::ENOEXEC),
    ];
    for (program, errno) in cases {
        match session.spawn(SpawnSpec::new([program])).await {
            Err(SpawnError::Exec { program: named, source }) => {
                assert_eq!((named.to_str(), source.raw_os_error()), (Some(program), Some(errno)));
            }
            other => panic!("{program}: {other:?}"),
        }
    }
    for (cwd, errno) in [("/no/such/folder", libc::ENOENT), ("/etc/passwd", libc::ENOTDIR)] {
        match session.spawn(SpawnSpec { cwd: Some(cwd.into()), ..SpawnSpec::new(["true"]) }).await {
            Err(SpawnError::Cwd { cwd: named, source }) => {
                assert_eq!((named.as_path(), source.raw_os_error()), (Path::new(cwd), Some(errno)));
            }
            other => panic!("{cwd}: {other:?}"),
        }
    }
    assert_eq!(host.live(), 0);
    assert_eq!(run(&session, "echo fine").await, "fine\n");
    session.close(GRACE).await;
}

#[tokio::test]
async fn programs_start_in_the_host_s_folder_or_where_they_are_told() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let here = std::env::current_dir().unwrap();
    assert_eq!(run(&session, "pwd -P").await.trim_end(), here.to_str().unwrap());
    let relative = SpawnSpec { cwd: Some("src".into()), ..SpawnSpec::new(["pwd", "-P"]) };
    let process = session.spawn(relative).await.unwrap();
    assert_eq!(
        String::from_utf8(output(&process).await).unwrap().trim_end(),
        here.join("src").to_str().unwrap()
    );
    session.close(GRACE).await;
}

#[tokio::test]
async fn what_is_larger_than_a_packet_arrives_whole_and_what_is_too_large_is_told_with_figures() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let word = "x".repeat(100_000);
    let mut argv =
        vec!["sh".to_owned(), "-c".into(), "echo $#; printf %s \"$*\" | wc -c".into(), "sh".into()];
    argv.extend(std::iter::repeat_n(word.clone(), 9));
    let env_entry = (OsString::from("LONG"), OsString::from(&word));
    let process = session.spawn(SpawnSpec { env: vec![env_entry], ..SpawnSpec::new(argv) }).await.unwrap();
    assert_eq!(output(&process).await, b"9\n900008\n");
    let too_long = SpawnSpec::new(["true".to_owned(), "x".repeat(131_072)]);
    match session.spawn(too_long).await {
        Err(error @ SpawnError::TooLarge { longest: 131_073, max_string: 131_072, .. }) => {
            assert!(error.to_string().contains("131073"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let words = std::iter::repeat_n("x".repeat(131_000), 60);
    let too_much = SpawnSpec::new(std::iter::once("true".to_owned()).chain(words));
    assert!(matches!(session.spawn(too_much).await, Err(SpawnError::TooLarge { longest: 131_001, .. })));
    assert_eq!(run(&session, "echo fine").await, "fine\n");
    session.close(GRACE).await;
}

#[test]
fn sessions_that_are_closed_leave_no_keeper_and_no_descriptor() {
    let env = TestEnv::new();
    let mut host = embedder_after(&env, ":");
    let mut cycle = |n: usize| {
        let name = n.to_string();
        host.session(&name);
        host.spawn(&name, &name, &["true"]);
        host.ask(&["finished", &name]);
        assert_eq!(host.close(&name, GRACE).survivors, 0);
        wait_until("the spare alone", MAX, || children_of(host.nursery()).len() == 1);
        fd_count(host.pid()).unwrap()
    };
    let before = (0..3).map(&mut cycle).max().unwrap();
    (3..53).for_each(|n| {
        cycle(n);
    });
    // What is on its way out goes; a descriptor that stays for one session in ten shows.
    wait_until("the descriptors of before", MAX, || {
        let after = fd_count(host.pid()).unwrap();
        if after <= before + 2 { Ok(()) } else { Err(format!("{before} descriptors became {after}")) }
    });
}

#[tokio::test]
async fn no_grace_and_no_patience_is_too_long() {
    let env = TestEnv::new();
    let token = Token::new("for-ever");
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let process = evil_process(&session, "pause", &token).await;
    process.signal(hostler_core::Signal::Term, Duration::MAX).await;
    let process = evil_process(&session, "pause", &token).await;
    assert_eq!(process.stop(StopCause::Request, Duration::MAX).await.survivors.total, 0);
    evil_process(&session, "pause", &token).await;
    assert_eq!(session.close(Duration::MAX).await.survivors.total, 0);
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_stop() {
    let env = TestEnv::new();
    let token = Token::new("fork-bomb");
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    let argv: [OsString; 4] = [evil().into(), "fork-bomb".into(), "300".into(), token.as_str().into()];
    let process = session.spawn(SpawnSpec::new(argv)).await.unwrap();
    ready(&process).await;
    let receipt = process.stop(StopCause::Request, Duration::ZERO).await;
    assert_eq!(receipt.survivors.total, 0, "{receipt:?}");
    token.wait_until_gone(MAX).unwrap();
    session.close(GRACE).await;
}

#[tokio::test]
async fn an_exec_that_hangs_holds_up_neither_kills_nor_other_sessions() {
    let Some(fuse) = DeadFuse::mount().ok() else {
        eprintln!("skipped: no file system can be mounted here that would make an exec hang");
        return;
    };
    let env = TestEnv::new();
    let token = Token::new("hung-exec");
    let _left = NoProcessLeft::new(&token);
    let host = start_host(&env);
    let (a, b) = (host.open_session(SessionOptions::record()), host.open_session(SessionOptions::record()));
    let running = evil_process(&a, "plain", &token).await;
    let hanging = a.spawn(SpawnSpec::new([fuse.program()]));
    let hanging = tokio::spawn(hanging);
    // The request has been sent by now; the keeper's spawner is in the kernel or about to be.
    let keeper = keeper_of(&a).await;
    let child = || children_of(keeper).into_iter().find(|pid| Some(*pid) != running.pid());
    hostler_testkit::wait_until_async("a child that hangs in exec", MAX, async || child()).await;
    assert_eq!(run(&b, "echo other session").await, "other session\n");
    let receipt = running.stop(StopCause::Request, GRACE).await;
    assert_eq!(receipt.survivors.total, 0);
    let starting = a.processes().into_iter().find(|p| p.id() != running.id()).unwrap();
    starting.stop(StopCause::Request, Duration::ZERO).await;
    let end = starting.finished().await;
    assert!(matches!(end, End::Exited(Exit { outcome: Outcome::Killed, .. })), "{end:?}");
    drop(hanging.await);
    assert_eq!(run(&a, "echo same session").await, "same session\n");
    a.close(GRACE).await;
    b.close(GRACE).await;
}

//! What must not pile up: statuses, zombies, keepers, folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hostler_core::{End, Exit, ExitStatus, Process, Session, SessionOptions, SpawnSpec};
use hostler_testkit::{
    Embedder, NoProcessLeft, ProcessInfo, TestEnv, Token, bin, children_of, descendants, fd_count, is_alive,
    wait_until, wait_until_async,
};
use rustix::process::Signal;

use crate::{
    GRACE, MAX, NoDescriptors, evil_path, keeper_of, kill, parent_of, run, start_host, wait_for_helpers,
};

const QUICK_EXITS: usize = 2000;
const IN_FLIGHT: usize = 32;

fn zombies_below(nursery: i32) -> Vec<ProcessInfo> {
    descendants(nursery).into_iter().filter_map(ProcessInfo::of).filter(|p| !p.is_alive()).collect()
}

/// Starts a program that ends at once, every tenth one leaving an orphan that ends at once as well.
async fn quick_exit(session: &Session, n: usize) -> (usize, Process) {
    let script = if n.is_multiple_of(10) { "(:) & exit $0" } else { "exit $0" };
    let code = (n % 200).to_string();
    (n, session.spawn(SpawnSpec::new(["sh", "-c", script, &code])).await.unwrap())
}

#[test]
fn a_keeper_that_could_not_be_told_of_its_session_is_let_go() {
    let env = TestEnv::new();
    let mut command = env.command(bin("embedder"));
    // More than a packet holds: the session's environment goes by a file, for which there will be no room.
    for name in ["LONG_A", "LONG_B"] {
        command.env(name, "x".repeat(100_000));
    }
    let mut host = Embedder::start(command);
    let nursery = host.nursery();
    let spare = wait_until("the spare keeper", MAX, || children_of(nursery).first().copied());
    host.session("a");
    let full = NoDescriptors::new(host.pid());
    let refused = host.request(&["spawn", "a", "refused", "0", "true"]).unwrap_err();
    assert!(refused.contains("limit of"), "{refused}");
    wait_until("the end of the keeper that was to be the session's", MAX, || !is_alive(spare));
    drop(full);
    host.spawn("a", "a", &["true"]);
    assert!(host.ask(&["finished", "a"]).contains("Completed"));
    host.close("a", GRACE);
}

#[tokio::test]
async fn two_thousand_quick_exits_lose_no_status_and_leave_no_zombie() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    run(&session, ":").await;
    let nursery = parent_of(keeper_of(&session).await);
    let mut running = tokio::task::JoinSet::new();
    let mut seen = BTreeSet::new();
    for n in 0..QUICK_EXITS + IN_FLIGHT {
        if n < QUICK_EXITS {
            let session = session.clone();
            running.spawn(async move {
                let (n, process) = quick_exit(&session, n).await;
                (n, process.finished().await, process.status().usage.is_some())
            });
        }
        if n >= IN_FLIGHT {
            let Ok(ended) = tokio::time::timeout(MAX, running.join_next()).await else {
                let open = session.processes().into_iter().map(|process| process.status());
                let open: Vec<_> = open.filter(|status| status.end().is_none()).collect();
                panic!("no end is reported of {open:?}");
            };
            let (n, end, has_usage) = ended.unwrap().unwrap();
            let code = (n % 200) as i32;
            assert!(
                matches!(end, End::Exited(Exit { status: ExitStatus::Code(c), .. }) if c == code),
                "{n}: {end:?}"
            );
            assert!(has_usage && seen.insert(n), "{n}");
        }
    }
    assert_eq!(seen.len(), QUICK_EXITS);
    wait_until_async("no live process and no zombie", MAX, async || {
        let zombies = zombies_below(nursery);
        if zombies.is_empty() && host.live() == 0 { Ok(()) } else { Err((zombies, host.live())) }
    })
    .await;
    let receipt = session.close(GRACE).await;
    assert_eq!((receipt.signalled.total, receipt.survivors.total), (0, 0));
}

#[test]
fn fifty_sessions_at_a_time_leave_neither_keeper_nor_descriptor() {
    let env = TestEnv::new();
    let mut host = Embedder::start(env.command(bin("embedder")));
    let mut round = |round: usize| {
        let names: Vec<String> = (0..50).map(|n| format!("{round}-{n}")).collect();
        for name in &names {
            host.session(name);
            host.spawn(name, name, &["sh", "-c", "sleep 900 & exec sleep 900"]);
        }
        for name in &names {
            assert_eq!(host.close(name, GRACE).survivors, 0);
        }
        wait_until("the spare alone", MAX, || {
            let keepers = children_of(host.nursery());
            if keepers.len() == 1 { Ok(()) } else { Err(keepers) }
        });
        fd_count(host.pid()).unwrap()
    };
    let first = round(1);
    round(2);
    // What is on its way out goes; a descriptor that stays for one session in ten shows.
    wait_until("the descriptors of before", MAX, || {
        let second = fd_count(host.pid()).unwrap();
        if second <= first + 2 { Ok(()) } else { Err(format!("{first} descriptors became {second}")) }
    });
}

fn folders(base: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn the_state_folder_of_a_killed_host_is_swept_by_the_next_and_that_of_a_live_host_is_not() {
    let (env, token) = (TestEnv::new(), Token::new("state-sweep"));
    let _left = NoProcessLeft::new(&token);
    let base = env.state_home().join("hostler");
    let start = |known: &BTreeSet<PathBuf>| {
        let mut host = Embedder::start(env.command(bin("embedder")));
        host.session("a");
        host.spawn("a", "lines", &[&evil_path(), "lines", "20000", token.as_str()]);
        host.ask(&["finished", "lines"]);
        let new: Vec<PathBuf> = folders(&base).difference(known).cloned().collect();
        let [own] = new.try_into().unwrap();
        (host, own)
    };
    let (_live, of_live) = start(&BTreeSet::new());
    let (mut killed, of_killed) = start(&folders(&base));
    killed.kill();
    assert!(of_killed.exists(), "there is something to sweep");
    let (_next, of_next) = start(&folders(&base));
    wait_until("the sweep", MAX, || !of_killed.exists());
    assert_eq!(folders(&base), BTreeSet::from([of_live, of_next]));
}

/// The control group of a process of a host, as a folder; `None` where it has none of its own.
fn leaf_of(pid: i32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = unified.find(|fields| fields.get(2) == Some(&"cgroup2"))?[1].to_owned();
    Some(Path::new(&mount).join(group)).filter(|leaf| group.contains("hostler-") && leaf.exists())
}

#[test]
fn control_groups_are_removed_with_their_session_and_those_of_dead_helpers_by_the_next_host() {
    let (env, token) = (TestEnv::new(), Token::new("group-sweep"));
    let _left = NoProcessLeft::new(&token);
    let mut host = Embedder::start(env.command(bin("embedder")));
    let evil = evil_path();
    for session in ["a", "b"] {
        host.session(session);
        host.spawn(session, session, &[&evil, "hard-daemon", token.as_str()]);
        host.first_line(session);
    }
    let pids = token.pids();
    let Some(leaf) = leaf_of(pids[0]) else {
        eprintln!("skipped: processes get no control groups here");
        return;
    };
    let groups: BTreeSet<PathBuf> =
        pids.iter().map(|pid| leaf_of(*pid).unwrap().parent().unwrap().to_owned()).collect();
    assert_eq!(groups.len(), 2, "one for each session");
    let of_host = leaf.ancestors().nth(2).unwrap().to_owned();
    assert_eq!(host.close("a", GRACE).survivors, 0);
    wait_until("one session's group alone", MAX, || folders_in(&of_host, &groups) == 1);
    // All that would clean up is dead at once: nobody is left who knows of the daemon.
    let helpers = host.helpers();
    helpers.iter().for_each(|pid| kill(*pid, Signal::STOP));
    host.kill();
    helpers.iter().for_each(|pid| kill(*pid, Signal::KILL));
    wait_for_helpers(&helpers);
    let next = Embedder::start(env.command(bin("embedder")));
    token.wait_until_gone(MAX).expect("the next host kills by the group");
    wait_until("the sweep", MAX, || !of_host.exists());
    drop(next);
}

/// The shell's own control group, as a folder; empty where it has none of its own.
const OWN_GROUP: &str = "mount=$(sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2 .*/\\1/p' /proc/self/mounts | head -n 1); \
                         own=$mount$(sed -n 's/^0:://p' /proc/self/cgroup); \
                         case $own in *hostler-*) ;; *) own= ;; esac";

#[tokio::test]
async fn what_a_program_does_to_control_groups_does_not_reach_those_who_come_after_it() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let deeds = [
        ("kills its own", "echo 1 > $own/cgroup.kill"),
        (
            "leaves it, and kills all",
            "echo $$ > $mount/cgroup.procs; for g in $own/../p*; do echo 1 > $g/cgroup.kill; done",
        ),
        ("freezes the others", "for g in $own/../p*; do [ $g -ef $own ] || echo 1 > $g/cgroup.freeze; done"),
    ];
    for (what, deed) in deeds {
        let session = host.open_session(SessionOptions::record());
        // Several groups, all free again.
        let many: Vec<_> = (0..4).map(|_| session.spawn(SpawnSpec::new(["true"]))).collect();
        for process in many {
            process.await.unwrap().finished().await;
        }
        let script = format!("{OWN_GROUP}; [ -n \"$own\" ] || {{ echo none; exit; }}; {deed}");
        let said = run(&session, &script).await;
        if said == "none\n" {
            eprintln!("skipped: processes get no control groups here");
            return;
        }
        for n in 0..6 {
            assert_eq!(run(&session, "echo after").await, "after\n", "{what}, start {n}");
        }
        assert_eq!(session.close(GRACE).await.survivors.total, 0, "{what}");
    }
}

#[test]
fn the_next_process_in_a_group_is_told_from_the_one_before() {
    let (env, token) = (TestEnv::new(), Token::new("group-reuse"));
    let _left = NoProcessLeft::new(&token);
    let mut host = Embedder::start(env.command(bin("embedder")));
    let evil = evil_path();
    host.session("a");
    host.spawn("a", "first", &[&evil, "exit", "0", token.as_str()]);
    host.ask(&["finished", "first"]);
    for process in ["second", "third"] {
        host.spawn("a", process, &[&evil, "hard-daemon", token.as_str()]);
        host.first_line(process);
    }
    let pids = token.pids();
    if pids.iter().any(|pid| leaf_of(*pid).is_none()) {
        eprintln!("skipped: processes get no control groups here");
        return;
    }
    let leaves: BTreeSet<PathBuf> = pids.iter().filter_map(|pid| leaf_of(*pid)).collect();
    assert_eq!((pids.len(), leaves.len()), (4, 2), "a root and a daemon in each");
    let of_session = leaves.first().unwrap().parent().unwrap();
    let is_folder = |path: &PathBuf| path.is_dir();
    assert_eq!(folders(of_session).into_iter().filter(is_folder).count(), 2, "the first one's is used again");
    // Nothing but its group tells whose the daemon is.
    assert_eq!(host.stop("second", GRACE).unattributed, 0, "the third's daemon is known for what it is");
    wait_until("the second and its daemon are gone", MAX, || token.pids().len() == 2);
    let left: BTreeSet<PathBuf> = token.pids().iter().filter_map(|pid| leaf_of(*pid)).collect();
    assert_eq!(left.len(), 1, "the third's are alive");
    host.close("a", GRACE);
}

fn folders_in(base: &Path, groups: &BTreeSet<PathBuf>) -> usize {
    folders(base).intersection(groups).count()
}

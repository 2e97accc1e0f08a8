//! Ends that others must notice in spite of something else that is wrong: a keeper stopped, an exec that hangs, a nursery
//! that died before.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use hostler_testkit::{
    Counts, DeadFuse, Embedder, NoProcessLeft, ProcessInfo, TestEnv, Token, bin, children_of, evil, is_alive,
    wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

const MAX: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_millis(100);
const NOBODY_LEFT: Counts = Counts { survivors: 0, unattributed: 0 };

/// A host and what it has started.
struct Stage {
    host: Embedder,
    evil: String,
    token: Token,
    _left: NoProcessLeft,
    _env: TestEnv,
}

impl Stage {
    fn new(name: &str) -> Self {
        let env = TestEnv::new();
        let token = Token::new(name);
        let left = NoProcessLeft::new(&token);
        let host = Embedder::start(env.command(bin("embedder")));
        Self { host, evil: evil().to_string_lossy().into_owned(), token, _left: left, _env: env }
    }

    /// Starts a tree in a session of this name, which is opened first; returns all pids of it.
    fn tree(&mut self, session: &str, mode: &str, members: usize) -> Vec<i32> {
        self.host.session(session);
        self.more(session, session, mode, members)
    }

    /// The same in a session that is there.
    fn more(&mut self, session: &str, name: &str, mode: &str, members: usize) -> Vec<i32> {
        let before = self.token.pids();
        self.host.spawn(session, name, &[&self.evil, mode, self.token.as_str()]);
        assert_eq!(self.host.first_line(name), "ready");
        wait_until("the whole tree", MAX, || {
            let mut pids = self.token.pids();
            pids.retain(|pid| !before.contains(pid));
            if pids.len() == members { Ok(pids) } else { Err(pids) }
        })
    }

    /// Asks for a program that hangs in exec, for which the answer does not come, and waits until it does hang.
    fn hang(&mut self, session: &str, program: &str) -> i32 {
        let keeper = self.host.keeper(session);
        let before = children_of(keeper);
        self.host.send(&["spawn", session, "hanging", "0", program]);
        wait_until("a child that hangs in exec", MAX, || {
            children_of(keeper).into_iter().find(|pid| !before.contains(pid))
        })
    }

    #[track_caller]
    fn nothing_is_left(&self, helpers: &[i32]) {
        if let Err(left) = self.token.wait_until_gone(MAX) {
            panic!("left: {left:?}");
        }
        let is_helper = |pid: &i32| ProcessInfo::of(*pid).is_some_and(|p| p.is_alive() && is_helper(&p));
        wait_until("the end of nursery and keepers", MAX, || {
            let left: Vec<i32> = helpers.iter().copied().filter(is_helper).collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
}

fn is_helper(process: &ProcessInfo) -> bool {
    process.cmdline.contains("__hostler-")
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_keeper_that_dies_while_an_exec_hangs_is_noticed_and_replaced() {
    let Ok(fuse) = DeadFuse::mount() else {
        println!("skipped: no file system can be mounted here on which an exec hangs");
        return;
    };
    let mut stage = Stage::new("hung exec, keeper");
    stage.tree("a", "double-fork", 2);
    let strangers = stage.tree("b", "double-fork", 2);
    let keeper = stage.host.keeper("a");
    // It is a copy of the keeper, sockets included, until it executes.
    let hanging = stage.hang("a", fuse.program().to_str().unwrap());
    signal(keeper, Signal::KILL);
    let refused = stage.host.answer(&["spawn"]).unwrap_err();
    assert!(refused.contains("keeper was lost"), "{refused}");
    assert!(!is_alive(hanging));
    assert!(stage.host.ask(&["finished", "a"]).contains("KeeperLost"));
    wait_until("the strangers alone", MAX, || stage.token.pids() == strangers);
    stage.more("a", "again", "pause", 1);
    assert_ne!(stage.host.keeper("a"), keeper);
    assert_eq!(stage.host.close("a", GRACE), NOBODY_LEFT);
    assert_eq!(stage.token.pids(), strangers);
}

#[test]
fn a_keeper_that_stood_still_when_the_host_died_leaves_nothing_either() {
    let mut stage = Stage::new("stopped keeper");
    stage.tree("a", "hard-daemon", 2);
    stage.tree("b", "plain", 2);
    let helpers = stage.host.helpers();
    signal(stage.host.keeper("a"), Signal::STOP);
    stage.host.kill();
    stage.nothing_is_left(&helpers);
}

#[test]
fn sessions_older_than_the_nursery_are_stopped_and_closed_as_ever() {
    let mut stage = Stage::new("old sessions");
    stage.tree("a", "double-fork", 2);
    let strangers = stage.tree("b", "hard-daemon", 2);
    let helpers = stage.host.helpers();
    signal(helpers[0], Signal::KILL);
    wait_until("another nursery", MAX, || stage.host.ask(&["nurseries"]) == "1");
    assert_eq!(stage.host.stop("a", GRACE).survivors, 0);
    wait_until("the strangers alone", MAX, || stage.token.pids() == strangers);
    stage.more("a", "more", "hard-daemon", 2);
    assert_eq!(stage.host.close("a", GRACE).survivors, 0);
    assert_eq!(stage.token.pids(), strangers);
    stage.host.kill();
    stage.nothing_is_left(&helpers);
}

//! The bar "orphans": whatever a program does to escape, nothing of it outlives its session, its host or its keeper, and
//! nothing of it outlives a stop; while those who are not meant live on.
//!
//! A cell of the matrix is a way to escape, a way to end, and a [`Setup`]. It has a host of its own with two sessions:
//! in the first a *victim* that escapes and a *sibling*, in the other a *stranger*. Sibling and stranger are
//! daemons with their parents, so that a kill that reaches too far has something to hit.
#![expect(clippy::panic, clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use common::{Cast, Cgroups, MAX, Programs, Setup, run_cells, wait_for_helpers};
use hostler_testkit::{Counts, Embedder, NoProcessLeft, SharedCounter, TestEnv, Token};
use rustix::process::{Pid, Signal, kill_process};

/// Modes of the helper child and how many processes live once it has said that it is ready.
const ESCAPES: [(&str, usize); 9] = [
    ("plain", 2),
    ("pgid", 2),
    ("setsid", 2),
    ("double-fork", 2),
    ("hard-daemon", 2),
    ("orphan", 2),
    ("ignore-term", 2),
    ("exit-after-double-fork", 1),
    (FORK_CHAIN, 2),
];
const FORK_CHAIN: &str = "fork-chain";
const HARD_DAEMON: &str = "hard-daemon";

/// A link of a fork chain counts about once in a millisecond.
const SILENCE: Duration = Duration::from_millis(300);
const GRACE: Duration = Duration::from_millis(50);

const CHAINS: usize = 40;

/// Timeouts to try one after the other: the tree must stand before its time is over.
const TIMEOUTS: [Duration; 3] = [Duration::from_millis(400), Duration::from_secs(3), Duration::from_secs(15)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Session,
    HostTerm,
    HostKill,
    KeeperKill,
    Kill,
    Stop,
    Timeout,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    escape: &'static str,
    members: usize,
    ending: Ending,
    setup: Setup,
}

/// The host of a cell, with everybody in place.
struct Stage {
    host: Embedder,
    cast: Cast,
    counter: Option<SharedCounter>,
    has_leaves: bool,
    siblings: BTreeSet<i32>,
    strangers: BTreeSet<i32>,
    helpers: Vec<i32>,
}

impl Stage {
    fn set(cell: &Cell, programs: &Programs, env: &TestEnv, token: &Token) -> Self {
        let cast = Cast::new(token);
        let mut host = programs.host(cell.setup, env);
        host.session("first");
        host.session("other");
        for (session, role) in [("other", "stranger"), ("first", "sibling")] {
            host.spawn(session, role, &[programs.evil(), "double-fork", &cast.mark(role)]);
            assert_eq!(host.first_line(role), "ready");
        }
        let siblings = cast.wait_for("sibling", 2);
        let strangers = cast.wait_for("stranger", 2);
        let has_leaves = siblings.iter().all(|pid| is_in_leaf(*pid));
        assert!(!has_leaves || cell.setup.cgroups == Cgroups::Auto, "a leaf in spite of the setup");
        let counter = (cell.escape == FORK_CHAIN).then(|| SharedCounter::create(&env.work(), "counter"));
        let helpers = host.helpers();
        let mut stage = Self { host, cast, counter, has_leaves, siblings, strangers, helpers };
        stage.let_victim_escape(cell, programs);
        stage
    }

    fn let_victim_escape(&mut self, cell: &Cell, programs: &Programs) {
        let mark = self.cast.mark("victim");
        let path = self.counter.as_ref().map(|c| c.path().to_str().expect("UTF-8").to_owned());
        let argv: Vec<&str> =
            [programs.evil(), cell.escape].into_iter().chain(path.as_deref()).chain([&*mark]).collect();
        let timeouts: &[Duration] =
            if cell.ending == Ending::Timeout { &TIMEOUTS } else { &[Duration::ZERO] };
        for timeout in timeouts {
            self.host.spawn_for("first", "victim", *timeout, &argv);
            match self.host.request(&["first-line", "victim"]) {
                Ok(line) => {
                    assert_eq!(line, "ready");
                    return self.see_victim(cell);
                }
                // Its time was over before its tree stood: that left nothing either.
                Err(_) => self.wait_for_victims_end(),
            }
        }
        panic!("the tree never stood, with {timeouts:?}");
    }

    /// A timeout may be over at any moment, so only the others show how many there are.
    fn see_victim(&self, cell: &Cell) {
        match &self.counter {
            _ if cell.ending == Ending::Timeout => {}
            Some(counter) => counter.wait_for_life(MAX),
            None => drop(self.cast.wait_for("victim", cell.members)),
        }
    }

    #[track_caller]
    fn wait_for_victims_end(&self) {
        if let Some(counter) = &self.counter {
            counter.wait_for_silence(SILENCE, MAX);
        }
        self.cast.wait_until_gone("victim");
    }

    #[track_caller]
    fn sibling_lives(&self) {
        assert_eq!(self.cast.alive("sibling"), self.siblings, "the sibling was hit");
    }

    #[track_caller]
    fn stranger_lives(&self) {
        assert_eq!(self.cast.alive("stranger"), self.strangers, "the stranger was hit");
    }

    fn end_session(&mut self) {
        let counts = self.host.close("first", GRACE);
        assert_eq!(counts.survivors, 0);
        self.wait_for_victims_end();
        self.cast.wait_until_gone("sibling");
        self.stranger_lives();
    }

    fn end_host(&mut self) {
        self.wait_for_victims_end();
        self.cast.wait_until_gone("sibling");
        self.cast.wait_until_gone("stranger");
        wait_for_helpers(&self.helpers);
    }

    fn kill_keeper(&mut self) {
        let keeper = self.host.keeper("first");
        kill_process(Pid::from_raw(keeper).expect("a pid"), Signal::KILL).expect("it lives");
        self.wait_for_victims_end();
        self.cast.wait_until_gone("sibling");
        let end = self.host.ask(&["finished", "sibling"]);
        assert!(end.contains("KeeperLost"), "{end}");
        self.stranger_lives();
    }

    /// After a stop of the victim alone.
    fn victim_was_stopped(&mut self, cell: &Cell, counts: Counts) {
        if cell.escape == HARD_DAEMON && !self.has_leaves {
            // It has shed every mark: it may wait for the end of the session if it is reported.
            let left = self.cast.alive("victim").len();
            assert!(left <= 1 && counts.unattributed as usize >= left, "{left} left, reported: {counts:?}");
        } else {
            assert_eq!(counts.survivors, 0);
            self.wait_for_victims_end();
        }
        self.sibling_lives();
        self.end_session();
    }

    fn wait_for_timeout(&mut self, cell: &Cell) {
        let end = self.host.ask(&["finished", "victim"]);
        let ended_before = cell.escape == "exit-after-double-fork";
        assert!(ended_before || end.contains("TimedOut"), "{end}");
        if cell.escape == HARD_DAEMON && !self.has_leaves {
            // No request was answered that could have told: any later receipt of the session does.
            let counts = self.host.signal("sibling", "TERM").1;
            let left = self.cast.alive("victim").len();
            assert!(left <= 1 && counts.unattributed as usize >= left, "{left} left, reported: {counts:?}");
        } else {
            self.wait_for_victims_end();
            self.sibling_lives();
        }
        self.end_session();
    }

    fn end(&mut self, cell: &Cell) {
        match cell.ending {
            Ending::Session => self.end_session(),
            Ending::HostTerm => {
                self.host.terminate();
                assert!(self.host.wait(MAX).success());
                self.end_host();
            }
            Ending::HostKill => {
                self.host.kill();
                self.end_host();
            }
            Ending::KeeperKill => self.kill_keeper(),
            Ending::Kill => {
                let (word, counts) = self.host.signal("victim", "KILL");
                assert_eq!(word, "ended");
                self.victim_was_stopped(cell, counts);
            }
            Ending::Stop => {
                let counts = self.host.stop("victim", GRACE);
                self.victim_was_stopped(cell, counts);
            }
            Ending::Timeout => self.wait_for_timeout(cell),
        }
    }
}

/// Whether the process is in a control group of a host.
fn is_in_leaf(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains("/hostler-"))
}

fn run_cell(cell: &Cell, programs: &Programs) {
    let token = Token::new(&format!("{} {:?}", cell.escape, cell.ending));
    let _left = NoProcessLeft::new(&token);
    let env = Programs::env(cell.setup);
    let mut stage = Stage::set(cell, programs, &env, &token);
    stage.end(cell);
    if matches!(cell.ending, Ending::HostTerm | Ending::HostKill) {
        return;
    }
    // The host is well: it ends by itself, and takes the stranger along.
    stage.host.hang_up();
    assert!(stage.host.wait(MAX).success());
    stage.end_host();
}

/// All ways to escape in all setups.
fn run_all(ending: Ending) {
    let programs = Programs::new();
    let setups = Setup::all();
    let cells: Vec<Cell> = setups
        .iter()
        .flat_map(|&setup| ESCAPES.map(|(escape, members)| Cell { escape, members, ending, setup }))
        .collect();
    run_cells(&cells, |cell| run_cell(cell, &programs));
}

#[test]
fn nothing_outlives_its_session_and_other_sessions_live_on() {
    run_all(Ending::Session);
}

#[test]
fn nothing_outlives_a_host_that_got_sigterm() {
    run_all(Ending::HostTerm);
}

#[test]
fn nothing_outlives_a_host_that_got_sigkill() {
    run_all(Ending::HostKill);
}

#[test]
fn nothing_outlives_a_keeper_that_got_sigkill_and_other_sessions_live_on() {
    run_all(Ending::KeeperKill);
}

#[test]
fn nothing_of_a_process_outlives_its_kill_and_its_siblings_live_on() {
    run_all(Ending::Kill);
}

#[test]
fn nothing_of_a_process_outlives_its_stop_and_its_siblings_live_on() {
    run_all(Ending::Stop);
}

#[test]
fn nothing_of_a_process_outlives_its_timeout_and_its_siblings_live_on() {
    run_all(Ending::Timeout);
}

/// Ends one chain after the other. A link that forks and exits between two looks is easily taken for the end of its chain,
/// so one attempt proves little.
fn kill_chains(setup: Setup, programs: &Programs) {
    let env = Programs::env(setup);
    let token = Token::new("many chains");
    let _left = NoProcessLeft::new(&token);
    let mut host = programs.host(setup, &env);
    host.session("a");
    let counters: Vec<SharedCounter> =
        (0..CHAINS).map(|n| SharedCounter::create(&env.work(), &n.to_string())).collect();
    for (n, counter) in counters.iter().enumerate() {
        let (name, path) = (n.to_string(), counter.path().to_str().expect("UTF-8"));
        host.spawn("a", &name, &[programs.evil(), FORK_CHAIN, path, token.as_str()]);
        assert_eq!(host.first_line(&name), "ready");
        let (word, counts) = host.signal(&name, "KILL");
        assert_eq!((&*word, counts.survivors), ("ended", 0), "chain {n}");
    }
    let total = || counters.iter().map(SharedCounter::value).sum::<u64>();
    let before = total();
    counters[0].wait_for_silence(SILENCE, MAX);
    assert_eq!(total(), before, "a chain lives on after a receipt without survivors");
}

#[test]
fn not_one_of_many_fork_chains_outlives_its_kill() {
    let programs = Programs::new();
    run_cells(&Setup::all(), |setup| kill_chains(*setup, &programs));
}

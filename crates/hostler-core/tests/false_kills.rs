//! The bar "false kills": a mark in an environment can be copied, so it must not be enough to be killed.
//!
//! A cell is a way to stop, and a [`Setup`]. Process *alpha* in session A saves its environment, the id that the host
//! gave it included. These carry the same id afterwards:
//!
//! * *beta*, a program in session B that sourced what alpha saved, and its daemon;
//! * *outsider*, a program that the host has not started;
//! * *gamma*, children of a live process of session A. They may go with their session, but not with alpha.
#![expect(clippy::panic, clippy::expect_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "one program is started by the test and not by the host")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Cast, MAX, Programs, Setup, run_cells, wait_for_helpers};
use hostler_core::PROCESS_ID_VARIABLE;
use hostler_testkit::{Embedder, NoProcessLeft, TestEnv, Token, read_line};
use rustix::process::{Pid, Signal, kill_process};

/// Saves the environment in a form that a shell can read, then becomes the helper child.
const SAVE: &str = r#"export -p > "$1"; shift; exec "$@""#;
/// Takes a saved environment over, then becomes the helper child.
const SOURCE: &str = r#". "$1"; shift; exec "$@""#;
/// Stays, with a child that carries another id than its parent.
const PARENT: &str = r#"export HOSTLER_PROCESS_ID="$1"; shift; "$@"; true"#;

const GRACE: Duration = Duration::from_millis(50);
/// Timeouts to try one after the other: everybody must be in place before alpha's time is over.
const TIMEOUTS: [Duration; 3] = [Duration::from_millis(800), Duration::from_secs(5), Duration::from_secs(25)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    Interrupt,
    Terminate,
    Kill,
    Stop,
    Timeout,
    Close,
    KeeperKill,
    EndOfThirdSession,
}

/// What stops alpha alone, its session, or neither.
const STOPPINGS: [Stopping; 8] = [
    Stopping::Interrupt,
    Stopping::Terminate,
    Stopping::Kill,
    Stopping::Stop,
    Stopping::Timeout,
    Stopping::Close,
    Stopping::KeeperKill,
    Stopping::EndOfThirdSession,
];

#[derive(Clone, Copy, Debug)]
struct Cell {
    stopping: Stopping,
    setup: Setup,
}

/// The program that the host has not started; it ends with the stage.
struct Outsider(Child);

impl Outsider {
    fn start(programs: &Programs, mark: &str, id: &str) -> Self {
        let mut command = Command::new(programs.evil());
        command.args(["pause", mark]).env(PROCESS_ID_VARIABLE, id).stdout(Stdio::piped());
        let child = command.spawn().expect("the helper child can be started");
        assert_eq!(read_line(child.stdout.as_ref().expect("a pipe"), MAX), "ready");
        Self(child)
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everybody in place.
struct Stage {
    host: Embedder,
    cast: Cast,
    helpers: Vec<i32>,
    beta: BTreeSet<i32>,
    gamma: BTreeSet<i32>,
    outsiders: BTreeSet<i32>,
    _outsider: Outsider,
}

impl Stage {
    /// `None` if alpha's time was over before everybody was in place.
    fn set(cell: &Cell, timeout: Duration, programs: &Programs, env: &TestEnv, cast: Cast) -> Option<Self> {
        let mut host = programs.host(cell.setup, env);
        ["A", "B", "C"].into_iter().for_each(|session| host.session(session));
        let saved = env.work().join("saved");
        let saved = saved.to_str().expect("UTF-8");
        let evil = programs.evil();

        let argv = ["sh", "-c", SAVE, "sh", saved, evil, "pause", &cast.mark("alpha")];
        let alpha = host.spawn_for("A", "alpha", timeout, &argv);
        host.request(&["first-line", "alpha"]).ok()?;
        let text = fs::read_to_string(saved).expect("alpha has saved its environment");
        assert!(text.contains(&alpha.id), "the id {} is not in {text}", alpha.id);

        let argv = ["sh", "-c", SOURCE, "sh", saved, evil, "double-fork", &cast.mark("beta")];
        host.spawn("B", "beta", &argv);
        let argv = ["sh", "-c", PARENT, "sh", &alpha.id, evil, "plain", &cast.mark("gamma")];
        let parent = host.spawn("A", "gamma", &argv);
        host.spawn("C", "third", &[evil, "pause", &cast.mark("third")]);
        for name in ["beta", "gamma", "third"] {
            assert_eq!(host.first_line(name), "ready");
        }
        let outsider = Outsider::start(programs, &cast.mark("outsider"), &alpha.id);

        let beta = cast.wait_for("beta", 2);
        let gamma = cast.wait_for("gamma", 3);
        let outsiders = cast.wait_for("outsider", 1);
        let carriers = beta.iter().chain(&outsiders).chain(gamma.iter().filter(|pid| **pid != parent.pid));
        for pid in carriers {
            assert_eq!(id_of(*pid).as_deref(), Some(&*alpha.id), "{pid} does not carry alpha's id");
        }
        let helpers = host.helpers();
        let in_time = host.ask(&["state", "alpha"]) == "Running";
        let stage = Self { host, cast, helpers, beta, gamma, outsiders, _outsider: outsider };
        in_time.then_some(stage)
    }

    fn stop(&mut self, stopping: Stopping) {
        match stopping {
            Stopping::Interrupt => assert_eq!(self.host.signal("alpha", "INT").0, "ended"),
            Stopping::Terminate => assert_eq!(self.host.signal("alpha", "TERM").0, "ended"),
            Stopping::Kill => assert_eq!(self.host.signal("alpha", "KILL").0, "ended"),
            Stopping::Stop => assert_eq!(self.host.stop("alpha", GRACE).survivors, 0),
            Stopping::Timeout => assert!(self.host.ask(&["finished", "alpha"]).contains("TimedOut")),
            Stopping::Close => assert_eq!(self.host.close("A", GRACE).survivors, 0),
            Stopping::EndOfThirdSession => assert_eq!(self.host.close("C", GRACE).survivors, 0),
            Stopping::KeeperKill => {
                let keeper = self.host.keeper("A");
                kill_process(Pid::from_raw(keeper).expect("a pid"), Signal::KILL).expect("it lives");
                assert!(self.host.ask(&["finished", "alpha"]).contains("KeeperLost"));
            }
        }
    }

    /// Who was meant is gone, and then everybody else still lives.
    fn check(&self, stopping: Stopping) {
        match stopping {
            Stopping::EndOfThirdSession => {
                self.cast.wait_until_gone("third");
                assert_eq!(self.cast.alive("alpha").len(), 1);
            }
            Stopping::Close | Stopping::KeeperKill => {
                ["alpha", "gamma"].into_iter().for_each(|role| self.cast.wait_until_gone(role));
            }
            Stopping::Interrupt
            | Stopping::Terminate
            | Stopping::Kill
            | Stopping::Stop
            | Stopping::Timeout => self.cast.wait_until_gone("alpha"),
        }
        if !matches!(stopping, Stopping::Close | Stopping::KeeperKill) {
            assert_eq!(self.cast.alive("gamma"), self.gamma, "gamma was hit");
        }
        assert_eq!(self.cast.alive("beta"), self.beta, "beta was hit");
        assert_eq!(self.cast.alive("outsider"), self.outsiders, "an outsider was hit");
    }
}

/// The id in the environment of a process.
fn id_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment);
    let mut variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
    variables.find(|(name, _)| *name == PROCESS_ID_VARIABLE).map(|(_, id)| id.to_owned())
}

fn run_cell(cell: &Cell, programs: &Programs) {
    let timeouts: &[Duration] =
        if cell.stopping == Stopping::Timeout { &TIMEOUTS } else { &[Duration::ZERO] };
    for timeout in timeouts {
        let token = Token::new(&format!("{:?}", cell.stopping));
        let _left = NoProcessLeft::new(&token);
        let env = Programs::env(cell.setup);
        let Some(mut stage) = Stage::set(cell, *timeout, programs, &env, Cast::new(&token)) else { continue };
        stage.stop(cell.stopping);
        stage.check(cell.stopping);
        stage.host.hang_up();
        assert!(stage.host.wait(MAX).success());
        // Not even the end of the host is a reason to look at a stranger.
        wait_for_helpers(&stage.helpers);
        assert_eq!(stage.cast.alive("outsider"), stage.outsiders, "an outsider was hit");
        return;
    }
    panic!("not everybody was ever in place, with {timeouts:?}");
}

#[test]
fn who_carries_the_environment_of_another_session_is_untouched_by_every_stop_of_that() {
    let programs = Programs::new();
    let setups = Setup::all();
    let cells: Vec<Cell> =
        setups.iter().flat_map(|&setup| STOPPINGS.map(|stopping| Cell { stopping, setup })).collect();
    run_cells(&cells, |cell| run_cell(cell, &programs));
}

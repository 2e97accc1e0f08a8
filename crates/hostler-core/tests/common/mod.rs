//! What the tests that end whole hosts share: as whom and with which control groups a host runs, and who of one test is
//! alive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use hostler_testkit::{
    Embedder, ProcessInfo, PublicCopy, TestEnv, Token, as_nobody, bin, can_hide_cgroups, evil, is_alive,
    is_root, public_copy, wait_until, without_cgroups,
};

/// Longer than anything here takes, also where the machine is busy.
pub(crate) const MAX: Duration = Duration::from_secs(30);

/// Cells that run at the same time: most of a cell is waiting.
const WORKERS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests, root in CI.
    Own,
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroups {
    /// Used where they work for this user.
    Auto,
    /// Not used, by the host's option.
    Off,
    /// Not to be seen by the host.
    Hidden,
}

/// How a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) user: User,
    pub(crate) cgroups: Cgroups,
}

impl Setup {
    /// All that this machine and this user can have.
    pub(crate) fn all() -> Vec<Self> {
        let users: &[User] = if is_root() { &[User::Own, User::Nobody] } else { &[User::Own] };
        let hidden = can_hide_cgroups().then_some(Cgroups::Hidden);
        let cgroups: Vec<Cgroups> = [Cgroups::Auto, Cgroups::Off].into_iter().chain(hidden).collect();
        users.iter().flat_map(|&user| cgroups.iter().map(move |&cgroups| Self { user, cgroups })).collect()
    }
}

/// The programs, where every user can execute them.
pub(crate) struct Programs {
    embedder: PublicCopy,
    evil: PublicCopy,
}

impl Programs {
    pub(crate) fn new() -> Self {
        Self { embedder: public_copy(&bin("embedder")), evil: public_copy(&evil()) }
    }

    pub(crate) fn evil(&self) -> &str {
        self.evil.to_str().expect("a path in UTF-8")
    }

    /// An environment for hosts of this setup.
    pub(crate) fn env(setup: Setup) -> TestEnv {
        match setup.user {
            User::Own => TestEnv::new(),
            User::Nobody => TestEnv::for_nobody(),
        }
    }

    /// A host that stops what is over its timeout with a grace of 50 ms.
    pub(crate) fn host(&self, setup: Setup, env: &TestEnv) -> Embedder {
        let mut command: Command = env.command(&self.embedder);
        command.arg("--stop-grace-ms=50");
        if setup.cgroups == Cgroups::Off {
            command.arg("--no-cgroup");
        }
        if setup.user == User::Nobody {
            command = as_nobody(command);
        }
        if setup.cgroups == Cgroups::Hidden {
            command = without_cgroups(command);
        }
        Embedder::start(command)
    }
}

/// Who is alive, by the role that stands behind the token in their arguments.
#[derive(Clone, Debug)]
pub(crate) struct Cast(Token);

impl Cast {
    pub(crate) fn new(token: &Token) -> Self {
        Self(token.clone())
    }

    /// The last argument for the helper child in this role. No role's name may begin with another's.
    pub(crate) fn mark(&self, role: &str) -> String {
        format!("{}/{role}", self.0)
    }

    /// Those who live, from one pass over /proc.
    pub(crate) fn alive(&self, role: &str) -> BTreeSet<i32> {
        let mark = self.mark(role);
        let bearers = self.0.processes().into_iter();
        bearers.filter(|process| process.cmdline.contains(&mark)).map(|process| process.pid).collect()
    }

    /// Waits until nobody lives who has this role: two passes in a row find nobody.
    ///
    /// # Panics
    /// After [`MAX`], with those who live.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, role: &str) {
        let mark = self.mark(role);
        let mut empty_passes = 0;
        wait_until(&format!("the end of every {role}"), MAX, || {
            let bearers = self.0.processes().into_iter();
            let left: Vec<ProcessInfo> = bearers.filter(|process| process.cmdline.contains(&mark)).collect();
            empty_passes = if left.is_empty() { empty_passes + 1 } else { 0 };
            if empty_passes == 2 { Ok(()) } else { Err(left) }
        });
    }

    /// Waits until so many live.
    ///
    /// # Panics
    /// After [`MAX`], with those who live.
    #[track_caller]
    pub(crate) fn wait_for(&self, role: &str, count: usize) -> BTreeSet<i32> {
        wait_until(&format!("{count} of {role}"), MAX, || {
            let alive = self.alive(role);
            if alive.len() == count { Ok(alive) } else { Err(alive) }
        })
    }
}

/// Waits until nursery and keepers have ended.
///
/// # Panics
/// After [`MAX`], with those that live.
#[track_caller]
pub(crate) fn wait_for_helpers(pids: &[i32]) {
    // A pid that somebody else has by now is not one of them.
    let is_helper =
        |pid: &i32| is_alive(*pid) && ProcessInfo::of(*pid).is_some_and(|p| p.cmdline.contains("__hostler-"));
    wait_until("the end of nursery and keepers", MAX, || {
        let left: Vec<i32> = pids.iter().copied().filter(is_helper).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// Runs all cells, several at a time, and then complains about all that failed.
///
/// # Panics
/// When one did, with their names.
pub(crate) fn run_cells<C: fmt::Debug + Sync>(cells: &[C], run: impl Fn(&C) + Sync) {
    let next = Mutex::new(cells.iter());
    let failed = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let Some(cell) = next.lock().expect("nobody panics with it").next() else { return };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(cell)));
            if let Err(panic) = result {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let text = text.unwrap_or_else(|| "a panic without text".to_owned());
                failed.lock().expect("nobody panics with it").insert(format!("{cell:?}"), text);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("nobody panics with it");
    let list: String = failed.iter().map(|(cell, text)| format!("\n{cell}: {text}")).collect();
    assert!(failed.is_empty(), "{} of {} cells failed:{list}", failed.len(), cells.len());
}

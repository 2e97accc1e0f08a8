//! What a keeper knows of its children, shared between its two threads.
//!
//! The spawning thread writes down what it is about to start, and moves it to the roots when the program executes; the
//! watching thread takes a root out when it reaps it. Both happen under one lock, and every signal to a direct child is
//! sent under it too, so a pid found here is never one that has been reaped.

use std::collections::HashMap;
use std::sync::Arc;

use crate::id::ProcessId;
use crate::sys::cgroup::Leaf;
use crate::sys::clone::{Attempt, InFlight};

/// The first process of a process in our sense: the one that was asked for.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) id: ProcessId,
    /// Inodes of the pipes that its stdout and stderr go to.
    pub(super) pipes: [u64; 2],
    pub(super) leaf: Option<Arc<Leaf>>,
}

/// The exit of a program that ended before its start was written down: it must be said after the start.
#[derive(Debug, Default)]
pub(super) enum EarlyExit {
    /// There is none.
    #[default]
    None,
    /// The watching thread has reaped it and is about to say so.
    Reaped,
    /// The start was said meanwhile: the exit may go out as any other.
    StartSaid,
    /// The packet that says it, for the spawning thread to send after the start.
    Ready(Vec<u8>),
    /// The watching thread keeps it until the start was said: the end of who lingers must not come before it.
    Kept,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Live roots and unreaped dead ones by pid.
    pub(super) roots: HashMap<i32, Root>,
    /// Where the root of a process is.
    pub(super) pid_of: HashMap<ProcessId, i32>,
    /// The process that is being started.
    pub(super) starting: Option<Root>,
    pub(super) early_exit: EarlyExit,
    /// The watching thread left zombies alone because it could not tell them from a start under way; the spawning
    /// thread wakes it when that start is in the books.
    pub(super) look_again: bool,
    /// The session is over: nothing is started any more. Set under the lock under which `starting` is, so that a start is
    /// either known to whoever ends the session or does not happen.
    pub(super) closed: bool,
}

/// What a pid is to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A root in the books.
    Root,
    /// The child of a start under way, which executes its program.
    Executing,
    /// It is, or may be, the child of a start under way.
    Starting,
    /// Neither: a descendant that was left to the keeper.
    Adopted,
}

impl Books {
    pub(super) fn insert(&mut self, pid: i32, root: Root) {
        self.pid_of.insert(root.id, pid);
        self.roots.insert(pid, root);
    }

    pub(super) fn remove(&mut self, pid: i32) -> Option<Root> {
        let root = self.roots.remove(&pid)?;
        self.pid_of.remove(&root.id);
        Some(root)
    }

    pub(super) fn known(&self, pid: i32, attempt: &Attempt) -> Known {
        if self.roots.contains_key(&pid) {
            return Known::Root;
        }
        match attempt.in_flight() {
            InFlight::No => Known::Adopted,
            InFlight::Unknown => Known::Starting,
            InFlight::Child(child) if child != pid => Known::Adopted,
            InFlight::Child(_) if self.starting.is_some() && attempt.has_begun() && !attempt.has_failed() => {
                Known::Executing
            }
            InFlight::Child(_) => Known::Starting,
        }
    }

    /// The spawning thread is gone, perhaps in the midst of a start: what it had started is a root like any other.
    pub(super) fn finish_start(&mut self, attempt: &Attempt) {
        if let (InFlight::Child(pid), Some(root)) = (attempt.in_flight(), self.starting.take()) {
            self.insert(pid, root);
        }
        self.early_exit = EarlyExit::None;
        attempt.settle();
    }

    /// The process that is being started, once it has a pid, until it is reaped.
    pub(super) fn starting(&self, attempt: &Attempt) -> Option<(i32, &Root)> {
        match attempt.in_flight() {
            InFlight::Child(pid) => Some((pid, self.starting.as_ref()?)),
            InFlight::No | InFlight::Unknown => None,
        }
    }

    /// The root's pid, of a process that is being started as well.
    pub(super) fn pid_of(&self, id: ProcessId, attempt: &Attempt) -> Option<i32> {
        let starting = || self.starting(attempt).filter(|(_, root)| root.id == id).map(|(pid, _)| pid);
        self.pid_of.get(&id).copied().or_else(starting)
    }

    /// All roots with their pids.
    pub(super) fn all<'a>(&'a self, attempt: &Attempt) -> impl Iterator<Item = (i32, &'a Root)> {
        self.roots.iter().map(|(pid, root)| (*pid, root)).chain(self.starting(attempt))
    }

    /// The root with this pid.
    pub(super) fn root_at<'a>(&'a self, pid: i32, attempt: &Attempt) -> Option<&'a Root> {
        let starting = || self.starting(attempt).filter(|(at, _)| *at == pid).map(|(_, root)| root);
        self.roots.get(&pid).or_else(starting)
    }

    /// The root of this process.
    pub(super) fn root_of<'a>(&'a self, id: ProcessId, attempt: &Attempt) -> Option<&'a Root> {
        self.root_at(self.pid_of(id, attempt)?, attempt)
    }
}

//! What a keeper knows of its children, shared between its two threads.
//!
//! The spawning thread writes a root into the books after the program executes; the watching thread takes it out
//! when it reaps it. Both happen under one lock, and every signal to a direct child is sent under it too, so a pid
//! found here is never one that has been reaped.

use std::collections::HashMap;

use crate::id::ProcessId;
use crate::sys::cgroup::Leaf;
use crate::sys::clone::{Attempt, InFlight};

/// The first process of a process in our sense: the one that was asked for.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) id: ProcessId,
    /// Inodes of the pipes that its stdout and stderr go to.
    pub(super) pipes: [u64; 2],
    pub(super) leaf: Option<Leaf>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Live roots and unreaped dead ones by pid.
    pub(super) roots: HashMap<i32, Root>,
    /// Where the root of a process is.
    pub(super) pid_of: HashMap<ProcessId, i32>,
    /// The process that is being started.
    pub(super) starting: Option<ProcessId>,
    /// The watching thread left zombies alone because it could not tell them from a start under way; the spawning
    /// thread wakes it when that start is in the books.
    pub(super) look_again: bool,
}

/// What a pid is to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A root in the books.
    Root,
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
            InFlight::Child(child) if child == pid => Known::Starting,
            InFlight::Child(_) => Known::Adopted,
        }
    }

    /// The pid of the process that is being started, when it is this one and there is a pid.
    pub(super) fn starting_pid(&self, id: ProcessId, attempt: &Attempt) -> Option<i32> {
        match attempt.in_flight() {
            InFlight::Child(pid) if self.starting == Some(id) && !self.roots.contains_key(&pid) => Some(pid),
            InFlight::Child(_) | InFlight::No | InFlight::Unknown => None,
        }
    }
}

//! Reaping the keeper's children: a pid is taken out of the books under the lock under which it is reaped.

use std::sync::Arc;

use super::Shared;
use super::books::{EarlyExit, Known, Root};
use super::family::Family;
use crate::id::ProcessId;
use crate::lifecycle::ExitStatus;
use crate::sys::cgroup::Leaf;
use crate::sys::wait::{self, Ended, Usage};

/// The end of a root.
pub(super) struct Exit {
    pub(super) id: ProcessId,
    pub(super) pid: i32,
    pub(super) pipes: [u64; 2],
    pub(super) leaf: Option<Arc<Leaf>>,
    pub(super) early: bool,
    pub(super) status: ExitStatus,
    pub(super) usage: Usage,
}

/// What was reaped.
#[derive(Default)]
pub(super) struct Reaped {
    pub(super) exits: Vec<Exit>,
    pub(super) left: Left,
}

/// Who may be left below the keeper after reaping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Left {
    #[default]
    Somebody,
    /// There is no child at all.
    Nobody,
}

/// Reaps until nothing is left to reap, or until one that was still being started: it must be settled first.
pub(super) fn reap(shared: &Shared, family: &mut Family) -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        let pid = match wait::peek_any() {
            Ended::Child(pid) => pid,
            Ended::NotYet => break,
            Ended::NoChildren => {
                reaped.left = Left::Nobody;
                break;
            }
        };
        let mut books = shared.books.lock();
        let known = books.known(pid, &shared.attempt);
        let root = match known {
            Known::Root => books.remove(pid),
            Known::Executing => {
                books.early_exit = EarlyExit::Reaped;
                books.starting.take()
            }
            Known::Starting => {
                books.look_again = true;
                break;
            }
            Known::Adopted => {
                wait::reap(pid);
                family.reaped(pid);
                continue;
            }
        };
        let (Some(Root { id, pipes, leaf }), Some((status, usage))) = (root, wait::reap(pid)) else {
            break;
        };
        let early = known == Known::Executing;
        reaped.exits.push(Exit { id, pid, pipes, leaf, early, status, usage });
        if early {
            break;
        }
    }
    reaped
}

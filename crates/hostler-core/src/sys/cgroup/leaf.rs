//! The leaf of one process, and the spare ones that wait for the next.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::AtFlags;

use super::CgroupError;
use super::files::{self, Existing, PATH_ONLY};
use crate::id::ProcessId;

/// How many empty leaves a session keeps.
const MAX_SPARES: usize = 16;

/// Empty leaves that are as they were made.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<Vec<Arc<Leaf>>>);

impl Spares {
    /// One that is still as it was made: a program with our rights can reach those of others, too.
    pub(super) fn take(&self) -> Option<Arc<Leaf>> {
        loop {
            let leaf = self.0.lock().pop()?;
            if leaf.is_as_made() {
                return Some(leaf);
            }
            // Whoever is in it keeps it until the session's end.
            let _ = leaf.remove();
        }
    }

    fn has_room(&self) -> bool {
        self.0.lock().len() < MAX_SPARES
    }

    /// Whether there was room.
    fn keep(&self, leaf: &Arc<Leaf>) -> bool {
        let mut spares = self.0.lock();
        let has_room = spares.len() < MAX_SPARES;
        if has_room {
            spares.push(Arc::clone(leaf));
        }
        has_room
    }
}

/// The cgroup of one process and all its descendants that have not been moved away.
///
/// Dropping it leaves the folder: whoever still needs to wait for processes calls [`Leaf::remove`] later.
#[derive(Debug)]
pub struct Leaf {
    parent: Arc<OwnedFd>,
    dir: OwnedFd,
    name: String,
    first: ProcessId,
    /// Its `cgroup.events`, opened when it is first looked at.
    events: OnceLock<OwnedFd>,
    spoiled: AtomicBool,
    spares: Weak<Spares>,
}

impl Leaf {
    pub(super) fn create(
        parent: &Arc<OwnedFd>,
        first: ProcessId,
        spares: &Arc<Spares>,
    ) -> Result<Self, CgroupError> {
        let name = format!("p{first}");
        files::make(parent.as_fd(), &name, Existing::Refused)?;
        let dir = files::open_group(parent.as_fd(), &name, PATH_ONLY).inspect_err(|_| {
            // Nobody can be in it: nobody else knows it.
            let _ = rustix::fs::unlinkat(&**parent, &name, AtFlags::REMOVEDIR);
        })?;
        let (events, spoiled) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self {
            parent: Arc::clone(parent),
            dir,
            name,
            first,
            events,
            spoiled,
            spares: Arc::downgrade(spares),
        })
    }

    /// The process that it was made for and is named after.
    pub fn first(&self) -> ProcessId {
        self.first
    }

    /// Makes sure that no other process gets it.
    pub fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// The descriptor for clone3's CLONE_INTO_CGROUP (O_PATH, closed on exec).
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Lets the kernel kill everything in it, forks under way too, and thaws it, for frozen it would stay in use.
    /// A leaf that is gone has nothing to kill.
    ///
    /// # Errors
    /// [`CgroupError::Open`], [`CgroupError::Kill`] (EOPNOTSUPP when a child made it a threaded group): kill by the
    /// descendants instead. [`CgroupError::Thaw`]: killed all the same.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.spoil();
        files::kill(self.dir.as_fd(), &self.name)
    }

    /// Whether a live process is in it or in a group below; zombies do not count. One that cannot be read counts as
    /// populated: asking again costs little, forgetting a process does not.
    pub fn populated(&self) -> bool {
        match files::open_events(self.dir.as_fd(), &self.name) {
            Ok(Some(events)) => files::read_populated(&events, &self.name).unwrap_or(true),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Waits until nothing lives in it, at most about `patience`; whether that is so.
    ///
    /// # Errors
    /// [`CgroupError::Open`], [`CgroupError::Read`].
    pub fn wait_empty(&self, patience: Duration) -> Result<bool, CgroupError> {
        files::wait_empty(self.dir.as_fd(), &self.name, patience)
    }

    /// The processes in it and in the groups below, as far as they can be read: a group that a child made threaded
    /// names none, and of very many groups some are left out. A hint whom to signal, no proof of who is there.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        files::collect_pids(self.dir.as_fd(), &self.name, &mut files::Bounds::default(), &mut pids);
        pids
    }

    /// Gives it back after its process has ended: to the spare ones if it is as it was made, else it is removed. Whether
    /// nothing lives in it any more.
    pub fn release(self: &Arc<Self>) -> bool {
        // Room first: at the end of a large session there is none for most, and nothing to look at.
        let spares = self.spares.upgrade().filter(|spares| spares.has_room() && self.is_as_made());
        spares.is_some_and(|spares| spares.keep(self)) || self.remove().is_ok() || !self.populated()
    }

    /// Empty, not frozen, without groups below, and never killed by us: a kill that is under way could meet the next
    /// process. A program with our rights can do more to it that cannot be seen: a kill of its own shows when the next
    /// process is killed at birth; limits (`cgroup.max.depth`, extended attributes) are passed on to the next.
    fn is_as_made(&self) -> bool {
        if self.spoiled.load(Ordering::Relaxed) {
            return false;
        }
        let has_groups = rustix::fs::fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 2);
        !has_groups && self.is_quiet() == Some(true)
    }

    fn is_quiet(&self) -> Option<bool> {
        let events = match self.events.get() {
            Some(events) => events,
            None => {
                let opened = files::open_events(self.dir.as_fd(), &self.name).ok()??;
                self.events.get_or_init(|| opened)
            }
        };
        let mut text = [0; 64];
        let len = rustix::io::pread(events, &mut text, 0).ok()?;
        let mut lines = text[..len].split(|byte| *byte == b'\n');
        Some(!lines.any(|line| line.ends_with(b" 1")))
    }

    /// Removes it with the groups that a child has made below. Gone already is as good.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] while something is in it: a process counts until a moment after its exit is known.
    /// [`CgroupError::Remove`], [`CgroupError::TooMany`], and those of listing it.
    pub fn remove(&self) -> Result<(), CgroupError> {
        files::remove_tree(self.parent.as_fd(), &self.name)
    }
}

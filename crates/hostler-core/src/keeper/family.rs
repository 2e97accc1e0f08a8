//! Who belongs to whom among a keeper's descendants.
//!
//! A keeper is a child subreaper: what its session starts stays below it. Direct children are either roots, which
//! the books know, or *adopted*: descendants whose parent ended. An adopted process (with all that is below it)
//! belongs to the process whose session, process group or control group it is in; failing that, to the one whose
//! output pipe it can still write to, or whose id it carries in its environment (which is more easily copied). Marks
//! count only here, among our own adopted processes: a program elsewhere with the same environment is never looked at.
//!
//! Why it is so: `docs/design/attribution.md`.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::PROCESS_ID_VARIABLE;
use super::books::{Books, Known};
use crate::id::ProcessId;
use crate::sys::cgroup::{self, Leaf};
use crate::sys::clone::{Attempt, InFlight};
use crate::sys::procfs::{self, Stat};

/// A process whose root has ended while something that it started lives on.
#[derive(Debug)]
pub(super) struct Bereft {
    /// The root's pid, which names the session and group that the rest may still be in. It stays reserved while they
    /// have members.
    root_pid: i32,
    pipes: [u64; 2],
    leaf: Option<Arc<Leaf>>,
}

impl Bereft {
    pub(super) fn new(root_pid: i32, pipes: [u64; 2], leaf: Option<Arc<Leaf>>) -> Self {
        Self { root_pid, pipes, leaf }
    }

    pub(super) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_deref()
    }
}

#[derive(Debug)]
struct Adopted {
    start_time: u64,
    owner: Option<ProcessId>,
}

/// One process to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) pid: i32,
    /// Tells it from a later process with the same pid.
    pub(super) start_time: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Family {
    /// `/proc/self/task/TID/children` of the watching thread, kept open: adopted processes are its children, while
    /// roots are the spawning thread's. `None` where the kernel has no such file.
    own_children: Option<File>,
    adopted: HashMap<i32, Adopted>,
    bereft: HashMap<ProcessId, Bereft>,
    /// Members seen below a live root during a stop, by pid and start time: they keep their owner when adopted later.
    seen: HashMap<(i32, u64), ProcessId>,
}

impl Family {
    /// To be made by the thread that will watch.
    pub(super) fn new() -> Self {
        Self {
            own_children: File::open("/proc/thread-self/children").ok(),
            adopted: HashMap::new(),
            bereft: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Looks at who has been adopted and finds owners for those that are new or still without one.
    ///
    /// A process that turns out to be dead may have left a child that was adopted after the list was read, and one that is
    /// dying shows no signs; so the list is read again until it brings neither anew: a chain of processes that fork and
    /// exit has somebody alive in it.
    pub(super) fn refresh(&mut self, books: &Books, attempt: &Attempt) {
        let (mut dying, mut dead) = (HashSet::new(), HashSet::new());
        loop {
            let now: HashSet<i32> = self.adopted_pids(books, attempt).into_iter().collect();
            self.adopted.retain(|pid, _| now.contains(pid));
            let mut look_again = false;
            for pid in now {
                match procfs::stat(pid).filter(|stat| !stat.is_dead()) {
                    Some(stat) => look_again |= !self.adopt(books, attempt, &stat) && dying.insert(pid),
                    None => {
                        self.adopted.remove(&pid);
                        look_again |= dead.insert(pid);
                    }
                }
            }
            if !look_again {
                return;
            }
        }
    }

    /// There is nobody who could have been adopted.
    pub(super) fn forget_adopted(&mut self) {
        self.adopted.clear();
    }

    /// Whether that can be relied on: it has an owner, or none was found while it was alive and well.
    fn adopt(&mut self, books: &Books, attempt: &Attempt, stat: &Stat) -> bool {
        let known = self.adopted.get(&stat.pid).filter(|a| a.start_time == stat.start_time);
        if known.is_some_and(|a| a.owner.is_some()) {
            return true;
        }
        let owner =
            self.owner(books, attempt, stat).or_else(|| self.owner_by_heirs(books, attempt, stat.pid));
        self.adopted.insert(stat.pid, Adopted { start_time: stat.start_time, owner });
        owner.is_some() || procfs::stat(stat.pid).is_some_and(|now| !now.is_dying() && !now.is_dead())
    }

    /// Who is dying shows no signs, but may have children that do, and that are not adopted yet.
    fn owner_by_heirs(&self, books: &Books, attempt: &Attempt, pid: i32) -> Option<ProcessId> {
        if !procfs::stat(pid)?.is_dying() {
            return None;
        }
        let mut heirs = Vec::new();
        procfs::descendants(&[pid], &mut heirs);
        heirs.into_iter().filter_map(procfs::stat).find_map(|heir| self.owner(books, attempt, &heir))
    }

    fn adopted_pids(&self, books: &Books, attempt: &Attempt) -> Vec<i32> {
        let mut pids = match &self.own_children {
            Some(file) => read_pids(file),
            None => procfs::children(rustix::process::getpid().as_raw_nonzero().get()),
        };
        // In the watching thread's own list there is no child of a start under way, so a start whose child is not
        // known yet makes nobody doubtful.
        let own_list = self.own_children.is_some();
        pids.retain(|pid| match books.known(*pid, attempt) {
            Known::Adopted => true,
            Known::Starting => own_list && attempt.in_flight() == InFlight::Unknown,
            Known::Root | Known::Executing => false,
        });
        pids
    }

    /// The signs in the order in which they are hard to lose.
    fn owner(&self, books: &Books, attempt: &Attempt, stat: &Stat) -> Option<ProcessId> {
        if let Some(id) = self.seen.get(&(stat.pid, stat.start_time)) {
            return Some(*id);
        }
        let by_session = |pid: i32| {
            let live = books.root_at(pid, attempt).map(|root| root.id);
            live.or_else(|| self.bereft.iter().find(|(_, b)| b.root_pid == pid).map(|(id, _)| *id))
        };
        if let Some(id) = by_session(stat.session).or_else(|| by_session(stat.group)) {
            return Some(id);
        }
        let ours = |id: &ProcessId| books.pid_of(*id, attempt).is_some() || self.bereft.contains_key(id);
        cgroup::owner_of(stat.pid, |first| self.by_leaf(books, attempt, first))
            .or_else(|| self.by_pipe(books, attempt, stat.pid))
            .or_else(|| procfs::environ_value(stat.pid, PROCESS_ID_VARIABLE)?.parse().ok().filter(ours))
    }

    /// Who has the leaf that was made for this process.
    fn by_leaf(&self, books: &Books, attempt: &Attempt, first: ProcessId) -> Option<ProcessId> {
        let live = books.all(attempt).map(|(_, root)| (root.id, root.leaf.as_deref()));
        let gone = self.bereft.iter().map(|(id, b)| (*id, b.leaf()));
        live.chain(gone).find(|(_, leaf)| leaf.is_some_and(|leaf| leaf.first() == first)).map(|(id, _)| id)
    }

    fn by_pipe(&self, books: &Books, attempt: &Attempt, pid: i32) -> Option<ProcessId> {
        let held = procfs::written_pipes(pid);
        if held.is_empty() {
            return None;
        }
        let live = books.all(attempt).map(|(_, root)| (root.id, root.pipes));
        let gone = self.bereft.iter().map(|(id, b)| (*id, b.pipes));
        live.chain(gone).find(|(_, pipes)| pipes.iter().any(|inode| held.contains(inode))).map(|(id, _)| id)
    }

    /// Adopted processes of this owner, and everything below them. Call [`Family::refresh`] before.
    pub(super) fn adopted_of(&self, id: ProcessId) -> Vec<Member> {
        self.adopted_where(|adopted| adopted.owner == Some(id))
    }

    /// The adopted ones are listed even if they have ended since the refresh: that a pass found them is a reason for
    /// another.
    fn adopted_where(&self, which: impl Fn(&Adopted) -> bool) -> Vec<Member> {
        let those = self.adopted.iter().filter(|(_, adopted)| which(adopted));
        let mut members: Vec<Member> =
            those.map(|(pid, a)| Member { pid: *pid, start_time: a.start_time }).collect();
        let tops: Vec<i32> = members.iter().map(|m| m.pid).collect();
        let mut below = Vec::new();
        procfs::descendants(&tops, &mut below);
        let parents = members.iter().map(|m| m.pid).collect();
        members.extend(still_below(below, parents));
        members
    }

    /// Everything alive that belongs to the process: root, descendants, adopted ones.
    pub(super) fn members(&mut self, books: &Books, attempt: &Attempt, id: ProcessId) -> Vec<Member> {
        let mut members = Vec::new();
        if let Some(pid) = books.pid_of(id, attempt) {
            members = with_descendants(&[pid]);
            self.seen.extend(members.iter().map(|m| ((m.pid, m.start_time), id)));
        }
        members.extend(self.adopted_of(id));
        if let Some(leaf) = self.leaf(books, attempt, id) {
            let strangers = leaf.pids().into_iter().filter(|pid| !members.iter().any(|m| m.pid == *pid));
            let strangers: Vec<Member> = strangers.filter_map(member).collect();
            members.extend(strangers);
        }
        members
    }

    /// The control group of a process.
    pub(super) fn leaf<'a>(&'a self, books: &'a Books, attempt: &Attempt, id: ProcessId) -> Option<&'a Leaf> {
        let live = books.root_of(id, attempt).and_then(|root| root.leaf.as_deref());
        live.or_else(|| self.bereft.get(&id).and_then(Bereft::leaf))
    }

    /// Everything alive below the keeper.
    pub(super) fn everyone(&self, books: &Books, attempt: &Attempt) -> Vec<Member> {
        let mut members = with_descendants(&books.all(attempt).map(|(pid, _)| pid).collect::<Vec<_>>());
        members.extend(self.adopted_where(|_| true));
        members
    }

    /// Adopted processes that nothing ties to a process.
    pub(super) fn unattributed(&self) -> Vec<i32> {
        self.adopted.iter().filter(|(_, a)| a.owner.is_none()).map(|(pid, _)| *pid).collect()
    }

    /// Remembers a process whose root has ended but not all that it started.
    pub(super) fn bereave(&mut self, id: ProcessId, bereft: Bereft) {
        self.bereft.insert(id, bereft);
    }

    /// Takes out those of which nothing lives any more, and gives their control groups back: a group that can be neither
    /// kept nor removed is in use.
    pub(super) fn take_gone(&mut self) -> Vec<ProcessId> {
        let owners: HashSet<ProcessId> = self.adopted.values().filter_map(|a| a.owner).collect();
        let gone =
            |id: &ProcessId, b: &Bereft| !owners.contains(id) && b.leaf.as_ref().is_none_or(Leaf::release);
        let ids: Vec<ProcessId> =
            self.bereft.iter().filter(|(id, b)| gone(id, b)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.bereft.remove(id);
        }
        ids
    }

    /// Whether this process is known to have left something behind.
    pub(super) fn is_bereft(&self, id: ProcessId) -> bool {
        self.bereft.contains_key(&id)
    }

    /// Whether any process has.
    pub(super) fn has_bereft(&self) -> bool {
        !self.bereft.is_empty()
    }

    /// Forgets what was seen during stops, once none is under way.
    pub(super) fn forget_seen(&mut self) {
        self.seen.clear();
    }
}

fn read_pids(file: &File) -> Vec<i32> {
    let mut text = [0_u8; 4096];
    let Ok(n) = file.read_at(&mut text, 0) else { return Vec::new() };
    if n < text.len() {
        return procfs::parse_pids(&text[..n]);
    }
    // Many of them: read on to the end.
    let mut all = text.to_vec();
    loop {
        match file.read_at(&mut text, all.len() as u64) {
            Ok(0) | Err(_) => return procfs::parse_pids(&all),
            Ok(n) => all.extend_from_slice(&text[..n]),
        }
    }
}

fn member(pid: i32) -> Option<Member> {
    let stat = procfs::stat(pid)?;
    (!stat.is_dead()).then_some(Member { pid, start_time: stat.start_time })
}

/// These processes and everything below them, the dead left out.
fn with_descendants(tops: &[i32]) -> Vec<Member> {
    let mut pids = tops.to_vec();
    procfs::descendants(tops, &mut pids);
    still_below(pids, HashSet::new())
}

/// Who of these lives and still has one of them, one of `parents` or the keeper as its parent. A pid that was given to somebody else
/// since the list was read shows another parent: its new start time must not become the one to look for.
fn still_below(pids: Vec<i32>, mut parents: HashSet<i32>) -> Vec<Member> {
    parents.extend(&pids);
    parents.insert(rustix::process::getpid().as_raw_nonzero().get());
    let stats = pids.into_iter().filter_map(procfs::stat);
    let ours = stats.filter(|stat| !stat.is_dead() && parents.contains(&stat.parent));
    ours.map(|stat| Member { pid: stat.pid, start_time: stat.start_time }).collect()
}

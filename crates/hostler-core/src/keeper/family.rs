//! Who belongs to whom among a keeper's descendants.
//!
//! A keeper is a child subreaper: what its session starts stays below it. Direct children are either roots, which
//! the books know, or *adopted*: descendants whose parent ended. An adopted process (with all that is below it)
//! belongs to the process whose session, process group or control group it is in; failing that, to the one whose
//! output pipe it can still write to, or whose id it carries in its environment (which is more easily copied). Marks
//! count only here, among our own adopted processes: a program elsewhere with the same environment is never looked at.
//!
//! What could not be looked at is said in the [`Look`]: it is never taken for nobody.
//!
//! Why it is so: `docs/design/attribution.md`.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, OnceLock};

use super::PROCESS_ID_VARIABLE;
use super::books::{Books, Known};
use crate::id::ProcessId;
use crate::sys::cgroup::{self, Leaf};
use crate::sys::clone::{Attempt, InFlight};
use crate::sys::procfs::{self, OwnChildren, Stat};
use crate::sys::wait;

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
    /// [`UNSEEN`] until it could be looked at.
    start_time: u64,
    owner: Option<ProcessId>,
}

impl Adopted {
    /// Whether another look could bring nothing that is wanted.
    fn is_settled(&self, wanted: Wanted) -> bool {
        self.start_time != UNSEEN && (self.owner.is_some() || wanted == Wanted::Existence)
    }
}

/// One process to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) pid: i32,
    /// Tells it from a later process with the same pid. [`UNSEEN`] for a direct child that could not be looked at, which
    /// is told by not having been reaped.
    pub(super) start_time: u64,
}

/// No process has this start time but the first of all, which is nobody's child.
const UNSEEN: u64 = 0;

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Who belongs to which process.
    Owners,
    /// Who is there: all are to be treated alike.
    Existence,
}

/// How often the list of adopted processes is read for one look.
const MAX_ROUNDS: u32 = 4;

/// What a look at processes has brought.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Whoever was seen.
    pub(super) members: Vec<Member>,
    /// The first failure, as errno(3) numbers it: others may be there.
    pub(super) unseen: Option<i32>,
}

impl Look {
    fn note(&mut self, failure: &io::Error) {
        note(&mut self.unseen, failure);
    }
}

fn note(unseen: &mut Option<i32>, failure: &io::Error) {
    // All of these come from the kernel but a `stat` without its fields, which no kernel writes.
    unseen.get_or_insert(failure.raw_os_error().unwrap_or(libc::EIO));
}

/// See the module.
#[derive(Debug)]
pub(super) struct Family {
    /// Of the watching thread: whoever is left alone becomes its child.
    own_children: OwnChildren,
    /// Of the spawning thread, once that is up: roots, and what a program has made its own sibling (CLONE_PARENT).
    spawners_children: Arc<OnceLock<OwnChildren>>,
    adopted: HashMap<i32, Adopted>,
    bereft: HashMap<ProcessId, Bereft>,
    /// Members seen below a live root during a stop, by pid and start time: they keep their owner when adopted later.
    seen: HashMap<(i32, u64), ProcessId>,
    /// The first failure of the last refresh.
    unseen: Option<i32>,
    /// An adopted process was reaped, and whoever it belonged to has not been looked at since.
    has_lost: bool,
}

impl Family {
    /// To be made by the thread that will watch.
    pub(super) fn new(spawners_children: Arc<OnceLock<OwnChildren>>) -> Self {
        Self {
            own_children: OwnChildren::open(),
            spawners_children,
            adopted: HashMap::new(),
            bereft: HashMap::new(),
            seen: HashMap::new(),
            unseen: None,
            has_lost: false,
        }
    }

    /// Looks at who has been adopted and finds owners for those that are new or still without one.
    ///
    /// A process that turns out to be dead may have left a child that was adopted after the list was read, and one that is
    /// dying shows no signs; so the list is read again until it brings neither anew: a chain of processes that fork and
    /// exit has somebody alive in it. It is read a few times at most: many such chains bring somebody new every time, and
    /// that they do is a look that has failed.
    pub(super) fn refresh(&mut self, books: &Books, attempt: &Attempt, wanted: Wanted) {
        self.unseen = None;
        let mut dying = HashSet::new();
        for _ in 0..MAX_ROUNDS {
            let now: HashSet<i32> = match self.direct(books, attempt) {
                Ok(pids) => pids.into_iter().collect(),
                Err(failure) => return note(&mut self.unseen, &failure),
            };
            self.adopted.retain(|pid, _| now.contains(pid));
            let mut look_again = false;
            for pid in now {
                // Dead ones go at once: those that fork and exit all the time would fill the list faster than it is read.
                if wait::reap_ended(pid) {
                    self.reaped(pid);
                    look_again = true;
                    continue;
                }
                // A child that was not reaped is the one that it was.
                if self.adopted.get(&pid).is_some_and(|known| known.is_settled(wanted)) {
                    continue;
                }
                match procfs::stat(pid) {
                    Ok(Some(stat)) if !stat.is_dead() => match self.adopt(books, attempt, &stat, wanted) {
                        Ok(reliable) => look_again |= !reliable && dying.insert(pid),
                        Err(failure) => note(&mut self.unseen, &failure),
                    },
                    Ok(_) => look_again = true,
                    Err(failure) => {
                        self.adopted.entry(pid).or_insert(Adopted { start_time: UNSEEN, owner: None });
                        note(&mut self.unseen, &failure);
                    }
                }
            }
            if !look_again {
                return;
            }
        }
        note(&mut self.unseen, &io::Error::from_raw_os_error(libc::EAGAIN));
    }

    /// The adopted processes as they are now, dead ones among them.
    ///
    /// # Errors
    /// What reading them says.
    pub(super) fn direct(&self, books: &Books, attempt: &Attempt) -> io::Result<Vec<i32>> {
        let mut pids = self.own_children.pids()?;
        // In the watching thread's own list there is no child of a start under way, so a start whose child is not
        // known yet makes nobody doubtful.
        let own_list = self.own_children.are_of_one_thread();
        pids.retain(|pid| match books.known(*pid, attempt) {
            Known::Adopted => true,
            Known::Starting => own_list && attempt.in_flight() == InFlight::Unknown,
            Known::Root | Known::Executing => false,
        });
        if let Some(others) = self.spawners_children.get().filter(|list| own_list && list.are_of_one_thread())
        {
            let others = others.pids()?.into_iter();
            pids.extend(others.filter(|pid| books.known(*pid, attempt) == Known::Adopted));
        }
        Ok(pids)
    }

    /// There is nobody who could have been adopted.
    pub(super) fn forget_adopted(&mut self) {
        self.adopted.clear();
        self.unseen = None;
    }

    /// Whether that can be relied on: it has an owner, or none was found while it was alive and well.
    fn adopt(&mut self, books: &Books, attempt: &Attempt, stat: &Stat, wanted: Wanted) -> io::Result<bool> {
        let known = self.adopted.get(&stat.pid).filter(|a| a.start_time == stat.start_time);
        if known.is_some_and(|a| a.owner.is_some()) {
            return Ok(true);
        }
        if wanted == Wanted::Existence {
            self.adopted.insert(stat.pid, Adopted { start_time: stat.start_time, owner: None });
            return Ok(true);
        }
        let owner = match self.owner(books, attempt, stat) {
            Ok(None) => self.owner_by_heirs(books, attempt, stat.pid),
            found => found,
        };
        let known_owner = owner.as_ref().ok().copied().flatten();
        self.adopted.insert(stat.pid, Adopted { start_time: stat.start_time, owner: known_owner });
        Ok(owner?.is_some() || procfs::stat(stat.pid)?.is_some_and(|now| !now.is_dying() && !now.is_dead()))
    }

    /// Who is dying shows no signs, but may have children that do, and that are not adopted yet.
    fn owner_by_heirs(&self, books: &Books, attempt: &Attempt, pid: i32) -> io::Result<Option<ProcessId>> {
        if !procfs::stat(pid)?.is_some_and(|stat| stat.is_dying()) {
            return Ok(None);
        }
        let mut heirs = Vec::new();
        procfs::descendants(&[pid], &mut heirs)?;
        for heir in heirs {
            if let Some(heir) = procfs::stat(heir)?
                && let Some(owner) = self.owner(books, attempt, &heir)?
            {
                return Ok(Some(owner));
            }
        }
        Ok(None)
    }

    /// The signs in the order in which they are hard to lose.
    fn owner(&self, books: &Books, attempt: &Attempt, stat: &Stat) -> io::Result<Option<ProcessId>> {
        if let Some(id) = self.seen.get(&(stat.pid, stat.start_time)) {
            return Ok(Some(*id));
        }
        let by_session = |pid: i32| {
            let live = books.root_at(pid, attempt).map(|root| root.id);
            live.or_else(|| self.bereft.iter().find(|(_, b)| b.root_pid == pid).map(|(id, _)| *id))
        };
        if let Some(id) = by_session(stat.session).or_else(|| by_session(stat.group)) {
            return Ok(Some(id));
        }
        let ours = |id: &ProcessId| books.pid_of(*id, attempt).is_some() || self.bereft.contains_key(id);
        if let Some(id) = cgroup::owner_of(stat.pid, |first| self.by_leaf(books, attempt, first))? {
            return Ok(Some(id));
        }
        if let Some(id) = self.by_pipe(books, attempt, stat.pid)? {
            return Ok(Some(id));
        }
        let marked = procfs::environ_value(stat.pid, PROCESS_ID_VARIABLE)?;
        Ok(marked.and_then(|id| id.parse().ok()).filter(ours))
    }

    /// Who has the leaf that was made for this process.
    fn by_leaf(&self, books: &Books, attempt: &Attempt, first: ProcessId) -> Option<ProcessId> {
        let live = books.all(attempt).map(|(_, root)| (root.id, root.leaf.as_deref()));
        let gone = self.bereft.iter().map(|(id, b)| (*id, b.leaf()));
        live.chain(gone).find(|(_, leaf)| leaf.is_some_and(|leaf| leaf.first() == first)).map(|(id, _)| id)
    }

    fn by_pipe(&self, books: &Books, attempt: &Attempt, pid: i32) -> io::Result<Option<ProcessId>> {
        let held = procfs::written_pipes(pid)?;
        if held.is_empty() {
            return Ok(None);
        }
        let live = books.all(attempt).map(|(_, root)| (root.id, root.pipes));
        let gone = self.bereft.iter().map(|(id, b)| (*id, b.pipes));
        let mut all = live.chain(gone);
        Ok(all.find(|(_, pipes)| pipes.iter().any(|inode| held.contains(inode))).map(|(id, _)| id))
    }

    /// Adopted processes of this owner, and everything below them. Call [`Family::refresh`] before.
    pub(super) fn adopted_of(&self, id: ProcessId) -> Look {
        let mut look = Look { members: Vec::new(), unseen: self.unseen };
        self.add_adopted(&mut look, |adopted| adopted.owner == Some(id));
        look
    }

    /// The adopted ones are listed even if they have ended since the refresh: that a pass found them is a reason for
    /// another.
    fn add_adopted(&self, look: &mut Look, which: impl Fn(&Adopted) -> bool) {
        let those = self.adopted.iter().filter(|(_, adopted)| which(adopted));
        let tops: Vec<Member> =
            those.map(|(pid, a)| Member { pid: *pid, start_time: a.start_time }).collect();
        let pids: Vec<i32> = tops.iter().map(|m| m.pid).collect();
        look.members.extend(tops);
        add_below(look, &pids);
    }

    /// Everything alive that belongs to the process: root, descendants, adopted ones. Call [`Family::refresh`] before.
    pub(super) fn members(&mut self, books: &Books, attempt: &Attempt, id: ProcessId) -> Look {
        let mut look = Look { members: Vec::new(), unseen: self.unseen };
        if let Some(pid) = books.pid_of(id, attempt) {
            add_roots(&mut look, &[pid]);
            self.seen.extend(look.members.iter().map(|m| ((m.pid, m.start_time), id)));
        }
        self.add_adopted(&mut look, |adopted| adopted.owner == Some(id));
        if let Some(leaf) = self.leaf(books, attempt, id) {
            add_listed(&mut look, leaf);
        }
        // A pid that was listed below this process and has been given to another root since shows the keeper as its parent,
        // as an orphan of this process would.
        let others: HashSet<i32> =
            books.all(attempt).filter(|(_, root)| root.id != id).map(|(pid, _)| pid).collect();
        look.members.retain(|member| !others.contains(&member.pid));
        look
    }

    /// The control group of a process.
    pub(super) fn leaf<'a>(&'a self, books: &'a Books, attempt: &Attempt, id: ProcessId) -> Option<&'a Leaf> {
        let live = books.root_of(id, attempt).and_then(|root| root.leaf.as_deref());
        live.or_else(|| self.bereft.get(&id).and_then(Bereft::leaf))
    }

    /// Everything alive below the keeper. Call [`Family::refresh`] before.
    pub(super) fn everyone(&self, books: &Books, attempt: &Attempt) -> Look {
        let mut look = Look { members: Vec::new(), unseen: self.unseen };
        add_roots(&mut look, &books.all(attempt).map(|(pid, _)| pid).collect::<Vec<_>>());
        self.add_adopted(&mut look, |_| true);
        look
    }

    /// Whether this is a direct child that was adopted and has not been reaped since.
    pub(super) fn has_adopted(&self, member: Member) -> bool {
        self.adopted.get(&member.pid).is_some_and(|adopted| adopted.start_time == member.start_time)
    }

    /// Its pid may be given to somebody else from here on, whether or not the next look succeeds.
    pub(super) fn reaped(&mut self, pid: i32) {
        self.adopted.remove(&pid);
        self.has_lost = true;
    }

    /// Whether an adopted process was reaped since this was last asked: somebody may have nobody left.
    pub(super) fn has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// Whether the last look has failed for a reason that may pass. What may not be looked at never can be.
    pub(super) fn should_look_again(&self) -> bool {
        self.unseen.is_some_and(|errno| errno != libc::EACCES && errno != libc::EPERM)
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
    /// kept nor removed is in use. Nobody is taken out on the strength of a look that has to be repeated.
    pub(super) fn take_gone(&mut self) -> Vec<ProcessId> {
        if self.should_look_again() {
            return Vec::new();
        }
        let owners: HashSet<ProcessId> = self.adopted.values().filter_map(|a| a.owner).collect();
        let gone =
            |id: &ProcessId, b: &Bereft| !owners.contains(id) && b.leaf.as_ref().is_none_or(Leaf::release);
        let ids: Vec<ProcessId> =
            self.bereft.iter().filter(|(id, b)| gone(id, b)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.bereft.remove(id);
        }
        if !ids.is_empty() && !self.seen.is_empty() {
            self.seen.retain(|_, owner| !ids.contains(owner));
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

fn member(stat: Stat) -> Member {
    Member { pid: stat.pid, start_time: stat.start_time }
}

/// Adds these roots and everything below them, the dead left out. A root that cannot be looked at is one all the same:
/// the books say so.
fn add_roots(look: &mut Look, roots: &[i32]) {
    for pid in roots {
        match procfs::stat(*pid) {
            Ok(stat) => look.members.extend(stat.filter(|stat| !stat.is_dead()).map(member)),
            Err(failure) => {
                look.members.push(Member { pid: *pid, start_time: UNSEEN });
                look.note(&failure);
            }
        }
    }
    add_below(look, roots);
}

/// Adds everything below these, the dead left out.
fn add_below(look: &mut Look, tops: &[i32]) {
    let mut pids = Vec::new();
    if let Err(failure) = procfs::descendants(tops, &mut pids) {
        look.note(&failure);
    }
    let mut parents: HashSet<i32> = tops.iter().chain(&pids).copied().collect();
    // Whose parent has ended meanwhile is the keeper's child.
    parents.insert(rustix::process::getpid().as_raw_nonzero().get());
    for pid in pids {
        match procfs::stat(pid) {
            Ok(stat) => look.members.extend(stat.filter(|stat| still_below(stat, &parents)).map(member)),
            Err(failure) => look.note(&failure),
        }
    }
}

/// Adds whoever is in a control group and was not found before.
fn add_listed(look: &mut Look, leaf: &Leaf) {
    let known: HashSet<i32> = look.members.iter().map(|m| m.pid).collect();
    let mut listed: Vec<Member> = Vec::new();
    for pid in leaf.pids().into_iter().filter(|pid| !known.contains(pid)) {
        match procfs::stat(pid) {
            Ok(stat) => listed.extend(stat.filter(|stat| !stat.is_dead()).map(member)),
            Err(failure) => look.note(&failure),
        }
    }
    if listed.is_empty() {
        return;
    }
    // A pid may have been given to somebody else between the two looks, whose start time would then be the one to look for.
    // Whoever is still listed was in the group when that was read, or has come into it since.
    let still: HashSet<i32> = leaf.pids().into_iter().collect();
    look.members.extend(listed.into_iter().filter(|member| still.contains(&member.pid)));
}

/// Whether this is who was listed: alive, and with one of these as its parent. A pid that was given to somebody else since
/// the list was read shows another parent, and its new start time must not become the one to look for.
fn still_below(stat: &Stat, parents: &HashSet<i32>) -> bool {
    !stat.is_dead() && parents.contains(&stat.parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_that_was_given_away_between_list_and_look_is_not_taken_for_a_member() {
        let (keeper, root, listed, stranger) = (2, 10, 11, 77);
        let parents = HashSet::from([keeper, root, listed]);
        let seen = |state: u8, parent| {
            let stat = Stat {
                pid: listed,
                state,
                parent,
                group: 1,
                session: 1,
                flags: 0,
                threads: 1,
                start_time: 5,
            };
            still_below(&stat, &parents)
        };
        assert!(seen(b'S', root), "as it was listed");
        assert!(seen(b'S', keeper), "adopted meanwhile");
        assert!(!seen(b'S', stranger), "somebody else's child by now");
        assert!(!seen(b'Z', root), "dead");
    }

    #[test]
    fn what_was_seen_of_a_process_is_forgotten_with_it() {
        let mut family = Family::new(Arc::default());
        let (ended, lives) = (ProcessId::from_u128(1), ProcessId::from_u128(2));
        family.seen.extend([((10, 1), ended), ((11, 1), lives), ((12, 1), ended)]);
        family.bereave(ended, Bereft::new(10, [0, 0], None));
        assert_eq!(family.take_gone(), [ended]);
        assert_eq!(family.seen, HashMap::from([((11, 1), lives)]));
    }

    #[test]
    fn only_what_may_pass_is_looked_at_again() {
        let mut family = Family::new(Arc::default());
        let again: Vec<bool> = [None, Some(libc::EMFILE), Some(libc::ENOMEM), Some(libc::EACCES)]
            .into_iter()
            .map(|unseen| {
                family.unseen = unseen;
                family.should_look_again()
            })
            .collect();
        assert_eq!(again, [false, true, true, false]);
    }

    #[test]
    fn the_first_failure_of_a_look_is_the_one_that_is_told() {
        let mut look = Look::default();
        look.note(&io::Error::from_raw_os_error(libc::EMFILE));
        look.note(&io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(look.unseen, Some(libc::EMFILE));
    }
}

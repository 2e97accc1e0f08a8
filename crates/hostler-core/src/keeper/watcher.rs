//! The keeper's watching thread: reaps, kills, and ends the session when the host is gone.
//!
//! It never waits for anything but its own epoll: not for an exec (the spawning thread does), not for the host to
//! take an answer (those queue). It is the only one who reaps, so what it signals under the lock of the books cannot
//! be a reused pid. The keeper ends when its session is over *and* nothing lives below it.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::Shared;
use super::books::EarlyExit;
use super::family::{Bereft, Family, Look, Member, Wanted};
use super::hunt::{Hunt, Pass, Quarry, signal_pinned};
use super::outbox::Outbox;
use super::protocol::{Control, KeeperEvent, Pids, Scope};
use super::reap::{self, Exit, Left, Reaped};
use crate::id::ProcessId;
use crate::sys::clock;
use crate::sys::packet::{self, Wait};
use crate::sys::procfs;
use crate::sys::signal::{self, Signal};
use crate::sys::wait::{self, Ended};

const CONTROL: u64 = 0;
const CHILD: u64 = 1;
const HOST: u64 = 2;
const WAKE: u64 = 3;

/// How long after the SIGTERM to all groups the rest is looked for: by then those that end at once are gone, and need
/// no looking at.
const WALK_AFTER: Duration = Duration::from_millis(10);

/// Between two looks at whether the spawning thread is done, at the end of a session.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Kernels before 5.11 take no wait of more than 24 days, and a wait that is refused would be none.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Until the next look at who lingers, or the next try to send, when the last one has failed.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long a keeper that cannot go on kills before it lets the host know that it is lost.
const LOST_LIMIT: Duration = Duration::from_secs(2);

/// How many times in a row direct children are killed before the walk: enough for those that fork and exit all the time,
/// and some milliseconds at most while they take their time to die.
const PURGE_ROUNDS: u32 = 32;

/// How long a hunt that nobody waits for goes on before it starts over.
const UNATTENDED_LIMIT: Duration = Duration::from_secs(3600);

/// Where the session stands.
#[derive(Debug)]
enum Session {
    Open,
    /// Asked to end: SIGTERM is sent, SIGKILL follows.
    Closing {
        ticket: u64,
        kill_at: Instant,
        limit: Duration,
        termed: BTreeSet<i32>,
        walk_at: Option<Instant>,
    },
    /// Everything is being killed, or is dead.
    Ending,
}

/// The thread's own things.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    child_signal: OwnedFd,
    family: Family,
    /// When to look again at who lingers: the last look has failed.
    look_at: Option<Instant>,
    hunts: Vec<(Hunt, Instant)>,
    session: Session,
    /// The host's pidfd.
    host: Option<OwnedFd>,
    host_alive: bool,
    outbox: Outbox,
    /// What is to be said of a process once its start was: see [`EarlyExit::Kept`].
    kept: Option<(ProcessId, Vec<KeeperEvent>)>,
}

impl Watcher {
    /// To be made by the main thread of the keeper, with SIGCHLD blocked.
    pub(super) fn new(shared: Arc<Shared>, host: Option<OwnedFd>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let child_signal = signal::child_signal_fd()?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        watch(shared.control.as_fd(), CONTROL)?;
        watch(child_signal.as_fd(), CHILD)?;
        watch(shared.wake.as_fd(), WAKE)?;
        if let Some(host) = &host {
            watch(host.as_fd(), HOST)?;
        }
        let spawners_children = Arc::clone(&shared.spawners_children);
        Ok(Self {
            shared,
            epoll,
            child_signal,
            family: Family::new(spawners_children),
            look_at: None,
            hunts: Vec::new(),
            session: Session::Open,
            host,
            host_alive: true,
            outbox: Outbox::default(),
            kept: None,
        })
    }

    /// Runs until the session is over and nothing is left of it.
    pub(super) fn run(mut self) {
        while !self.is_finished() {
            self.wait();
            self.say_kept();
            self.reap_all();
            self.close_step();
            self.hunt_step();
            self.flush();
        }
    }

    fn is_finished(&self) -> bool {
        matches!(self.session, Session::Ending)
            && self.hunts.is_empty()
            && ((self.outbox.is_empty() && self.kept.is_none()) || !self.host_alive)
            && self.is_empty()
            && !(self.host_alive && self.shared.busy.load(Ordering::SeqCst))
    }

    fn deadline(&self) -> Option<Instant> {
        let hunts = self.hunts.iter().map(|(_, next)| *next);
        let close = match self.session {
            Session::Closing { kill_at, walk_at, .. } => {
                Some(walk_at.map_or(kill_at, |walk_at| walk_at.min(kill_at)))
            }
            Session::Open | Session::Ending => None,
        };
        // The spawning thread does not say when it is done; it matters only to a session that is over.
        let busy = matches!(self.session, Session::Ending) && self.shared.busy.load(Ordering::SeqCst);
        let look = busy.then(|| clock::now() + BUSY_PAUSE);
        hunts.chain(close).chain(look).chain(self.look_at).chain(self.outbox.retry_at()).min()
    }

    fn wait(&mut self) {
        let timeout = self.deadline().map(|at| {
            let left = at.saturating_duration_since(clock::now()).min(LONGEST_WAIT);
            Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else { return };
        let ready: Vec<(u64, epoll::EventFlags)> = ready.iter().map(|e| (e.data.u64(), e.flags)).collect();
        for (token, flags) in ready {
            match token {
                CONTROL => self.control_ready(flags),
                CHILD => signal::drain_signal_fd(self.child_signal.as_fd()),
                WAKE => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.shared.wake, &mut count);
                    if self.shared.spawner_ended.load(Ordering::SeqCst) {
                        self.spawner_gone();
                    }
                }
                HOST => self.host_gone(),
                _ => {}
            }
        }
    }

    fn control_ready(&mut self, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush();
        }
        let mut buffer = [0_u8; 256];
        loop {
            match packet::receive(self.shared.control.as_fd(), &mut buffer, Wait::Never) {
                Ok(Some((len, _))) => match Control::decode(&buffer[..len]) {
                    Ok(request) => self.handle(request),
                    // Another build of hostler, or a broken host: neither can be served, and nothing may be left.
                    Err(_) => return self.host_gone(),
                },
                Ok(None) => return self.host_gone(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.host_gone(),
            }
        }
    }

    /// The socket has ended or the host's pidfd says so: end the session now.
    fn host_gone(&mut self) {
        if !self.host_alive {
            return;
        }
        self.host_alive = false;
        // A nursery that was stopped would stay behind.
        signal::send_parent(libc::SIGCONT);
        self.outbox.clear();
        // Both stay readable for ever from here on.
        let _ = epoll::delete(&self.epoll, &self.shared.control);
        if let Some(host) = &self.host {
            let _ = epoll::delete(&self.epoll, host);
        }
        self.end_starts();
        self.session = Session::Ending;
        let now = clock::now();
        self.hunts = vec![(Hunt::new(0, Quarry::Everyone, now + UNATTENDED_LIMIT), now)];
    }

    /// From here on nothing is started: what is being started is in the books, and the rest is refused.
    fn end_starts(&self) {
        self.shared.books.lock().closed = true;
    }

    /// Without the spawning thread nothing can be started any more. To a host that is there this keeper is lost, but it
    /// ends what it has started before it ends itself.
    fn spawner_gone(&mut self) {
        self.shared.books.lock().finish_start(&self.shared.attempt);
        self.kept = None;
        self.host_gone();
        let limit = clock::now() + LOST_LIMIT;
        self.hunts = vec![(Hunt::new(0, Quarry::Everyone, limit), clock::now())];
    }

    fn handle(&mut self, request: Control) {
        let now = clock::now();
        match request {
            Control::Signal { ticket, id, scope, signal } => self.signal_once(ticket, id, scope, signal),
            Control::Kill { ticket, id, limit } => {
                self.hunts.push((Hunt::new(ticket, Quarry::Process(id), now + limit), now));
            }
            Control::Close { ticket, grace, limit } => {
                self.end_starts();
                let (termed, walk_at) = if grace.is_zero() {
                    (BTreeSet::new(), None)
                } else {
                    (self.term_groups(), Some(now + WALK_AFTER))
                };
                self.session = Session::Closing { ticket, kill_at: now + grace, limit, termed, walk_at };
            }
        }
    }

    fn signal_once(&mut self, ticket: u64, id: ProcessId, scope: Scope, signal: Signal) {
        let (signalled, unseen) = match scope {
            Scope::Group => self.signal_group(id, signal),
            Scope::Tree => self.signal_tree(id, signal),
        };
        let unattributed = self.family.unattributed().into_iter().collect();
        let survivors = Pids::default();
        self.answer(&KeeperEvent::Done { ticket, signalled, survivors, unattributed, unseen });
    }

    /// The group of a live root by one call, which misses nobody who forks meanwhile. After the root's end its number
    /// may be anybody's, so members are then found and signalled one by one.
    fn signal_group(&mut self, id: ProcessId, signal: Signal) -> (Pids, Option<i32>) {
        let shared = Arc::clone(&self.shared);
        let books = shared.books.lock();
        if let Some(pid) = books.pid_of(id, &shared.attempt) {
            let sent = signal::send_child_group(pid, signal.number()).is_ok()
                || signal::send_child(pid, signal.number()).is_ok();
            // Nobody was looked at, so nobody was overlooked.
            return (sent.then_some(pid).into_iter().collect(), None);
        }
        drop(books);
        self.signal_tree(id, signal)
    }

    fn signal_tree(&mut self, id: ProcessId, signal: Signal) -> (Pids, Option<i32>) {
        let Look { members, unseen } = self.find(Quarry::Process(id));
        let signalled = members.into_iter().filter(|m| self.send(*m, signal).is_ok()).map(|m| m.pid);
        (signalled.collect(), unseen)
    }

    /// SIGTERM to the groups of all roots: one call each, and most of a session is gone by that.
    fn term_groups(&self) -> BTreeSet<i32> {
        let books = self.shared.books.lock();
        let roots = books.all(&self.shared.attempt).map(|(pid, _)| pid);
        roots.filter(|pid| signal::send_child_group(*pid, Signal::Term.number()).is_ok()).collect()
    }

    /// SIGTERM to whoever is left and has not had it: those that have left the groups.
    fn term_rest(&mut self, termed: &BTreeSet<i32>) -> BTreeSet<i32> {
        let leaders = self.find(Quarry::Everyone).members.into_iter().filter(|m| !termed.contains(&m.pid));
        let rest: Vec<Member> = leaders.filter(|m| !is_in_group_of(m.pid, termed)).collect();
        rest.into_iter().filter(|m| self.send(*m, Signal::Term).is_ok()).map(|m| m.pid).collect()
    }

    fn find(&mut self, quarry: Quarry) -> Look {
        let shared = Arc::clone(&self.shared);
        let books = shared.books.lock();
        match quarry {
            Quarry::Process(id) => {
                self.family.refresh(&books, &shared.attempt, Wanted::Owners);
                self.family.members(&books, &shared.attempt, id)
            }
            Quarry::Everyone => {
                self.family.refresh(&books, &shared.attempt, Wanted::Existence);
                self.family.everyone(&books, &shared.attempt)
            }
        }
    }

    /// To a direct child under the lock under which it is reaped, to others by a descriptor.
    fn send(&self, member: Member, signal: Signal) -> io::Result<()> {
        {
            let books = self.shared.books.lock();
            let is_root = books.root_at(member.pid, &self.shared.attempt).is_some();
            if is_root || self.family.has_adopted(member) {
                return signal::send_child(member.pid, signal.number());
            }
        }
        signal_pinned(member, signal.number())
    }

    /// Reaps whatever has ended, tells the host about roots, and sees who is left of those.
    fn reap_all(&mut self) {
        loop {
            let Reaped { exits, left } = reap::reap(&self.shared, &mut self.family);
            // Reaped here, or by a look since.
            let adopted_ended = self.family.has_lost();
            let early = exits.iter().any(|exit| exit.early);
            let look_again = self.look_at.is_some_and(|at| at <= clock::now());
            if !exits.is_empty() || ((adopted_ended || look_again) && self.family.has_bereft()) {
                self.settle(exits, left);
            } else if look_again {
                self.look_at = None;
            }
            if !early {
                return;
            }
        }
    }

    /// Sees who has been adopted. Without any child there is nobody, and nothing to read in /proc.
    fn look_around(&mut self, left: Left) {
        if left == Left::Nobody {
            return self.family.forget_adopted();
        }
        // Who is left of a session that is over is killed, whoever it belongs to.
        if !matches!(self.session, Session::Open) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let books = shared.books.lock();
        self.family.refresh(&books, &shared.attempt, Wanted::Owners);
    }

    fn settle(&mut self, exits: Vec<Exit>, left: Left) {
        let mut news = Vec::with_capacity(exits.len());
        for exit in exits {
            self.family.bereave(exit.id, Bereft::new(exit.pid, exit.pipes, exit.leaf));
            news.push((exit.id, exit.status, exit.usage, exit.early));
        }
        self.look_around(left);
        let gone = self.family.take_gone();
        self.look_at = self.family.should_look_again().then(|| clock::now() + LOOK_PAUSE);
        for (id, status, usage, early) in &news {
            let lingerers = self.lingerers(*id);
            let event = KeeperEvent::Exited { id: *id, status: *status, usage: *usage, lingerers };
            if *early { self.answer_early(*id, event) } else { self.answer(&event) }
        }
        for id in gone.into_iter().filter(|id| !news.iter().any(|(exited, ..)| exited == id)) {
            match &mut self.kept {
                Some((kept, events)) if *kept == id => events.push(KeeperEvent::Gone { id }),
                Some(_) | None => self.answer(&KeeperEvent::Gone { id }),
            }
        }
    }

    fn lingerers(&self, id: ProcessId) -> Pids {
        if !self.family.is_bereft(id) {
            return Pids::default();
        }
        let known: Pids = self.family.adopted_of(id).members.into_iter().map(|m| m.pid).collect();
        // That nobody lingers is said when a look has shown it.
        if known.total == 0 && self.look_at.is_some() { Pids { total: 1, pids: Vec::new() } } else { known }
    }

    /// Leaves an exit to the spawning thread, which has not said the start yet; unless it just has, or there is more to
    /// come, which only this thread can say after the exit.
    fn answer_early(&mut self, id: ProcessId, event: KeeperEvent) {
        // Its end will be said too, even where nobody who lingers is known by pid yet.
        let lingers = self.family.is_bereft(id);
        self.say_kept();
        {
            let mut books = self.shared.books.lock();
            match books.early_exit {
                EarlyExit::Reaped if lingers => {
                    books.early_exit = EarlyExit::Kept;
                    books.look_again = true;
                    self.kept = Some((id, vec![event]));
                    return;
                }
                EarlyExit::Reaped => return books.early_exit = EarlyExit::Ready(event.encode()),
                EarlyExit::None | EarlyExit::StartSaid | EarlyExit::Ready(_) | EarlyExit::Kept => {
                    books.early_exit = EarlyExit::None
                }
            }
        }
        self.answer(&event);
    }

    /// Says what was kept, if the start was said by now.
    fn say_kept(&mut self) {
        if self.kept.is_none() || matches!(self.shared.books.lock().early_exit, EarlyExit::Kept) {
            return;
        }
        let kept = self.kept.take().into_iter();
        kept.flat_map(|(_, events)| events).for_each(|event| self.answer(&event));
    }

    /// SIGTERM to the rest after a moment, SIGKILL when the grace is over, or as soon as nobody needs it.
    fn close_step(&mut self) {
        let Session::Closing { ticket, kill_at, limit, ref mut termed, ref mut walk_at } = self.session
        else {
            return;
        };
        let now = clock::now();
        let over = now >= kill_at || wait::peek_any() == Ended::NoChildren;
        if !over && walk_at.is_none_or(|at| now < at) {
            return;
        }
        *walk_at = None;
        let mut termed = std::mem::take(termed);
        if !over {
            termed.extend(self.term_rest(&termed));
            self.session = Session::Closing { ticket, kill_at, limit, termed, walk_at: None };
            return;
        }
        self.session = Session::Ending;
        let mut hunt = Hunt::new(ticket, Quarry::Everyone, now + limit);
        hunt.also_signalled(termed);
        self.hunts.push((hunt, now));
    }

    fn hunt_step(&mut self) {
        let now = clock::now();
        let due = |next: Instant| next <= now;
        if !self.hunts.iter().any(|(_, next)| due(*next)) {
            return;
        }
        let mut hunts = std::mem::take(&mut self.hunts);
        for (hunt, next) in hunts.iter_mut().filter(|(_, next)| due(*next)) {
            match self.hunt_pass(hunt, now) {
                Pass::Again(at) => *next = at,
                Pass::Done | Pass::GaveUp => {
                    // Whoever hears of the end finds the places of the dead free.
                    self.reap_all();
                    let unattributed = match hunt.quarry {
                        Quarry::Process(_) => self.family.unattributed(),
                        // Whoever is left is named, and nobody asked whose it is.
                        Quarry::Everyone => Vec::new(),
                    };
                    let receipt = hunt.receipt(unattributed);
                    self.answer(&receipt);
                    hunt.finish();
                }
            }
        }
        hunts.retain(|(hunt, _)| !hunt.is_finished());
        // New hunts can only come from `wait`, which does not run in between.
        self.hunts = hunts;
        if self.hunts.is_empty() {
            self.family.forget_seen();
            self.keep_after_the_last();
        }
    }

    /// A session that is over and still has somebody in it (in an uninterruptible sleep, say) stays a hunt for ever.
    fn keep_after_the_last(&mut self) {
        if matches!(self.session, Session::Ending) && !self.is_empty() {
            if !self.host_alive {
                // A host that is there after all may not wait for what cannot be killed.
                let _ = rustix::net::shutdown(&self.shared.control, rustix::net::Shutdown::Both);
            }
            let now = clock::now();
            self.hunts.push((
                Hunt::new(0, Quarry::Everyone, now + UNATTENDED_LIMIT),
                now + Duration::from_millis(20),
            ));
        }
    }

    fn hunt_pass(&mut self, hunt: &mut Hunt, now: Instant) -> Pass {
        if let Quarry::Process(id) = hunt.quarry {
            let books = self.shared.books.lock();
            if let Some(leaf) = self.family.leaf(&books, &self.shared.attempt, id) {
                // The walk that follows does not rely on it.
                let _ = leaf.kill();
            }
        }
        if hunt.quarry == Quarry::Everyone {
            if let Some(group) = self.shared.group.get() {
                // What follows does not rely on it.
                let _ = group.kill();
            }
            self.purge(hunt);
        }
        let mut look = self.find(hunt.quarry);
        for member in &look.members {
            // One that could not be signalled has just ended, or is found again and named in the end.
            if self.send(*member, Signal::Kill).is_ok() {
                hunt.killed(member.pid);
            }
        }
        if hunt.quarry == Quarry::Everyone && look.members.is_empty() {
            look.unseen = unseen_child(look.unseen);
        }
        if look.members.is_empty() && self.is_starting(hunt.quarry) {
            // Nobody knows its pid yet.
            look.unseen.get_or_insert(libc::EAGAIN);
        }
        hunt.passed(&look, now)
    }

    /// Whether something of the quarry is being started.
    fn is_starting(&self, quarry: Quarry) -> bool {
        let books = self.shared.books.lock();
        books.starting.as_ref().is_some_and(|root| match quarry {
            Quarry::Process(id) => root.id == id,
            Quarry::Everyone => true,
        })
    }

    /// Whether nothing lives below the keeper, and nothing is about to.
    fn is_empty(&self) -> bool {
        !self.is_starting(Quarry::Everyone) && wait::peek_any() == Ended::NoChildren
    }

    /// Kills the keeper's direct children, round after round, without asking whose they are: what is below them becomes
    /// a direct child by that. Faster than processes that fork and exit, which a walk with attribution is not.
    fn purge(&mut self, hunt: &mut Hunt) {
        let mut sent = HashSet::new();
        for _ in 0..PURGE_ROUNDS {
            self.reap_all();
            let shared = Arc::clone(&self.shared);
            let books = shared.books.lock();
            let Ok(adopted) = self.family.direct(&books, &shared.attempt) else { return };
            let roots = books.all(&shared.attempt).map(|(pid, _)| pid);
            // Who has had it needs time to die, not another one.
            let fresh: Vec<i32> = adopted.into_iter().chain(roots).filter(|pid| sent.insert(*pid)).collect();
            if fresh.is_empty() {
                return;
            }
            for pid in fresh {
                if signal::send_child(pid, Signal::Kill.number()).is_ok() {
                    hunt.killed(pid);
                }
            }
        }
    }

    fn answer(&mut self, event: &KeeperEvent) {
        if self.host_alive {
            self.outbox.push(event);
        }
    }

    /// Sends what the socket takes; the rest waits until it is writable.
    fn flush(&mut self) {
        match self.outbox.flush(self.shared.control.as_fd()) {
            Ok(Some(interest)) if self.host_alive => {
                let data = epoll::EventData::new_u64(CONTROL);
                let _ = epoll::modify(&self.epoll, &self.shared.control, data, interest);
            }
            Ok(_) => {}
            Err(_) => self.host_gone(),
        }
    }
}

/// Whether the process got a signal that was sent to the group of one of these. One that cannot be looked at may get it
/// twice.
fn is_in_group_of(pid: i32, leaders: &BTreeSet<i32>) -> bool {
    procfs::stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| leaders.contains(&stat.group)))
}

/// What a look that has shown nobody below the keeper has missed: the kernel itself knows whether there is a child.
fn unseen_child(unseen: Option<i32>) -> Option<i32> {
    match wait::peek_any() {
        Ended::NoChildren => None,
        Ended::NotYet => unseen.or(Some(libc::EACCES)),
        Ended::Child(_) => unseen,
    }
}

//! Byte accounts in a tree: process, session, host.
//!
//! One small lock holds the whole tree, so that a reservation counts at every level or at none and no level is
//! ever, even for a moment, above its limit. Whoever finds no room leaves a [`Claim`]; released bytes go to claims
//! first, in the order of their arrival, so nobody starves beside a busy neighbour and no wake-up is lost. An
//! account with free room for a claim below it never has that claim waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

/// An account of bytes with a limit, possibly below another one whose limit holds as well.
///
/// Dropping an account gives back to the levels above whatever it still held.
pub struct Budget {
    tree: Arc<Mutex<Tree>>,
    node: usize,
    limit: u64,
    /// Keeps the node above in the tree for as long as this one is there.
    _parent: Option<Arc<Budget>>,
}

impl Budget {
    /// The account at the top, with its limit in bytes.
    pub fn root(limit: u64) -> Arc<Self> {
        let mut tree = Tree::default();
        let node = tree.insert(limit, None);
        Arc::new(Self { tree: Arc::new(Mutex::new(tree)), node, limit, _parent: None })
    }

    /// An account below this one, with its own limit in bytes.
    pub fn child(self: &Arc<Self>, limit: u64) -> Arc<Self> {
        let node = self.tree.lock().insert(limit, Some(self.node));
        Arc::new(Self { tree: Arc::clone(&self.tree), node, limit, _parent: Some(Arc::clone(self)) })
    }

    /// This account's own limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved here, by this account and those below it.
    pub fn used(&self) -> u64 {
        self.tree.lock().nodes[self.node].used
    }

    /// Reserves up to `want` bytes at this and every higher level; returns how many, possibly 0.
    #[must_use]
    pub fn reserve(&self, want: u64) -> u64 {
        let mut tree = self.tree.lock();
        let granted = want.min(tree.room(self.node));
        tree.take(self.node, granted);
        granted
    }

    /// Gives back bytes that were reserved here. Wakes those whose claims can be met now.
    pub fn release(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut woken = Vec::new();
        {
            let mut tree = self.tree.lock();
            tree.give(self.node, bytes);
            tree.serve_from(self.node, &mut woken);
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Reserves up to `want` bytes now, or, when there are not even `least`, queues for them.
    ///
    /// `least` must be within the limit of every level, or the claim waits for ever.
    pub fn claim(self: &Arc<Self>, want: u64, least: u64, waker: &Waker) -> Claimed {
        let mut tree = self.tree.lock();
        let granted = want.min(tree.room(self.node));
        if granted >= least {
            tree.take(self.node, granted);
            return Claimed::Now(granted);
        }
        let (ticket, contention) = tree.enqueue(self.node, want, least, waker.clone());
        drop(tree);
        if let Some(waker) = contention {
            waker.wake();
        }
        Claimed::Waiting(Claim { account: Arc::clone(self), ticket })
    }

    /// `waker` is called whenever a claim begins to wait at this level. For an owner of several logs: bytes that it
    /// leaves untaken, such as incomplete lines, may be what the claim waits for. Called while a log is locked: it must
    /// only schedule.
    pub fn set_contention_waker(&self, waker: Waker) {
        self.tree.lock().nodes[self.node].on_contention = Some(waker);
    }

    /// Whether somebody waits for room at this level or a higher one.
    pub fn is_contended(&self) -> bool {
        let tree = self.tree.lock();
        !tree.claims.is_empty() && tree.chain(self.node).any(|node| !tree.nodes[node].waiting.is_empty())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        {
            let mut tree = self.tree.lock();
            let held = tree.nodes[self.node].used;
            tree.give(self.node, held);
            tree.serve_from(self.node, &mut woken);
            tree.vacant.push(self.node);
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit).field("used", &self.used()).finish()
    }
}

/// The answer to [`Budget::claim`].
#[derive(Debug)]
#[must_use]
pub enum Claimed {
    /// So many bytes are reserved.
    Now(u64),
    /// There is no room; the waker is called once the claim is met.
    Waiting(Claim),
}

/// A place in the queue for room. Dropping it gives back what it was granted.
#[derive(Debug)]
pub struct Claim {
    account: Arc<Budget>,
    ticket: u64,
}

impl Claim {
    /// Whether bytes have been granted.
    pub fn is_granted(&self) -> bool {
        self.account.tree.lock().claims.get(&self.ticket).is_some_and(|pending| pending.granted > 0)
    }

    /// Takes over the granted bytes.
    ///
    /// # Errors
    /// Gives the claim back, with its place in the queue, when nothing has been granted yet.
    pub fn settle(self) -> Result<u64, Self> {
        let mut tree = self.account.tree.lock();
        let granted =
            tree.claims.get_mut(&self.ticket).map_or(0, |pending| std::mem::take(&mut pending.granted));
        drop(tree);
        if granted == 0 { Err(self) } else { Ok(granted) }
    }

    /// From now on `waker` is called.
    pub fn set_waker(&self, waker: &Waker) {
        if let Some(pending) = self.account.tree.lock().claims.get_mut(&self.ticket) {
            pending.waker.clone_from(waker);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let granted = self.account.tree.lock().withdraw(self.ticket);
        self.account.release(granted);
    }
}

/// All accounts of a host and the claims that wait.
#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    vacant: Vec<usize>,
    claims: BTreeMap<u64, Pending>,
    next_ticket: u64,
}

struct Node {
    limit: u64,
    used: u64,
    parent: Option<usize>,
    /// Tickets of the claims that found this level full, oldest first.
    waiting: BTreeSet<u64>,
    on_contention: Option<Waker>,
}

struct Pending {
    account: usize,
    want: u64,
    least: u64,
    granted: u64,
    blocked_at: Option<usize>,
    waker: Waker,
}

impl Tree {
    fn insert(&mut self, limit: u64, parent: Option<usize>) -> usize {
        let node = Node { limit, used: 0, parent, waiting: BTreeSet::new(), on_contention: None };
        if let Some(place) = self.vacant.pop() {
            self.nodes[place] = node;
            place
        } else {
            self.nodes.push(node);
            self.nodes.len() - 1
        }
    }

    /// The account and those above it.
    fn chain(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |&at| self.nodes[at].parent)
    }

    fn room(&self, node: usize) -> u64 {
        self.chain(node).map(|at| self.nodes[at].limit - self.nodes[at].used).min().unwrap_or(0)
    }

    fn take(&mut self, node: usize, bytes: u64) {
        let mut next = Some(node);
        while let Some(at) = next {
            self.nodes[at].used += bytes;
            next = self.nodes[at].parent;
        }
    }

    fn give(&mut self, node: usize, bytes: u64) {
        let mut next = Some(node);
        while let Some(at) = next {
            debug_assert!(self.nodes[at].used >= bytes, "more was released than reserved");
            self.nodes[at].used = self.nodes[at].used.saturating_sub(bytes);
            next = self.nodes[at].parent;
        }
    }

    fn first_full(&self, node: usize, least: u64) -> Option<usize> {
        self.chain(node).find(|&at| self.nodes[at].limit - self.nodes[at].used < least)
    }

    fn enqueue(&mut self, account: usize, want: u64, least: u64, waker: Waker) -> (u64, Option<Waker>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let blocked_at = self.first_full(account, least);
        self.claims.insert(ticket, Pending { account, want, least, granted: 0, blocked_at, waker });
        let contention = blocked_at.and_then(|at| self.wait_at(at, ticket));
        (ticket, contention)
    }

    /// Queues a claim at a level; returns whom to tell.
    fn wait_at(&mut self, level: usize, ticket: u64) -> Option<Waker> {
        self.nodes[level].waiting.insert(ticket);
        self.nodes[level].on_contention.clone()
    }

    /// Takes a claim out; returns what it held.
    fn withdraw(&mut self, ticket: u64) -> u64 {
        let Some(pending) = self.claims.remove(&ticket) else { return 0 };
        if let Some(at) = pending.blocked_at {
            self.nodes[at].waiting.remove(&ticket);
        }
        pending.granted
    }

    /// Room has come up at this account and above: meets the claims that waited at these levels, oldest first
    /// whatever its level, or an account that releases and claims again would overtake its neighbours.
    fn serve_from(&mut self, node: usize, woken: &mut Vec<Waker>) {
        if self.claims.is_empty() {
            return;
        }
        let mut levels: Vec<usize> = self.chain(node).collect();
        let oldest = |tree: &Self, levels: &[usize]| {
            levels.iter().filter_map(|&at| Some((*tree.nodes[at].waiting.first()?, at))).min()
        };
        while let Some((ticket, level)) = oldest(self, &levels) {
            if let Served::StillBlocked = self.serve(ticket, level, woken) {
                levels.retain(|&at| at != level);
            }
        }
    }

    /// Tries to meet a claim that waits at this level. One that is now blocked elsewhere queues there, at the place
    /// that its age gives it.
    fn serve(&mut self, ticket: u64, level: usize, woken: &mut Vec<Waker>) -> Served {
        let wish = self.claims.get(&ticket).map(|pending| (pending.account, pending.want, pending.least));
        let blocked_at = wish.and_then(|(account, _, least)| self.first_full(account, least));
        if blocked_at == Some(level) {
            return Served::StillBlocked;
        }
        self.nodes[level].waiting.remove(&ticket);
        let granted = match (wish, blocked_at) {
            (Some((account, want, _)), None) => {
                let granted = want.min(self.room(account));
                self.take(account, granted);
                granted
            }
            (_, Some(at)) => {
                woken.extend(self.wait_at(at, ticket));
                0
            }
            (None, None) => 0,
        };
        if let Some(pending) = self.claims.get_mut(&ticket) {
            pending.blocked_at = blocked_at;
            pending.granted = granted;
            if granted > 0 {
                woken.push(pending.waker.clone());
            }
        }
        Served::MovedOn
    }
}

/// What became of a claim that was looked at.
enum Served {
    /// Met, or waiting at another level.
    MovedOn,
    /// The level that it waits at is full.
    StillBlocked,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn waiting(claimed: Claimed) -> Claim {
        match claimed {
            Claimed::Waiting(claim) => claim,
            Claimed::Now(granted) => panic!("{granted} bytes were granted"),
        }
    }

    #[test]
    fn a_reservation_counts_at_every_level() {
        let host = Budget::root(100);
        let session = host.child(50);
        let process = session.child(40);
        assert_eq!(process.reserve(45), 40);
        assert_eq!((host.used(), session.used(), process.used()), (40, 40, 40));
        assert_eq!(session.child(40).reserve(45), 10, "the session's limit holds too");
        process.release(40);
        assert_eq!((host.used(), session.used(), process.used()), (0, 0, 0));
    }

    #[test]
    fn a_release_by_any_process_of_the_session_wakes_the_one_that_waits() {
        let session = Budget::root(1000).child(100);
        let (a, b) = (session.child(100), session.child(100));
        assert_eq!(a.reserve(100), 100);
        let wakes = Arc::new(Counter::default());
        let claim = waiting(b.claim(64, 1, &Arc::clone(&wakes).into()));
        assert!(b.is_contended() && a.is_contended());
        a.release(10);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(a.reserve(10), 0, "the bytes belong to the one that waited");
        assert_eq!(claim.settle().ok(), Some(10));
        assert!(!a.is_contended());
        assert_eq!(session.used(), 100);
    }

    #[test]
    fn claims_are_met_in_the_order_of_their_arrival() {
        let session = Budget::root(100);
        let busy = session.child(100);
        assert_eq!(busy.reserve(100), 100);
        let waiters: Vec<_> = (0..5).map(|_| session.child(100)).collect();
        let claims: Vec<_> = waiters.iter().map(|w| waiting(w.claim(20, 1, Waker::noop()))).collect();
        let mut again = waiting(busy.claim(20, 1, Waker::noop()));
        for met in 1..=5 {
            busy.release(20);
            assert_eq!(claims.iter().filter(|claim| claim.is_granted()).count(), met);
            assert!(claims[met - 1].is_granted());
            again = again.settle().expect_err("the busy one queues behind the others");
        }
    }

    #[test]
    fn a_dropped_claim_passes_its_bytes_on() {
        let session = Budget::root(10);
        let (a, b, c) = (session.child(10), session.child(10), session.child(10));
        assert_eq!(a.reserve(10), 10);
        let first = waiting(b.claim(10, 1, Waker::noop()));
        let second = waiting(c.claim(10, 1, Waker::noop()));
        a.release(10);
        assert!(first.is_granted() && !second.is_granted());
        drop(first);
        assert_eq!(second.settle().ok(), Some(10));
        c.release(10);
        assert_eq!(session.used(), 0);
    }

    #[test]
    fn a_claim_blocked_at_a_higher_level_moves_there() {
        let host = Budget::root(10);
        let session = host.child(5);
        let other = host.child(10);
        assert_eq!(session.reserve(5), 5);
        let claim = waiting(session.child(5).claim(3, 1, Waker::noop()));
        assert_eq!(other.reserve(5), 5);
        let host_claim = waiting(other.claim(5, 1, Waker::noop()));
        session.release(5);
        assert!(claim.is_granted() || host_claim.is_granted());
        assert!(claim.is_granted(), "the older claim is served first");
        assert!(host_claim.is_granted(), "and the rest goes to the younger one");
    }

    #[test]
    fn an_account_that_goes_gives_back_what_it_held() {
        let host = Budget::root(10);
        let session = host.child(10);
        assert_eq!(session.child(10).reserve(7), 7);
        assert_eq!((host.used(), session.used()), (0, 0));
    }

    #[test]
    fn whoever_watches_a_level_hears_of_each_claim_that_begins_to_wait_there() {
        let session = Budget::root(1000).child(10);
        let (a, b) = (session.child(10), session.child(3));
        let told = Arc::new(Counter::default());
        session.set_contention_waker(Arc::clone(&told).into());
        assert_eq!(b.reserve(3), 3);
        let own = waiting(b.claim(1, 1, Waker::noop()));
        assert_eq!(told.0.load(Ordering::SeqCst), 0, "that claim waits for its own account");
        assert_eq!(a.reserve(10), 7);
        let other = waiting(a.claim(1, 1, Waker::noop()));
        assert_eq!(told.0.load(Ordering::SeqCst), 1);
        b.release(1);
        assert!(own.is_granted() && !other.is_granted());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Reserve(usize, u64),
        Release(usize, u64),
        Claim(usize, u64),
        Settle(usize),
        Withdraw(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..6_usize, 0..60_u64).prop_map(|(a, n)| Op::Reserve(a, n)),
            (0..6_usize, 0..60_u64).prop_map(|(a, n)| Op::Release(a, n)),
            (0..6_usize, 1..60_u64).prop_map(|(a, n)| Op::Claim(a, n)),
            (0..8_usize).prop_map(Op::Settle),
            (0..8_usize).prop_map(Op::Withdraw),
        ]
    }

    proptest! {
        #[test]
        fn an_account_never_exceeds_its_limit_and_never_leaks(ops in prop::collection::vec(op(), 0..200)) {
            let host = Budget::root(150);
            let sessions = [host.child(100), host.child(80)];
            let accounts: Vec<_> = (0..6).map(|i| sessions[i % 2].child(50)).collect();
            let mut held = [0_u64; 6];
            let mut claims: Vec<(usize, Claim)> = Vec::new();
            for op in ops {
                match op {
                    Op::Reserve(a, n) => held[a] += accounts[a].reserve(n),
                    Op::Release(a, n) => {
                        let n = n.min(held[a]);
                        held[a] -= n;
                        accounts[a].release(n);
                    }
                    Op::Claim(a, n) => match accounts[a].claim(n, 1, Waker::noop()) {
                        Claimed::Now(granted) => held[a] += granted,
                        Claimed::Waiting(claim) => claims.push((a, claim)),
                    },
                    Op::Settle(i) if i < claims.len() => {
                        let (a, claim) = claims.remove(i);
                        match claim.settle() {
                            Ok(granted) => held[a] += granted,
                            Err(claim) => claims.insert(i, (a, claim)),
                        }
                    }
                    Op::Withdraw(i) if i < claims.len() => drop(claims.remove(i)),
                    Op::Settle(_) | Op::Withdraw(_) => {}
                }
                prop_assert!(host.used() <= 150 && sessions[0].used() <= 100 && sessions[1].used() <= 80);
                for (a, claim) in &claims {
                    let blocked = !claim.is_granted();
                    let room = host.tree.lock().room(accounts[*a].node);
                    prop_assert!(!(blocked && room > 0), "a claim waits beside free room");
                }
            }
            claims.clear();
            for (account, bytes) in accounts.iter().zip(held) {
                prop_assert_eq!(account.used(), bytes);
                account.release(bytes);
            }
            prop_assert_eq!(host.used(), 0);
            prop_assert!(host.tree.lock().claims.is_empty());
        }
    }
}

//! The end of a session: how long is waited for a client that is to take what is left to say.

use std::time::{Duration, Instant};

use hostler_core::sys::clock;

use crate::session::{A2eSession, Wanted};

/// Between SIGTERM and SIGKILL when the client or the host goes.
pub(crate) const END_GRACE: Duration = Duration::from_secs(1);
/// How long the client may take nothing of what is left to say after the session's end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How long all of that may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long requests may be under way after the session's end, when all that they wait for is over.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// How long is waited for a client that is to take what is left.
pub(crate) struct Patience {
    /// How much it had taken in all when that was last looked at.
    taken: u64,
    until: Instant,
    limit: Instant,
}

impl Patience {
    pub(crate) fn new(taken: u64, grace: Duration) -> Self {
        let over = clock::now() + grace;
        Self { taken, until: over + PATIENCE, limit: over + LIMIT }
    }

    pub(crate) async fn ends(&self) {
        tokio::time::sleep_until(self.until.into()).await;
    }

    /// At its end: whether something was taken meanwhile, and there is time left to wait for more.
    pub(crate) fn is_renewed(&mut self, taken: u64) -> bool {
        let has_taken = std::mem::replace(&mut self.taken, taken) != taken;
        self.until = (clock::now() + PATIENCE).min(self.limit);
        has_taken && clock::now() < self.limit
    }
}

/// Takes the answers that nobody hears any more: the audit has an entry for each of them.
pub(crate) async fn hear_out(mut session: A2eSession) {
    let mut unheard = Vec::new();
    let hear = async {
        while session.has_requests_under_way() {
            let event = session.next(Wanted::Answers).await;
            session.take(event, &mut unheard);
            unheard.clear();
        }
    };
    // What is not answered by then is noted as that when the session is dropped.
    let _ = tokio::time::timeout(LAST_ANSWERS, hear).await;
}

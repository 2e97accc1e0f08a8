//! When a nursery that has died may be started again: pure, told what time it is.
//!
//! One that had lived for a while is replaced at once. One that dies soon, or does not start, is tried again after pauses
//! that grow; who asks for a keeper meanwhile is told why there is none. A few tries are made unasked, so that a passing
//! cause is over before anybody notices; after those a try needs somebody who asks.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::nursery_link::NurseryError;

/// The death of one that lived that long says nothing about the next.
const STEADY: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// So many in a row are started unasked.
const UNASKED: u32 = 8;

/// A session that can have no keeper at the moment.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoKeeper {
    /// There is no nursery, which would start it.
    #[error(
        "no program can be started, because hostler's helper {cause}; it is started again in {} ms",
        .wait.as_millis()
    )]
    NoNursery {
        /// What has become of the last one.
        cause: NurseryEnd,
        /// Until the next try.
        wait: Duration,
    },
    /// The nursery could not start it.
    #[error("the session's keeper could not be started ({})", io::Error::from_raw_os_error(*.errno))]
    NotStarted {
        /// The errno value, see errno(3).
        errno: i32,
    },
}

/// What has become of a nursery.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NurseryEnd {
    /// It did not start.
    #[error("does not start ({})", with_source(.0))]
    NotStarted(Arc<NurseryError>),
    /// It ended.
    #[error("has ended ({0})")]
    Ended(ExitStatus),
    /// It closed its socket, and how it ended is not known yet.
    #[error("has hung up")]
    HungUp,
}

fn with_source(error: &NurseryError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// See the module.
#[derive(Debug)]
pub(super) struct Respawn {
    /// Start of the last one.
    since: Instant,
    /// How many in a row have lived shortly.
    short_lives: u32,
    not_before: Instant,
    cause: NurseryEnd,
}

impl Respawn {
    /// One has been started.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, short_lives: 0, not_before: now, cause: NurseryEnd::HungUp }
    }

    /// Another one is being started.
    pub(super) fn starting(&mut self, now: Instant) {
        self.since = now;
    }

    /// It has ended, or did not start.
    pub(super) fn ended(&mut self, now: Instant, cause: NurseryEnd) {
        if now.saturating_duration_since(self.since) >= STEADY {
            self.short_lives = 0;
        }
        self.not_before = now + pause(self.short_lives);
        self.short_lives += 1;
        self.cause = cause;
    }

    /// How the one that had hung up has ended.
    pub(super) fn explain(&mut self, cause: NurseryEnd) {
        self.cause = cause;
    }

    /// Whether it may be tried now.
    pub(super) fn may_start(&self, now: Instant) -> Result<(), NoKeeper> {
        let wait = self.not_before.saturating_duration_since(now);
        if wait.is_zero() { Ok(()) } else { Err(NoKeeper::NoNursery { cause: self.cause.clone(), wait }) }
    }

    /// How long to wait for the next try that nobody asks for, if there is to be one.
    pub(super) fn next_unasked(&self, now: Instant) -> Option<Duration> {
        (self.short_lives <= UNASKED).then(|| self.not_before.saturating_duration_since(now))
    }
}

fn pause(short_lives: u32) -> Duration {
    match short_lives.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do as the origin of the test's own clock"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn pauses_grow_with_short_lives_up_to_a_limit_and_unasked_tries_end() {
        let mut now = origin();
        let mut respawn = Respawn::new(now);
        let mut waits = Vec::new();
        loop {
            respawn.ended(now, NurseryEnd::HungUp);
            let Some(wait) = respawn.next_unasked(now) else { break };
            waits.push(wait.as_millis());
            now += wait;
            assert!(respawn.may_start(now).is_ok());
            respawn.starting(now);
        }
        assert_eq!(waits, [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        // Whoever asks is refused until then, and served from then on.
        match respawn.may_start(now) {
            Err(NoKeeper::NoNursery { wait, .. }) => assert!(respawn.may_start(now + wait).is_ok()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_that_lived_for_a_while_is_replaced_at_once() {
        let mut now = origin();
        let mut respawn = Respawn::new(now);
        for _ in 0..3 {
            respawn.ended(now, NurseryEnd::HungUp);
        }
        assert!(respawn.may_start(now).is_err());
        respawn.starting(now);
        now += STEADY;
        respawn.ended(now, NurseryEnd::HungUp);
        assert!(respawn.may_start(now).is_ok());
    }

    #[test]
    fn who_is_refused_is_told_why() {
        let now = origin();
        let mut respawn = Respawn::new(now);
        let error = NurseryError::Start {
            program: "/opt/hostler".into(),
            source: io::Error::from_raw_os_error(libc::ENOEXEC),
        };
        respawn.ended(now, NurseryEnd::HungUp);
        respawn.ended(now, NurseryEnd::NotStarted(Arc::new(error)));
        assert_eq!(
            respawn.may_start(now).unwrap_err().to_string(),
            "no program can be started, because hostler's helper does not start (failed to start the nursery from \
             /opt/hostler: Exec format error (os error 8)); it is started again in 100 ms"
        );
    }
}

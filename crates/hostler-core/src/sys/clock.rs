//! The one place where drivers read the clocks; pure code is told what time it is.

use std::time::{Duration, Instant};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "this is the edge that the lint points to")]
pub fn now() -> Instant {
    Instant::now()
}

/// A pause that is longer counts as this long, so that no caller can make clock arithmetic overflow.
const FOR_EVER: Duration = Duration::from_hours(24 * 365 * 30);

/// The moment that is `pause` away, or so far away that it does not come.
pub fn after(pause: Duration) -> Instant {
    now() + pause.min(FOR_EVER)
}

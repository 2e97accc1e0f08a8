//! The one place where drivers read the clocks; pure code is told what time it is.

use std::time::{Instant, SystemTime};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "this is the edge that the lint points to")]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since the Unix epoch.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

//! A log that others can fill has one line in a while, with how many there were.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets one line in a while through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    said: Option<Instant>,
    unsaid: u64,
}

impl Throttle {
    /// Has a line written, which is told how many were not since the last one; unless it is too early for that.
    pub(crate) fn note(&self, write: impl FnOnce(u64)) {
        if let Some(unsaid) = self.at(tokio::time::Instant::now().into_std()) {
            write(unsaid);
        }
    }

    fn at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.said.is_some_and(|said| now < said + PAUSE) {
            state.unsaid += 1;
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while_says_how_many_there_were() {
        let throttle = Throttle::default();
        let start = tokio::time::Instant::now().into_std();
        let at = |millis| throttle.at(start + Duration::from_millis(millis));
        assert_eq!([at(0), at(1), at(9_999)], [Some(0), None, None]);
        assert_eq!([at(10_000), at(10_001), at(19_999)], [Some(2), None, None]);
        assert_eq!(at(60_000), Some(2));
    }
}

//! Which connection failures are logged while a server is unreachable.
//!
//! The server is dialled several times a second. One line is logged when it becomes unreachable,
//! one each time the reason changes, and one every 30 seconds.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, connection::PROVEN};

/// How often an outage is logged again.
const AGAIN: Duration = Duration::from_secs(30);

/// How long a server has been unreachable, and what was logged of it.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    began: Instant,
    attempts: u64,
    logged: Instant,
    why: Error,
    /// When the connection was restored.
    back: Option<Instant>,
}

impl OutageLog {
    /// Counts a connection that was lost or could not be made; returns how many in a row, if this
    /// one is to be logged.
    pub(crate) fn failed(&mut self, why: &Error, now: Instant) -> Option<u64> {
        // A connection that did not last belongs to the previous outage.
        let is_past = |c: &Current| c.back.is_some_and(|b| now.duration_since(b) >= PROVEN);
        let Some(current) = self.current.as_mut().filter(|current| !is_past(current)) else {
            self.current = Some(Current {
                began: now,
                attempts: 1,
                logged: now,
                why: why.clone(),
                back: None,
            });
            return Some(1);
        };
        current.attempts = current.attempts.saturating_add(1);
        if current.why == *why && now.duration_since(current.logged) < AGAIN {
            return None;
        }
        current.logged = now;
        current.why = why.clone();
        current.back = None;
        Some(current.attempts)
    }

    /// The server is back: returns the length of the outage and the number of failed dials, if they
    /// are to be logged.
    pub(crate) fn over(&mut self, now: Instant) -> Option<(Duration, u64)> {
        let current = self.current.as_mut()?;
        let first = current.back.is_none();
        current.back = Some(now);
        first.then(|| (now.duration_since(current.began), current.attempts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Error {
        Error::Unreachable("refused".to_owned())
    }

    #[test]
    fn a_failure_reason_is_logged_once_and_then_every_half_minute() {
        let mut outage = OutageLog::default();
        let start = Instant::now();
        let logged: Vec<u64> = (0..600)
            .filter_map(|n| outage.failed(&refused(), start + Duration::from_millis(n * 100)))
            .collect();
        assert_eq!(logged, [1, 301]);
    }

    #[test]
    fn a_different_failure_reason_is_logged_at_once() {
        let mut outage = OutageLog::default();
        let now = Instant::now();
        assert_eq!(outage.failed(&refused(), now), Some(1));
        let loading = Error::Unreachable("loading".to_owned());
        assert_eq!(outage.failed(&loading, now), Some(2));
        assert_eq!(outage.failed(&loading, now), None);
    }

    #[test]
    fn a_new_outage_is_logged_after_the_previous_one_ended() {
        let mut outage = OutageLog::default();
        let lost = Instant::now();
        assert!(outage.over(lost).is_none());
        outage.failed(&refused(), lost);
        let back = lost + Duration::from_millis(700);
        assert_eq!(outage.over(back), Some((Duration::from_millis(700), 1)));
        assert_eq!(outage.failed(&refused(), back + PROVEN), Some(1));
    }

    #[test]
    fn repeated_hang_ups_are_logged_like_one_outage() {
        let mut outage = OutageLog::default();
        let start = Instant::now();
        let mut lines = 0;
        for n in 0..100 {
            let now = start + Duration::from_millis(n * 250);
            lines += usize::from(outage.failed(&refused(), now).is_some());
            lines += usize::from(outage.over(now + Duration::from_millis(100)).is_some());
        }
        assert_eq!(lines, 2);
    }
}

//! Penalties as text.

use policy::{Duration, Penalty, PenaltyStatus, format_timestamp};

use crate::{ceil_seconds, counted, duration};

/// When a bucket is penalized, and for how long: `penalty of 15m after 10 denials in 1m`.
pub fn rule(penalty: &Penalty) -> String {
    let (lasts, within) = (Duration(penalty.for_ms), Duration(penalty.within_ms));
    let denials = counted(penalty.after, "denial");
    format!("penalty of {lasts} after {denials} in {within}")
}

/// The state of a bucket, at a time in milliseconds since the epoch: `denied until 2026-12-01T12:03:04Z,
/// for 14 min 20 s`, `7 of 10 denials in 1m, which would deny it for 15m`, or that it was not read. Not `enforced`: the limit
/// only reports.
pub fn state(penalty: &Penalty, status: &PenaltyStatus, enforced: bool, now_ms: u64) -> String {
    if status.unread {
        return "not read: its slot of the Cluster is moving, and one node has the bucket, the other its denials".to_owned();
    }
    if status.left_ms > 0 {
        let end_ms = now_ms.saturating_add(status.left_ms);
        let end = format_timestamp(ceil_seconds(end_ms).saturating_mul(1000));
        let denied = if enforced {
            "denied"
        } else {
            "would be denied"
        };
        return format!("{denied} until {end}, for {}", duration(status.left_ms));
    }
    let (lasts, within) = (Duration(penalty.for_ms), Duration(penalty.within_ms));
    let denials = counted(penalty.after, "denial");
    let count = status.denials;
    format!("{count} of {denials} in {within}, which would deny it for {lasts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENALTY: Penalty = Penalty {
        after: 10,
        within_ms: 60_000,
        for_ms: 900_000,
    };

    #[test]
    fn the_rule_is_in_the_words_of_the_file() {
        assert_eq!(rule(&PENALTY), "penalty of 15m after 10 denials in 1m");
        let first = Penalty {
            after: 1,
            ..PENALTY
        };
        assert_eq!(rule(&first), "penalty of 15m after 1 denial in 1m");
    }

    #[test]
    fn the_state_is_the_end_or_the_count() {
        let mut status = PenaltyStatus {
            denials: 7,
            ..PenaltyStatus::default()
        };
        let counting = state(&PENALTY, &status, true, 1_763_000_000_000);
        assert_eq!(
            counting,
            "7 of 10 denials in 1m, which would deny it for 15m"
        );
        // The end is rounded up to whole seconds, so that it is not named too early.
        status.left_ms = 860_001;
        let denied = state(&PENALTY, &status, true, 1_763_000_000_000);
        assert_eq!(denied, "denied until 2025-11-13T02:27:41Z, for 14 min 21 s");
        let shadow = state(&PENALTY, &status, false, 1_763_000_000_000);
        assert!(shadow.starts_with("would be denied until "), "{shadow}");
    }
}

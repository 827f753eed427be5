//! The time slots of reports.
//!
//! Two resolutions, because `rlctl top` needs the last seconds and `rlctl stats` the last hour. An hour of
//! fine slots would be 720 reports of each limiter and domain to keep and to read; of coarse ones it is
//! 13. The last minute in coarse slots would be an average of five.

/// The time slot of fleet reports, in milliseconds: an active proxy is in the current one or the last.
pub const FLEET_SLOT_MS: u64 = 10_000;
/// How many of them a reader needs.
pub const FLEET_SLOTS: u64 = 2;
/// How long one is kept after it was last written.
pub const FLEET_KEPT_MS: u64 = 20_000;

/// How finely time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// Five seconds, kept for a little over a minute.
    Fine,
    /// Five minutes, kept for a little over an hour.
    Coarse,
}

/// A time slot, for which each limiter writes one report for each domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSlot {
    /// How long it is.
    pub resolution: Resolution,
    /// Which one since the epoch.
    pub number: u64,
}

impl Resolution {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Fine, Self::Coarse];

    /// The length of a slot, in milliseconds.
    pub fn millis(self) -> u64 {
        match self {
            Self::Fine => 5_000,
            Self::Coarse => 300_000,
        }
    }

    /// The slot that a time, in milliseconds since the epoch, falls into.
    pub fn slot(self, now_ms: u64) -> TimeSlot {
        TimeSlot {
            resolution: self,
            number: now_ms / self.millis(),
        }
    }

    /// How long a slot is kept after it was last written, in milliseconds.
    pub fn kept_ms(self) -> u64 {
        match self {
            Self::Fine => 75_000,
            Self::Coarse => 4_200_000,
        }
    }

    /// The part of a key that stands for it.
    pub fn letter(self) -> char {
        match self {
            Self::Fine => 's',
            Self::Coarse => 'l',
        }
    }

    /// The fewest slots that reach back `span_ms` from now, the newest first.
    pub fn back(self, now_ms: u64, span_ms: u64) -> impl Iterator<Item = TimeSlot> {
        let newest = now_ms / self.millis();
        let oldest = now_ms.saturating_sub(span_ms) / self.millis();
        let kept = self.kept_ms() / self.millis();
        let oldest = oldest.max(newest.saturating_sub(kept));
        { oldest..=newest }.rev().map(move |number| TimeSlot {
            resolution: self,
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(resolution: Resolution, now_ms: u64, span_ms: u64) -> Vec<u64> {
        resolution.back(now_ms, span_ms).map(|s| s.number).collect()
    }

    #[test]
    fn slots_cover_what_is_asked_for_and_no_more_than_is_kept() {
        assert_eq!(numbers(Resolution::Fine, 60_000, 10_000), [12, 11, 10]);
        assert_eq!(numbers(Resolution::Fine, 64_999, 10_000), [12, 11, 10]);
        assert_eq!(numbers(Resolution::Fine, 3, 10_000), [0]);
        assert_eq!(numbers(Resolution::Fine, u64::MAX, u64::MAX).len(), 16);
        assert_eq!(numbers(Resolution::Coarse, 3_600_000, 3_600_000).len(), 13);
    }
}

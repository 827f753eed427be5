//! When to sweep a bounded map for entries that no longer count.

/// A map with fewer entries is not swept.
const MIN: usize = 1024;
/// A full map is swept at most this often, in milliseconds: otherwise every check would pay for a sweep.
const PAUSE_MS: u64 = 1000;

/// The bound of a map.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) max: usize,
    /// The number of entries above which it is due.
    at: usize,
    swept_at_ms: Option<u64>,
}

impl Sweep {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            at: MIN.min(max),
            swept_at_ms: None,
        }
    }

    /// Whether to sweep now, before the map has `needed` entries.
    pub(super) fn is_due(&self, needed: usize, now_ms: u64) -> bool {
        let rested = |at: u64| now_ms.abs_diff(at) >= PAUSE_MS;
        needed > self.at && (needed <= self.max || self.swept_at_ms.is_none_or(rested))
    }

    /// Records a sweep that left so many entries.
    pub(super) fn done(&mut self, left: usize, now_ms: u64) {
        self.at = (left * 2).max(MIN).min(self.max);
        self.swept_at_ms = Some(now_ms);
    }
}

//! When a bounded map looks for entries that are as good as missing.

/// Below this many entries a map is not looked through.
const MIN: usize = 1024;
/// A full map is looked through this often, in milliseconds: every check would pay for the walk otherwise.
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

    /// Whether unused entries are looked for now, before there are so many.
    pub(super) fn is_due(&self, needed: usize, now_ms: u64) -> bool {
        let rested = |at: u64| now_ms.abs_diff(at) >= PAUSE_MS;
        needed > self.at && (needed <= self.max || self.swept_at_ms.is_none_or(rested))
    }

    /// They were removed, and so many are left.
    pub(super) fn done(&mut self, left: usize, now_ms: u64) {
        self.at = (left * 2).max(MIN).min(self.max);
        self.swept_at_ms = Some(now_ms);
    }
}

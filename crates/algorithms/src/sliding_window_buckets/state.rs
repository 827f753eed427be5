//! What is stored of sub-windows.

use crate::granted::Granted;

/// What is stored of sub-windows. It has no small fixed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindowBucketsState {
    /// The length of a sub-window when this was written, in milliseconds.
    pub(super) width_ms: i64,
    /// The sub-windows with admissions, oldest first.
    pub(super) counts: Vec<SubWindow>,
    /// Units of two of them that are leased out; `None`: none.
    pub(super) granted: Option<GrantedOf>,
}

/// One sub-window, from `index`·width to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubWindow {
    pub(super) index: i64,
    pub(super) used: u64,
}

/// Units leased out of two sub-windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantedOf {
    /// The sub-window of the newest grant.
    pub(super) index: i64,
    /// The one that had the newest grant before.
    pub(super) before: i64,
    pub(super) units: Granted,
}

impl GrantedOf {
    /// Outstanding units of a sub-window.
    pub(super) const fn out(&self, index: i64) -> u64 {
        if index == self.index {
            self.units.current
        } else if index == self.before {
            self.units.previous
        } else {
            0
        }
    }
}

impl SlidingWindowBucketsState {
    /// The start of the newest sub-window.
    pub(super) fn newest_ms(&self) -> Option<i64> {
        self.counts
            .last()
            .map(|newest| newest.index * self.width_ms)
    }

    /// The same counts with the newest in the sub-window of `now_ms`.
    pub(super) fn shifted(&self, now_ms: i64) -> Self {
        let newest = self.counts.last().map_or(0, |newest| newest.index);
        let by = newest - now_ms.div_euclid(self.width_ms);
        let shift = |count: &SubWindow| SubWindow {
            index: count.index - by,
            ..*count
        };
        let shift_granted = |granted: GrantedOf| GrantedOf {
            index: granted.index - by,
            before: granted.before - by,
            ..granted
        };
        Self {
            width_ms: self.width_ms,
            counts: self.counts.iter().map(shift).collect(),
            granted: self.granted.map(shift_granted),
        }
    }

    /// What remains after a reset: leased units.
    pub(crate) fn reset(&self) -> Option<Self> {
        let granted = self.granted?;
        let units = granted.units.after_reset()?;
        let (index, used) = (granted.index, units.current);
        Some(Self {
            counts: vec![SubWindow { index, used }],
            granted: Some(GrantedOf { units, ..granted }),
            ..*self
        })
    }
}

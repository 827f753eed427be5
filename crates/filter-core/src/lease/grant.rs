//! Units of one grant.

use protocol::Lease;

use crate::time::Now;

/// Units of one grant, in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// What the limiter knows the grant by.
    pub(crate) epoch: u64,
    /// From when on they may not be used, on the monotonic clock.
    pub(crate) deadline_us: u64,
    /// How many there are.
    pub(crate) units: u64,
}

impl Grant {
    /// What came with an answer. Time counts from the *sending* of the call: the limiter read its
    /// clock some time after that, and nobody knows when. A millisecond less, as it reads whole
    /// ones, and the window may end that much sooner; and a thousandth less, as no two clocks run
    /// at the same speed.
    pub(crate) fn new(lease: Lease, sent: Now) -> Self {
        let sure_us = lease.ttl_ms.saturating_sub(1).saturating_mul(999);
        Self {
            epoch: lease.epoch,
            deadline_us: sent.mono_us.saturating_add(sure_us),
            units: lease.units,
        }
    }

    /// Whether its units may not be used any more.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        now.reached(self.deadline_us)
    }

    /// Whether both are of one grant.
    pub(super) fn is_of(&self, epoch: u64, deadline_us: u64) -> bool {
        self.epoch == epoch && self.deadline_us == deadline_us
    }
}

//! Granted units.

use protocol::Lease;

use crate::time::Now;

/// Units of one grant, in a shared lease or in a worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The epoch that the limiter names the grant by.
    pub(crate) epoch: u64,
    /// Their deadline, on the monotonic clock.
    pub(crate) deadline_us: u64,
    /// How many there are.
    pub(crate) units: u64,
}

impl Grant {
    /// The grant in an answer to a call that was sent at `sent`. The time to live counts from the
    /// sending, because the limiter read its clock at an unknown moment after it. The deadline is a
    /// millisecond earlier, because the limiter's clock has whole milliseconds, and a thousandth
    /// earlier, because no two clocks run at the same speed.
    pub(crate) fn new(lease: Lease, sent: Now) -> Self {
        let sure_us = lease.ttl_ms.saturating_sub(1).saturating_mul(999);
        Self {
            epoch: lease.epoch,
            deadline_us: sent.mono_us.saturating_add(sure_us),
            units: lease.units,
        }
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        now.reached(self.deadline_us)
    }

    /// Whether these units can be merged with others of this epoch and deadline.
    pub(super) fn is_of(&self, epoch: u64, deadline_us: u64) -> bool {
        self.epoch == epoch && self.deadline_us == deadline_us
    }
}

//! A worker without requests looks up less often.
//!
//! To wake a thread costs Envoy a multiple of what is then done here, and an Envoy has a worker
//! for each core and one more on its main thread, which never has a request. So one that had none
//! for a while comes back when it has to poll, or to see that another still does. What it would
//! have found out meanwhile the next request finds out before it is decided.

use super::{Knowledge, TICK_MS, Worker};
use crate::{host::Host, time::Now};

/// How long no request must have come. What was remembered from the last one is old then.
const QUIET_US: u64 = 1_000_000;
/// Between ticks of a worker that rests, at most, in milliseconds.
const TICK_MAX_MS: u32 = 500;

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// There was a request since the last tick.
    Busy,
    /// There was none since then, on the monotonic clock.
    Quiet { since_us: u64 },
    /// There is nothing to do for so many milliseconds.
    Resting { tick_ms: u32 },
}

impl Worker {
    /// A request has come: finds out what a tick would have found out.
    pub(super) fn wake(&mut self, host: &impl Host, now: Now) {
        if let Pace::Resting { .. } = self.pace {
            self.look(host);
            self.breaker.is_open(host, now);
        }
        self.pace = Pace::Busy;
    }

    /// At the end of a tick: whether there need not be another soon.
    pub(super) fn slow_down(&mut self, host: &impl Host, now: Now) {
        let since_us = match self.pace {
            Pace::Busy => now.mono_us,
            Pace::Quiet { since_us } => since_us,
            // It has been quiet since.
            Pace::Resting { .. } => 0,
        };
        self.pace = Pace::Quiet { since_us };
        if now.mono_us.saturating_sub(since_us) < QUIET_US || !self.has_nothing_to_do() {
            return;
        }
        // Nobody will be told later: it does not hear of trouble while it rests.
        self.near.insist_on_all();
        self.spread(host, now);
        let tick_ms = u32::try_from(now.millis_until(self.follower.next_us()));
        self.pace = Pace::Resting {
            tick_ms: tick_ms.unwrap_or(TICK_MAX_MS).clamp(TICK_MS, TICK_MAX_MS),
        };
    }

    /// Something went wrong that is worth another try soon.
    pub(super) fn stir(&mut self) {
        if let Pace::Resting { .. } = self.pace {
            self.pace = Pace::Quiet { since_us: 0 };
        }
    }

    fn has_nothing_to_do(&self) -> bool {
        !matches!(self.knowledge, Knowledge::Nothing)
            && self.holds.is_empty()
            && !self.hands.leasing
            && self.batcher.is_idle()
            && self.reporter.is_idle()
            && self.counts.are_told()
    }
}

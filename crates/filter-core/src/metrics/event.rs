//! Events that are not about one limit, and their counters.

use super::Metrics;

/// An enum of events, each with the name of its counter.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident = $name:literal,)*) => {
        /// Events that are not about a limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event {
            $($(#[$doc])* $event,)*
        }

        /// In the order of [`Event`].
        const NAMES: &[&str] = &[$($name,)*];
    };
}

events! {
    /// A check call that was answered.
    CalloutAnswered = "rl_callouts.answered",
    /// A check call that failed.
    CalloutFailed = "rl_callouts.failed",
    /// A check call that failed without a charge and was retried.
    CalloutRetried = "rl_callouts.retried",
    /// A check call on the check stream; the other counters include it.
    StreamCall = "rl_stream.calls",
    /// A check stream that a limiter opened.
    StreamOpened = "rl_stream.opened",
    /// A check stream that failed.
    StreamFailed = "rl_stream.failed",
    /// A check that was answered with an error.
    CheckFailed = "rl_check_errors",
    /// A request let through because no policy was loaded and no limiter answered.
    Unguarded = "rl_unguarded",
    /// A request that found the queue of checks full.
    QueueFull = "rl_queue_full",
    /// A write to shared data that lost against other workers too often.
    Contended = "rl_shared_data_contended",
    /// A snapshot that could not be read.
    PolicyRejected = "rl_policy.rejected",
    /// A snapshot that came into force.
    PolicyLoaded = "rl_policy.loaded",
    /// A poll that failed.
    PolicyPollFailed = "rl_policy.poll_failed",
    /// A request that could not be held because `hold.max` others were.
    HoldFull = "rl_hold_full",
    /// A request that lacks an entry of its limit.
    Missing = "rl_missing",
    /// A unit that was granted.
    LeaseGranted = "rl_lease.granted",
    /// A unit that was settled as spent.
    LeaseSettled = "rl_lease.settled",
    /// A unit that was returned.
    LeaseReturned = "rl_lease.returned",
    /// A unit whose deadline passed.
    LeaseExpired = "rl_lease.expired",
    /// A slot that a request got.
    SlotTaken = "rl_slots.taken",
    /// A slot that a request freed.
    SlotFreed = "rl_slots.freed",
    /// A slot that was missing when it was to be renewed.
    SlotLapsed = "rl_slots.lapsed",
    /// A denial by a penalty.
    Penalized = "rl_penalized",
}

/// How often each happened since the last flush.
#[derive(Debug, Default)]
pub(super) struct Events([u64; NAMES.len()]);

impl Events {
    /// Counts an event of several units.
    pub(super) fn add(&mut self, event: Event, units: u64) {
        if let Some(count) = self.0.get_mut(event as usize) {
            *count = count.saturating_add(units);
        }
    }

    /// Defines all counters.
    pub(super) fn define(metrics: &mut impl Metrics) {
        for name in NAMES {
            metrics.count(name, 0);
        }
    }

    /// Whether there is nothing to flush.
    pub(super) fn is_flushed(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Writes all counters to the host.
    pub(super) fn flush(&mut self, metrics: &mut impl Metrics) {
        for (name, count) in NAMES.iter().zip(&mut self.0) {
            if *count > 0 {
                metrics.count(name, std::mem::take(count));
            }
        }
    }
}

//! Counters, gathered in memory and written to the host in batches.

mod by_name;
mod costs;

use policy::Name;
use protocol::{DecidedBy, Outcome, compact::Tally};

use crate::cost::Settled;
use by_name::ByName;

/// Events that are not about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A check call that was answered.
    CalloutAnswered,
    /// A check call that failed.
    CalloutFailed,
    /// A check call that failed without a charge and was retried.
    CalloutRetried,
    /// A check that was answered with an error.
    CheckFailed,
    /// A request let through because no policy was loaded and no limiter answered.
    Unguarded,
    /// A request that found the queue of checks full.
    QueueFull,
    /// A write to shared data that lost against other workers too often.
    Contended,
    /// A snapshot that could not be read.
    PolicyRejected,
    /// A snapshot that came into force.
    PolicyLoaded,
    /// A poll that failed.
    PolicyPollFailed,
    /// A request that could not be held because `hold.max` others were.
    HoldFull,
    /// A request that lacks an entry of its limit.
    Missing,
    /// A unit that was granted.
    LeaseGranted,
    /// A unit that was settled as spent.
    LeaseSettled,
    /// A unit that was returned.
    LeaseReturned,
    /// A unit whose deadline passed.
    LeaseExpired,
    /// A slot that a request got.
    SlotTaken,
    /// A slot that a request gave back.
    SlotFreed,
    /// A slot that was gone when it was to be renewed.
    SlotLapsed,
    /// A denial by a penalty.
    Penalized,
}

impl Event {
    const ALL: [Self; 20] = [
        Self::CalloutAnswered,
        Self::CalloutFailed,
        Self::CalloutRetried,
        Self::CheckFailed,
        Self::Unguarded,
        Self::QueueFull,
        Self::Contended,
        Self::PolicyRejected,
        Self::PolicyLoaded,
        Self::PolicyPollFailed,
        Self::HoldFull,
        Self::Missing,
        Self::LeaseGranted,
        Self::LeaseSettled,
        Self::LeaseReturned,
        Self::LeaseExpired,
        Self::SlotTaken,
        Self::SlotFreed,
        Self::SlotLapsed,
        Self::Penalized,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::CalloutAnswered => "rl_callouts.answered",
            Self::CalloutFailed => "rl_callouts.failed",
            Self::CalloutRetried => "rl_callouts.retried",
            Self::CheckFailed => "rl_check_errors",
            Self::Unguarded => "rl_unguarded",
            Self::QueueFull => "rl_queue_full",
            Self::Contended => "rl_shared_data_contended",
            Self::PolicyRejected => "rl_policy.rejected",
            Self::PolicyLoaded => "rl_policy.loaded",
            Self::PolicyPollFailed => "rl_policy.poll_failed",
            Self::HoldFull => "rl_hold_full",
            Self::Missing => "rl_missing",
            Self::LeaseGranted => "rl_lease.granted",
            Self::LeaseSettled => "rl_lease.settled",
            Self::LeaseReturned => "rl_lease.returned",
            Self::LeaseExpired => "rl_lease.expired",
            Self::SlotTaken => "rl_slots.taken",
            Self::SlotFreed => "rl_slots.freed",
            Self::SlotLapsed => "rl_slots.lapsed",
            Self::Penalized => "rl_penalized",
        }
    }
}

/// Where metrics go.
pub trait Metrics {
    /// Adds to a counter. Names are few and fixed for a policy.
    fn count(&mut self, name: &str, by: u64);
    /// Sets a gauge.
    fn gauge(&mut self, name: &str, value: u64);
    /// Adds a sample to a histogram.
    fn sample(&mut self, name: &str, value: u64);
}

/// Counters of one limit.
const SLOTS: usize = Outcome::ALL.len() * DecidedBy::ALL.len();

/// Counters since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    limits: ByName<SLOTS>,
    /// Flushed decisions that no limiter made and that are still to be reported, by limit.
    unreported: Vec<(Name, [u64; SLOTS])>,
    events: [u64; Event::ALL.len()],
    /// Requests that no limit applies to, by exemption.
    exempt: ByName<1>,
    costs: costs::Costs,
}

impl Counts {
    /// Counts a decision of one limit.
    pub(crate) fn decided(&mut self, limit: &Name, outcome: Outcome, source: DecidedBy) {
        let slot = outcome as usize * DecidedBy::ALL.len() + source as usize;
        if let Some(count) = self.limits.of(limit).get_mut(slot) {
            *count += 1;
        }
    }

    /// Counts a request that is exempt.
    pub(crate) fn exempted(&mut self, exemption: &Name) {
        let [count] = self.exempt.of(exemption);
        *count += 1;
    }

    /// Counts what a request cost in one bucket.
    pub(crate) fn settled(&mut self, settled: &Settled) {
        self.costs.settled(settled);
    }

    /// Counts an event.
    pub(crate) fn happened(&mut self, event: Event) {
        self.happened_to(event, 1);
    }

    /// Counts an event of several units.
    pub(crate) fn happened_to(&mut self, event: Event, units: u64) {
        if let Some(count) = self.events.get_mut(event as usize) {
            *count = count.saturating_add(units);
        }
    }

    /// Takes the decisions to report.
    pub(crate) fn take_unreported(&mut self) -> Vec<Tally> {
        let mut tallies = Vec::new();
        for (limit, counts) in self.unreported.drain(..) {
            for (slot, count) in counts.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                let outcome = Outcome::ALL.get(slot / DecidedBy::ALL.len());
                let by = DecidedBy::ALL.get(slot % DecidedBy::ALL.len());
                if let (Some(&outcome), Some(&by)) = (outcome, by) {
                    tallies.push(Tally {
                        limit: limit.clone(),
                        outcome,
                        by,
                        count,
                    });
                }
            }
        }
        tallies
    }

    /// Whether there is nothing to flush or to report.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unreported.is_empty()
            && self.events.iter().all(|count| *count == 0)
            && self.costs.is_flushed()
    }

    /// Keeps the decisions that no limiter made, for the next report.
    fn keep_unreported(&mut self) {
        let limiter = DecidedBy::Limiter as usize;
        for (limit, counts) in self.limits.named() {
            let own =
                |(slot, count): (usize, &u64)| *count > 0 && slot % DecidedBy::ALL.len() != limiter;
            if !counts.iter().enumerate().any(own) {
                continue;
            }
            let known = self.unreported.iter().position(|(name, _)| name == limit);
            let at = known.unwrap_or_else(|| {
                self.unreported.push((limit.clone(), [0; SLOTS]));
                self.unreported.len() - 1
            });
            let Some((_, unreported)) = self.unreported.get_mut(at) else {
                continue;
            };
            for (slot, (sum, count)) in unreported.iter_mut().zip(counts).enumerate() {
                if slot % DecidedBy::ALL.len() != limiter {
                    *sum = sum.saturating_add(*count);
                }
            }
        }
    }

    /// Writes all counters to the host.
    pub(crate) fn flush(&mut self, metrics: &mut impl Metrics) {
        self.keep_unreported();
        self.limits.take(|limit, slot, count| {
            let decision = Outcome::ALL.get(slot / DecidedBy::ALL.len());
            let source = DecidedBy::ALL.get(slot % DecidedBy::ALL.len());
            if let (Some(decision), Some(source)) = (decision, source) {
                let (decision, source) = (decision.word(), source.word());
                metrics.count(&["rl_decisions", decision, source, limit].join("."), count);
            }
        });
        self.exempt.take(|exemption, _, count| {
            metrics.count(&["rl_exempt", exemption].join("."), count);
        });
        for (event, count) in Event::ALL.iter().zip(&mut self.events) {
            if *count > 0 {
                metrics.count(event.name(), std::mem::take(count));
            }
        }
        self.costs.flush(metrics);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{by_name::MAX_NAMES, *};

    #[derive(Default)]
    pub(super) struct Recorded(pub(super) BTreeMap<String, u64>);

    impl Metrics for Recorded {
        fn count(&mut self, name: &str, by: u64) {
            *self.0.entry(name.to_owned()).or_default() += by;
        }
        fn gauge(&mut self, _: &str, _: u64) {}
        fn sample(&mut self, _: &str, _: u64) {}
    }

    #[test]
    fn counts_are_flushed_once() {
        let mut counts = Counts::default();
        let limit = "per-user".parse().unwrap();
        counts.decided(&limit, Outcome::Allowed, DecidedBy::Limiter);
        counts.decided(&limit, Outcome::Allowed, DecidedBy::Limiter);
        counts.decided(&limit, Outcome::Denied, DecidedBy::DenyCache);
        counts.happened(Event::CalloutFailed);
        counts.exempted(&"health".parse().unwrap());
        let mut metrics = Recorded::default();
        counts.flush(&mut metrics);
        counts.flush(&mut metrics);
        let expected = [
            ("rl_callouts.failed", 1),
            ("rl_decisions.allowed.limiter.per-user", 2),
            ("rl_decisions.denied.deny_cache.per-user", 1),
            ("rl_exempt.health", 1),
        ];
        assert!(metrics.0.iter().map(|(k, v)| (k.as_str(), *v)).eq(expected));
    }

    #[test]
    fn any_number_of_limits_makes_a_bounded_number_of_names() {
        let mut counts = Counts::default();
        for n in 0..10_000 {
            let limit = format!("limit-{n}").parse().unwrap();
            counts.decided(&limit, Outcome::Allowed, DecidedBy::Limiter);
        }
        let mut metrics = Recorded::default();
        counts.flush(&mut metrics);
        assert_eq!(metrics.0.len(), MAX_NAMES + 1);
        assert_eq!(metrics.0.values().sum::<u64>(), 10_000);
        for n in 0..300 {
            counts.exempted(&format!("exemption-{n}").parse().unwrap());
        }
        let mut metrics = Recorded::default();
        counts.flush(&mut metrics);
        assert_eq!(metrics.0.len(), MAX_NAMES + 1);
        assert_eq!(metrics.0["rl_exempt._others"], 300 - 256);
    }
}

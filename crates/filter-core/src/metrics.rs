//! Counters, gathered in memory and written to the host in batches.

mod by_name;
mod costs;
mod decisions;
mod event;

use policy::Name;
use protocol::{DecidedBy, Outcome, compact::Tally};

use crate::cost::Settled;
use by_name::ByName;
pub(crate) use event::Event;

/// The destination of metrics.
pub trait Metrics {
    /// Adds to a counter, and defines it if it is new, also at 0. For one policy, names are few and fixed.
    fn count(&mut self, name: &str, by: u64);
    /// Sets a gauge.
    fn gauge(&mut self, name: &str, value: u64);
    /// Adds a sample to a histogram.
    fn sample(&mut self, name: &str, value: u64);
}

/// Counters since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    decisions: decisions::Decisions,
    events: event::Events,
    /// Requests that no limit applies to, by exemption.
    exempt: ByName<1>,
    costs: costs::Costs,
}

impl Counts {
    /// Defines the counters that are not of one limit, at 0: of a counter that appears with its first
    /// events, Prometheus sees no increase.
    pub(crate) fn define(metrics: &mut impl Metrics) {
        event::Events::define(metrics);
    }

    /// Counts a decision of one limit.
    pub(crate) fn decided(&mut self, limit: &Name, outcome: Outcome, source: DecidedBy) {
        self.decisions.add(limit, outcome, source);
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
        self.events.add(event, units);
    }

    /// Takes the decisions to report.
    pub(crate) fn take_unreported(&mut self) -> Vec<Tally> {
        self.decisions.take_unreported()
    }

    /// Whether there is nothing to flush or to report.
    pub(crate) fn is_flushed(&self) -> bool {
        self.decisions.is_reported() && self.events.is_flushed() && self.costs.is_flushed()
    }

    /// Writes all counters to the host.
    pub(crate) fn flush(&mut self, metrics: &mut impl Metrics) {
        self.decisions.flush(metrics);
        self.exempt.take(|exemption, _, count| {
            metrics.count(&["rl_exempt", exemption].join("."), count);
        });
        self.events.flush(metrics);
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
    fn counters_begin_at_0() {
        let mut metrics = Recorded::default();
        Counts::define(&mut metrics);
        for name in ["rl_unguarded", "rl_callouts.answered", "rl_callouts.failed"] {
            assert_eq!(metrics.0.get(name), Some(&0), "{name}");
        }
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

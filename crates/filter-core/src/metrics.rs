//! Counters, gathered in memory and written to the host in batches.

use policy::Name;
use protocol::{DecidedBy, Outcome, compact::Tally};

use crate::cost::Settled;

/// The destination of metrics.
pub trait Metrics {
    /// Adds to a counter, and defines it if it is new, also at 0. For one policy, names are few and fixed.
    fn count(&mut self, name: &str, by: u64);
    /// Sets a gauge.
    fn gauge(&mut self, name: &str, value: u64);
    /// Adds a sample to a histogram.
    fn sample(&mut self, name: &str, value: u64);

    /// Adds to the counter of a family that has these labels. A destination without labels has a counter
    /// for each, whose name contains them.
    fn count_of(&mut self, family: &'static str, labels: &[&str], by: u64) {
        let mut name = vec![family];
        name.extend_from_slice(labels);
        self.count(&name.join("."), by);
    }

    /// Defines a counter, or a family of counters by the names of its labels.
    fn family(&mut self, _family: &'static str, _labels: &[&'static str]) {}
}

/// Decisions, by limit.
const DECIDED: &str = "rl_decisions";
/// Requests that are exempt.
const EXEMPT: &str = "rl_exempt";

/// Counters since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    decisions: ByName<DECISIONS>,
    /// Decisions that this proxy made and has not reported yet. Its names go with each report, so it also has
    /// those that came after `decisions` had all the names that it may have.
    unreported: ByName<DECISIONS>,
    events: [u64; EVENTS.len()],
    /// Requests that no limit applies to, by exemption.
    exempt: ByName<1>,
    costs: ByName<{ COSTS.len() }>,
}

impl Counts {
    /// Defines the counters that are not of one limit, at 0: of a counter that appears with its first
    /// events, Prometheus sees no increase.
    pub(crate) fn define(metrics: &mut impl Metrics) {
        for name in EVENTS {
            metrics.family(name, &[]);
            metrics.count(name, 0);
        }
        metrics.family(DECIDED, &["decision", "source", "limit"]);
        metrics.family(EXEMPT, &["exemption"]);
        for name in COSTS {
            metrics.family(name, &["limit"]);
        }
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

    /// Counts a request that is exempt.
    pub(crate) fn exempted(&mut self, exemption: &Name) {
        self.exempt.add(exemption, [1]);
    }

    /// Whether there is nothing to flush or to report.
    pub(crate) fn is_flushed(&self) -> bool {
        let mut events = self.events.iter();
        self.unreported.is_zero() && events.all(|count| *count == 0) && self.costs.is_zero()
    }

    /// Writes all counters to the host.
    pub(crate) fn flush(&mut self, metrics: &mut impl Metrics) {
        self.decisions.take(|limit, at, count| {
            if let Some((outcome, by)) = counted(at) {
                metrics.count_of(DECIDED, &[outcome.word(), by.word(), limit], count);
            }
        });
        self.exempt.take(|exemption, _, count| {
            metrics.count_of(EXEMPT, &[exemption], count);
        });
        for (name, count) in EVENTS.iter().zip(&mut self.events) {
            if *count > 0 {
                metrics.count(name, std::mem::take(count));
            }
        }
        self.costs.take(|limit, at, by| {
            if let Some(name) = COSTS.get(at) {
                metrics.count_of(name, &[limit], by);
            }
        });
    }
}

// --- Events that are not about one limit, and their counters.

/// An enum of events, each with the name of its counter.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident = $name:literal,)*) => {
        /// Events that are not about a limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event {
            $($(#[$doc])* $event,)*
        }

        /// In the order of [`Event`].
        const EVENTS: &[&str] = &[$($name,)*];
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
    UnlimitedNoPolicy = "rl_unlimited_no_policy",
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

// --- Decisions, counted by limit, outcome and source: for Envoy's metrics, and for reports.

/// Counters of one limit.
const DECISIONS: usize = Outcome::ALL.len() * DecidedBy::ALL.len();

/// The decision that a counter counts.
fn counted(at: usize) -> Option<(Outcome, DecidedBy)> {
    let outcome = Outcome::ALL.get(at / DecidedBy::ALL.len())?;
    let by = DecidedBy::ALL.get(at % DecidedBy::ALL.len())?;
    Some((*outcome, *by))
}

impl Counts {
    /// Counts a decision of one limit.
    pub(crate) fn decided(&mut self, limit: &Name, outcome: Outcome, by: DecidedBy) {
        let at = outcome as usize * DecidedBy::ALL.len() + by as usize;
        let own = (by != DecidedBy::Limiter).then_some(&mut self.unreported);
        for counts in own.into_iter().chain([&mut self.decisions]) {
            if let Some(count) = counts.of(limit).get_mut(at) {
                *count += 1;
            }
        }
    }

    /// Takes the decisions to report.
    pub(crate) fn take_unreported(&mut self) -> Vec<Tally> {
        let mut tallies = Vec::new();
        for (limit, counts) in std::mem::take(&mut self.unreported).named {
            for (at, count) in counts.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                if let Some((outcome, by)) = counted(at) {
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
}

// --- Costs of responses, counted by limit.

/// Counters of requests that reserved units and have ended, and of those that nobody can settle.
const COSTS: [&str; 9] = [
    "rl_costs.settlements",
    "rl_costs.reserved",
    "rl_costs.settled",
    "rl_costs.unused",
    "rl_costs.excess",
    "rl_costs.absent",
    "rl_costs.estimated",
    "rl_costs.cut",
    "rl_costs.unsettled",
];

impl Counts {
    /// Counts what a request cost in one bucket.
    pub(crate) fn settled(&mut self, settled: &Settled) {
        let (reserved, units) = (
            settled.settlement.reservation.units,
            settled.settlement.units,
        );
        let counted = [
            1,
            reserved,
            units,
            reserved.saturating_sub(units),
            units.saturating_sub(reserved),
            u64::from(settled.absent),
            u64::from(settled.estimated),
            u64::from(settled.cut),
            0,
        ];
        self.costs.add(&settled.limit, counted);
    }

    /// Counts a request whose reserve may stay charged, because no answer named it.
    pub(crate) fn unsettled(&mut self, limit: &Name) {
        self.costs.add(limit, [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}

// --- Counters by limit or exemption, of a bounded number of names.

/// Names that get counters of their own.
const MAX_NAMES: usize = 256;
/// The name that the others share.
const OTHERS: &str = "_others";

/// `N` counters for each name.
#[derive(Debug)]
struct ByName<const N: usize> {
    // Names stay, so that there are never more of them.
    named: Vec<(Name, [u64; N])>,
    others: [u64; N],
}

impl<const N: usize> Default for ByName<N> {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            others: [0; N],
        }
    }
}

impl<const N: usize> ByName<N> {
    /// The counters of a name.
    fn of(&mut self, name: &Name) -> &mut [u64; N] {
        let known = self.named.iter().position(|(known, _)| known == name);
        let at = match known {
            // Names that are counted often move to the front.
            Some(at @ 1..) => {
                self.named.swap(at, at - 1);
                at - 1
            }
            Some(0) => 0,
            None if self.named.len() < MAX_NAMES => {
                self.named.push((name.clone(), [0; N]));
                self.named.len() - 1
            }
            None => return &mut self.others,
        };
        match self.named.get_mut(at) {
            Some((_, counts)) => counts,
            None => &mut self.others,
        }
    }

    fn add(&mut self, name: &Name, counted: [u64; N]) {
        for (count, by) in self.of(name).iter_mut().zip(counted) {
            *count = count.saturating_add(by);
        }
    }

    fn is_zero(&self) -> bool {
        let mut named = self.named.iter().map(|(_, counts)| counts);
        named.all(|counts| *counts == [0; N]) && self.others == [0; N]
    }

    /// Takes the counts: calls `each` with the name, the counter's index, and the count.
    fn take(&mut self, mut each: impl FnMut(&str, usize, u64)) {
        let named = self.named.iter_mut();
        let named = named.map(|(name, counts)| (name.as_str(), counts));
        for (name, counts) in named.chain([(OTHERS, &mut self.others)]) {
            for (at, count) in counts.iter_mut().enumerate().filter(|(_, n)| **n > 0) {
                each(name, at, std::mem::take(count));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{MAX_NAMES, *};

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
        for name in [
            "rl_unlimited_no_policy",
            "rl_callouts.answered",
            "rl_callouts.failed",
        ] {
            assert_eq!(metrics.0.get(name), Some(&0), "{name}");
        }
    }

    #[test]
    fn limits_beyond_the_names_that_metrics_may_have_are_reported() {
        let mut counts = Counts::default();
        let limit = |n: usize| format!("limit-{n}").parse().unwrap();
        for n in 0..=MAX_NAMES {
            counts.decided(&limit(n), Outcome::Allowed, DecidedBy::Limiter);
        }
        counts.flush(&mut Recorded::default());
        counts.decided(&limit(MAX_NAMES), Outcome::Denied, DecidedBy::Local);
        assert!(!counts.is_flushed());
        let reported = Tally {
            limit: limit(MAX_NAMES),
            outcome: Outcome::Denied,
            by: DecidedBy::Local,
            count: 1,
        };
        assert_eq!(counts.take_unreported(), [reported]);
        assert!(counts.is_flushed());
        assert_eq!(counts.take_unreported(), []);
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

#[cfg(test)]
mod costs_tests {
    use super::{tests::Recorded, *};

    #[test]
    fn any_number_of_limits_makes_a_bounded_number_of_names_over_time() {
        let (mut counts, mut metrics) = (Counts::default(), Recorded::default());
        for n in 0..1000 {
            let limit = format!("limit-{n}").parse().unwrap();
            counts.costs.add(&limit, [1, 10, 0, 0, 0, 0, 0, 0, 0]);
            if n % 100 == 0 {
                assert!(!counts.is_flushed());
                counts.flush(&mut metrics);
                assert!(counts.is_flushed());
            }
        }
        counts.flush(&mut metrics);
        assert_eq!(metrics.0.len(), 2 * (MAX_NAMES + 1));
        assert_eq!(metrics.0["rl_costs.reserved._others"], 10 * (1000 - 256));
        assert_eq!(metrics.0.values().sum::<u64>(), 11_000);
    }
}

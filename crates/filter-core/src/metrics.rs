//! Counts of what happened, gathered in memory and handed to the host in batches.
//!
//! Envoy never frees a metric's name, so the names are bounded: beyond [`MAX_LIMITS`] limits the
//! rest is counted together.

use std::collections::BTreeMap;

use policy::Name;

use crate::client::Source;

/// Limits that get counters of their own.
const MAX_LIMITS: usize = 256;
/// What the others are counted as. No limit can have this name.
const OTHERS: &str = "_others";

/// What became of a request at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Decision {
    Allowed,
    Denied,
    /// Over a limit that is only reported.
    WouldDeny,
    /// Over a limit that only marks requests.
    Degraded,
}

impl Decision {
    fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::WouldDeny => "would_deny",
            Self::Degraded => "degraded",
        }
    }
}

/// Events that are not about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    /// A callout that brought answers.
    CalloutAnswered,
    /// A callout that brought none.
    CalloutFailed,
    /// A check whose own answer was an error.
    CheckFailed,
    /// A request let through because no policy was known and no limiter answered.
    Unguarded,
    /// A request that found too many others waiting for the limiter.
    QueueFull,
    /// A write to shared data that was given up, other workers being faster.
    Contended,
    /// A snapshot that could not be used.
    PolicyRejected,
    /// A snapshot that came into force.
    PolicyLoaded,
    /// A poll that brought nothing.
    PolicyPollFailed,
    /// A request that came while as many as may be were held.
    HoldFull,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::CalloutAnswered => "rl_callouts.answered",
            Self::CalloutFailed => "rl_callouts.failed",
            Self::CheckFailed => "rl_check_errors",
            Self::Unguarded => "rl_unguarded",
            Self::QueueFull => "rl_queue_full",
            Self::Contended => "rl_shared_data_contended",
            Self::PolicyRejected => "rl_policy.rejected",
            Self::PolicyLoaded => "rl_policy.loaded",
            Self::PolicyPollFailed => "rl_policy.poll_failed",
            Self::HoldFull => "rl_hold_full",
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

/// Counts not handed over yet.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    numbers: BTreeMap<Name, u16>,
    names: Vec<Name>,
    decisions: BTreeMap<(u16, Decision, Source), u64>,
    missing: BTreeMap<u16, u64>,
    events: BTreeMap<Event, u64>,
}

impl Counts {
    /// Counts a decision of one limit.
    pub(crate) fn decided(&mut self, limit: &Name, decision: Decision, source: Source) {
        let limit = self.number(limit);
        if source == Source::Missing {
            *self.missing.entry(limit).or_default() += 1;
        }
        *self.decisions.entry((limit, decision, source)).or_default() += 1;
    }

    /// Counts an event.
    pub(crate) fn happened(&mut self, event: Event) {
        *self.events.entry(event).or_default() += 1;
    }

    /// Hands all counts over.
    pub(crate) fn flush(&mut self, metrics: &mut impl Metrics) {
        for ((limit, decision, source), by) in std::mem::take(&mut self.decisions) {
            let (decision, source) = (decision.word(), source.word());
            let limit = self.name(limit);
            metrics.count(&format!("rl_decisions.{decision}.{source}.{limit}"), by);
        }
        for (limit, by) in std::mem::take(&mut self.missing) {
            metrics.count(&format!("rl_missing.{}", self.name(limit)), by);
        }
        for (event, by) in std::mem::take(&mut self.events) {
            metrics.count(event.name(), by);
        }
    }

    fn number(&mut self, limit: &Name) -> u16 {
        if let Some(number) = self.numbers.get(limit) {
            return *number;
        }
        let number = u16::try_from(self.names.len()).unwrap_or(u16::MAX);
        if self.names.len() < MAX_LIMITS {
            self.names.push(limit.clone());
            self.numbers.insert(limit.clone(), number);
        }
        number
    }

    fn name(&self, limit: u16) -> &str {
        self.names
            .get(usize::from(limit))
            .map_or(OTHERS, Name::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(BTreeMap<String, u64>);

    impl Metrics for Recorded {
        fn count(&mut self, name: &str, by: u64) {
            *self.0.entry(name.to_owned()).or_default() += by;
        }
        fn gauge(&mut self, _: &str, _: u64) {}
        fn sample(&mut self, _: &str, _: u64) {}
    }

    #[test]
    fn counts_are_handed_over_once() {
        let mut counts = Counts::default();
        let limit = "per-user".parse().unwrap();
        counts.decided(&limit, Decision::Allowed, Source::Limiter);
        counts.decided(&limit, Decision::Allowed, Source::Limiter);
        counts.decided(&limit, Decision::Denied, Source::DenyCache);
        counts.happened(Event::CalloutFailed);
        let mut metrics = Recorded::default();
        counts.flush(&mut metrics);
        counts.flush(&mut metrics);
        let expected = [
            ("rl_callouts.failed", 1),
            ("rl_decisions.allowed.limiter.per-user", 2),
            ("rl_decisions.denied.deny_cache.per-user", 1),
        ];
        assert!(metrics.0.iter().map(|(k, v)| (k.as_str(), *v)).eq(expected));
    }

    #[test]
    fn any_number_of_limits_makes_a_bounded_number_of_names() {
        let mut counts = Counts::default();
        for n in 0..10_000 {
            let limit = format!("limit-{n}").parse().unwrap();
            counts.decided(&limit, Decision::Allowed, Source::Limiter);
        }
        let mut metrics = Recorded::default();
        counts.flush(&mut metrics);
        assert_eq!(metrics.0.len(), MAX_LIMITS + 1);
        assert_eq!(metrics.0.values().sum::<u64>(), 10_000);
    }
}

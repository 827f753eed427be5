//! All decisions by source: this limiter's own, and those that proxies report.

use policy::OnFailure;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use protocol::{DecidedBy, Outcome};

/// The most that one line of a report counts: no proxy decides more between two reports, and a
/// counter must not overflow.
const REPORTED_MAX: u64 = 1 << 32;

/// The counters of every limit. A proxy's report is counted only under existing limits, outcomes
/// and sources, so that it cannot create more labels than this limiter's own decisions.
#[derive(Clone, Debug, Default)]
pub(super) struct Decisions(Family<Labels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    domain: String,
    limit: String,
    decision: &'static str,
    source: &'static str,
}

/// The counters of one limit.
#[derive(Debug)]
pub(super) struct LimitDecisions {
    /// By this limiter, in the order of `Outcome::ALL`.
    own: [Counter; Outcome::ALL.len()],
    all: Decisions,
    domain: String,
    limit: String,
}

impl Decisions {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register(
            "decisions",
            "Decisions of this limiter and those that proxies reported to it, by limit and source",
            self.0.clone(),
        );
    }

    /// The counters of a limit with this `on_failure`. Those of decisions without a limiter begin at 0,
    /// too: proxies report them when the outage is over, all at once.
    pub(super) fn of(&self, domain: &str, limit: &str, on_failure: OnFailure) -> LimitDecisions {
        let without_limiter: &[_] = match on_failure {
            OnFailure::Allow => &[(Outcome::Allowed, DecidedBy::Failure)],
            OnFailure::Deny => &[(Outcome::Denied, DecidedBy::Failure)],
            OnFailure::Local => &[
                (Outcome::Allowed, DecidedBy::Local),
                (Outcome::Denied, DecidedBy::Local),
            ],
        };
        for (outcome, by) in without_limiter {
            self.counter(domain, limit, *outcome, *by);
        }
        let own = |outcome| self.counter(domain, limit, outcome, DecidedBy::Limiter);
        LimitDecisions {
            own: Outcome::ALL.map(own),
            all: self.clone(),
            domain: domain.to_owned(),
            limit: limit.to_owned(),
        }
    }

    fn counter(&self, domain: &str, limit: &str, outcome: Outcome, by: DecidedBy) -> Counter {
        self.0
            .get_or_create_owned(&labels(domain, limit, outcome, by))
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        for outcome in Outcome::ALL {
            for by in DecidedBy::ALL {
                self.0.remove(&labels(domain, limit, outcome, by));
            }
        }
    }
}

impl LimitDecisions {
    /// Counts a decision of this limiter.
    pub(super) fn decided(&self, outcome: Outcome) {
        let at = Outcome::ALL.iter().position(|one| *one == outcome);
        if let Some(counter) = at.and_then(|at| self.own.get(at)) {
            counter.inc();
        }
    }

    /// Counts decisions that a proxy reports. Skips those a limiter made: that limiter counted
    /// them.
    pub(super) fn reported(&self, outcome: Outcome, by: DecidedBy, count: u64) {
        if by != DecidedBy::Limiter && count > 0 {
            self.all
                .counter(&self.domain, &self.limit, outcome, by)
                .inc_by(count.min(REPORTED_MAX));
        }
    }
}

fn labels(domain: &str, limit: &str, outcome: Outcome, by: DecidedBy) -> Labels {
    Labels {
        domain: domain.to_owned(),
        limit: limit.to_owned(),
        decision: outcome.word(),
        source: by.word(),
    }
}

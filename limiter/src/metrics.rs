//! The metrics, under the names that dashboards rely on.

mod by_limit;
mod compared;
mod costs;
mod decisions;
mod domain;
mod exempt;
mod labels;
mod leases;
mod penalties;
mod register;
mod slots;

use std::{sync::Mutex, time::Duration};

use policy::{Compiled, Limit, Name};
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use by_limit::ByLimit;
pub(crate) use compared::Compared;
use compared::Comparisons;
use decisions::Decisions;
use domain::LimitCounters;
pub(crate) use domain::{DomainCounters, LimitCounts};
use exempt::Exempt;
pub(crate) use labels::Unmatched;
use labels::{
    CheckLabels, CutLabels, DECISIONS, Decision, DomainLabels, LimitLabels, RefusedLabels,
    UnmatchedLabels, check_labels, labels,
};

use protocol::ErrorCode;

use crate::store_calls::StoreCalls;

/// Seconds. A check takes a fraction of a millisecond; the store's timeout is 10 ms.
const DURATIONS: [f64; 14] = [
    0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007_5,
    0.01, 0.02, 0.1,
];

/// Why connections are ended because of their clients.
const CUTS: [&str; 4] = ["crowded", "silent", "streams", "unread"];

/// Checks in one call of the store.
const BATCH_SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// All metrics of the service. Labels contain names of domains and limits, never values of
/// descriptors, and are removed with the limit, so their number is bounded by the number of limits.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    checks: Family<CheckLabels, Counter>,
    decisions: Decisions,
    leases: ByLimit<3>,
    slots: ByLimit<3>,
    costs: ByLimit<5>,
    penalties: ByLimit<1>,
    exempt: Exempt,
    unmatched: Family<DomainLabels, Counter>,
    unmatched_descriptors: Family<UnmatchedLabels, Counter>,
    undecided: Family<DomainLabels, Counter>,
    compared: Comparisons,
    delayed: Family<LimitLabels, Counter>,
    revision: Family<DomainLabels, Gauge>,
    policy_fault: Family<DomainLabels, Gauge>,
    lost_edits: Family<DomainLabels, Counter>,
    refused: Family<RefusedLabels, Counter>,
    cut: Family<CutLabels, Counter>,
    /// From parsed checks to their decisions, without waiting for permits (`wait_ms`).
    check_duration: Histogram,
    /// One call of the store.
    store_duration: Histogram,
    store_batch: Histogram,
    store_up: Gauge,
    /// The results of the last store calls.
    pub(crate) calls: StoreCalls,
    /// Checks repeated because a bucket had a newer revision.
    pub(crate) stale: Counter,
    /// Requests worked on.
    pub(crate) inflight: Gauge,
    /// Bytes of bodies being read and decoded.
    pub(crate) body_bytes: Gauge,
    /// Checks that wait for permits (`wait_ms`).
    pub(crate) waiting: Gauge,
    /// Polls that wait for an edit (`GET /v1/policy` with `wait_ms`).
    pub(crate) held: Gauge,
    /// Calls that watch the health over gRPC.
    pub(crate) watches: Gauge,
    pub(crate) check_streams: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("rl")),
            checks: Family::default(),
            decisions: Decisions::default(),
            leases: leases::metrics(),
            slots: slots::metrics(),
            costs: costs::metrics(),
            penalties: penalties::metrics(),
            exempt: Exempt::default(),
            unmatched: Family::default(),
            unmatched_descriptors: Family::default(),
            undecided: Family::default(),
            compared: Comparisons::default(),
            delayed: Family::default(),
            revision: Family::default(),
            policy_fault: Family::default(),
            lost_edits: Family::default(),
            refused: Family::default(),
            cut: Family::default(),
            check_duration: Histogram::new(DURATIONS),
            store_duration: Histogram::new(DURATIONS),
            store_batch: Histogram::new(BATCH_SIZES),
            store_up: Gauge::default(),
            calls: StoreCalls::default(),
            stale: Counter::default(),
            inflight: Gauge::default(),
            body_bytes: Gauge::default(),
            waiting: Gauge::default(),
            held: Gauge::default(),
            watches: Gauge::default(),
            check_streams: Gauge::default(),
        };
        metrics.register();
        metrics.define();
        metrics
    }

    /// Defines counters at 0 whose labels are known. Of a counter that appears with its first events,
    /// Prometheus sees no increase.
    fn define(&self) {
        for code in ErrorCode::words() {
            drop(self.refused.get_or_create(&RefusedLabels { code }));
        }
        for reason in CUTS {
            drop(self.cut.get_or_create(&CutLabels { reason }));
        }
        for reason in [Unmatched::domain, Unmatched::limit] {
            let labels = UnmatchedLabels { reason };
            drop(self.unmatched_descriptors.get_or_create(&labels));
        }
    }

    /// The text that Prometheus scrapes (`OpenMetrics`).
    pub(crate) fn page(&self, store_up: bool) -> String {
        self.store_up.set(i64::from(store_up));
        let mut page = String::new();
        if let Ok(registry) = self.registry.lock() {
            // Writing to a String cannot fail.
            let _ = text::encode(&mut page, &registry);
        }
        page
    }

    pub(crate) fn checked(&self, took: Duration) {
        self.check_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn store_called(&self, took: Duration, checks: usize) {
        self.store_duration.observe(took.as_secs_f64());
        self.store_batch
            .observe(f64::from(u32::try_from(checks).unwrap_or(u32::MAX)));
    }

    /// Counts descriptors that no limit applies to.
    pub(crate) fn unmatched_descriptors(&self, reason: Unmatched, count: usize) {
        if count > 0 {
            let counter = self
                .unmatched_descriptors
                .get_or_create(&UnmatchedLabels { reason });
            counter.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// Counts a request without a decision; `code` is one of a fixed few.
    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&RefusedLabels { code }).inc();
    }

    /// Counts a connection ended because of its client; `reason` is one of [`CUTS`].
    pub(crate) fn cut(&self, reason: &'static str) {
        self.cut.get_or_create(&CutLabels { reason }).inc();
    }

    /// The counters of a domain that came into force; also sets its gauges.
    pub(crate) fn domain(&self, policy: &Compiled) -> DomainCounters {
        let domain = policy.domain().as_str();
        let number = i64::try_from(policy.revision().number).unwrap_or(i64::MAX);
        self.revision.get_or_create(&labels(domain)).set(number);
        drop(self.lost_edits.get_or_create(&labels(domain)));
        DomainCounters {
            unmatched: self.unmatched.get_or_create_owned(&labels(domain)),
            undecided: self.undecided.get_or_create_owned(&labels(domain)),
            exempt: self.exempt.of(policy).into_iter().collect(),
            limits: policy
                .limits()
                .iter()
                .map(|limit| (limit.name.clone(), self.limit(domain, limit)))
                .collect(),
        }
    }

    fn limit(&self, domain: &str, limit: &Limit) -> LimitCounters {
        let (in_flight, settles) = (limit.gives_slots(), limit.settles());
        let (penalizes, on_failure) = (limit.penalty.is_some(), limit.on_failure);
        let limit = limit.name.as_str();
        let counter = |decision| {
            let labels = check_labels(domain, limit, decision);
            self.checks.get_or_create_owned(&labels)
        };
        LimitCounters {
            allowed: counter(Decision::allowed),
            denied: counter(Decision::denied),
            would_deny: counter(Decision::would_deny),
            degraded: counter(Decision::degraded),
            delayed: self
                .delayed
                .get_or_create_owned(&LimitLabels::new(domain, limit)),
            decisions: self.decisions.of(domain, limit, on_failure),
            leases: self.leases.of(domain, limit).into(),
            slots: in_flight.then(|| self.slots.of(domain, limit).into()),
            costs: settles.then(|| self.costs.of(domain, limit).into()),
            penalties: penalizes.then(|| self.penalties.of(domain, limit)),
        }
    }

    /// Sets whether a domain's stored limits are unusable.
    pub(crate) fn fault(&self, domain: &Name, faulty: bool) {
        self.policy_fault
            .get_or_create(&labels(domain.as_str()))
            .set(i64::from(faulty));
    }

    /// Counts that a domain's stored revision went back.
    pub(crate) fn lost_edits(&self, domain: &Name) {
        self.lost_edits
            .get_or_create(&labels(domain.as_str()))
            .inc();
    }

    /// Removes the labels of deleted limits.
    pub(crate) fn forget_limits<'n>(
        &self,
        domain: &Name,
        limits: impl IntoIterator<Item = &'n Name>,
    ) {
        for limit in limits {
            let delayed = LimitLabels::new(domain.as_str(), limit.as_str());
            self.delayed.remove(&delayed);
            self.decisions.forget(domain.as_str(), limit.as_str());
            self.leases.forget(domain.as_str(), limit.as_str());
            self.slots.forget(domain.as_str(), limit.as_str());
            self.costs.forget(domain.as_str(), limit.as_str());
            self.penalties.forget(domain.as_str(), limit.as_str());
            for decision in DECISIONS {
                self.checks
                    .remove(&check_labels(domain.as_str(), limit.as_str(), decision));
            }
        }
    }

    /// Removes the labels of deleted exemptions.
    pub(crate) fn forget_exemptions<'n>(
        &self,
        domain: &Name,
        exemptions: impl IntoIterator<Item = &'n Name>,
    ) {
        for exemption in exemptions {
            self.exempt.forget(domain.as_str(), exemption.as_str());
        }
    }

    /// Removes the labels of a deleted domain, except those of its limits and exemptions.
    pub(crate) fn forget_domain(&self, domain: &Name) {
        let labels = labels(domain.as_str());
        self.unmatched.remove(&labels);
        self.undecided.remove(&labels);
        self.revision.remove(&labels);
        self.policy_fault.remove(&labels);
        self.lost_edits.remove(&labels);
        self.compared.forget(domain.as_str());
    }

    /// Counts a call compared with another rate limit service; without a domain if it is unknown.
    pub(crate) fn compared(&self, domain: Option<String>, outcome: Compared) {
        self.compared.count(domain, outcome);
    }
}

#[cfg(test)]
mod tests {
    use policy::Policy;

    use super::*;

    #[test]
    fn counters_begin_at_0() {
        let metrics = Metrics::new();
        let text = b"domain: shop\nlimits:\n  - {name: local, rate: 1/s}\n  \
            - {name: open, rate: 1/s, on_failure: allow}\n  - {name: closed, rate: 1/s, on_failure: deny}\n";
        metrics.domain(&Compiled::new(Policy::from_yaml("limits", text).unwrap()));
        let page = metrics.page(true);
        let decided = |limit: &str, decision: &str, source: &str| {
            format!(
                "rl_decisions_total{{domain=\"shop\",limit=\"{limit}\",decision=\"{decision}\",source=\"{source}\"}}"
            )
        };
        for series in [
            "rl_refused_total{code=\"overloaded\"}".to_owned(),
            "rl_refused_total{code=\"store_unavailable\"}".to_owned(),
            "rl_connections_cut_total{reason=\"silent\"}".to_owned(),
            "rl_unmatched_descriptors_total{reason=\"domain\"}".to_owned(),
            "rl_policy_lost_edits_total{domain=\"shop\"}".to_owned(),
            decided("local", "allowed", "local"),
            decided("local", "denied", "local"),
            decided("open", "allowed", "failure"),
            decided("closed", "denied", "failure"),
        ] {
            let line = format!("{series} 0");
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}

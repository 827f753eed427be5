//! The metrics of the controller.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::serve::{DomainLabels, Failures, Pages};

/// Everything that the controller reports.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) pages: Arc<Pages>,
    pub(super) acts: Gauge,
    pub(super) edits: Family<DomainLabels, Counter>,
    pub(super) drift: Family<DomainLabels, Gauge>,
    pub(super) policies: Family<StateLabels, Gauge>,
    pub(super) domains: Family<AcceptedLabels, Gauge>,
    pub(super) statuses: Counter,
    pub(super) failures: Failures,
    pub(super) starting: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabels {
    pub(super) enforced: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AcceptedLabels {
    pub(super) accepted: String,
}

/// What failed, as a label.
pub(super) const STORE: &str = "store";
pub(super) const API_SERVER: &str = "api_server";
pub(super) const WATCH: &str = "watch";

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let (acts, starting) = (Gauge::default(), Gauge::default());
        let (edits, drift, policies) = (Family::default(), Family::default(), Family::default());
        let (domains, statuses) = (Family::default(), Counter::default());
        registry.register(
            "rl_controller_active",
            "1 if this replica acts, 0 if it stands by",
            acts.clone(),
        );
        registry.register("rl_controller_edits", "Edits that were made", edits.clone());
        registry.register(
            "rl_controller_drift",
            "Limits that differ from their objects since an edit by others, and paused ones",
            drift.clone(),
        );
        registry.register(
            "rl_controller_policies",
            "RateLimits, by whether they are enforced: True, or the reason why not",
            policies.clone(),
        );
        registry.register(
            "rl_controller_domains",
            "RateLimitDomains, by whether they are accepted: True, or the reason why not",
            domains.clone(),
        );
        registry.register(
            "rl_controller_statuses",
            "Statuses that were written",
            statuses.clone(),
        );
        let failures = Failures::register(
            &mut registry,
            "rl_controller_failures",
            "Reads and writes that failed, by where",
            &[STORE, API_SERVER, WATCH],
        );
        registry.register(
            "rl_controller_starting",
            "RateLimits that count as enforced while a proxy or a limiter is starting again",
            starting.clone(),
        );
        Self {
            pages: Pages::new(registry, "objects", "ready", "the objects are not read yet"),
            acts,
            edits,
            drift,
            policies,
            domains,
            statuses,
            failures,
            starting,
        }
    }
}

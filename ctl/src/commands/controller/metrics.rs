//! The metrics of the controller, its health and its readiness.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use policy::Name;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::serve::Pages;

/// A turn takes a second, and some timeouts at most; without one for this long, the controller hangs.
const HANGS_AFTER: Duration = Duration::from_mins(2);

/// Everything that the controller reports.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    pub(super) acts: Gauge,
    pub(super) edits: Family<DomainLabels, Counter>,
    pub(super) drift: Family<DomainLabels, Gauge>,
    pub(super) policies: Family<StateLabels, Gauge>,
    pub(super) statuses: Counter,
    pub(super) failures: Family<CauseLabels, Counter>,
    pub(super) starting: Gauge,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    why: Option<String>,
    turned: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabels {
    pub(super) enforced: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CauseLabels {
    pub(super) cause: &'static str,
}

/// What failed, as a label.
pub(super) const STORE: &str = "store";
pub(super) const API_SERVER: &str = "api_server";

/// The labels of a domain.
pub(super) fn of(domain: &Name) -> DomainLabels {
    DomainLabels {
        domain: domain.to_string(),
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let (acts, starting) = (Gauge::default(), Gauge::default());
        let (edits, drift, policies) = (Family::default(), Family::default(), Family::default());
        let statuses = Counter::default();
        let failures: Family<CauseLabels, Counter> = Family::default();
        for cause in [STORE, API_SERVER] {
            drop(failures.get_or_create(&CauseLabels { cause }));
        }
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
            "rl_controller_statuses",
            "Statuses that were written",
            statuses.clone(),
        );
        registry.register(
            "rl_controller_failures",
            "Reads and writes that failed, by where",
            failures.clone(),
        );
        registry.register(
            "rl_controller_starting",
            "RateLimits that count as enforced while a proxy or a limiter is starting again",
            starting.clone(),
        );
        Self {
            registry,
            acts,
            edits,
            drift,
            policies,
            statuses,
            failures,
            starting,
            state: Mutex::new(State {
                why: Some("the objects are not read yet".to_owned()),
                turned: Instant::now(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a turn; `why` it is not ready, if it is not.
    pub(super) fn turned(&self, why: Option<String>) {
        *self.state() = State {
            why,
            turned: Instant::now(),
        };
    }

    pub(super) fn failed(&self, cause: &'static str) {
        self.failures.get_or_create(&CauseLabels { cause }).inc();
    }
}

impl Pages for Metrics {
    fn metrics(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn health(&self) -> Result<&'static str, String> {
        if self.state().turned.elapsed() < HANGS_AFTER {
            Ok("alive")
        } else {
            Err("the objects were not compared for two minutes".to_owned())
        }
    }

    fn readiness(&self) -> Result<&'static str, String> {
        self.state().why.clone().map_or(Ok("ready"), Err)
    }
}

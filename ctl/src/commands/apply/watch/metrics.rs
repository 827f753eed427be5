//! The counters of `--watch`.

use std::sync::{Arc, atomic::AtomicU64};

use policy::{Name, Revision};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    error::Exit,
    serve::{DomainLabels, Failures, Pages},
};

/// Everything that `--watch` reports.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) pages: Arc<Pages>,
    drift: Family<DomainLabels, Gauge>,
    revision: Family<DomainLabels, Gauge>,
    edits: Family<DomainLabels, Counter>,
    failures: Failures,
    in_force: Gauge,
    success: Gauge<u64, AtomicU64>,
}

/// Why something failed, as a label: what to check first.
const CAUSES: [&str; 4] = ["files", "store", "permissions", "conflict"];

fn cause(exit: Exit) -> &'static str {
    match exit {
        Exit::Auth | Exit::Refused => "permissions",
        Exit::Conflict => "conflict",
        Exit::No | Exit::Usage => "files",
        _ => "store",
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let (drift, revision, edits) = (Family::default(), Family::default(), Family::default());
        let (in_force, success) = (Gauge::default(), Gauge::default());
        registry.register(
            "rl_apply_drift",
            "Limits that differ from the files, and pauses that they do not mention",
            drift.clone(),
        );
        registry.register(
            "rl_apply_revision",
            "The revision that was compared with the files last",
            revision.clone(),
        );
        registry.register("rl_apply_edits", "Edits that were made", edits.clone());
        let failures = Failures::register(
            &mut registry,
            "rl_apply_failures",
            "Attempts to read or apply the files that failed, by what to look at",
            &CAUSES,
        );
        registry.register(
            "rl_apply_in_force",
            "1 if the files as they are now were valid and are applied",
            in_force.clone(),
        );
        registry.register(
            "rl_apply_last_success_timestamp_seconds",
            "When the files were found to be applied last",
            success.clone(),
        );
        let ready = "the files are in force";
        Self {
            pages: Pages::new(registry, "files", ready, "the files are not applied yet"),
            drift,
            revision,
            edits,
            failures,
            in_force,
            success,
        }
    }

    /// Ends a turn; `why` the files are not in force, if they are not.
    pub(super) fn turned(&self, why: Option<String>) {
        self.in_force.set(i64::from(why.is_none()));
        if why.is_none() {
            self.success.set(crate::now_ms() / 1000);
        }
        self.pages.turned(why);
    }

    pub(super) fn failed(&self, exit: Exit) {
        self.failures.count(cause(exit));
    }

    pub(super) fn edited(&self, domain: &Name) {
        self.edits.get_or_create(&DomainLabels::of(domain)).inc();
    }

    /// Sets the result of comparing a domain.
    pub(super) fn compared(&self, domain: &Name, revision: Option<&Revision>, drift: usize) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        self.drift
            .get_or_create(&DomainLabels::of(domain))
            .set(number(drift));
        let revision = revision.map_or(0, |revision| revision.number);
        self.revision
            .get_or_create(&DomainLabels::of(domain))
            .set(number(revision));
    }

    /// Removes a domain that no file has any more.
    pub(super) fn forget(&self, domain: &Name) {
        self.drift.remove(&DomainLabels::of(domain));
        self.revision.remove(&DomainLabels::of(domain));
    }
}

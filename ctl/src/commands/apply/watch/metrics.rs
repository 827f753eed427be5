//! The counters of `--watch`, its health and its readiness.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use policy::{Name, Revision};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{error::Exit, serve::Pages};

/// A turn takes a second, and a few timeouts at most; without one for this long, `--watch` hangs.
const HANGS_AFTER: Duration = Duration::from_mins(2);

/// Everything that `--watch` reports.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    drift: Family<DomainLabels, Gauge>,
    revision: Family<DomainLabels, Gauge>,
    edits: Family<DomainLabels, Counter>,
    failures: Family<CauseLabels, Counter>,
    in_force: Gauge,
    success: Gauge<u64, AtomicU64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Why the files are not in force; `None` if they are.
    why: Option<String>,
    turned: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
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
        let failures: Family<CauseLabels, Counter> = Family::default();
        let (in_force, success) = (Gauge::default(), Gauge::default());
        for cause in CAUSES {
            drop(failures.get_or_create(&CauseLabels { cause }));
        }
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
        registry.register(
            "rl_apply_failures",
            "Attempts to read or apply the files that failed, by what to look at",
            failures.clone(),
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
        Self {
            registry,
            drift,
            revision,
            edits,
            failures,
            in_force,
            success,
            state: Mutex::new(State {
                why: Some("the files are not applied yet".to_owned()),
                turned: Instant::now(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a turn; `why` the files are not in force, if they are not.
    pub(super) fn turned(&self, why: Option<String>) {
        self.in_force.set(i64::from(why.is_none()));
        if why.is_none() {
            self.success.set(crate::now_ms() / 1000);
        }
        *self.state() = State {
            why,
            turned: Instant::now(),
        };
    }

    pub(super) fn failed(&self, exit: Exit) {
        let cause = cause(exit);
        self.failures.get_or_create(&CauseLabels { cause }).inc();
    }

    pub(super) fn edited(&self, domain: &Name) {
        self.edits.get_or_create(&labels(domain)).inc();
    }

    /// Sets the result of comparing a domain.
    pub(super) fn compared(&self, domain: &Name, revision: Option<&Revision>, drift: usize) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        self.drift.get_or_create(&labels(domain)).set(number(drift));
        let revision = revision.map_or(0, |revision| revision.number);
        self.revision
            .get_or_create(&labels(domain))
            .set(number(revision));
    }

    /// Removes a domain that no file has any more.
    pub(super) fn forget(&self, domain: &Name) {
        self.drift.remove(&labels(domain));
        self.revision.remove(&labels(domain));
    }
}

impl Pages for Metrics {
    fn metrics(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    /// Whether turns go on.
    fn health(&self) -> Result<&'static str, String> {
        if self.state().turned.elapsed() < HANGS_AFTER {
            Ok("alive")
        } else {
            Err("the files were not compared for two minutes".to_owned())
        }
    }

    fn readiness(&self) -> Result<&'static str, String> {
        let why = self.state().why.clone();
        why.map_or(Ok("the files are in force"), Err)
    }
}

fn labels(domain: &Name) -> DomainLabels {
    DomainLabels {
        domain: domain.to_string(),
    }
}

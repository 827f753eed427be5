//! Reports for `rlctl`: which limits are in force at which limiters and proxies, what was decided,
//! and which buckets were denied.
//!
//! The limiter writes the reports to the store once a second in one pipelined call, on a connection
//! that checks do not use. Nothing waits for them, and no decision depends on them.

mod activity;
mod proxy_registry;
mod top_k;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Compiled, Name};
use protocol::{Answer, Check, DecidedBy, LimitAnswer, compact};
use store::{CheckError, Denial, FleetReport, Report, Store};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::domains::Domains;

use activity::{ActivityRecorder, Decided, Due};
use proxy_registry::ProxyRegistry;
pub(crate) use proxy_registry::RequestingProxy;

/// How often the reports are written.
const EVERY: Duration = Duration::from_secs(1);

/// Domains whose decisions are reported.
const DOMAINS_MAX: usize = 1000;

/// The most activity reports in one call.
const NOTES_MAX: usize = 64;

/// What is reported, and what it is collected in.
pub(crate) struct Telemetry {
    store: Arc<dyn Store>,
    /// This limiter's name.
    limiter: String,
    registry: ProxyRegistry,
    recorders: Mutex<HashMap<Name, ActivityRecorder>>,
    /// What each lane of checks decided since the last report. A lane locks only its own, which
    /// nobody else wants for more than a moment a second.
    lanes: Vec<Mutex<HashMap<Name, Decided>>>,
}

impl Telemetry {
    pub(crate) fn new(store: Arc<dyn Store>, limiter: String, lanes: usize) -> Self {
        Self {
            store,
            limiter,
            registry: ProxyRegistry::default(),
            recorders: Mutex::default(),
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
        }
    }

    /// Records that a proxy sent a request for a domain, which need not exist.
    pub(crate) fn saw_proxy(&self, domain: &Name, proxy: RequestingProxy<'_>) {
        self.registry.record(domain, proxy, Instant::now());
    }

    /// Records a proxy's poll for a domain, and the entries it supplies.
    pub(crate) fn polled(&self, domain: &Name, proxy: RequestingProxy<'_>, entries: Option<&str>) {
        let now = Instant::now();
        self.registry.record(domain, proxy, now);
        if let Some(list) = entries {
            self.registry.list_entries(domain, proxy.id, list, now);
        }
    }

    /// Counts decisions of a lane in the order of their checks, each with the proxy that sent the check,
    /// if one did.
    pub(crate) fn decided<'c>(
        &self,
        lane: usize,
        policy: &Compiled,
        checks: impl Iterator<Item = (&'c Check, Option<&'c str>)>,
        decisions: &[Result<Answer, CheckError>],
    ) {
        let Some(lane) = self.lanes.get(lane) else {
            return;
        };
        let mut domains = lane.lock().unwrap_or_else(PoisonError::into_inner);
        let domain = policy.domain();
        if !domains.contains_key(domain) && domains.len() < DOMAINS_MAX {
            domains.insert(domain.clone(), Decided::default());
        }
        let Some(recorder) = domains.get_mut(domain) else {
            return;
        };
        for ((check, proxy), decision) in checks.zip(decisions) {
            let Ok(answer) = decision else {
                continue;
            };
            let is_final = !answer.is_denied_for_up_to(check.patience_ms);
            if check.cost == 0 || check.peek || !is_final {
                continue;
            }
            if !answer.limits.is_empty() {
                recorder.request(answer.allowed);
            }
            for limit in &answer.limits {
                recorder.count(limit, |outcome| Denial {
                    at_ms: answer.now_ms,
                    outcome,
                    by: DecidedBy::Limiter,
                    proxy: proxy.map(str::to_owned),
                    descriptor: descriptor(check, limit),
                });
            }
        }
    }

    /// The store's approximate clock, in milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.store.estimated_now_ms()
    }

    /// Counts the decisions that a proxy reported.
    pub(crate) fn reported(&self, report: compact::Report) {
        let mut recorders = self.recorders();
        if let Some(recorder) = self.recorder(&mut recorders, &report.domain) {
            recorder.report(report, self.store.estimated_now_ms());
        }
    }

    /// Writes the reports, forever.
    pub(crate) async fn write_forever(&self, domains: &Domains) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.write_once(domains).await;
        }
    }

    async fn write_once(&self, domains: &Domains) {
        let sighting = self.sighting(domains);
        let fleet = [Report::Fleet(&sighting)];
        if let Err(error) = self.store.report(&self.limiter, &fleet).await {
            tracing::debug!(%error, "cannot report which limits proxies have in force");
            return;
        }
        let due = self.collect(domains);
        let notes: Vec<Report<'_>> = due
            .iter()
            .flat_map(|(domain, due)| due.iter().map(move |due| (domain, due)))
            .map(|(domain, due)| Report::Activity {
                domain,
                slot: due.slot,
                report: &due.noted,
            })
            .collect();
        for notes in notes.chunks(NOTES_MAX) {
            if let Err(error) = self.store.report(&self.limiter, notes).await {
                // Keep the counts and report them when the store is back.
                tracing::debug!(%error, "cannot report decisions");
                return;
            }
        }
        let now_ms = self.store.estimated_now_ms();
        let mut recorders = self.recorders();
        for (domain, due) in &due {
            if let Some(recorder) = recorders.get_mut(domain) {
                recorder.written(due, now_ms);
            }
        }
    }

    fn sighting(&self, domains: &Domains) -> FleetReport {
        let all = domains.all();
        let in_force = all.iter().filter_map(|(name, domain)| {
            let revision = domain.active.as_ref()?.compiled.revision();
            Some((name.clone(), revision.clone()))
        });
        let alive = self.registry.alive(Instant::now());
        FleetReport {
            revisions: in_force.collect(),
            proxies: alive.proxies,
            entries: alive.entries,
        }
    }

    /// The reports that are due, by domain. Domains that are gone are removed.
    fn collect(&self, domains: &Domains) -> Vec<(Name, Vec<Due>)> {
        let all = domains.all();
        let now_ms = self.store.estimated_now_ms();
        let mut recorders = self.recorders();
        for lane in &self.lanes {
            let decided = std::mem::take(&mut *lane.lock().unwrap_or_else(PoisonError::into_inner));
            for (domain, decided) in decided {
                if let Some(recorder) = self.recorder(&mut recorders, &domain) {
                    recorder.add(decided);
                }
            }
        }
        recorders.retain(|name, _| all.contains_key(name));
        let mut due = Vec::new();
        for (name, domain) in &*all {
            if let Some(active) = &domain.active
                && let Some(recorder) = self.recorder(&mut recorders, name)
            {
                due.push((name.clone(), recorder.collect(&active.counters, now_ms)));
            }
        }
        due
    }

    /// A domain's recorder; `None`: there are too many.
    fn recorder<'l>(
        &self,
        recorders: &'l mut HashMap<Name, ActivityRecorder>,
        domain: &Name,
    ) -> Option<&'l mut ActivityRecorder> {
        if !recorders.contains_key(domain) && recorders.len() < DOMAINS_MAX {
            let recorder = ActivityRecorder::new(self.store.estimated_now_ms());
            recorders.insert(domain.clone(), recorder);
        }
        recorders.get_mut(domain)
    }

    fn recorders(&self) -> MutexGuard<'_, HashMap<Name, ActivityRecorder>> {
        self.recorders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries to report for a request that was over a limit.
fn descriptor(check: &Check, limit: &LimitAnswer) -> Vec<(Name, Vec<u8>)> {
    if check.service.is_none() {
        let entries = check.descriptor.iter();
        let cut = entries.map(|(name, value)| (name.clone(), top_k::cut(value).to_vec()));
        return cut.collect();
    }
    let values = limit.bucket.iter();
    let cut = values
        .filter_map(|(name, value)| Some((name.clone(), top_k::cut(value.as_deref()?).to_vec())));
    cut.collect()
}

//! Findings: those of `rlctl doctor` except leftover keys, which require a scan of the store.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use insight::{
    Finding, LiveEntries, Severity,
    findings::{fleet, limits, server},
};
use policy::{Name, Policy, Revision};
use store::{Fleet, Head, HeadState, Store, StoreError};
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

use super::super::cache::{Cache, Reading};
use crate::domains::{Active, Domains};

/// How long findings serve other readers: they take a dozen calls to the servers.
const VALID: Duration = Duration::from_secs(5);

/// How long findings about unchanged limits serve: pauses and overrides may end meanwhile.
const LIMITS_VALID: Duration = Duration::from_secs(30);

/// Domains that are looked at.
const DOMAINS_MAX: usize = 256;

pub(super) struct Findings {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    /// What every key in the store starts with.
    prefix: String,
    found: Cache<(), Vec<Finding>>,
    /// By domain, because ten thousand limits take a while to examine.
    of_limits: Mutex<BTreeMap<Name, OfLimits>>,
}

/// The findings about the limits of a domain.
struct OfLimits {
    revision: Revision,
    found: Instant,
    findings: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(store: Arc<dyn Store>, domains: Arc<Domains>, prefix: String) -> Self {
        Self {
            store,
            domains,
            prefix,
            found: Cache::new(VALID),
            of_limits: Mutex::default(),
        }
    }

    /// The findings, the worst first.
    pub(super) async fn get(&self, fleet: Option<&Fleet>) -> Reading<Vec<Finding>> {
        let read = async || {
            let mut findings = self.of_this_limiter();
            match self.of_store(fleet).await {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(self.away(&error)),
            }
            findings.sort_by_key(|finding| finding.severity);
            Ok::<_, StoreError>(findings)
        };
        self.found.get((), read).await
    }

    fn away(&self, error: &StoreError) -> Finding {
        let what = format!("it cannot be read: {error}");
        let why = "checks get no decision, and proxies follow each limit's on_failure";
        Finding::new(Severity::Error, "store", self.store.address(), what, why)
    }

    /// Findings about records that this limiter cannot use.
    fn of_this_limiter(&self) -> Vec<Finding> {
        let table = self.domains.all();
        let faulty = table.iter().filter_map(|(domain, state)| {
            let fault = state.fault.as_ref()?;
            let what = format!(
                "this limiter cannot use its stored limits: {}",
                fault.message
            );
            let why = "it keeps the last limits that it loaded, if it loaded any";
            let finding = Finding::new(
                Severity::Error,
                "records",
                format!("domain {domain}"),
                what,
                why,
            );
            Some(finding.mend(format!(
                "rlctl history --domain {domain}    # what was written last?"
            )))
        });
        faulty.collect()
    }

    async fn of_store(&self, fleet: Option<&Fleet>) -> Result<Vec<Finding>, StoreError> {
        let store = &self.store;
        let heads = store.heads().await?;
        let health = store.health().await?;
        let now_ms = store.estimated_now_ms();
        let (address, prefix) = (store.address(), self.prefix.as_str());
        let mut findings = server::clocks(&health, store::wall_ms());
        for node in &health {
            findings.extend(server::look(node, &address, prefix));
        }
        if let Some(fleet) = fleet {
            findings.extend(limits::flushed(fleet, &heads, None));
            findings.extend(self.behind(fleet, &heads, now_ms).await?);
        }
        if heads.is_empty() && findings.is_empty() {
            findings.push(limits::no_domain());
        }
        let live = Arc::new(fleet.map(LiveEntries::of).unwrap_or_default());
        for head in heads.into_iter().take(DOMAINS_MAX) {
            match head.state {
                HeadState::Missing => findings.push(limits::lost(&head.domain)),
                HeadState::Unreadable(why) => findings.push(limits::unreadable(&head.domain, &why)),
                HeadState::Live(_) => {
                    findings.extend(self.of_domain(&head.domain, &live, now_ms).await);
                }
                HeadState::Deleted(_) => {}
            }
        }
        Ok(findings)
    }

    async fn behind(
        &self,
        fleet: &Fleet,
        heads: &[Head],
        now_ms: u64,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for head in heads.iter().take(DOMAINS_MAX) {
            let HeadState::Live(revision) = &head.state else {
                continue;
            };
            // Reads the history only if a limiter or proxy is stale.
            if fleet::behind(fleet, &head.domain, revision, None).is_empty() {
                continue;
            }
            let last = self.store.history(&head.domain, 1).await?;
            let age_ms = last.first().map(|edit| now_ms.saturating_sub(edit.at_ms));
            findings.extend(fleet::behind(fleet, &head.domain, revision, age_ms));
        }
        Ok(findings)
    }

    /// Findings about the limits in force here.
    async fn of_domain(&self, domain: &Name, live: &Arc<LiveEntries>, now_ms: u64) -> Vec<Finding> {
        let table = self.domains.all();
        let active = table.get(domain).and_then(|found| found.active.clone());
        let Some(active) = active else {
            return Vec::new();
        };
        let mut kept = self.of_limits.lock().await;
        let revision = active.compiled.revision().clone();
        if let Some(kept) = kept.get(domain)
            && kept.revision == revision
            && kept.found.elapsed() < LIMITS_VALID
        {
            return kept.findings.clone();
        }
        let live = Arc::clone(live);
        let look = move || limits::look(&policy_of(&active), &live, now_ms);
        let findings = spawn_blocking(look).await.unwrap_or_default();
        kept.retain(|name, _| table.contains_key(name));
        let of_limits = OfLimits {
            revision,
            found: Instant::now(),
            findings: findings.clone(),
        };
        kept.insert(domain.clone(), of_limits);
        findings
    }
}

/// The limits in force without their overrides.
fn policy_of(active: &Active) -> Policy {
    let compiled = &active.compiled;
    Policy {
        domain: compiled.domain().clone(),
        revision: compiled.revision().clone(),
        paused: compiled.paused(),
        exempt: compiled.exemptions().to_vec(),
        limits: compiled.limits().to_vec(),
    }
}

//! The embedded store: the same decisions and edits, in one process and for as long as it lives.

mod buckets;
mod domains;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Name, Override, Revision};
use protocol::{Answer, Check};
use redis_link::slot;
use tokio::sync::watch;

use crate::{
    ActiveProxies, Buckets, CheckError, Checks, Credit, CreditReport, Cursor, Diagnostics, Edit,
    EditError, Head, Health, HistoryEntry, Inspection, Keys, LimitOf, ListedBucket, Options,
    OverrideCursor, OverridePage, Overrides, PROXIES_MAX, Page, PingReply, Policies, ProxyCounts,
    ResetOf, ResetReport, ResetScope, ScriptStatus, Signature, StoreError, Stored, Telemetry,
    plan::{CheckPlan, Seal, edit, script::ScriptCheck, telemetry::PROXY_LIFE_MS},
    random_key, wall_ms,
};
pub(crate) use buckets::HeldBuckets;
use domains::Domains;

/// Limits and buckets in memory.
pub(crate) struct MemoryStore {
    keys: Keys,
    seal: Seal,
    clock: Clock,
    buckets: Mutex<HeldBuckets>,
    domains: Mutex<Domains>,
    proxies: Mutex<Proxies>,
    edits: watch::Sender<u64>,
}

/// Milliseconds since the epoch.
type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

impl MemoryStore {
    pub(crate) fn new(options: &Options) -> Self {
        Self::with_clock(options, Arc::new(wall_ms))
    }

    fn with_clock(options: &Options, clock: Clock) -> Self {
        Self {
            keys: options.keys.clone(),
            seal: Seal::new(random_key().as_bytes()),
            clock,
            buckets: Mutex::new(HeldBuckets::new(options.memory_buckets)),
            domains: Mutex::default(),
            proxies: Mutex::default(),
            edits: watch::Sender::new(0),
        }
    }

    fn check_one(
        &self,
        policy: &Compiled,
        check: &Check,
        force: bool,
    ) -> Result<Answer, CheckError> {
        // Reads the clock under the lock, so that no check is decided at an older time than one before it.
        let mut buckets = lock(&self.buckets);
        let now_ms = (self.clock)();
        let planned = CheckPlan::new(policy, check, &self.keys, Some(&self.seal), now_ms, force)?;
        let verdict = buckets.check(&planned, now_ms)?;
        Ok(planned.answer(policy, &verdict, now_ms))
    }

    fn edited(&self) {
        self.edits
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Ignores poisoning: a panic under the lock is a bug elsewhere, and the maps are consistent at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Checks for MemoryStore {
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>> {
        let decide = |check| self.check_one(policy, check, force);
        checks.iter().map(decide).collect()
    }

    async fn simulate(
        &self,
        _run: u64,
        _check: &ScriptCheck<'_>,
        _now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        let why = "the memory store runs no scripts: simulate with the algorithms themselves";
        Err(StoreError::Unsupported(why.to_owned()).into())
    }

    async fn end_simulation(&self, _run: u64, _buckets: &[&str]) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl Telemetry for MemoryStore {
    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError> {
        let now_ms = (self.clock)();
        Ok(lock(&self.proxies).count(domain, seen, now_ms))
    }
}

#[async_trait]
impl Diagnostics for MemoryStore {
    fn address(&self) -> String {
        "memory".to_owned()
    }

    async fn now_ms(&self) -> Result<u64, StoreError> {
        Ok((self.clock)())
    }

    async fn key_count(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    async fn ping(&self) -> Result<PingReply, StoreError> {
        Ok(PingReply {
            latency: Duration::ZERO,
            nodes: 1,
            server: "memory".to_owned(),
            version: None,
            role: None,
        })
    }

    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError> {
        Ok(Vec::new())
    }

    async fn load_scripts(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn health(&self) -> Result<Vec<Health>, StoreError> {
        Ok(Vec::new())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

// ---- What operators do with buckets in memory.

/// Buckets per page of a listing.
const PAGE: usize = 1000;

#[async_trait]
impl Buckets for MemoryStore {
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        let mut buckets = lock(&self.buckets);
        let now_ms = (self.clock)();
        let planned = CheckPlan::of_bucket(policy, limit, values, cost, &self.keys, now_ms)?;
        let key = planned.key_of(policy.domain(), &self.keys);
        let verdict = buckets.check(&planned, now_ms)?;
        let answer = planned.answer(policy, &verdict, now_ms);
        let limits = answer.limits.into_iter();
        let missing = || StoreError::Corrupt("no answer for the bucket".to_owned());
        Ok(Inspection {
            now_ms,
            answer: { limits }.next().ok_or_else(missing)?,
            slot: slot(key.as_bytes()),
            node: None,
            state: buckets.state(&key),
            ttl_ms: buckets.ttl_ms(&key, now_ms),
            key,
        })
    }

    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        let keys = lock(&self.buckets).sorted_keys((self.clock)());
        let wanted = keys.into_iter().filter_map(|key| {
            let parsed = self.keys.parse_bucket(key.as_bytes())?;
            let asked = parsed.domain == *domain && limit.is_none_or(|l| parsed.limit == *l);
            asked.then_some(ListedBucket {
                key,
                limit: parsed.limit,
                partition: parsed.partition,
                values: parsed.values,
            })
        });
        let skipped = usize::try_from(cursor.scan).unwrap_or(usize::MAX);
        let mut buckets: Vec<_> = wanted.skip(skipped).take(PAGE + 1).collect();
        let more = buckets.len() > PAGE;
        buckets.truncate(PAGE);
        let next = Cursor {
            scan: cursor.scan + u64::try_from(PAGE).unwrap_or(u64::MAX),
            ..cursor
        };
        Ok(Page {
            buckets,
            next: more.then_some(next),
        })
    }

    async fn reset(
        &self,
        of: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        let LimitOf { domain, limit } = *of;
        let now_ms = (self.clock)();
        let (buckets, key) = match which {
            ResetScope::Bucket(values) => {
                let key = self.keys.bucket_of(domain, limit, values);
                let removed = lock(&self.buckets).remove(|k| k == key, now_ms);
                (removed, Some(key))
            }
            ResetScope::All => {
                let begun = edit::reset(limit, ResetOf::AllStarted, None);
                lock(&self.domains).reset(domain, begun, by, now_ms)?;
                let ours = |key: &str| {
                    let parsed = self.keys.parse_bucket(key.as_bytes());
                    parsed.is_some_and(|p| p.domain == *domain && p.limit == limit.name)
                };
                (lock(&self.buckets).remove(ours, now_ms), None)
            }
        };
        let of = key.as_deref().map_or(ResetOf::All, ResetOf::Bucket);
        let values = match which {
            ResetScope::Bucket(values) => Some(values),
            ResetScope::All => None,
        };
        let plan = edit::reset(limit, of, values);
        let revision = lock(&self.domains).reset(domain, plan, by, now_ms)?;
        self.edited();
        Ok(ResetReport {
            buckets,
            revision: revision.number,
        })
    }

    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError> {
        let policy = credit.policy;
        let now_ms = (self.clock)();
        let (limit, values) = (credit.limit, credit.values);
        let planned = CheckPlan::of_bucket(policy, limit, values, 0, &self.keys, now_ms)?;
        let (Some(bucket), Some(limit)) = (planned.check.limits.first(), planned.limit()) else {
            return Ok(CreditReport::of_nothing(policy));
        };
        let mut report = lock(&self.buckets).credit(credit, bucket, now_ms)?;
        if report.used && !credit.peek {
            let plan = edit::credit(limit, credit.units, (values, &bucket.key));
            let revision = lock(&self.domains).reset(policy.domain(), plan, by, now_ms)?;
            report.revision = revision.number;
            self.edited();
        }
        Ok(report)
    }
}

// ---- The records of domains in memory.

#[async_trait]
impl Policies for MemoryStore {
    async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        Ok(lock(&self.domains).heads())
    }

    fn watch_edits(&self) -> watch::Receiver<u64> {
        self.edits.subscribe()
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
        Ok(lock(&self.domains).read(domain, overrides))
    }

    async fn read_override(
        &self,
        limit: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        Ok(lock(&self.domains).override_of(limit, values))
    }

    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        Ok(lock(&self.domains).override_counts(domain, limits))
    }

    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        _cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        Ok(lock(&self.domains).scan_overrides(limit))
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        let now_ms = (self.clock)();
        let revision = lock(&self.domains).write(edit, now_ms)?;
        self.edited();
        Ok(revision)
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        Ok(lock(&self.domains).history(domain, max))
    }
}

// ---- Which proxies are active for which limits.

/// Per domain and limit, the proxies and when they last asked, in milliseconds since the epoch.
#[derive(Debug, Default)]
struct Proxies {
    seen_at: HashMap<(Name, Option<Name>), HashMap<String, u64>>,
}

impl Proxies {
    fn count(&mut self, domain: &Name, seen: &ActiveProxies, now_ms: u64) -> ProxyCounts {
        // Also not for longer after the clock stepped back.
        let alive = |at: u64| now_ms.abs_diff(at) <= PROXY_LIFE_MS;
        self.seen_at.retain(|_, proxies| {
            proxies.retain(|_, at| alive(*at));
            !proxies.is_empty()
        });
        let count = |(limit, new): (&Option<Name>, &Vec<String>)| {
            let proxies = self
                .seen_at
                .entry((domain.clone(), limit.clone()))
                .or_default();
            for proxy in new {
                if proxies.len() < PROXIES_MAX || proxies.contains_key(proxy) {
                    proxies.insert(proxy.clone(), now_ms);
                }
            }
            let count = u64::try_from(proxies.len()).unwrap_or(u64::MAX);
            (limit.clone(), count)
        };
        seen.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests;

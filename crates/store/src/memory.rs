//! The embedded store: the same decisions and edits, in one process and for as long as it lives.

mod buckets;
mod domains;
mod operations;
mod penalties;
mod policies;
mod proxies;
mod sweep;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Name};
use protocol::{Answer, Check};
use store_plan::{CheckPlan, Keys, Seal, script::ScriptCheck};
use tokio::sync::watch;

use buckets::Buckets;
use domains::Domains;
use proxies::Proxies;

use crate::{
    ActiveProxies, CheckError, Checks, Diagnostics, Health, Options, PingReply, ProxyCounts,
    ScriptStatus, StoreError, Telemetry, clock::wall_ms, slot_id::random_key,
};

/// Limits and buckets in memory.
pub(crate) struct MemoryStore {
    keys: Keys,
    seal: Seal,
    clock: Clock,
    buckets: Mutex<Buckets>,
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
            buckets: Mutex::new(Buckets::new(options.memory_buckets)),
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

    async fn end_simulation(&self, _run: u64, _buckets: &[&[u8]]) -> Result<(), StoreError> {
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

#[cfg(test)]
mod tests;

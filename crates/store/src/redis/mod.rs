//! The store on Redis or Valkey.
//!
//! An ACL user needs these rights and no other (with the default key prefix):
//!
//! ```text
//! ~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists +ping +time
//! +get +set +del +unlink +scan +pttl +pexpire +persist +rename
//! +hget +hset +hdel +hmget +hlen +hgetall +hscan +lindex +llen +lrange +lset +ltrim +rpush
//! +xadd +xdel +xlen +xrange +xrevrange +zadd +zcard +zremrangebyscore
//! +sadd +smembers +publish +subscribe
//! ```
//!
//! `+hello` lets `rlctl ping` tell the server's version and role; a Cluster wants `+cluster|slots`
//! and `+asking` too.

mod about;
mod check;
mod credit;
mod health;
mod listing;
mod live;
mod policy;
mod run;
mod simulate;
mod slots;
mod telemetry;

use std::{fmt, sync::Arc};

use ::policy::{Compiled, Name, Override, Revision};
use algorithms::check::Verdict;
use async_trait::async_trait;
use protocol::{Answer, Check};
use tokio::sync::watch;

use redis_link::{Servers, Settings, Subscription};
use telemetry::Ahead;

use crate::{
    ActiveProxies, ActivitySummary, ChangesSince, CheckError, Credit, CreditReport, Cursor, Edit,
    EditError, Fleet, Head, Health, HistoryEntry, Inspection, KeyScan, Keys, LimitOf, Options,
    OverrideCursor, OverridePage, Overrides, Page, PingReply, ProxyCounts, Report, ResetReport,
    ResetScope, Resolution, ScriptStatus, Server, Signature, Store, StoreError, Stored,
    script::{CHECK, ScriptCheck, TAKE_BACK},
};

/// The store on one server or on a Cluster. Connects at the first use, and again whenever it has
/// to.
pub(crate) struct RedisStore {
    servers: Servers,
    edits: Subscription,
    ahead: Ahead,
    options: Options,
    address: String,
}

impl RedisStore {
    /// A store that has not connected yet. Fails only where TLS has no root certificates.
    pub(crate) fn new(server: &Server, options: Options) -> Result<Self, StoreError> {
        let settings = Settings {
            connect_timeout: options.connect_timeout,
            probe_timeout: options.probe_timeout(),
            // A check whose script is not there yet would be late.
            scripts: Arc::new([&CHECK, &TAKE_BACK]),
        };
        let servers = Servers::new(server.clone(), &settings)?;
        Ok(Self {
            edits: servers.subscription(options.keys.edits(), options.connect_timeout),
            servers,
            ahead: Ahead::default(),
            address: server.to_string(),
            options,
        })
    }

    fn keys(&self) -> &Keys {
        &self.options.keys
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>> {
        self.check(policy, checks, force).await
    }

    async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        self.heads().await
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
        self.read(domain, overrides).await
    }

    async fn read_override(
        &self,
        limit: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        self.read_override(limit, values).await
    }

    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        self.override_counts(domain, limits).await
    }

    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        self.scan_overrides(limit, cursor).await
    }

    async fn changes_since(
        &self,
        domain: &Name,
        known: &Revision,
    ) -> Result<Option<ChangesSince>, StoreError> {
        self.changes_since(domain, known).await
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        self.write(edit).await
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        self.history(domain, max).await
    }

    fn watch_edits(&self) -> watch::Receiver<u64> {
        // Whoever follows edits is about to check, within milliseconds that a dial would take up.
        self.servers.start();
        self.edits.watch()
    }

    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        self.inspect(policy, limit, values, cost).await
    }

    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        self.list(domain, limit, cursor).await
    }

    async fn scan_keys(&self, cursor: Cursor) -> Result<KeyScan, StoreError> {
        self.scan_keys(cursor).await
    }

    async fn ttls_ms(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, StoreError> {
        self.ttls_ms(keys).await
    }

    async fn reset(
        &self,
        limit: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        self.reset(limit, which, by).await
    }

    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError> {
        self.credit(credit, by).await
    }

    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError> {
        self.count_proxies(domain, seen).await
    }

    async fn report(&self, limiter: &str, notes: &[Report<'_>]) -> Result<(), StoreError> {
        self.report(limiter, notes).await
    }

    fn estimated_now_ms(&self) -> u64 {
        self.ahead.now_ms()
    }

    async fn fleet(&self) -> Result<Fleet, StoreError> {
        self.fleet().await
    }

    async fn activity(
        &self,
        domain: &Name,
        resolution: Resolution,
        span_ms: u64,
    ) -> Result<ActivitySummary, StoreError> {
        self.activity(domain, resolution, span_ms).await
    }

    async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        self.simulate(run, check, now_ms).await
    }

    async fn end_simulation(&self, run: u64, buckets: &[&[u8]]) -> Result<(), StoreError> {
        self.end_simulation(run, buckets).await
    }

    async fn key_count(&self) -> Result<Option<u64>, StoreError> {
        self.key_count().await
    }

    async fn now_ms(&self) -> Result<u64, StoreError> {
        self.now_ms().await
    }

    async fn ping(&self) -> Result<PingReply, StoreError> {
        self.ping().await
    }

    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError> {
        self.scripts().await
    }

    async fn health(&self) -> Result<Vec<Health>, StoreError> {
        self.health().await
    }

    async fn load_scripts(&self) -> Result<(), StoreError> {
        self.load_scripts().await
    }

    fn is_warm(&self) -> bool {
        self.servers.is_warm()
    }

    fn fault(&self) -> Option<StoreError> {
        self.servers.fault()
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

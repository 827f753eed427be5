//! What every store can do, by purpose.

use std::{collections::BTreeMap, fmt, time::Duration};

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Edits, Limit, Name, Override, Revision};
use protocol::{Answer, Check, LimitAnswer};
use tokio::sync::watch;

use crate::{
    ActivitySummary, CheckError, Edit, EditError, Fleet, Head, HistoryEntry, KeyValue, LimitKey,
    Origin, Overrides, Report, Resolution, Signature, StoreError, Stored,
    plan::script::ScriptCheck, wall_ms,
};

/// A store: where limits and buckets are.
///
/// Every method returns within the store's timeouts, and its error says whether something may have
/// happened. Nothing that charges or writes is ever sent twice.
pub trait Store: Checks + Policies + Buckets + Telemetry + Diagnostics {}

impl<T: Checks + Policies + Buckets + Telemetry + Diagnostics> Store for T {}

/// Decides checks.
#[async_trait]
pub trait Checks: Send + Sync + fmt::Debug {
    /// Decides checks of one domain, one result each, in order. They are decided one after the
    /// other, each all or nothing.
    ///
    /// A [`CheckError::Stale`] check may be made again once the policy was read again. If it is still
    /// stale then, `force` decides it: the newer generation in the bucket is left over from a backup.
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>>;

    /// Decides one check by the script that decides real ones, at a time that the caller chooses. Its
    /// keys name buckets of the simulation `run`, apart from all others; they expire after a day. The
    /// memory store has no script.
    async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError>;

    /// Deletes buckets of a simulation.
    async fn end_simulation(&self, run: u64, buckets: &[&str]) -> Result<(), StoreError>;
}

/// The records of domains: their limits and overrides, and the edits of them.
#[async_trait]
pub trait Policies: Send + Sync + fmt::Debug {
    /// Every domain that has ever been written, with its revision: what a poll reads.
    async fn heads(&self) -> Result<Vec<Head>, StoreError>;

    /// Counts published edits, so that a poll need not wait. A publication can be lost: callers poll
    /// [`Policies::heads`] as well.
    fn watch_edits(&self) -> watch::Receiver<u64>;

    /// The record of a domain.
    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError>;

    /// The record of a domain with these limits only and without overrides, for edits of these alone; all limits
    /// where one of them is not there, or reading all costs no more.
    async fn read_part(&self, domain: &Name, _limits: &[&Name]) -> Result<Stored, StoreError> {
        self.read(domain, Overrides::None).await
    }

    /// What changed in a domain since a revision; `None` if that is not known or the domain is
    /// gone: then read it whole.
    async fn changes_since(
        &self,
        _domain: &Name,
        _known: &Revision,
    ) -> Result<Option<Edits>, StoreError> {
        Ok(None)
    }

    /// The override of one bucket, whether or not it is still in force. Costs the same however
    /// many there are.
    async fn read_override(
        &self,
        limit: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError>;

    /// How many overrides each of a domain's limits has. Costs the same however many there are.
    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError>;

    /// One page of a limit's overrides. The record may change between pages, which its revision shows.
    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError>;

    /// Makes one edit, if the domain is still at the revision that the editor read.
    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError>;

    /// The last edits of a domain, newest first, `max` at most.
    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError>;

    /// The record that [`Policies::record_applied`] left. The memory store keeps none: no other
    /// process could read it.
    async fn applied(&self, _domain: &Name, _origin: Origin) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Stores, in the caller's own format, what was applied of a domain's files or objects; replaces the
    /// last such record. No decision depends on it.
    async fn record_applied(
        &self,
        _domain: &Name,
        _origin: Origin,
        _record: &str,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Buckets and the other keys of limits, for operators.
#[async_trait]
pub trait Buckets: Send + Sync + fmt::Debug {
    /// One bucket as it is, and what a check of `cost` would get.
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError>;

    /// One page of a domain's buckets, in no order; `cursor` is [`Cursor::default`] or that of the last
    /// page. A bucket may come twice; one that exists throughout comes at least once.
    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError>;

    /// One page of the keys that belong to limits, deleted ones included; `cursor` as for
    /// [`Buckets::list`]. The memory store has no keys of deleted limits.
    async fn scan_keys(&self, _cursor: Cursor) -> Result<KeyScan, StoreError> {
        Ok(KeyScan::default())
    }

    /// How long until keys expire, in milliseconds; `None`: never.
    async fn ttls_ms(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, StoreError> {
        Ok(vec![None; keys.len()])
    }

    /// Sets the usage of buckets to none and raises the limit's generation, so that every cache of it
    /// is dropped.
    async fn reset(
        &self,
        limit: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError>;

    /// Gives units back to one bucket and raises the limit's generation, so that every cache of it
    /// is dropped. A bucket that holds no usage is left as it is.
    ///
    /// A [`CheckError::Stale`] credit may be made again once the policy was read again, as a check.
    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError>;
}

/// What limiters report about themselves, proxies and decisions. No decision depends on it.
#[async_trait]
pub trait Telemetry: Send + Sync + fmt::Debug {
    /// Records which proxies are active for which limits, and returns how many any limiter recorded
    /// within the last 10 s.
    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError>;

    /// Stores reports of a limiter, each in place of its earlier one on the same subject. The memory
    /// store keeps none: no other process can read them.
    async fn report(&self, _limiter: &str, _reports: &[Report<'_>]) -> Result<(), StoreError> {
        Ok(())
    }

    /// The store's clock in milliseconds since the epoch, estimated without a call.
    fn estimated_now_ms(&self) -> u64 {
        wall_ms()
    }

    /// The limiters and proxies that are alive, from the reports of all limiters.
    async fn fleet(&self) -> Result<Fleet, StoreError> {
        Ok(Fleet::default())
    }

    /// What was decided in a domain in the last `span_ms` milliseconds, rounded up to whole time
    /// slots.
    async fn activity(
        &self,
        _domain: &Name,
        _resolution: Resolution,
        _span_ms: u64,
    ) -> Result<ActivitySummary, StoreError> {
        Ok(ActivitySummary::default())
    }
}

/// The servers behind the store.
#[async_trait]
pub trait Diagnostics: Send + Sync + fmt::Debug {
    /// The store's address, without a password.
    fn address(&self) -> String;

    /// Whether connections and scripts are ready for a check; sends nothing.
    fn is_warm(&self) -> bool {
        true
    }

    /// Why checks get no decision, as last known; sends nothing.
    fn fault(&self) -> Option<StoreError> {
        None
    }

    /// The store's clock, in milliseconds since the epoch.
    async fn now_ms(&self) -> Result<u64, StoreError>;

    /// How many keys the server holds, ours and others; `None` where that is not permitted.
    async fn key_count(&self) -> Result<Option<u64>, StoreError>;

    /// Measures a round trip to the servers.
    async fn ping(&self) -> Result<PingReply, StoreError>;

    /// The scripts, and whether every server has them.
    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError>;

    /// Loads the scripts into every server.
    async fn load_scripts(&self) -> Result<(), StoreError>;

    /// The state of each server; empty for the memory store.
    async fn health(&self) -> Result<Vec<Health>, StoreError>;
}

// ---- Listings, a page at a time.

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Which of the servers, from 0.
    pub(crate) server: usize,
    /// Where it goes on there.
    pub(crate) scan: u64,
    /// Fingerprint of the Cluster's slot map when the listing began.
    pub(crate) map: u64,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The buckets.
    pub buckets: Vec<ListedBucket>,
    /// Where it goes on; `None`: that was all.
    pub next: Option<Cursor>,
}

/// A bucket in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBucket {
    /// Its name in the store.
    pub key: String,
    /// The limit.
    pub limit: Name,
    /// The values that chose the slot, in the order of the limit's `partition`.
    pub partition: Vec<KeyValue>,
    /// The other values, in the order of the limit's `per`.
    pub values: Vec<KeyValue>,
}

/// Some of the keys under our prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyScan {
    /// Those that belong to a limit.
    pub keys: Vec<LimitKey>,
    /// How many keys the server looked at for that, about; ours and others.
    pub scanned: u64,
    /// Where it goes on; `None`: that was all.
    pub next: Option<Cursor>,
}

/// Where a walk over overrides goes on; [`OverrideCursor::default`] begins one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverrideCursor(pub u64);

/// Some of the overrides of one limit, in no order. One may come twice in a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridePage {
    /// Each as stored.
    pub texts: Vec<String>,
    /// Where the walk goes on; `None`: that was all.
    pub next: Option<OverrideCursor>,
}

// ---- Buckets, and what is done to them.

/// A bucket as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The answer that a check would get.
    pub answer: LimitAnswer,
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Its name in the store.
    pub key: String,
    /// The cluster slot of that name.
    pub slot: u16,
    /// In a Cluster, the node that has that slot, as `host:port`.
    pub node: Option<String>,
    /// The stored value; `None`: the bucket is unused.
    pub state: Option<String>,
    /// When the store forgets it, in milliseconds.
    pub ttl_ms: Option<u64>,
}

/// A limit, and the domain it is in.
#[derive(Clone, Copy, Debug)]
pub struct LimitOf<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// The limit.
    pub limit: &'a Limit,
}

/// Which buckets of a limit.
#[derive(Clone, Copy, Debug)]
pub enum ResetScope<'a> {
    /// Every one.
    All,
    /// The one of these values, in the order of `per`.
    Bucket(&'a [Option<Vec<u8>>]),
}

/// What a reset did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// Buckets that held usage and are unused now.
    pub buckets: u64,
    /// The revision that the generation was raised to.
    pub revision: u64,
}

/// Units to give back to one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Credit<'a> {
    /// The limits, with the override of the bucket if it has one.
    pub policy: &'a Compiled,
    /// The limit.
    pub limit: &'a Name,
    /// The bucket's values, in the order of `per`.
    pub values: &'a [Option<Vec<u8>>],
    /// How many units; more than were used make the bucket unused.
    pub units: u64,
    /// Change nothing; report what would happen.
    pub peek: bool,
    /// The policy was just read again: a newer generation in the bucket is left over from a backup.
    pub force: bool,
}

/// What a credit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditReport {
    /// Whether the bucket held any usage.
    pub used: bool,
    /// Units that were left before.
    pub left_before: u64,
    /// Units that are left now.
    pub left: u64,
    /// Milliseconds until the bucket is unused.
    pub reset_after_ms: u64,
    /// The revision that the generation was raised to; it is not raised if nothing was used.
    pub revision: u64,
}

impl CreditReport {
    /// Of a bucket that is not limited.
    pub(crate) fn of_nothing(policy: &Compiled) -> Self {
        Self {
            used: false,
            left_before: 0,
            left: 0,
            reset_after_ms: 0,
            revision: policy.revision().number,
        }
    }
}

// ---- The proxies that share limits.

/// Proxies by the limit that they are active for; `None`: for anything in the domain.
pub type ActiveProxies = BTreeMap<Option<Name>, Vec<String>>;

/// How many proxies are active for each limit; `None`: for anything in the domain.
pub type ProxyCounts = BTreeMap<Option<Name>, u64>;

// ---- What servers say about themselves.

/// The reply to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// The round trip on an open connection; if several servers answer, that of the last.
    pub latency: Duration,
    /// Servers that hold keys and answered: 1, or the masters of a Cluster.
    pub nodes: usize,
    /// `redis`, `valkey` or `memory`.
    pub server: String,
    /// Its version, if it is permitted to read it.
    pub version: Option<String>,
    /// `master`, `replica`, ..., if it is permitted to read it.
    pub role: Option<String>,
}

/// A script that checks and edits need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptStatus {
    /// The file it comes from, without its extension.
    pub name: &'static str,
    /// What EVALSHA calls it.
    pub sha1: String,
    /// Whether the server has it.
    pub loaded: bool,
}

/// One server's health, as far as the user's rights show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where it is, without a password.
    pub address: String,
    /// The fields of `INFO`; `None` where that is not permitted.
    pub info: Option<BTreeMap<String, String>>,
    /// Settings that `INFO` does not show, by name; `None` where `CONFIG GET` is not permitted.
    pub settings: Option<BTreeMap<String, String>>,
    /// Its clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// The round trip of reading the clock: `now_ms` was the time at some instant of it.
    pub round_trip: Duration,
    /// The scripts, and whether it has them.
    pub scripts: Vec<ScriptStatus>,
    /// What the user may do; `None` where even that cannot be asked.
    pub rights: Option<Rights>,
}

/// What the user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Commands that the limiter or `rlctl` needs and the user may not run.
    pub lacking: Vec<String>,
    /// Rights that the user has and does not need.
    pub spare: Vec<String>,
}

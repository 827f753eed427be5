//! What every store can do, by purpose.

mod bucket;
mod fleet;
mod page;
mod server;

use std::fmt;

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Name, Override, Revision};
use protocol::{Answer, Check};
use store_plan::{
    ChangesSince, Edit, Head, HistoryEntry, Overrides, Signature, Stored,
    script::ScriptCheck,
    telemetry::{ActivitySummary, Fleet, Report, Resolution},
};
use tokio::sync::watch;

pub(crate) use bucket::held_units;
pub use bucket::{Credit, CreditReport, Inspection, LimitOf, ResetReport, ResetScope};
pub use fleet::{ActiveProxies, ProxyCounts};
pub use page::{Cursor, KeyScan, ListedBucket, OverrideCursor, OverridePage, Page};
pub use server::{PingReply, ScriptStatus};

use crate::{CheckError, EditError, Health, StoreError, clock::wall_ms};

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
    async fn end_simulation(&self, run: u64, buckets: &[&[u8]]) -> Result<(), StoreError>;
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

    /// What changed in a domain since a revision; `None` if that is not known or the domain is
    /// gone: then read it whole.
    async fn changes_since(
        &self,
        _domain: &Name,
        _known: &Revision,
    ) -> Result<Option<ChangesSince>, StoreError> {
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
    async fn applied(&self, _domain: &Name) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Stores, in the caller's own format, what was applied of a domain's files; replaces the last
    /// such record. No decision depends on it.
    async fn record_applied(&self, _domain: &Name, _record: &str) -> Result<(), StoreError> {
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

    /// Whether there is no [`Diagnostics::fault`].
    fn is_up(&self) -> bool {
        self.fault().is_none()
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

//! What every kind of store can do.

mod bucket;
mod change;
mod domain;
mod fleet;
mod server;

use std::fmt;

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Name, Override, Revision};
use protocol::{Answer, Check};
use tokio::sync::watch;

pub use bucket::{
    Credit, CreditReport, Cursor, Inspection, LimitOf, ListedBucket, Page, ResetReport, ResetScope,
};
pub use change::{Change, Edit, HistoryEntry, Signature};
pub use domain::{Head, HeadState, Overrides, Record, Stored};
pub use fleet::{ActiveProxies, ProxyCounts};
pub use server::{PingReply, ScriptStatus};

use crate::{
    ActivitySummary, ChangesSince, CheckError, EditError, Fleet, Health, KeyScan, OverrideCursor,
    OverridePage, Report, Resolution, StoreError, clock::wall_ms, script::ScriptCheck,
};

/// The place where limits and buckets live.
///
/// Every method answers within the store's timeouts, and says in its error whether something may
/// have happened. Nothing that charges or writes is ever sent twice.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Decides checks of one domain, one result each, in order. They are decided one after the
    /// other, each all or nothing.
    ///
    /// A [`CheckError::Stale`] check may be asked again once the policy was read again; if it still
    /// is stale then, `force` says so: the bucket's memory of a newer edit is a leftover.
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>>;

    /// Every domain that has ever been written, with its revision: what a poll asks for.
    async fn heads(&self) -> Result<Vec<Head>, StoreError>;

    /// The record of a domain.
    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError>;

    /// What changed in a domain since a revision; `None` where that is not known, or the domain is
    /// not there any more: then it is read whole.
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

    /// Some of a limit's overrides: what walks over all of them holds one page at a time. The
    /// record may change in between, which its revision tells.
    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError>;

    /// Makes one edit, if the domain still is as the editor saw it.
    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError>;

    /// The last edits of a domain, newest first, `max` at most.
    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError>;

    /// Changes whenever [`Store::heads`] may have: a hint, which can be lost. The poll is the truth.
    fn watch_edits(&self) -> watch::Receiver<u64>;

    /// One bucket as it is, and what a check of `cost` would get.
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError>;

    /// Some of a domain's buckets, in no order; `cursor` is [`Cursor::default`] or of the last page.
    /// A bucket may come twice; one that exists all the while comes.
    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError>;

    /// Some of the keys that belong to limits, those that are gone included; `cursor` as for
    /// [`Store::list`]. The memory store forgets what belongs to none.
    async fn scan_keys(&self, _cursor: Cursor) -> Result<KeyScan, StoreError> {
        Ok(KeyScan::default())
    }

    /// When the store forgets keys, in milliseconds; `None`: never.
    async fn ttls_ms(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, StoreError> {
        Ok(vec![None; keys.len()])
    }

    /// Forgets the usage of buckets and raises the limit's generation, so that every cache of it
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
    /// A [`CheckError::Stale`] credit may be given again once the policy was read again, as a check.
    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError>;

    /// Records which proxies lately asked for which limits, and returns how many any limiter
    /// recorded within the last 10 s.
    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError>;

    /// Writes down what a limiter saw, over what it wrote on the same matter before. The memory
    /// store keeps none of it: nobody else can read there.
    async fn report(&self, _limiter: &str, _notes: &[Report<'_>]) -> Result<(), StoreError> {
        Ok(())
    }

    /// The store's clock in milliseconds since the epoch, as far as it is known without asking.
    fn estimated_now_ms(&self) -> u64 {
        wall_ms()
    }

    /// Who follows the limits, as all limiters noted.
    async fn fleet(&self) -> Result<Fleet, StoreError> {
        Ok(Fleet::default())
    }

    /// What was decided in a domain in the last `span_ms` milliseconds, or a little longer: whole
    /// slots.
    async fn activity(
        &self,
        _domain: &Name,
        _stretch: Resolution,
        _span_ms: u64,
    ) -> Result<ActivitySummary, StoreError> {
        Ok(ActivitySummary::default())
    }

    /// Decides one check by the script that decides real ones, at a time that the caller says. The
    /// keys in it name buckets of the simulation `run`, apart from all others; a day later they
    /// are forgotten. The memory store has no script.
    async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError>;

    /// Forgets buckets of a simulation.
    async fn end_simulation(&self, run: u64, buckets: &[&[u8]]) -> Result<(), StoreError>;

    /// How many keys the server holds, ours and others; `None` where that is not permitted.
    async fn key_count(&self) -> Result<Option<u64>, StoreError>;

    /// The store's clock, in milliseconds since the epoch.
    async fn now_ms(&self) -> Result<u64, StoreError>;

    /// Asks the server for a sign of life.
    async fn ping(&self) -> Result<PingReply, StoreError>;

    /// The scripts, and whether the server has them.
    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError>;

    /// What each server tells about itself; nothing of the memory store.
    async fn health(&self) -> Result<Vec<Health>, StoreError>;

    /// Loads the scripts into the server.
    async fn load_scripts(&self) -> Result<(), StoreError>;

    /// Whether a check would find connections and scripts there; does not ask.
    fn is_warm(&self) -> bool {
        true
    }

    /// Why checks get no decision, by what was heard last; does not ask.
    fn fault(&self) -> Option<StoreError> {
        None
    }

    /// Whether there is no trouble.
    fn is_up(&self) -> bool {
        self.fault().is_none()
    }

    /// The store's address, without a password.
    fn address(&self) -> String;
}

//! What every kind of store can do.

use std::{collections::BTreeMap, fmt, time::Duration};

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::{Compiled, Limit, Name, Override, Policy, Revision};
use protocol::{Answer, Check, LimitAnswer};
use tokio::sync::watch;

use crate::{
    CheckError, EditError, Fleet, Health, KeyValue, Note, Observed, OverrideCursor, OverrideEdits,
    OverridePage, Since, StoreError, Stretch, Survey, clock::wall_ms, script::ScriptCheck,
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
    ) -> Result<Option<Since>, StoreError> {
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
    fn hints(&self) -> watch::Receiver<u64>;

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
    async fn survey(&self, _cursor: Cursor) -> Result<Survey, StoreError> {
        Ok(Survey::default())
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
        which: Which<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError>;

    /// Gives units back to one bucket and raises the limit's generation, so that every cache of it
    /// is dropped. A bucket that holds no usage is left as it is.
    ///
    /// A [`CheckError::Stale`] credit may be given again once the policy was read again, as a check.
    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError>;

    /// Tells which proxies lately asked for which limits, and answers with the number of proxies
    /// per limit that anybody told of within the last 10 s.
    async fn proxies(
        &self,
        domain: &Name,
        seen: &BTreeMap<Name, Vec<String>>,
    ) -> Result<BTreeMap<Name, u64>, StoreError>;

    /// Writes down what a limiter saw, over what it wrote on the same matter before. The memory
    /// store keeps none of it: nobody else can read there.
    async fn note(&self, _limiter: &str, _notes: &[Note<'_>]) -> Result<(), StoreError> {
        Ok(())
    }

    /// The store's clock in milliseconds since the epoch, as far as it is known without asking.
    fn about_now_ms(&self) -> u64 {
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
        _stretch: Stretch,
        _span_ms: u64,
    ) -> Result<Observed, StoreError> {
        Ok(Observed::default())
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
    async fn ping(&self) -> Result<Pong, StoreError>;

    /// The scripts, and whether the server has them.
    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError>;

    /// What each server tells about itself; nothing of the memory store.
    async fn health(&self) -> Result<Vec<Health>, StoreError>;

    /// Loads the scripts into the server.
    async fn load_scripts(&self) -> Result<(), StoreError>;

    /// Whether the last that was heard of the store was good; does not ask.
    fn is_up(&self) -> bool;

    /// The store's address, without a password.
    fn address(&self) -> String;
}

/// A domain and the revision it is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The domain.
    pub domain: Name,
    /// What is there.
    pub state: HeadState,
}

/// What a domain's record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// Limits, perhaps none.
    Live(Revision),
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// Listed, but the record is not there: it was lost, or is being written this moment.
    Missing,
    /// There, but not a record that this version can read, and why. Other domains are not affected.
    Unreadable(String),
}

/// A domain's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Never written, or lost.
    Absent,
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// There.
    Live(Box<Record>),
}

/// The limits of a domain, and how much of them was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The limits, with their revision and generations.
    pub policy: Policy,
    /// Whether the overrides are among them.
    pub overrides: Overrides,
}

impl Stored {
    /// The limits, if there is a live record.
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Live(record) => Some(&record.policy),
            Self::Absent | Self::Deleted(_) => None,
        }
    }
}

/// Whether [`Store::read`] also reads the overrides, of which there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrides {
    /// Read.
    All,
    /// Left out; the limits then list none.
    None,
}

/// Who edits, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A person or a program.
    pub author: String,
    /// For whoever reads the history.
    pub reason: String,
}

/// One edit.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// What the editor saw. If it is not what is there any more, the edit is a conflict.
    pub base: &'a Stored,
    /// What to do.
    pub change: Change<'a>,
    /// Who and why.
    pub by: &'a Signature,
}

/// What an edit does.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The domain's limits, with their overrides, become these (revision and generations in them
    /// do not matter). The base has to be read with [`Overrides::All`]; only differences are
    /// written, and only limits that differ get a new generation.
    Limits(&'a Policy),
    /// As [`Change::Limits`], for edits that leave every override as it is stored: those listed
    /// here are not looked at, and the base can be read with [`Overrides::None`]. No limit may go,
    /// and no `per` may change, where it has overrides.
    Fields(&'a Policy),
    /// As [`Change::Fields`], and these overrides change. Where a limit goes that has some, they
    /// have to be among them.
    Parts {
        /// The limits. Overrides are looked at only where an edit says that they are all.
        limits: &'a Policy,
        /// What becomes of overrides.
        overrides: &'a OverrideEdits,
    },
    /// One bucket gets other numbers, or its own again. Costs the same however many overrides
    /// there are; the base can be read with [`Overrides::None`].
    Override {
        /// The limit.
        limit: &'a Name,
        /// The bucket.
        values: &'a [Option<Vec<u8>>],
        /// `None` removes it.
        to: Option<&'a Override>,
    },
    /// The domain has no limits any more. Its revision numbers go on if it is written again. Of a
    /// base read with [`Overrides::None`], these are the overrides that go with them.
    Delete(&'a OverrideEdits),
}

/// One edit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision that it made.
    pub revision: Revision,
    /// When, in milliseconds since the epoch, by the store's clock.
    pub at_ms: u64,
    /// `fields`, `edit`, `override`, `reset`, `credit` or `delete`; `limits` by earlier versions.
    pub operation: String,
    /// Who and why.
    pub by: Signature,
    /// The limit that an `override`, a `reset` or a `credit` concerned.
    pub limit: Option<Name>,
    /// As JSON, of an edit of limits: those that it changed or removed, without their overrides, as
    /// a list. Where it changed more, a map: `limits` is that list, `overrides` the overrides that
    /// changed or went, as lists by limit, `paused` the domain's pause if that changed and there
    /// was one. Where overrides were too many to be told, or this and `after` are more than 1 MiB
    /// together, nothing. Of `limits`, their overrides are in them, all. Of an `override`, what it
    /// was. Nothing for a `reset` or a `credit`.
    pub before: String,
    /// The same as it became; the key of the bucket that was reset, `*` for all of them; the units
    /// that were given back, and the key.
    pub after: String,
}

/// A bucket as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// What a check would be answered.
    pub answer: LimitAnswer,
    /// Units leased out that may still be used, and count as used until they are settled.
    /// Windows do not count them apart: 0.
    pub leased: u64,
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Its name in the store.
    pub key: String,
    /// The cluster slot of that name.
    pub slot: u16,
    /// Of a Cluster, the node that has that slot, as `host:port`.
    pub node: Option<String>,
    /// What is stored, as stored; `None`: nothing, the bucket is unused.
    pub state: Option<String>,
    /// When the store forgets it, in milliseconds.
    pub ttl_ms: Option<u64>,
}

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Which of the servers, from 0.
    pub(crate) server: usize,
    /// Where it goes on there.
    pub(crate) scan: u64,
    /// Tells where the slots of a Cluster were when the listing began.
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
pub enum Which<'a> {
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
    /// Change nothing, only tell what would come of it.
    pub peek: bool,
    /// The policy was just read again: what the bucket knows of a newer edit is a leftover.
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
    /// The revision that the generation was raised to; nothing was raised where nothing was used.
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

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pong {
    /// From asking to the answer, connection already open; the last one's where several answer.
    pub latency: Duration,
    /// Servers that hold keys and answered: 1, or the masters of a Cluster.
    pub nodes: usize,
    /// `redis`, `valkey` or `memory`.
    pub server: String,
    /// Its version, if it told.
    pub version: Option<String>,
    /// `master`, `replica`, ..., if it told.
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

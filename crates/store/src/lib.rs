//! The stores of limits and buckets: on Redis, and in memory. `plan` computes, without I/O,
//! what they send and store.
//!
//! [`open`] makes a [`Store`] from a [`StoreUrl`]; what it can do is in that trait.

mod engine;
mod memory;
mod plan;
mod redis;
pub mod scripts;
mod store;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    str::FromStr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use algorithms::SlotId;
use policy::{Name, Revision};

use memory::MemoryStore;
use plan::InvalidRecord;
use redis::RedisStore;

pub use engine::{Decision, Engine};
pub use redis_link::{
    ClientCertificate, Error as StoreError, Network, PemError, PemFile, Refusal, SCHEMES, Server,
    Stream, read_at_most, read_file, slot,
};
pub use store::{
    ActiveProxies, Buckets, Checks, Credit, CreditReport, Cursor, Diagnostics, Health, Inspection,
    KeyScan, LimitOf, ListedBucket, OverrideCursor, OverridePage, Page, PingReply, Policies,
    ProxyCounts, ResetReport, ResetScope, Rights, ScriptStatus, Store, Telemetry,
};

// What the methods of the stores take and return.
pub use plan::{
    BucketKey, Change, CheckPlanError, Edit, EditPlanError, Head, HeadState, HistoryEntry,
    InvalidOverride, KeyValue, Keys, LimitKey, LimitKeyKind, Operation, Origin, OverrideEdit,
    OverrideEdits, Overrides, PrefixError, Record, RecordedOverrides, RecordedSide, ResetOf,
    Signature, Stored, fits, reordered, script,
    telemetry::{
        Activity, ActivityReport, ActivitySummary, BUCKETS_REPORTED, BucketActivity, Denial, Fleet,
        FleetReport, LimitActivity, LimiterStatus, ProxyStatus, Report, Resolution, SlotActivity,
        TimeSlot,
    },
};

/// Bound: domains of a store, deleted ones included. Beyond it, one more is refused when it is
/// written; limiters keep the domains that they have.
pub const DOMAINS_MAX: usize = 4096;

/// Bound: proxies that the store counts for a limit. Beyond it, answered, but not counted.
const PROXIES_MAX: usize = 10_000;

// ---- How a store is used, and how it is opened.

/// How a store is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every key starts with.
    pub keys: Keys,
    /// How long a batch of checks may take, waiting for a connection included.
    pub timeout: Duration,
    /// How long one step of anything else may take: a listing or a record takes several.
    pub control_timeout: Duration,
    /// How long a connection attempt may take, login included.
    pub connect_timeout: Duration,
    /// The certificate for a store that requires one, over TLS.
    pub client_certificate: Option<ClientCertificate>,
    /// What connects in place of TCP, in a simulation.
    pub network: Option<Arc<dyn Network>>,
    /// Counts the keys that listings and resets have scanned, to show their progress.
    pub walked: Arc<AtomicU64>,
    /// Buckets that the memory store holds. While it is full of buckets in use, a check that
    /// needs another one is refused with the code `OOM`, as by a Redis that never evicts.
    pub memory_buckets: usize,
}

/// The shortest probe timeout.
const PROBE_MIN: Duration = Duration::from_millis(500);

impl Options {
    /// Options for checks that may take `timeout`: logging in to so distant a server takes several
    /// round trips.
    pub fn within(timeout: Duration) -> Self {
        let least = Self::default();
        let turns = 2 * timeout;
        Self {
            timeout,
            control_timeout: turns.max(least.control_timeout),
            connect_timeout: turns.max(least.connect_timeout),
            ..least
        }
    }

    fn probe_timeout(&self) -> Duration {
        self.timeout.max(PROBE_MIN)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: Keys::default(),
            timeout: Duration::from_millis(10),
            control_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_millis(500),
            client_certificate: None,
            network: None,
            walked: Arc::default(),
            memory_buckets: 1_000_000,
        }
    }
}

/// Opens a store. It connects at its first use, so this fails only where that can never work.
pub fn open(url: &StoreUrl, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match url {
        StoreUrl::Memory => Arc::new(MemoryStore::new(&options)),
        StoreUrl::Redis(server) => Arc::new(RedisStore::new(server, options)?),
    })
}

// ---- Where the store is, as users write it.

/// A store's URL, parsed. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// `memory`: one process, nothing shared.
    Memory,
    /// Redis or Valkey.
    Redis(Server),
}

/// Why a text is not a usable store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not one of the schemes.
    #[error("a store is `memory` or starts with {SCHEMES}")]
    Scheme,
    /// The scheme is valid, what follows is not.
    #[error(transparent)]
    Server(redis_link::UrlError),
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        text.parse().map(Self::Redis).map_err(|error| match error {
            redis_link::UrlError::Scheme => UrlError::Scheme,
            error => UrlError::Server(error),
        })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis(server) => server.fmt(f),
        }
    }
}

// ---- Why a check was not decided or an edit not made.

/// Why one check got no decision. None of these charged anything, except where [`StoreError`]
/// says that it cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One node failed after other nodes had executed a part of the check that cannot be undone or sent again:
    /// a settlement, a debit, a denial towards a penalty, or a charge that may not have been refunded.
    #[error(transparent)]
    PartiallyCharged(StoreError),
    /// The key of the limit's bucket holds something that no check has written.
    #[error("the bucket of limit {0} holds something else; a reset makes it unused")]
    CorruptBucket(Name),
    /// The bucket has been used with a newer edit of its limit: reload the policy, then send the check again.
    #[error("the policy that was used for this check is older than the bucket")]
    Stale,
    /// The check names no buckets.
    #[error(transparent)]
    Plan(#[from] CheckPlanError),
}

/// Why an edit was not made. Nothing was written, except where [`StoreError`] says that it
/// cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody else wrote in the meantime (or the record appeared, or went).
    #[error("the domain is now at {}, not at {}", show(found.as_ref()), show(expected.as_ref()))]
    Conflict {
        /// What the edit was based on; `None`: no record.
        expected: Option<Revision>,
        /// What is there; `None`: no record.
        found: Option<Revision>,
    },
    /// The edit does not fit its base, or is too large.
    #[error(transparent)]
    Plan(#[from] EditPlanError),
    /// The check of the edit's bucket failed.
    #[error(transparent)]
    Bucket(#[from] CheckError),
    /// The edit adds one more domain than limiters follow. Deleted domains count, because their
    /// revision numbers are never reused.
    #[error(
        "the store has {0} domains already, deleted ones included, and limiters follow no more"
    )]
    TooManyDomains(usize),
}

/// A record that this version cannot read.
fn corrupt(error: InvalidRecord) -> StoreError {
    StoreError::Corrupt(error.0)
}

impl From<CheckPlanError> for EditError {
    fn from(error: CheckPlanError) -> Self {
        Self::Bucket(error.into())
    }
}

fn show(revision: Option<&Revision>) -> String {
    match revision {
        Some(revision) => format!("revision {}", revision.number),
        None => "no revision (there is no record)".to_owned(),
    }
}

// ---- Secrets that nobody can guess: ids of requests at the limits on requests in flight, and the key of the
// seals of reservations.

/// A new id, for the holder with this [mark](SlotId::new). Nobody can guess it: its secret is a count
/// under a keyed hash whose key the system drew at random.
pub fn new_slot_id(mark: u64) -> SlotId {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    SlotId::new(wall_ms() / 1000, mark, KEY.hash_one(count))
}

/// A key of 256 bits as text, from hashes whose keys the system drew at random.
fn random_key() -> String {
    let hash = |count: u64| format!("{:016x}", RandomState::new().hash_one(count));
    (0..4).map(hash).collect()
}

// ---- The wall clock, for what no server's clock decides.

/// Milliseconds since the epoch; 0 on a machine that is set before it.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_long() {
        let keys: std::collections::HashSet<String> = (0..100).map(|_| random_key()).collect();
        assert_eq!(keys.len(), 100);
        assert!(keys.iter().all(|key| key.len() == 64));
    }

    #[test]
    fn ids_differ_and_name_their_holder() {
        let ids: std::collections::HashSet<SlotId> = (0..1000).map(|_| new_slot_id(7)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(
            ids.iter()
                .all(|id| id.mark() == 7 && id.at_s() > 1_700_000_000)
        );
    }
}

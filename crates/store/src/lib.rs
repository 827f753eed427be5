//! The stores of limits and buckets: on Redis, and in memory. `store-plan` computes what they send
//! and store.
//!
//! [`open`] makes a [`Store`] from a [`StoreUrl`]; what it can do is in that trait.

mod clock;
mod error;
mod health;
mod memory;
mod options;
mod redis;
pub mod scripts;
mod slot_id;
mod store;
mod url;

pub use clock::wall_ms;
pub use error::{CheckError, EditError, Refusal, StoreError};
pub use health::{Health, Rights};
pub use options::{Options, open};
pub use redis_link::{ClientCertificate, SCHEMES, Server, slot};
pub use slot_id::new_slot_id;
pub use store::{
    ActiveProxies, Buckets, Checks, Credit, CreditReport, Cursor, Diagnostics, Inspection, KeyScan,
    LimitOf, ListedBucket, OverrideCursor, OverridePage, Page, PingReply, Policies, ProxyCounts,
    ResetReport, ResetScope, ScriptStatus, Store, Telemetry,
};
// What the methods of the stores take and return.
pub use store_plan::{
    BucketKey, Change, ChangesSince, CheckPlanError, Edit, EditPlanError, Head, HeadState,
    HistoryEntry, InvalidOverride, KeyValue, Keys, LimitKey, LimitKeyKind, Operation,
    OverrideChange, OverrideEdit, OverrideEdits, Overrides, PrefixError, Record, RecordedOverrides,
    RecordedSide, ResetOf, Signature, Stored, fits, script,
    telemetry::{
        Activity, ActivityReport, ActivitySummary, BucketActivity, Denial, Fleet, FleetReport,
        LimitActivity, LimiterStatus, ProxyStatus, Report, Resolution, SlotActivity, TimeSlot,
    },
};
pub use url::{StoreUrl, UrlError};

/// Bound: domains of a store, deleted ones included. Beyond it, one more is refused when it is
/// written; limiters keep the domains that they have.
///
/// Writes refuse to make more, and limiters follow no more.
pub const DOMAINS_MAX: usize = 4096;

/// Bound: proxies that the store counts for a limit. Beyond it, answered, but not counted.
pub(crate) const PROXIES_MAX: usize = 10_000;

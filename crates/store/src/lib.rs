//! The stores of limits and buckets: on Redis, with the layout of its keys and scripts, and in memory.
//!
//! [`open`] makes a [`Store`] from a [`StoreUrl`]; what it can do is in that trait.

mod clock;
mod edit;
mod error;
mod health;
mod key;
mod key_scan;
mod memory;
mod options;
mod overrides;
mod plan;
mod record;
mod redis;
pub mod script;
mod scripts;
mod store;
mod telemetry;
mod url;

pub use clock::wall_ms;
pub use edit::RESET_BEGUN;
pub use error::{CheckError, EditError, Refusal, StoreError};
pub use health::{Health, Rights};
pub use key::{BucketKey, KeyValue, Keys, PrefixError};
pub use key_scan::{KeyScan, LimitKey, LimitKeyKind};
pub use options::{Options, open};
pub use overrides::{
    ChangesSince, InvalidOverride, OverrideChange, OverrideCursor, OverrideEdit, OverrideEdits,
    OverridePage,
};
pub use redis_link::{SCHEMES, Server, slot};
pub use store::{
    ActiveProxies, Buckets, Change, Checks, Credit, CreditReport, Cursor, Diagnostics, Edit, Head,
    HeadState, HistoryEntry, Inspection, LimitOf, ListedBucket, Overrides, Page, PingReply,
    Policies, ProxyCounts, Record, ResetReport, ResetScope, ScriptStatus, Signature, Store, Stored,
    Telemetry,
};
pub use telemetry::{
    Activity, ActivityReport, ActivitySummary, BucketActivity, Denial, Fleet, FleetReport,
    LimitActivity, LimiterStatus, ProxyStatus, Report, Resolution, TimeSlot,
};
pub use url::{StoreUrl, UrlError};

/// The most domains of one store: writes refuse to make more, and limiters follow no more.
pub const DOMAINS_MAX: usize = 4096;

/// The most proxies of a limit; a count stays there.
pub(crate) const PROXIES_MAX: usize = 10_000;

/// How long a proxy counts as active after its last request, in milliseconds.
pub(crate) const PROXY_LIFE_MS: u64 = 10_000;

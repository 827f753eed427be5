//! Listings, a page at a time.

use policy::{Name, Override};
use store_plan::{InvalidOverride, KeyValue, LimitKey};

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
#[derive(Clone, Debug, Default)]
pub struct OverridePage {
    /// Each as read under the limit that was given.
    pub overrides: Vec<Result<Override, InvalidOverride>>,
    /// Where the walk goes on; `None`: that was all.
    pub next: Option<OverrideCursor>,
}

//! What a proxy caches of single buckets.
//!
//! The `shared_table` is in Envoy's shared data, for all workers of the process; the `worker_cache` is
//! one worker's memory in front of it. Both keep denials that still hold (the deny cache) and the last
//! status of each bucket, from which fallback decisions start.

mod answered;
mod bucket;
pub(crate) mod shared_table;
mod worker_cache;

pub(crate) use answered::{Answered, write_answer};
pub(crate) use bucket::{BucketKey, BucketStatus, Role};
pub(crate) use shared_table::{
    BucketEntry, CachedDenial, Debt, DebtSpan, Found, LocalState, Record, Room, Table, Update,
};
pub(crate) use worker_cache::WorkerCache;

//! Buckets, and what is done to them.

use algorithms::check::Verdict;
use policy::{Compiled, Limit, Name};
use protocol::LimitAnswer;

/// A bucket as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The answer that a check would get.
    pub answer: LimitAnswer,
    /// Outstanding lease units, which count as used until they are settled. Windows do not count
    /// them separately: 0.
    pub leased: u64,
    /// Units reserved for requests whose responses state their cost; they count as used.
    pub reserved: u64,
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

/// Units of a verdict's only limit that are used for requests that have not come, or not ended:
/// leased, and reserved.
pub(crate) fn held_units(verdict: &Verdict) -> (u64, u64) {
    let limit = verdict.limits.first();
    limit.map_or((0, 0), |limit| (limit.leased, limit.reserved.open))
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

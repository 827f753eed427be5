//! What a proxy caches of single buckets.
//!
//! The `shared_table` is in Envoy's shared data, for all workers of the process; the `worker_cache` is
//! one worker's memory in front of it. Both keep denials that still hold (the deny cache) and the last
//! status of each bucket, from which fallback decisions start.

pub(crate) mod shared_table;
mod worker_cache;

use algorithms::{Algorithm, Rate};
use protocol::LimitAnswer;

use crate::{
    codec::{Put, Reader},
    host::Host,
    time::Now,
};
pub(crate) use shared_table::{
    BucketEntry, CachedDenial, Debt, DebtSpan, Found, LocalState, Record, Room, Table, Update,
};
pub(crate) use worker_cache::WorkerCache;

// --- Keys of buckets, and their last status.

/// The kind of a shared table entry. One bucket has an entry for each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A bucket in the store: its denials, its status, and its fallback bucket during an outage.
    Global = 0,
    /// A bucket of this proxy alone.
    Proxy = 1,
    /// The precheck of a global bucket.
    Precheck = 2,
    /// Leased units of a global bucket. An eviction of the entry drops them.
    Lease = 3,
    /// This proxy's share of a limit on requests in flight, during an outage.
    InFlight = 4,
}

/// A bucket's key in the shared table, in one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BucketKey {
    /// The set of the table.
    pub(crate) set: u32,
    /// The entry within the set.
    pub(crate) tag: u64,
    /// The overflow entry of the bucket's limit.
    pub(crate) overflow: u64,
}

impl BucketKey {
    /// A hash that clients cannot choose.
    pub(crate) fn hash(self) -> u64 {
        self.tag
    }

    /// The key of the same bucket in another role; `self` must be in [`Role::Global`].
    #[must_use]
    pub(crate) fn in_role(self, role: Role) -> Self {
        Self {
            tag: self.tag ^ (role as u64),
            overflow: self.overflow ^ (role as u64),
            ..self
        }
    }
}

/// The state of a bucket in the limiter's last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketStatus {
    /// When the answer arrived, on the monotonic clock.
    pub(crate) at_us: u64,
    /// The quota in units, overrides included; `None`: unlimited.
    pub(crate) limit: Option<u64>,
    /// The time in which an empty quota refills completely.
    pub(crate) window_ms: u64,
    /// Units left at `at_us`.
    pub(crate) remaining: u64,
    /// The time from `at_us` until the quota is complete.
    pub(crate) reset_after_ms: u64,
}

impl BucketStatus {
    /// The status in an answer that arrived now.
    pub(crate) fn new(now: Now, answer: &LimitAnswer) -> Self {
        Self {
            at_us: now.mono_us,
            limit: answer.limit,
            window_ms: answer.window_ms,
            remaining: answer.remaining,
            reset_after_ms: answer.reset_after_ms,
        }
    }

    /// Whether an override gives the bucket other parameters than its limit.
    pub(crate) fn differs_from(&self, algorithm: &Algorithm) -> bool {
        let rate = &algorithm.parameters().rate;
        let same_window = self.window_ms == algorithm.window_ms() || self.is_of_unit(rate);
        self.limit != Some(algorithm.limit()) || !same_window
    }

    /// Whether the window fits the rate's calendar unit: some days have 23 or 25 hours, some months 28
    /// days.
    pub(crate) fn is_of_unit(&self, rate: &Rate) -> bool {
        let apart_ms = self.window_ms.abs_diff(rate.period_ms);
        rate.calendar.is_some() && apart_ms <= rate.period_ms / 10
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.at_us);
        out.put_u8(u8::from(self.limit.is_some()));
        out.put_u64(self.limit.unwrap_or(0));
        out.put_u64(self.window_ms);
        out.put_u64(self.remaining);
        out.put_u64(self.reset_after_ms);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let at_us = reader.u64()?;
        let is_limited = reader.u8()? != 0;
        let limit = reader.u64()?;
        Some(Self {
            at_us,
            limit: is_limited.then_some(limit),
            window_ms: reader.u64()?,
            remaining: reader.u64()?,
            reset_after_ms: reader.u64()?,
        })
    }
}

// --- Writes the limiter's answer about a bucket to the shared table.

/// The limiter's answer about a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) status: BucketStatus,
    /// The denial that replaces the one in the table, and when its check was sent; `None`: the one in
    /// the table may still hold.
    pub(crate) denial: Option<(Option<CachedDenial>, Now)>,
}

/// Writes the limiter's answer about a bucket to the table.
pub(crate) fn write_answer(
    host: &impl Host,
    now: Now,
    table: &Table,
    (key, generation): (BucketKey, u64),
    answered: &Answered,
) {
    // Contended: other workers are writing answers that are as recent.
    let _ = table.update::<BucketEntry, _>(host, key, generation, now, |found| {
        let entry = &mut found.entry;
        let mut changed = entry.update_status(answered.status);
        if let Some((denial, sent)) = answered.denial
            && (denial.is_some_and(|denial| denial.is_penalty())
                || !entry.denial.is_some_and(|known| known.outlasts(sent, now)))
        {
            entry.denial = denial;
            changed = true;
        }
        if changed {
            Update::Write(())
        } else {
            Update::Keep(())
        }
    });
}

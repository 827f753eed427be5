//! What a proxy caches of single buckets.
//!
//! The `shared_table` is in Envoy's shared data, for all workers of the process; [`WorkerCache`] is
//! one worker's memory in front of it. Both keep denials that still hold (the deny cache) and the last
//! status of each bucket, from which fallback decisions start.

mod bucket_entry;
mod shared_table;

use policy::Positions;

use crate::host::{Host, Now};

pub(crate) use bucket_entry::{
    BucketEntry, BucketStatus, CachedDenial, Debt, DebtSpan, LocalState,
};
pub(crate) use shared_table::{Found, Record, Room, Table, Update};

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
    /// The generation of that entry: the limit's, which all its buckets share.
    pub(crate) overflow_generation: u64,
}

/// A bucket, and a generation of its limit: what was stored under another one does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketAt {
    pub(crate) key: BucketKey,
    pub(crate) generation: u64,
}

impl BucketAt {
    #[must_use]
    pub(crate) fn in_role(self, role: Role) -> Self {
        self.key.in_role(role).at(self.generation)
    }
}

impl BucketKey {
    pub(crate) fn at(self, generation: u64) -> BucketAt {
        let key = self;
        BucketAt { key, generation }
    }

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

// --- Writes the limiter's answer about a bucket to the shared table.

/// Writes the limiter's answer about a bucket to the table. `denial` replaces the one in the table, by a
/// check that was sent then; `None`: the one in the table may still hold.
pub(crate) fn write_answer(
    host: &impl Host,
    now: Now,
    table: &Table,
    bucket: BucketAt,
    status: BucketStatus,
    denial: Option<(Option<CachedDenial>, Now)>,
) {
    // Contended: other workers are writing answers that are as recent.
    let _ = table.update::<BucketEntry, _>(host, bucket, now, |found| {
        let entry = &mut found.entry;
        let mut changed = entry.update_status(status);
        if let Some((denial, sent)) = denial
            && (denial.is_some_and(|denial| denial.is_penalty())
                || !entry.denial.is_some_and(|known| known.outlasts(sent, now)))
        {
            entry.denial = denial;
            changed = true;
        }
        Update::new(changed, ())
    });
}

// --- One worker's cache of buckets, in front of the shared table.
//
// A read of shared data costs as much as the rest of a decision. So a worker caches its reads, and
// newer answers of the limiter, for one second: a client that is denied in a loop causes no reads.
// During that time the worker misses the answers that other workers received, which costs a check and
// never makes a wrong decision.
//
// Fallback decisions need the limiter's statuses in the shared table. The worker writes the first
// status of a bucket at once, and a later one at the next tick and only if it differs significantly;
// after a call failed, it writes all of them.

/// Bound: buckets in each half of a worker's cache. Beyond it, the older half is dropped;
/// significant changes are in the shared table already.
const MAX_BUCKETS: usize = 2048;
/// How long an entry read from the table is used: as long as a denial is cached there.
const FRESH_US: u64 = CachedDenial::MAX_MS * 1000;
/// The table may overstate the units left by the quota divided by this.
const SIGNIFICANT_PART: u64 = 64;

/// The buckets that this worker used recently.
#[derive(Debug, Default)]
pub(crate) struct WorkerCache {
    young: Segment,
    old: Segment,
    /// Buckets to write at the next tick.
    unwritten: Vec<BucketKey>,
}

/// Buckets that were added in one period.
#[derive(Debug, Default)]
struct Segment {
    positions: Positions,
    list: Vec<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    key: BucketKey,
    /// `None` once it was moved to the young segment.
    cached: Option<CachedBucket>,
}

/// The cached state of one bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachedBucket {
    generation: u64,
    /// When it was read from the table.
    loaded_us: u64,
    /// The last denial.
    pub(crate) denial: Option<CachedDenial>,
    /// The last status.
    pub(crate) status: Option<BucketStatus>,
    /// The status in the table.
    written: Option<BucketStatus>,
    /// Whether it is in [`WorkerCache::unwritten`].
    is_queued: bool,
}

impl CachedBucket {
    /// Whether the table lacks the last status, and no write is queued.
    fn needs_write(&self) -> bool {
        !self.is_queued && self.status != self.written
    }
}

impl WorkerCache {
    /// The cached state of a bucket, unless it is stale or was read at `since_us` or before.
    pub(crate) fn get_fresh(
        &mut self,
        bucket: BucketAt,
        now: Now,
        since_us: u64,
    ) -> Option<CachedBucket> {
        let cached = *self.get(bucket)?;
        let age_us = now.mono_us.saturating_sub(cached.loaded_us);
        (cached.loaded_us > since_us && age_us < FRESH_US).then_some(cached)
    }

    /// The last cached denial of a bucket, whether or not it still holds.
    pub(crate) fn denial(&mut self, bucket: BucketAt) -> Option<CachedDenial> {
        self.get(bucket)?.denial
    }

    /// Makes the next use of a bucket read the table again.
    pub(crate) fn invalidate(&mut self, bucket: BucketAt) {
        if let Some(cached) = self.get(bucket) {
            cached.loaded_us = 0;
        }
    }

    /// Caches an entry that was read from the table.
    pub(crate) fn store_entry(&mut self, bucket: BucketAt, entry: &BucketEntry, now: Now) {
        let Some(cached) = self.get_or_add(bucket) else {
            return;
        };
        cached.loaded_us = now.mono_us;
        cached.written = entry.status;
        let newer =
            |status: &BucketStatus| cached.status.is_none_or(|last| last.at_us < status.at_us);
        if let Some(status) = entry.status.filter(newer) {
            cached.status = Some(status);
        }
        // This worker also wrote its own denial, which may have been evicted since.
        let denials = [entry.denial, cached.denial].into_iter().flatten();
        cached.denial = denials.max_by_key(|denial| denial.until_us);
    }

    /// Caches a denial, which the caller writes to the table.
    pub(crate) fn store_denial(
        &mut self,
        bucket: BucketAt,
        status: BucketStatus,
        denial: CachedDenial,
    ) {
        let Some(cached) = self.get_or_add(bucket) else {
            return;
        };
        cached.status = Some(status);
        cached.written = Some(status);
        cached.denial = Some(denial);
    }

    /// Caches a status. Returns whether the caller must write it to the table at once; always, if it is
    /// `urgent` because calls fail.
    pub(crate) fn store_status(
        &mut self,
        bucket: BucketAt,
        status: BucketStatus,
        urgent: bool,
    ) -> bool {
        let Some(cached) = self.get_or_add(bucket) else {
            return true;
        };
        cached.status = Some(status);
        cached.denial = None;
        match cached.written {
            written if urgent || written.is_none() => {
                cached.written = Some(status);
                true
            }
            Some(written) if is_significant(written, status) => {
                if !std::mem::replace(&mut cached.is_queued, true) {
                    self.unwritten.push(bucket.key);
                }
                false
            }
            _ => false,
        }
    }

    /// Queues the last status of a bucket for the next write, however small the difference.
    pub(crate) fn queue_write(&mut self, key: BucketKey) {
        let cached = self.young.get(key);
        if let Some(cached) = cached.or_else(|| self.old.get(key))
            && cached.needs_write()
        {
            cached.is_queued = true;
            self.unwritten.push(key);
        }
    }

    /// Queues the last statuses of all buckets.
    pub(crate) fn queue_all_writes(&mut self) {
        for bucket in self.young.list.iter_mut().chain(&mut self.old.list) {
            if let Some(cached) = &mut bucket.cached
                && cached.needs_write()
            {
                cached.is_queued = true;
                self.unwritten.push(bucket.key);
            }
        }
    }

    /// Whether the cache is full until the next [`WorkerCache::write`].
    pub(crate) fn is_full(&self) -> bool {
        self.young.list.len() >= MAX_BUCKETS
    }

    /// Writes the queued statuses, and makes room.
    pub(crate) fn write(&mut self, host: &impl Host, now: Now, table: &Table) {
        for key in std::mem::take(&mut self.unwritten) {
            let cached = self.young.get(key);
            let Some(cached) = cached.or_else(|| self.old.get(key)) else {
                continue;
            };
            cached.is_queued = false;
            cached.written = cached.status;
            if let Some(status) = cached.status {
                write_answer(host, now, table, key.at(cached.generation), status, None);
            }
        }
        if self.is_full() {
            self.old = std::mem::take(&mut self.young);
        }
    }

    fn get(&mut self, bucket: BucketAt) -> Option<&mut CachedBucket> {
        if self.young.position(bucket.key).is_none() {
            let cached = self.old.take(bucket.key)?;
            self.young.add(bucket.key, cached);
        }
        let cached = self.young.get(bucket.key)?;
        (cached.generation == bucket.generation).then_some(cached)
    }

    /// The cached state of a bucket, added if it is missing.
    fn get_or_add(&mut self, bucket: BucketAt) -> Option<&mut CachedBucket> {
        if self.young.position(bucket.key).is_none() {
            let cached = self.old.take(bucket.key).unwrap_or_default();
            self.young.add(bucket.key, cached);
        }
        let cached = self.young.get(bucket.key)?;
        if cached.generation != bucket.generation {
            *cached = CachedBucket {
                generation: bucket.generation,
                is_queued: cached.is_queued,
                ..CachedBucket::default()
            };
        }
        Some(cached)
    }
}

impl Segment {
    fn position(&self, key: BucketKey) -> Option<usize> {
        let mut positions = self.positions.of(key.hash());
        let same = |bucket: &Bucket| bucket.key == key && bucket.cached.is_some();
        positions.find(|at| self.list.get(*at).is_some_and(same))
    }

    fn get(&mut self, key: BucketKey) -> Option<&mut CachedBucket> {
        let at = self.position(key)?;
        self.list.get_mut(at)?.cached.as_mut()
    }

    fn take(&mut self, key: BucketKey) -> Option<CachedBucket> {
        let at = self.position(key)?;
        self.list.get_mut(at)?.cached.take()
    }

    /// Adds a bucket that the segment does not have.
    fn add(&mut self, key: BucketKey, cached: CachedBucket) {
        self.positions.add(key.hash(), self.list.len());
        let cached = Some(cached);
        self.list.push(Bucket { key, cached });
    }
}

/// Whether the status in the table (`written`) overstates the units left too much, or is too old.
fn is_significant(written: BucketStatus, status: BucketStatus) -> bool {
    let (Some(limit), Some(before)) = (status.limit, written.limit) else {
        return written.limit != status.limit;
    };
    let elapsed_us = status.at_us.saturating_sub(written.at_us);
    // A fallback bucket would start from this: the units left then, plus the units refilled since.
    let window_us = status.window_ms.saturating_mul(1000).max(1);
    let back = u128::from(limit) * u128::from(elapsed_us) / u128::from(window_us);
    let expected = u128::from(written.remaining)
        .saturating_add(back)
        .min(limit.into());
    let tolerated = u128::from(status.remaining) + u128::from(limit / SIGNIFICANT_PART);
    limit != before || expected > tolerated || elapsed_us > FRESH_US
}

#[cfg(test)]
mod tests;

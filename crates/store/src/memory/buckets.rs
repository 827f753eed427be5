//! The buckets of the memory store.

use std::{borrow::Cow, collections::HashMap};

use algorithms::{
    ADAPTIVE_LINGER_MS, BucketRequest, Denials, Penalty, SETTLE_WITHIN_MS, STATE_BYTES, State,
    check::{Stored, StoredPart, Verdict, check},
};
use indexmap::IndexMap;

use crate::{
    CheckError, Credit, CreditReport, Refusal, StoreError,
    plan::{CheckPlan, script::Bucket},
};

/// A bucket in a third of the memory that its state takes elsewhere: a process may hold millions.
#[derive(Debug)]
struct StoredBucket {
    generation: u64,
    /// From then on the bucket counts as missing; milliseconds since the epoch.
    unused_at_ms: u64,
    packed: Packed,
}

#[derive(Debug)]
enum Packed {
    Small([u8; STATE_BYTES]),
    /// What has no small form. The bucket is kept until the time in milliseconds, because reservations may
    /// be settled late, and an adaptive limit is found slowly.
    Whole(Box<(Stored, u64)>),
}

impl StoredBucket {
    fn new(stored: Stored, now_ms: u64, reset_after_ms: u64) -> Self {
        let unused_at_ms = now_ms.saturating_add(reset_after_ms);
        let small = match stored.reservations {
            None => stored.state.to_small_bytes(),
            Some(_) => None,
        };
        // Reading back checks more than an algorithm has to keep to.
        let reads_back = |bytes: &[u8; STATE_BYTES]| {
            State::from_bytes(bytes).is_some_and(|state| state == stored.state)
        };
        let generation = stored.generation;
        let packed = if let Some(bytes) = small.filter(reads_back) {
            Packed::Small(bytes)
        } else {
            let settled = stored.reservations.as_ref().map_or(0, |_| SETTLE_WITHIN_MS);
            let found = matches!(&stored.state, State::Concurrency(of) if of.adaptive().is_some());
            let lingers = if found { ADAPTIVE_LINGER_MS } else { 0 };
            let kept_until_ms = unused_at_ms
                .saturating_add(lingers)
                .max(now_ms.saturating_add(settled));
            Packed::Whole(Box::new((stored, kept_until_ms)))
        };
        Self {
            generation,
            unused_at_ms,
            packed,
        }
    }

    fn stored(&self) -> Option<Cow<'_, Stored>> {
        match &self.packed {
            Packed::Whole(whole) => Some(Cow::Borrowed(&whole.0)),
            Packed::Small(bytes) => Some(Cow::Owned(Stored {
                generation: self.generation,
                state: State::from_bytes(bytes)?,
                reservations: None,
            })),
        }
    }

    fn kept_until_ms(&self) -> u64 {
        match &self.packed {
            Packed::Whole(whole) => whole.1,
            Packed::Small(_) => self.unused_at_ms,
        }
    }
}

/// At most `max` buckets. Unused ones are forgotten when room is needed.
#[derive(Debug)]
pub(crate) struct HeldBuckets {
    held: IndexMap<Box<str>, StoredBucket>,
    sweep: Sweep,
    penalties: Penalties,
}

impl HeldBuckets {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            held: IndexMap::new(),
            sweep: Sweep::new(max),
            penalties: Penalties::new(max),
        }
    }

    /// Decides one check and stores what it charged.
    pub(crate) fn check(
        &mut self,
        planned: &CheckPlan<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        self.make_room(planned, now_ms)?;
        let buckets = &planned.check.limits;
        let held = buckets.iter().map(|bucket| self.stored(&bucket.key));
        let held: Vec<Option<Cow<'_, Stored>>> = held.collect();
        let parts = buckets.iter().zip(&held).map(|(bucket, held)| {
            let penalty = bucket.part.penalty.as_ref();
            let denials = penalty.and_then(|_| self.penalties.get(&bucket.key));
            (&bucket.part, held.as_deref(), denials)
        });
        let parts: Vec<StoredPart<'_>> = parts.collect();
        let (verdict, writes) =
            check(&parts, now_ms, planned.check.options).map_err(|_| CheckError::Stale)?;
        drop(parts);
        drop(held);
        let written = buckets.iter().zip(&verdict.limits).zip(writes);
        for ((bucket, limit), (stored, denials)) in written {
            if let (Some(of), Some(denials)) = (&bucket.part.penalty, denials) {
                (self.penalties).store(&bucket.key, &of.penalty, denials, now_ms);
            }
            let Some(stored) = stored else { continue };
            let bucket_now = StoredBucket::new(stored, now_ms, limit.decision.reset_after_ms);
            match self.held.get_mut(bucket.key.as_str()) {
                Some(held) => *held = bucket_now,
                None => {
                    self.held.insert(bucket.key.as_str().into(), bucket_now);
                }
            }
        }
        Ok(verdict)
    }

    fn stored(&self, key: &str) -> Option<Cow<'_, Stored>> {
        self.held.get(key).and_then(StoredBucket::stored)
    }

    /// Gives units back to one bucket.
    pub(super) fn credit(
        &mut self,
        credit: &Credit<'_>,
        bucket: &Bucket<'_>,
        now_ms: u64,
    ) -> Result<CreditReport, CheckError> {
        let algorithm = &bucket.part.algorithm;
        let lease = bucket.part.lease.unwrap_or_default();
        let asked = |stored: Option<&Stored>| {
            let state = stored.map(|stored| &stored.state);
            let request = BucketRequest {
                lease,
                ..BucketRequest::default()
            };
            algorithm
                .evaluate_request(state, now_ms, request)
                .leave()
                .verdict
                .decision
        };
        let penalized = bucket.denials.is_some() && { self.penalties.get(&bucket.key) }
            .is_some_and(|of| of.until_ms > now_ms);
        let held = self.stored(&bucket.key).map(Cow::into_owned);
        let before = asked(held.as_ref());
        let mut report = CreditReport {
            used: penalized,
            left_before: if penalized { 0 } else { before.remaining },
            left: before.remaining,
            reset_after_ms: before.reset_after_ms,
            revision: credit.policy.revision().number,
        };
        let newest = held.as_ref().map_or(0, |held| held.generation);
        if bucket.part.generation < newest && !credit.force {
            return Err(CheckError::Stale);
        }
        let held = held.filter(|_| credit.units > 0 && before.reset_after_ms > 0);
        if !credit.peek && (penalized || held.is_some()) {
            self.penalties.remove(|key| key == bucket.key);
        }
        let Some(held) = held else {
            return Ok(report);
        };
        let stored = algorithm.credit_stored(
            &held,
            bucket.part.generation,
            (now_ms, lease.ttl_ms),
            credit.units,
            bucket.reservations.is_some(),
        );
        let after = asked(Some(&stored));
        report.used = true;
        report.left = after.remaining;
        report.reset_after_ms = after.reset_after_ms;
        if !credit.peek {
            let bucket_now = StoredBucket::new(stored, now_ms, after.reset_after_ms);
            self.held.insert(bucket.key.as_str().into(), bucket_now);
        }
        Ok(report)
    }

    /// Refuses a check that could need more buckets than there is room for, before anything of
    /// it is decided.
    fn make_room(&mut self, planned: &CheckPlan<'_>, now_ms: u64) -> Result<(), StoreError> {
        // Which of them are new matters only once the map is nearly full.
        if self.held.len() + planned.check.limits.len() <= self.sweep.at {
            return Ok(());
        }
        let mut needed = self.needed(planned);
        if self.sweep.is_due(needed, now_ms) {
            self.held.retain(|_, held| held.kept_until_ms() > now_ms);
            self.sweep.done(self.held.len(), now_ms);
            needed = self.needed(planned);
        }
        if needed <= self.sweep.max {
            return Ok(());
        }
        Err(StoreError::Refused(Refusal {
            code: "OOM".to_owned(),
            message: format!(
                "all {} buckets of the memory store are in use",
                self.sweep.max
            ),
        }))
    }

    /// How many buckets there would be if the check wrote every one that it touches.
    fn needed(&self, planned: &CheckPlan<'_>) -> usize {
        let new =
            { planned.check.limits.iter() }.filter(|b| !self.held.contains_key(b.key.as_str()));
        self.held.len() + new.count()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// A bucket's state as text for operators.
    pub(super) fn state(&self, key: &str) -> Option<String> {
        Some(format!("{:?}", self.stored(key)?.state))
    }

    /// Milliseconds until the bucket may be forgotten.
    pub(super) fn ttl_ms(&self, key: &str, now_ms: u64) -> Option<u64> {
        let held = self.held.get(key)?;
        Some(held.unused_at_ms.saturating_sub(now_ms))
    }

    /// The keys of the buckets in use, in their order.
    pub(super) fn sorted_keys(&self, now_ms: u64) -> Vec<String> {
        let used = self.held.iter().filter(|(_, h)| h.unused_at_ms > now_ms);
        let mut keys: Vec<String> = used.map(|(key, _)| key.to_string()).collect();
        keys.sort_unstable();
        keys
    }

    /// Makes buckets unused, except for leased units; returns how many were in use.
    pub(super) fn remove(&mut self, which: impl Fn(&str) -> bool, now_ms: u64) -> u64 {
        let mut used = 0;
        self.penalties.remove(&which);
        self.held.retain(|key, held| {
            if !which(key) {
                return true;
            }
            used += u64::from(held.unused_at_ms > now_ms);
            // What is leased has no small form, and no bucket without leases is kept.
            let Packed::Whole(whole) = &mut held.packed else {
                return false;
            };
            let (stored, _) = &mut **whole;
            let leased = stored.state.reset();
            stored.reservations = None;
            leased.map(|state| stored.state = state).is_some()
        });
        used
    }
}

// ---- The denials of buckets in memory, where limits have penalties.

/// Denials of at most `max` buckets; those of further buckets are not counted.
#[derive(Debug)]
pub(super) struct Penalties {
    /// By bucket, with the time at which they expire, in milliseconds since the epoch.
    held: HashMap<String, (Denials, u64)>,
    sweep: Sweep,
}

impl Penalties {
    pub(super) fn new(max: usize) -> Self {
        Self {
            held: HashMap::new(),
            sweep: Sweep::new(max),
        }
    }

    pub(super) fn get(&self, bucket: &str) -> Option<&Denials> {
        self.held.get(bucket).map(|(denials, _)| denials)
    }

    pub(super) fn store(&mut self, bucket: &str, penalty: &Penalty, denials: Denials, now_ms: u64) {
        let new = usize::from(!self.held.contains_key(bucket));
        if self.sweep.is_due(self.held.len() + new, now_ms) {
            self.held.retain(|_, (_, until_ms)| *until_ms > now_ms);
            self.sweep.done(self.held.len(), now_ms);
        }
        if self.held.len() + new <= self.sweep.max {
            let until_ms = penalty.forgotten_at_ms(&denials);
            self.held.insert(bucket.to_owned(), (denials, until_ms));
        }
    }

    /// Ends the penalties of buckets, and forgets their denials.
    pub(super) fn remove(&mut self, which: impl Fn(&str) -> bool) {
        self.held.retain(|bucket, _| !which(bucket));
    }
}

// ---- When to sweep a bounded map for entries that no longer count.

/// A map with fewer entries is not swept.
const SWEEP_MIN: usize = 1024;
/// A full map is swept at most this often, in milliseconds: otherwise every check would pay for a sweep.
const SWEEP_PAUSE_MS: u64 = 1000;

/// The bound of a map.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) max: usize,
    /// The number of entries above which it is due.
    at: usize,
    swept_at_ms: Option<u64>,
}

impl Sweep {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            at: SWEEP_MIN.min(max),
            swept_at_ms: None,
        }
    }

    /// Whether to sweep now, before the map has `needed` entries.
    pub(super) fn is_due(&self, needed: usize, now_ms: u64) -> bool {
        let rested = |at: u64| now_ms.abs_diff(at) >= SWEEP_PAUSE_MS;
        needed > self.at && (needed <= self.max || self.swept_at_ms.is_none_or(rested))
    }

    /// Records a sweep that left so many entries.
    pub(super) fn done(&mut self, left: usize, now_ms: u64) {
        self.at = (left * 2).max(SWEEP_MIN).min(self.max);
        self.swept_at_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use algorithms::check::{Options, Part};

    use super::*;

    const PENALTY: Penalty = Penalty::new(3, 60_000, 900_000);

    fn count(of: &mut Penalties, bucket: usize, now_ms: u64) {
        let denials = Denials {
            since_ms: now_ms,
            count: 1,
            ..Denials::default()
        };
        of.store(&bucket.to_string(), &PENALTY, denials, now_ms);
    }

    /// What a process needs for millions of buckets is a promise to who replays a log.
    #[test]
    fn a_bucket_takes_few_bytes_and_reads_back() {
        assert_eq!(size_of::<StoredBucket>(), 56);
        let parameters = algorithms::Parameters::new(algorithms::Kind::TokenBucket, 10, 1000);
        let algorithm = algorithms::Algorithm::new(&parameters).unwrap();
        let part = Part::new(&algorithm, 3);
        let (_, writes) = check(&[(&part, None, None)], 5000, Options::default()).unwrap();
        let [(Some(stored), None)] = writes.as_slice() else {
            panic!("nothing is stored");
        };
        let held = StoredBucket::new(stored.clone(), 5000, 100);
        assert!(matches!(held.packed, Packed::Small(_)));
        assert_eq!(held.stored().unwrap().as_ref(), stored);
        assert_eq!((held.unused_at_ms, held.kept_until_ms()), (5100, 5100));
    }

    #[test]
    fn a_full_store_counts_only_known_buckets_and_sweeps_once_a_second() {
        let mut penalties = Penalties::new(2000);
        for bucket in 0..3000 {
            count(&mut penalties, bucket, 1000);
        }
        assert_eq!(penalties.held.len(), 2000);
        count(&mut penalties, 0, 60_500);
        assert_eq!(penalties.get("0").unwrap().since_ms, 60_500);
        // None has expired yet.
        count(&mut penalties, 2500, 60_500);
        assert_eq!(penalties.held.len(), 2000);
        // Nearly all have now, but the last sweep was half a second ago.
        count(&mut penalties, 2500, 61_000);
        assert_eq!(penalties.get("2500"), None);
        count(&mut penalties, 2500, 61_500);
        assert!(penalties.get("2500").is_some());
        assert_eq!(penalties.held.len(), 2);
    }
}

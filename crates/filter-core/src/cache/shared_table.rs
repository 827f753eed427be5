//! The table of buckets in Envoy's shared data, which all workers of the process use.
//!
//! Shared data is unbounded and deletes nothing, so the table bounds itself: it has a fixed number of
//! sets, each one value of shared data with room for [`WAYS`] entries. A keyed hash maps a bucket to
//! its set and tag; the key is random per process, so that clients cannot choose which buckets to
//! evict. Each write is a compare-and-swap, tried a bounded number of times.
//!
//! An entry that is in use, or holds a debt, is never evicted. If a set is full of such entries, the
//! buckets of one limit that find no room share one more entry, the *overflow*: together they get as
//! many units as one bucket, and a bucket that finds room later starts with what is left of it. So no
//! bucket exceeds its limit by being evicted, and none is denied for ever. An overflow records no debt:
//! a single bucket would have refilled that much meanwhile.

mod debt;
mod denial;
mod entry;
mod set;

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

pub(crate) use debt::{Debt, DebtSpan};
pub(crate) use denial::CachedDenial;
pub(crate) use entry::{BucketEntry, LocalState};
use set::Set;

use crate::{
    cache::BucketKey,
    host::{self, Change, Contended, Host},
    time::Now,
};

/// Buckets per set.
const WAYS: usize = 4;
/// Overflows per set, each for one limit. Buckets of further limits have no units left.
const OVERFLOWS: usize = 2;

/// An entry of the table. Each role of a bucket has one type of entry: [`BucketEntry`], or that of
/// leases, which this module does not interpret.
pub(crate) trait Record: Default {
    /// Appends the entry to a value.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads an entry; `None` if the bytes are not one.
    fn read(bytes: &[u8]) -> Option<Self>;

    /// The entry must not be evicted before this time, on the monotonic clock; 0: it may be evicted at
    /// any time.
    fn in_use_until_us(&self) -> u64;
}

/// The table's data about one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found<E> {
    /// Its entry; a default one if there is none of this generation.
    pub(crate) entry: E,
    /// Where a write of the entry would go.
    pub(crate) room: Room,
    /// The overflow of the limit. The entry's own state takes precedence.
    pub(crate) overflow: Option<LocalState>,
}

/// Where a set has room for a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Room {
    /// In an entry of its own.
    #[default]
    Own,
    /// In the overflow of its limit.
    Overflow,
    /// Nowhere.
    None,
}

/// The table's shape. Workers with the same domain and size share its contents.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    prefix: Vec<u8>,
    sets: u32,
    hash_key: [u8; 16],
}

impl Table {
    /// A table of at least `buckets` entries, at least one set.
    pub(crate) fn new(domain: &str, buckets: u32, hash_key: [u8; 16]) -> Self {
        let sets = buckets.div_ceil(u32::try_from(WAYS).unwrap_or(1)).max(1);
        Self {
            prefix: format!("rl1:{domain}:{sets}:").into_bytes(),
            sets,
            hash_key,
        }
    }

    /// The key of a limit's bucket for some `per` values, in [`Role::Global`].
    pub(crate) fn key<'v>(
        &self,
        limit: &str,
        values: impl Iterator<Item = Option<&'v [u8]>>,
    ) -> BucketKey {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(limit.as_bytes());
        let overflow = hasher.finish128().h1;
        for value in values {
            // Lengths separate the values: ("ab", "c") is not ("a", "bc"), and a missing value is
            // not an empty one.
            match value {
                Some(value) => {
                    hasher.write_u8(1);
                    hasher.write_u64(value.len().try_into().unwrap_or(u64::MAX));
                    hasher.write(value);
                }
                None => hasher.write_u8(0),
            }
        }
        let hash = hasher.finish128();
        let scaled = (u128::from(hash.h1) * u128::from(self.sets)) >> 64;
        BucketKey {
            set: u32::try_from(scaled).unwrap_or(0),
            tag: hash.h2,
            overflow,
        }
    }

    /// Reads a bucket whose limit has this generation.
    pub(crate) fn read<E: Record>(
        &self,
        host: &impl Host,
        key: BucketKey,
        generation: u64,
        now: Now,
    ) -> Found<E> {
        match host.load(&self.set_key(key)) {
            Some(read) => Set::parse(&read.bytes).find(key, generation, now),
            None => Found::default(),
        }
    }

    /// Changes the entry of a bucket. `change` may run several times, each time on the current entry;
    /// it returns whether to write it.
    pub(crate) fn update<E: Record, R>(
        &self,
        host: &impl Host,
        key: BucketKey,
        generation: u64,
        now: Now,
        mut change: impl FnMut(&mut Found<E>) -> Update<R>,
    ) -> Result<R, Contended> {
        host::update(host, &self.set_key(key), |bytes| {
            let set = Set::parse(bytes);
            let mut found = set.find(key, generation, now);
            match change(&mut found) {
                Update::Keep(result) => Change::Keep(result),
                Update::Write(result) => match set.with(key, generation, found, now) {
                    Some(bytes) => Change::Write(bytes, result),
                    None => Change::Keep(result),
                },
            }
        })
    }

    fn set_key(&self, key: BucketKey) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 5);
        name.extend_from_slice(&self.prefix);
        // Seven bits per byte, because keys must be UTF-8.
        for shift in [0, 7, 14, 21, 28] {
            let [low, ..] = (key.set >> shift).to_le_bytes();
            name.push(low & 0x7f);
        }
        name
    }
}

/// What to do with an entry that was read.
#[derive(Debug)]
pub(crate) enum Update<R> {
    /// Leave the table as it is.
    Keep(R),
    /// Write the entry if there is room for it, otherwise the overflow.
    Write(R),
}

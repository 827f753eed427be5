//! What the proxy remembers of single buckets, in the memory that its workers share.
//!
//! Shared data can neither be bounded nor cleaned, so the table is: a fixed
//! number of sets, each one shared value with room for [`WAYS`] buckets. A
//! bucket's set and tag come from a hash whose key is random per process, so
//! that clients cannot choose whom to push out. Writes compare versions and
//! are tried a bounded number of times.
//!
//! A bucket that is in use, or whose debt no limiter knows, is never pushed out.
//! Where a set is full of such, the buckets of one limit that find no room there
//! share one more, its *overflow*: together they get what one of them would, and
//! whoever finds room later starts with what is left of it. So nobody gets more
//! than its limit by being forgotten, and nobody waits anew each time. What is
//! admitted by an overflow leaves no debt: of one bucket that is at most what it
//! would have got back meanwhile.

mod debt;
mod denial;
mod entry;
mod set;

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

pub(crate) use debt::Debt;
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
/// Overflows per set: limits of which buckets find no room there at once. Those of further limits
/// have nothing left.
const OVERFLOWS: usize = 2;

/// An entry of the table. Each role of a bucket has one type of them: [`BucketEntry`], or the lease's
/// own, which this module does not know.
pub(crate) trait Record: Default {
    /// Appends the entry to a value.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads an entry; `None` if the bytes are not one.
    fn read(bytes: &[u8]) -> Option<Self>;

    /// Until when the entry must not be evicted, on the monotonic clock; 0: it may be at any time.
    fn in_use_until_us(&self) -> u64;
}

/// What the table knows of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found<E> {
    /// Its entry; a default one if there is none of the asked generation.
    pub(crate) entry: E,
    /// Where there is room for it.
    pub(crate) room: Room,
    /// What the limit's buckets without room share; the entry's own state goes before it.
    pub(crate) overflow: Option<LocalState>,
}

/// Where there is room for a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Room {
    /// In the table.
    #[default]
    Own,
    /// Only among those that share.
    Overflow,
    /// Not even there.
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

    /// Where the bucket of a limit for some `per` values is, in the role of [`Role::Global`].
    pub(crate) fn key<'v>(
        &self,
        limit: &str,
        values: impl Iterator<Item = Option<&'v [u8]>>,
    ) -> BucketKey {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(limit.as_bytes());
        let overflow = hasher.finish128().h1;
        for value in values {
            // Lengths in between: ("ab", "c") is not ("a", "bc"), nor a missing value an empty one.
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

    /// What is known of a bucket whose limit is of this generation.
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

    /// Changes a bucket's entry. `change` may run several times, each time on what is there then;
    /// it returns whether the entry is to be written.
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
        let mut name = Vec::with_capacity(self.prefix.len() + 4);
        name.extend_from_slice(&self.prefix);
        name.extend_from_slice(&key.set.to_le_bytes());
        name
    }
}

/// What to do with an entry after a look at it.
#[derive(Debug)]
pub(crate) enum Update<R> {
    /// Leave the table as it is.
    Keep(R),
    /// Store the entry if there is room for it, else the overflow.
    Write(R),
}

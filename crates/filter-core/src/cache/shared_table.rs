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

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::{
    cache::{BucketAt, BucketEntry, BucketKey, LocalState},
    host::{self, Change, Contended, Host, Now, Put, Reader},
};

/// Bound: entries of a set of the shared table, whose size is `memory.buckets` in all. Beyond it,
/// the least recently written entry that is neither in use nor in debt is evicted; without one,
/// buckets share their limit's overflow bucket.
const WAYS: usize = 4;
/// Bound: limits of a set whose buckets may share an overflow bucket with the quota of one. Beyond
/// it, buckets of further limits have nothing left.
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

    /// The key of the bucket of a limit of this generation for some `per` values, in [`Role::Global`].
    pub(crate) fn key<'v>(
        &self,
        (limit, overflow_generation): (&str, u64),
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
            overflow_generation,
        }
    }

    /// Reads a bucket of this generation.
    pub(crate) fn read<E: Record>(&self, host: &impl Host, bucket: BucketAt, now: Now) -> Found<E> {
        match host.load(&self.set_key(bucket.key)) {
            Some(read) => Set::parse(&read.bytes).find(bucket, now),
            None => Found::default(),
        }
    }

    /// Changes the entry of a bucket. `change` may run several times, each time on the current entry;
    /// it returns whether to write it.
    pub(crate) fn update<E: Record, R>(
        &self,
        host: &impl Host,
        bucket: BucketAt,
        now: Now,
        mut change: impl FnMut(&mut Found<E>) -> Update<R>,
    ) -> Result<R, Contended> {
        host::update(host, &self.set_key(bucket.key), |bytes| {
            let set = Set::parse(bytes);
            let mut found = set.find(bucket, now);
            match change(&mut found) {
                Update::Keep(result) => Change::Keep(result),
                Update::Write(result) => match set.with(bucket, found, now) {
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

impl<R> Update<R> {
    pub(crate) fn new(changed: bool, result: R) -> Self {
        if changed {
            Self::Write(result)
        } else {
            Self::Keep(result)
        }
    }
}

// --- A set: the entries in one value of shared data.

/// The first byte of a set; each layout has its own number.
const FORMAT: u8 = 3;

/// A set whose entries are located but not parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Set<'a> {
    ways: [Option<Way<'a>>; WAYS],
    overflows: [Option<Way<'a>>; OVERFLOWS],
}

/// One entry of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way<'a> {
    tag: u64,
    generation: u64,
    touched_us: u64,
    /// It must not be evicted before this time.
    in_use_until_us: u64,
    entry: &'a [u8],
}

impl<'a> Way<'a> {
    fn parse(reader: &mut Reader<'a>) -> Option<Self> {
        let [tag, generation, touched_us, in_use_until_us] = reader.u64s()?;
        let len = usize::try_from(reader.u32()?).ok()?;
        Some(Self {
            tag,
            generation,
            touched_us,
            in_use_until_us,
            entry: reader.take(len)?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64s(&[
            self.tag,
            self.generation,
            self.touched_us,
            self.in_use_until_us,
        ]);
        out.put_u32(self.entry.len().try_into().unwrap_or(u32::MAX));
        out.extend_from_slice(self.entry);
    }

    fn is_in_use(&self, now: Now) -> bool {
        !now.reached(self.in_use_until_us)
    }
}

/// The way for a tag: its own, or a free one, or the least recently written of those not in use.
fn room_in(ways: &[Option<Way<'_>>], tag: u64, now: Now) -> Option<usize> {
    let same = |way: &Option<Way<'_>>| way.is_some_and(|way| way.tag == tag);
    let may_go = |(_, way): &(usize, &Option<Way<'_>>)| way.is_none_or(|way| !way.is_in_use(now));
    // `None`, a free way, sorts first.
    let touched = |(_, way): &(usize, &Option<Way<'_>>)| way.map(|way| way.touched_us);
    ways.iter().position(same).or_else(|| {
        let oldest = ways.iter().enumerate().filter(may_go).min_by_key(touched);
        oldest.map(|(at, _)| at)
    })
}

impl<'a> Set<'a> {
    /// Parses a set. Bytes that are not a set count as an empty one; a truncated set keeps its complete
    /// entries.
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut reader = Reader::new(bytes);
        let mut set = Self::default();
        if reader.u8() != Some(FORMAT) {
            return set;
        }
        let ways = usize::from(reader.u8().unwrap_or(0));
        for way in set.ways.iter_mut().take(ways) {
            *way = Way::parse(&mut reader);
        }
        for way in &mut set.overflows {
            *way = Way::parse(&mut reader);
        }
        set
    }

    /// The entry of a bucket. One of another generation counts as absent: its limit was edited.
    pub(super) fn find<E: Record>(&self, bucket: BucketAt, now: Now) -> Found<E> {
        let BucketAt { key, generation } = bucket;
        let own = find_way(&self.ways, key.tag).filter(|way| way.generation == generation);
        let overflow = find_way(&self.overflows, key.overflow);
        let overflow = overflow.filter(|way| way.generation == key.overflow_generation);
        let overflow = overflow.and_then(|way| BucketEntry::read(way.entry));
        Found {
            entry: own.and_then(|way| E::read(way.entry)).unwrap_or_default(),
            room: if room_in(&self.ways, key.tag, now).is_some() {
                Room::Own
            } else if room_in(&self.overflows, key.overflow, now).is_some() {
                Room::Overflow
            } else {
                Room::None
            },
            overflow: overflow.and_then(|entry| entry.local),
        }
    }

    /// The set with an entry in it, or with the overflow of its limit where the entry has no room;
    /// `None`: there is nothing to write.
    pub(super) fn with<E: Record>(
        mut self,
        bucket: BucketAt,
        found: Found<E>,
        now: Now,
    ) -> Option<Vec<u8>> {
        let BucketAt { key, generation } = bucket;
        let mut bytes = Vec::with_capacity(192);
        let (ways, tag, generation, in_use_until_us) = match found.room {
            Room::Own => {
                found.entry.write(&mut bytes);
                let until_us = found.entry.in_use_until_us();
                (&mut self.ways[..], key.tag, generation, until_us)
            }
            Room::Overflow => {
                let entry = BucketEntry {
                    local: Some(found.overflow?),
                    ..BucketEntry::default()
                };
                entry.write(&mut bytes);
                let until_us = entry.in_use_until_us();
                let generation = key.overflow_generation;
                (&mut self.overflows[..], key.overflow, generation, until_us)
            }
            Room::None => return None,
        };
        let at = room_in(ways, tag, now)?;
        let slot = ways.get_mut(at)?;
        *slot = None;
        let new = Way {
            tag,
            generation,
            touched_us: now.mono_us,
            in_use_until_us,
            entry: &bytes,
        };
        let own = (found.room == Room::Own).then_some(&new);
        let overflow = (found.room == Room::Overflow).then_some(&new);
        let ways = self.ways.iter().flatten().count() + usize::from(own.is_some());
        let mut out = Vec::with_capacity(512);
        out.put_u8(FORMAT);
        out.put_u8(u8::try_from(ways).unwrap_or(0));
        for way in own.into_iter().chain(self.ways.iter().flatten()) {
            way.write(&mut out);
        }
        for way in overflow.into_iter().chain(self.overflows.iter().flatten()) {
            way.write(&mut out);
        }
        Some(out)
    }
}

fn find_way<'w, 'a>(ways: &'w [Option<Way<'a>>], tag: u64) -> Option<&'w Way<'a>> {
    ways.iter().flatten().find(|way| way.tag == tag)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::{CachedDenial, DebtSpan, bucket_entry::tests::any_entry};
    use crate::host::at;

    fn key(tag: u64, overflow: u64) -> BucketKey {
        BucketKey {
            set: 0,
            tag,
            overflow,
            overflow_generation: 1,
        }
    }

    fn state(until_ms: u64) -> LocalState {
        LocalState {
            bytes: vec![1],
            touched_us: 0,
            unused_at_us: until_ms * 1000,
        }
    }

    /// A set whose ways are all in use until then, by buckets of limit 1.
    fn full(until_ms: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for tag in 0..4 {
            let set = Set::parse(&bytes);
            let mut found = set.find::<BucketEntry>(key(tag, 1).at(1), at(1));
            assert_eq!(found.room, Room::Own);
            found.entry.local = Some(state(until_ms));
            bytes = set.with(key(tag, 1).at(1), found, at(1)).unwrap();
        }
        bytes
    }

    proptest! {
        #[test]
        fn entries_of_any_size_are_found_again(entries in proptest::collection::vec(any_entry(), 1..=4)) {
            let mut bytes = Vec::new();
            for (tag, entry) in (0..).zip(&entries) {
                let found = Found { entry: entry.clone(), ..Found::default() };
                bytes = Set::parse(&bytes).with(key(tag, 9).at(1), found, at(1)).unwrap();
            }
            for (tag, entry) in (0..).zip(entries) {
                prop_assert_eq!(Set::parse(&bytes).find::<BucketEntry>(key(tag, 9).at(1), at(1)).entry, entry);
            }
        }

        #[test]
        fn parsing_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = bytes;
            bytes.insert(0, FORMAT);
            let set = Set::parse(&bytes);
            let found = set.find::<BucketEntry>(key(1, 1).at(1), at(1));
            let _ = set.with(key(1, 1).at(1), found, at(1));
        }
    }

    #[test]
    fn an_entry_in_use_is_not_evicted() {
        let bytes = full(100);
        let found = Set::parse(&bytes).find::<BucketEntry>(key(7, 1).at(1), at(99));
        assert_eq!(found.room, Room::Overflow);
        let found = Set::parse(&bytes).find::<BucketEntry>(key(7, 1).at(1), at(100));
        assert_eq!(found.room, Room::Own);
    }

    #[test]
    fn a_denial_may_be_evicted_but_a_debt_may_not() {
        let mut bytes = full(100);
        let mut entry = BucketEntry {
            denial: Some(CachedDenial::new(at(1), None, 1000, 1)),
            ..BucketEntry::default()
        };
        assert_eq!(entry.in_use_until_us(), 0);
        let span = DebtSpan::Rolling(1_000_000);
        entry.debt.add(1, span, 1_000);
        let found = Found {
            entry,
            ..Found::default()
        };
        bytes = Set::parse(&bytes)
            .with(key(2, 1).at(1), found, at(1))
            .unwrap();
        // The others are out of use.
        let mut status = 0;
        for tag in 10..13 {
            let set = Set::parse(&bytes);
            let mut found = set.find::<BucketEntry>(key(tag, 1).at(1), at(200));
            found.entry.local = Some(state(1000));
            status += u32::from(found.room == Room::Own);
            bytes = set.with(key(tag, 1).at(1), found, at(200)).unwrap();
        }
        assert_eq!(status, 3);
        let found = Set::parse(&bytes).find::<BucketEntry>(key(13, 1).at(1), at(200));
        assert_eq!(found.room, Room::Overflow);
        let debt = Set::parse(&bytes)
            .find::<BucketEntry>(key(2, 1).at(1), at(200))
            .entry
            .debt;
        assert_eq!(debt.units(span, 200_000), 1);
    }

    #[test]
    fn limits_do_not_share_an_overflow_bucket() {
        let mut bytes = full(100);
        for (limit, room) in [(1, Room::Overflow), (2, Room::Overflow), (3, Room::None)] {
            let set = Set::parse(&bytes);
            let mut found = set.find::<BucketEntry>(key(50 + limit, limit).at(1), at(2));
            assert_eq!(
                (found.room, found.overflow.clone()),
                (room, None),
                "limit {limit}"
            );
            found.overflow = Some(state(100 + limit));
            bytes = set
                .with(key(50 + limit, limit).at(1), found, at(2))
                .unwrap_or(bytes.clone());
        }
        let overflow = |limit| {
            Set::parse(&bytes)
                .find::<BucketEntry>(key(99, limit).at(1), at(2))
                .overflow
        };
        assert_eq!(
            [overflow(1), overflow(2), overflow(3)],
            [Some(state(101)), Some(state(102)), None]
        );
    }
}

//! The one hash that every proxy and limiter, of every version, has to agree on, and lists that are
//! searched by it.

use std::{hash::Hasher, iter};

use documents::Name;
use siphasher::sip::SipHasher13;

use crate::Limit;

/// The number of a limit's bucket: SipHash-1-3 with a zero key over the limit's name and the
/// bucket's values, each preceded by its length (and a flag for absence).
///
/// Changing anything here moves users in and out of partly enforced limits.
pub fn bucket_hash<V: AsRef<[u8]>>(limit: &Name, values: &[Option<V>]) -> u64 {
    let mut hasher = SipHasher13::new();
    write(&mut hasher, Some(limit.as_str().as_bytes()));
    write_all(&mut hasher, values);
    hasher.finish()
}

/// A hash of the values of a bucket of one limit, for use within this process.
pub fn values_hash(values: &[Option<Vec<u8>>]) -> u64 {
    let mut hasher = SipHasher13::new();
    write_all(&mut hasher, values);
    hasher.finish()
}

fn write_all<V: AsRef<[u8]>>(hasher: &mut SipHasher13, values: &[Option<V>]) {
    for value in values {
        write(hasher, value.as_ref().map(AsRef::as_ref));
    }
}

fn write(hasher: &mut SipHasher13, value: Option<&[u8]>) {
    let Some(value) = value else {
        hasher.write(&[0]);
        return;
    };
    hasher.write(&[1]);
    let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
    hasher.write(&length.to_le_bytes());
    hasher.write(value);
}

/// How many proxies a leased bucket distinguishes.
pub const PROXY_MARKS: u8 = algorithms::PROXY_MARKS;

/// The mark of a proxy, one of [`PROXY_MARKS`] numbers, for the buckets that it leases from.
pub fn proxy_mark(proxy: &str) -> u8 {
    let mut hasher = SipHasher13::new();
    hasher.write(proxy.as_bytes());
    let mark = hasher.finish() % u64::from(PROXY_MARKS);
    u8::try_from(mark).unwrap_or(0)
}

/// A digest of a stored record, to distinguish revisions of the same number.
pub fn digest(record: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(record);
    hasher.finish()
}

impl Limit {
    /// Whether a bucket of this limit is enforced (`true`) or only reported. A bucket that is
    /// enforced at a percentage is so at every higher one.
    pub fn enforces<V: AsRef<[u8]>>(&self, values: &[Option<V>]) -> bool {
        match self.enforce_percent {
            0 => false,
            100.. => true,
            percent => bucket_hash(&self.name, values) % 100 < u64::from(percent),
        }
    }
}

/// The fewest chains.
const FEWEST: usize = 8;

/// The positions in a list where an item with a given hash may be: how limits, buckets and names are
/// found. Several may share a hash, so callers compare.
///
/// One type for every kind of list, and chains rather than the standard library's map, because the
/// filter contains the code of each kind of map: this one is a fifth of that. Hashes of texts that
/// clients choose do not belong here: the hashes are not keyed.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    /// The first entry of each chain. There is a power of two of chains, at least as many as entries.
    chains: Vec<Number>,
    entries: Vec<Entry>,
}

/// An entry by its number, counted from 1; 0 is none.
type Number = usize;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    position: usize,
    /// The next one in its chain, which has one entry of each hash: many positions under one hash make no other
    /// lookup longer.
    next: Number,
    /// The one that was added before it under the same hash.
    same: Number,
}

impl Positions {
    /// Adds a position under a hash.
    pub fn add(&mut self, hash: u64, position: usize) {
        self.entries.push(Entry {
            hash,
            position,
            next: 0,
            same: 0,
        });
        let count = self.entries.len();
        if count <= self.chains.len() {
            return self.link(count);
        }
        self.chains = vec![0; (2 * self.chains.len()).max(FEWEST)];
        for number in 1..=count {
            self.link(number);
        }
    }

    /// Every position under a hash. Without removals, the last that was added comes first.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = usize> {
        self.entries_of(hash).map(|(_, entry)| entry.position)
    }

    fn entries_of(&self, hash: u64) -> impl Iterator<Item = (Number, &Entry)> {
        let (_, mut next) = self.find(hash);
        iter::from_fn(move || {
            let number = next;
            let entry = self.entry(number)?;
            next = entry.same;
            Some((number, entry))
        })
    }

    fn entry(&self, number: Number) -> Option<&Entry> {
        self.entries.get(number.checked_sub(1)?)
    }

    fn entry_mut(&mut self, number: Number) -> Option<&mut Entry> {
        self.entries.get_mut(number.checked_sub(1)?)
    }

    /// The entry of a hash in its chain, and the one before it there.
    fn find(&self, hash: u64) -> (Number, Number) {
        let chain = self.chains.get(self.chain_of(hash));
        let (mut before, mut number) = (0, chain.copied().unwrap_or(0));
        while let Some(entry) = self.entry(number).filter(|entry| entry.hash != hash) {
            (before, number) = (number, entry.next);
        }
        (before, number)
    }

    /// Lets an entry follow another one in the chain of a hash; 0: be the first.
    fn follow(&mut self, hash: u64, before: Number, number: Number) {
        let chain = self.chain_of(hash);
        if let Some(entry) = self.entry_mut(before) {
            entry.next = number;
        } else if let Some(first) = self.chains.get_mut(chain) {
            *first = number;
        }
    }

    /// Removes a position under a hash, if it is there.
    pub fn remove(&mut self, hash: u64, position: usize) {
        let mut of = self.entries_of(hash);
        let Some((number, _)) = of.find(|(_, entry)| entry.position == position) else {
            return;
        };
        drop(of);
        let last = self.entries.len();
        self.unlink(number);
        self.unlink(last);
        self.entries.swap_remove(number - 1);
        if number < last {
            self.link(number);
        }
    }

    fn unlink(&mut self, number: Number) {
        let Some(gone) = self.entry(number).copied() else {
            return;
        };
        let (before, mut at) = self.find(gone.hash);
        if at == number {
            let next = match self.entry_mut(gone.same) {
                Some(same) => {
                    same.next = gone.next;
                    gone.same
                }
                None => gone.next,
            };
            return self.follow(gone.hash, before, next);
        }
        while let Some(entry) = self.entry_mut(at) {
            if entry.same == number {
                entry.same = gone.same;
            }
            at = entry.same;
        }
    }

    fn link(&mut self, number: Number) {
        let Some(hash) = self.entry(number).map(|entry| entry.hash) else {
            return;
        };
        let (before, same) = self.find(hash);
        let next = self.entry(same).map_or(0, |entry| entry.next);
        if let Some(entry) = self.entry_mut(number) {
            (entry.next, entry.same) = (next, same);
        }
        self.follow(hash, before, number);
    }

    fn chain_of(&self, hash: u64) -> usize {
        // The bits cut off are as random as the rest.
        let low = u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0);
        let low = usize::try_from(low).unwrap_or(0);
        low & self.chains.len().saturating_sub(1)
    }
}

/// Distinct names in the order in which they were added, each found by a lookup. They must come from authors of limits, not from clients:
/// see `Positions`.
#[derive(Clone, Debug, Default)]
pub struct Names<'n> {
    list: Vec<&'n str>,
    positions: Positions,
}

impl<'n> Names<'n> {
    /// Adds a name; returns whether it is new.
    pub fn add(&mut self, name: &'n str) -> bool {
        if self.position(name).is_some() {
            return false;
        }
        self.positions.add(digest(name.as_bytes()), self.list.len());
        self.list.push(name);
        true
    }

    /// Where a name is in the list.
    pub fn position(&self, name: &str) -> Option<usize> {
        let mut positions = self.positions.of(digest(name.as_bytes()));
        positions.find(|at| self.list.get(*at).is_some_and(|known| *known == name))
    }

    /// All of them.
    pub fn list(&self) -> &[&'n str] {
        &self.list
    }
}

#[cfg(test)]
mod tests;

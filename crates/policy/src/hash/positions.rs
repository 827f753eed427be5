//! Positions by hash: how limits, buckets and names are found in lists.

use std::{iter, mem};

/// The fewest chains.
const FEWEST: usize = 8;

/// The positions in a list where an item with a given hash may be. Several may share a hash, so
/// callers compare.
///
/// One type for every kind of list, and chains rather than the standard library's map, because the
/// filter contains the code of each kind of map: this one is a fifth of that. Hashes of texts that
/// clients choose do not belong here: the hashes are not keyed.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    /// The last entry of each chain. There is a power of two of chains, at least as many as entries.
    chains: Vec<Number>,
    entries: Vec<Entry>,
}

/// An entry by its number, counted from 1; 0 is none.
type Number = usize;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    position: usize,
    /// The one before it in its chain.
    before: Number,
}

impl Positions {
    /// Adds a position under a hash.
    pub fn add(&mut self, hash: u64, position: usize) {
        self.entries.push(Entry {
            hash,
            position,
            before: 0,
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

    /// Every position under a hash, the last that was added first.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = usize> {
        let chain = self.chains.get(self.chain_of(hash));
        let mut next = chain.copied().unwrap_or(0);
        iter::from_fn(move || {
            loop {
                let entry = self.entries.get(next.checked_sub(1)?)?;
                next = entry.before;
                if entry.hash == hash {
                    return Some(entry.position);
                }
            }
        })
    }

    fn link(&mut self, number: Number) {
        let Some(entry) = self.entries.get(number - 1) else {
            return;
        };
        let chain = self.chain_of(entry.hash);
        if let Some(chain) = self.chains.get_mut(chain)
            && let Some(entry) = self.entries.get_mut(number - 1)
        {
            entry.before = mem::replace(chain, number);
        }
    }

    fn chain_of(&self, hash: u64) -> usize {
        // The bits cut off are as random as the rest.
        let low = u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0);
        let low = usize::try_from(low).unwrap_or(0);
        low & self.chains.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_positions_of_a_hash_are_found_last_one_first() {
        let mut positions = Positions::default();
        assert_eq!(positions.of(0).next(), None);
        // Every hash occurs three times, and many fall into one chain.
        let hashes = (0..3000_u64).map(|n| n % 1000 * 64);
        for (position, hash) in hashes.enumerate() {
            positions.add(hash, position);
        }
        for n in 0..1000 {
            let of: Vec<usize> = positions.of(n * 64).collect();
            let n = usize::try_from(n).unwrap();
            assert_eq!(of, [n + 2000, n + 1000, n]);
        }
        assert_eq!(positions.of(1).next(), None);
    }
}

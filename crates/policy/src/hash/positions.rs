//! Positions by hash: how limits, buckets and names are found in lists.

use std::{collections::HashMap, iter};

use super::Hashed;

/// Where in a list something of a hash may stand. Several may share one: who asks compares.
///
/// One type for every kind of list, because the filter carries the code of each kind of map.
/// Hashes of texts that strangers choose do not belong here: none of them is keyed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions {
    /// The last of `entries` under each hash.
    last: HashMap<u64, usize, Hashed>,
    /// Positions, each with the entry before it under the same hash.
    entries: Vec<(usize, Option<usize>)>,
}

impl Positions {
    #[inline(never)]
    pub(crate) fn add(&mut self, hash: u64, position: usize) {
        let before = self.last.insert(hash, self.entries.len());
        self.entries.push((position, before));
    }

    /// Every position under a hash, the last that was added first.
    pub(crate) fn of(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mut next = self.last.get(&hash).copied();
        iter::from_fn(move || {
            let (position, before) = *self.entries.get(next?)?;
            next = before;
            Some(position)
        })
    }
}

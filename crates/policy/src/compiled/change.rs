//! A change of compiled limits at the cost of what changed: a proxy with thousands of limits has requests to
//! decide meanwhile. What does not change is shared with the limits before, which requests in flight keep.

use std::{mem, sync::Arc};

use documents::Name;

use super::{Compiled, Exempt, Index, Overrides, Rule, Service, Shape};
use crate::{Exemption, Limit, Opaque, Revision, digest, hash::Positions};

/// What turns some limits into those of another revision, whatever they were before.
pub(crate) struct Change {
    pub(crate) revision: Revision,
    /// Descriptor entries that the limits need, if there may be others than before.
    pub(crate) keys: Vec<Name>,
    /// Limits that are gone, or were.
    pub(crate) gone: Vec<Name>,
    /// Limits that are new, other than before or elsewhere in the order, by their places in it.
    pub(crate) limits: Vec<Changed>,
}

/// A limit of a change.
pub(crate) struct Changed {
    /// Its place in the order of the limits.
    pub(crate) rank: usize,
    /// The hash of its bytes.
    pub(crate) hash: u64,
    pub(crate) limit: Limit,
    /// Whether it has overrides that only limiters have.
    pub(crate) elsewhere: bool,
}

/// What says whether limits and exemptions are the same and in the same order, by the hashes of their bytes.
pub(crate) fn check_of(limits: impl IntoIterator<Item = u64>, exemptions: u64) -> u64 {
    let ranked = (0_u64..).zip(limits);
    ranked.fold(exemptions, |sum, (rank, hash)| {
        sum.wrapping_add(hash.wrapping_mul(2 * rank + 1))
    })
}

/// The rank of a limit that has none yet.
const UNRANKED: usize = usize::MAX;

impl Compiled {
    /// Whether changes can be applied: all limits came with a snapshot, and all could be read.
    pub fn takes_changes(&self) -> bool {
        self.opaque.is_empty() && self.hashes.len() == self.limits.len()
    }

    /// The limits of a whole snapshot, as a filter compiles them: without those of the rate limit service, of
    /// which it needs no code. With the exemptions comes their digest. `None` if one needs an entry that is
    /// not among the keys.
    pub(crate) fn of_snapshot(
        domain: Name,
        change: Change,
        (exemptions, exemptions_digest): (Vec<Exemption>, u64),
        opaque: Vec<Opaque>,
    ) -> Option<Self> {
        let mut exempting = exemptions.iter().flat_map(|found| &found.matchers);
        if !exempting.all(|matcher| change.keys.contains(&matcher.entry)) {
            return None;
        }
        let shape = Shape {
            by_name: Positions::default(),
            keys: Vec::new(),
            rules: Vec::new(),
            ranks: Vec::new(),
            index: Index::new(&[], 0),
            exempt: Exempt::new(exemptions, &change.keys),
            service: Arc::new(Service::default()),
            has_replaces: false,
        };
        let empty = Self {
            domain,
            revision: Revision::default(),
            paused: None,
            limits: Vec::new(),
            shape: Arc::new(shape),
            overrides: Vec::new(),
            opaque: Vec::new(),
            hashes: Vec::new(),
            exemptions_digest,
        };
        let (limits, _) = empty.after(change)?;
        Some(Self { opaque, ..limits })
    }

    /// The limits after a change; `None` if the [`check_of`] them is another one, so the change does not lead
    /// from these to those of its revision. So whatever was lost, repeated or mixed up on the way, no limits of
    /// two revisions come together.
    pub(crate) fn changed(&self, change: Change, check: u64) -> Option<Self> {
        let takes = self.takes_changes();
        let (next, found) = takes.then(|| self.after(change))??;
        (found == check).then_some(next)
    }

    #[inline(never)]
    fn after(&self, change: Change) -> Option<(Self, u64)> {
        // Field by field: the code of a clone of all would be 2 KB more of the filter.
        let mut next = Self {
            domain: self.domain.clone(),
            revision: change.revision,
            paused: None,
            limits: self.limits.clone(),
            shape: Arc::clone(&self.shape),
            overrides: self.overrides.clone(),
            // Only a whole snapshot has any.
            opaque: Vec::new(),
            hashes: self.hashes.clone(),
            exemptions_digest: self.exemptions_digest,
        };
        let mut shape = Shape::clone(&self.shape);
        if shape.ranks.is_empty() {
            shape.ranks = (0..next.limits.len()).collect();
        }
        for key in change.keys {
            if !shape.keys.contains(&key) {
                shape.keys.push(key);
            }
        }
        shape.index.widen(shape.keys.len());
        for name in &change.gone {
            if let Some(at) = next.position_in(&shape, name.as_str()) {
                next.remove(&mut shape, at)?;
            }
        }
        let mut ranked = Vec::with_capacity(change.limits.len());
        for changed in change.limits {
            let rank = changed.rank;
            ranked.push((rank, next.put(&mut shape, changed)?));
        }
        let check = next.rank_all(&mut shape, ranked)?;
        next.shape = Arc::new(shape);
        Some((next, check))
    }

    /// Removes the limit at a position, which the last limit gets.
    fn remove(&mut self, shape: &mut Shape, at: usize) -> Option<()> {
        let last = self.limits.len().checked_sub(1)?;
        self.unfile(shape, at)?;
        shape.by_name.remove(self.name_hash(at)?, at);
        if at < last {
            self.unfile(shape, last)?;
            let moved = self.name_hash(last)?;
            shape.by_name.remove(moved, last);
            shape.by_name.add(moved, at);
        }
        // All of one length, and longer than `at`.
        self.limits.swap_remove(at);
        self.overrides.swap_remove(at);
        self.hashes.swap_remove(at);
        shape.rules.swap_remove(at);
        shape.ranks.swap_remove(at);
        shape.index.shorten(last);
        if at < last {
            self.file(shape, at)?;
        }
        Some(())
    }

    /// Replaces the limit of the same name, or adds this one; returns its position.
    fn put(&mut self, shape: &mut Shape, changed: Changed) -> Option<usize> {
        let Changed {
            hash,
            mut limit,
            elsewhere,
            ..
        } = changed;
        let mut overrides = Overrides::new(&limit.name, mem::take(&mut limit.overrides));
        overrides.set_elsewhere(elsewhere);
        shape.has_replaces |= !limit.replaces.is_empty();
        let rule = Rule::new(&limit, |key| {
            shape.keys.iter().position(|known| known == key)
        });
        // Whoever sent it had the key before, and these limits never did.
        if (rule.matchers.len(), rule.per.len()) != (limit.matchers.len(), limit.per.len()) {
            return None;
        }
        let (limit, rule) = (Arc::new(limit), Arc::new(rule));
        let at = if let Some(at) = self.position_in(shape, limit.name.as_str()) {
            self.unfile(shape, at)?;
            *self.limits.get_mut(at)? = limit;
            *self.overrides.get_mut(at)? = overrides;
            *self.hashes.get_mut(at)? = hash;
            *shape.rules.get_mut(at)? = rule;
            *shape.ranks.get_mut(at)? = UNRANKED;
            at
        } else {
            let at = self.limits.len();
            self.limits.push(limit);
            self.overrides.push(overrides);
            self.hashes.push(hash);
            shape.rules.push(rule);
            shape.ranks.push(UNRANKED);
            shape.by_name.add(self.name_hash(at)?, at);
            at
        };
        self.file(shape, at)?;
        Some(at)
    }

    /// Gives each limit its place in the order: the changed ones theirs, around which the others keep
    /// their order. Returns the [`check_of`] all.
    fn rank_all(&self, shape: &mut Shape, changed: Vec<(usize, usize)>) -> Option<u64> {
        let ranks = shape.ranks.iter().filter(|rank| **rank != UNRANKED);
        let mut by_rank = vec![None; ranks.max().map_or(0, |rank| rank + 1)];
        for (at, rank) in shape.ranks.iter().enumerate() {
            if let Some(place) = by_rank.get_mut(*rank) {
                *place = Some(at);
            }
        }
        let mut order = Vec::with_capacity(self.limits.len());
        let mut changed = changed.into_iter().peekable();
        for kept in by_rank.into_iter().flatten() {
            while let Some((_, at)) = changed.next_if(|(rank, _)| *rank <= order.len()) {
                order.push(at);
            }
            order.push(kept);
        }
        order.extend(changed.map(|(_, at)| at));
        for (rank, at) in order.iter().enumerate() {
            *shape.ranks.get_mut(*at)? = rank;
        }
        let hashes = order.iter().filter_map(|at| self.hashes.get(*at).copied());
        (order.len() == self.limits.len()).then(|| check_of(hashes, self.exemptions_digest))
    }

    fn name_hash(&self, at: usize) -> Option<u64> {
        let limit = self.limits.get(at)?;
        Some(digest(limit.name.as_str().as_bytes()))
    }

    fn file(&self, shape: &mut Shape, at: usize) -> Option<()> {
        let conditions = shape.rules.get(at)?.conditions(self.limits.get(at)?);
        shape.index.add(at, conditions);
        Some(())
    }

    fn unfile(&self, shape: &mut Shape, at: usize) -> Option<()> {
        let conditions = shape.rules.get(at)?.conditions(self.limits.get(at)?);
        shape.index.remove(at, conditions);
        Some(())
    }
}

//! A compiled policy after edits, at the cost of what they change.

use std::sync::Arc;

use algorithms::Kind;
use documents::Name;

use super::{Compiled, Overrides};
use crate::{Algorithm, Limit, Override, OverrideQuota, Policy};

/// What changed in a domain since a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edits {
    /// The domain's own fields and its revision, without limits.
    pub domain: Policy,
    /// The last edit that changed all limits; 0: none.
    pub base: u64,
    /// How many limits there are after the edits.
    pub limit_count: usize,
    /// The limits that came, changed or went (`None`), without overrides.
    pub limits: Vec<(Name, Option<Limit>)>,
    /// Limits all of whose overrides went, before those below.
    pub cleared: Vec<Name>,
    /// The overrides that came, changed or went.
    pub overrides: Vec<OverrideChange>,
}

/// A change of one override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideChange {
    /// The limit.
    pub limit: Name,
    /// The bucket.
    pub values: Vec<Option<Vec<u8>>>,
    /// `None`: it is gone.
    pub to: Option<Override>,
}

impl Compiled {
    /// The policy after edits. It shares with this one every limit and every override that they leave, and
    /// if they change only numbers, what requests are matched by.
    ///
    /// `None` if these are not enough: overrides of a limit mean something else now, or limits came or went
    /// that the edits do not list.
    pub fn caught_up(&self, edits: Edits) -> Option<Self> {
        let (mut limits, mut overrides) = (self.limits.clone(), self.overrides.clone());
        let mut same_shape = *self.exemptions() == *edits.domain.exempt;
        let mut same_order = true;
        for limit in &mut limits {
            if limit.generation < edits.base {
                Arc::make_mut(limit).generation = edits.base;
            }
        }
        for at in { edits.cleared.iter() }.filter_map(|name| self.position(name.as_str())) {
            *overrides.get_mut(at)? = Overrides::default();
        }
        let mut gone = Vec::new();
        for (name, to) in edits.limits {
            match (self.position(name.as_str()), to) {
                (Some(at), Some(limit)) => {
                    let old = limits.get_mut(at)?;
                    let overrides = overrides.get(at)?;
                    if overrides.any() && !stay(overrides, old, &limit) {
                        return None;
                    }
                    same_shape &= is_alike(old, &limit);
                    same_order &= old.place == limit.place;
                    *old = Arc::new(limit);
                }
                (Some(at), None) => gone.push(at),
                (None, Some(limit)) => {
                    limits.push(Arc::new(limit));
                    overrides.push(Overrides::default());
                    same_order = false;
                }
                (None, None) => {}
            }
        }
        if !same_order || !gone.is_empty() {
            (limits, overrides) = in_order((limits, overrides), &gone);
            same_shape = false;
        }
        (limits.len() == edits.limit_count).then_some(())?;
        let shape = same_shape.then(|| Arc::clone(&self.shape));
        let mut next = Self::of_limits(edits.domain, limits, overrides, shape);
        for change in edits.overrides {
            if let Some(at) = next.position(change.limit.as_str()) {
                let overrides = next.overrides.get_mut(at)?;
                overrides.set(&change.limit, &change.values, change.to);
            }
        }
        Some(next)
    }
}

/// Limits with their overrides in the order of their places, without those that are gone.
fn in_order(
    (limits, overrides): (Vec<Arc<Limit>>, Vec<Overrides>),
    gone: &[usize],
) -> (Vec<Arc<Limit>>, Vec<Overrides>) {
    let all = limits.into_iter().zip(overrides).enumerate();
    let left = all.filter(|(at, _)| !gone.contains(at));
    let mut left: Vec<_> = left.map(|(_, both)| both).collect();
    left.sort_by_key(|(limit, _)| limit.place);
    left.into_iter().unzip()
}

/// Whether both match the same requests and split them alike.
fn is_alike(a: &Limit, b: &Limit) -> bool {
    a.matchers == b.matchers
        && a.per == b.per
        && a.replaces == b.replaces
        && a.descriptor == b.descriptor
        && a.pricing == b.pricing
}

/// Whether the overrides of a limit are those of the limit that it becomes, as they are.
fn stay(overrides: &Overrides, old: &Limit, new: &Limit) -> bool {
    let (before, after) = (old.quota.parameters(), new.quota.parameters());
    // An override of requests in flight has the ttl of their slots.
    let same_kind = before.kind == after.kind
        && (after.kind != Kind::Concurrency || before.rate.period_ms == after.rate.period_ms);
    let same_buckets =
        old.per == new.per && old.if_missing == new.if_missing && old.scope == new.scope;
    let fits = |found: &OverrideQuota| {
        let parameters = found.parameters(after);
        parameters.is_none_or(|parameters| Algorithm::new(&parameters).is_ok())
    };
    same_buckets
        && (old.quota == new.quota || same_kind && overrides.iter().all(|found| fits(&found.quota)))
}

#[cfg(test)]
mod tests;

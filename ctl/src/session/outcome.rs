//! What an edit of limits comes to, overrides included. There may be a hundred thousand of those:
//! they are read page by page, and only where the question needs them.

mod effect;
mod unfit;

use std::collections::{BTreeMap, HashMap};

use policy::{Limit, Name, Override, Policy};
use store::{LimitOf, OverrideCursor, OverrideEdits, OverridePage};

use effect::Effect;

use super::Session;
use crate::{
    bucket::Values,
    changes::{self, LimitChange},
    error::Error,
    render::counted,
};

/// Overrides of one limit that go and are remembered. The history keeps no more than 1 MiB of an
/// edit, which is fewer.
const REMEMBERED_MAX: u64 = 20_000;
/// So many overrides that are to go, for whoever is asked whether they may.
pub fn to_go(count: u64) -> String {
    let overrides = counted(count, "override");
    if count > REMEMBERED_MAX {
        return format!("{overrides}, which no rollback brings back");
    }
    overrides
}

/// Overrides that become others, by limit and bucket; `None`: the limit's own numbers.
pub type Deltas = BTreeMap<Name, BTreeMap<Values, Option<Override>>>;

/// What an edit comes to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every limit, in the order of the policy; those that go come last.
    pub changes: Vec<LimitChange>,
    /// What is written of overrides.
    pub overrides: OverrideEdits,
    /// Overrides that stay and do not fit their limit any more, by limit. Such an edit must not be
    /// made.
    pub unfit: Vec<(Name, Vec<String>)>,
}

impl Session<'_> {
    /// What it comes to if the limits `before`, read without overrides, become `after`.
    ///
    /// A limit that lists overrides has just these afterwards. One that lists none keeps those it
    /// has, but for the deltas, unless it is split by other entries.
    pub async fn outcome(
        &self,
        before: Option<&Policy>,
        after: &Policy,
        deltas: &Deltas,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let counts = match before {
            Some(before) => self.override_counts(before).await?,
            None => Vec::new(),
        };
        let old: HashMap<&Name, (&Limit, u64)> = { before.into_iter() }
            .flat_map(|before| &before.limits)
            .zip(counts)
            .map(|(limit, count)| (&limit.name, (limit, count)))
            .collect();
        let none = BTreeMap::new();
        for limit in &after.limits {
            let deltas = deltas.get(&limit.name).unwrap_or(&none);
            let old = old.get(&limit.name).copied();
            let effect = self.effect(&after.domain, old, limit, deltas).await?;
            outcome.note(old.map(|(old, _)| old), Some(limit), effect);
        }
        for gone in before.into_iter().flat_map(|before| &before.limits) {
            if after.limit(gone.name.as_str()).is_none() {
                let count = old.get(&gone.name).map_or(0, |(_, count)| *count);
                let effect = self.all_go(&after.domain, gone, count).await?;
                outcome.note(Some(gone), None, effect);
            }
        }
        Ok(outcome)
    }
}

/// A walk over the overrides of a limit.
pub struct Walk<'a> {
    of: LimitOf<'a>,
    next: Option<OverrideCursor>,
}

impl<'a> Walk<'a> {
    /// From the beginning.
    pub fn new(domain: &'a Name, limit: &'a Limit) -> Self {
        Self {
            of: LimitOf { domain, limit },
            next: Some(OverrideCursor::default()),
        }
    }

    /// The next page; `None` after the last.
    pub async fn page(&mut self, session: &Session<'_>) -> Result<Option<OverridePage>, Error> {
        let Some(cursor) = self.next else {
            return Ok(None);
        };
        let page = session.store.scan_overrides(&self.of, cursor).await;
        let page = page.map_err(|error| session.failed(&error))?;
        self.next = page.next;
        Ok(Some(page))
    }
}

impl Outcome {
    fn note(&mut self, old: Option<&Limit>, new: Option<&Limit>, effect: Effect) {
        let Some(limit) = new.or(old) else { return };
        let edit = effect.edit.filter(|edit| {
            edit.before.as_ref().is_none_or(|before| !before.is_empty()) || !edit.after.is_empty()
        });
        let overrides = edit.as_ref().map_or_else(Vec::new, |edit| {
            let side = |limit: Option<&Limit>, found: &[Override]| {
                let per = limit.map_or(&[][..], |limit| &limit.per);
                found.iter().map(|found| found.to_node(per)).collect()
            };
            let before = side(old, edit.before.as_deref().unwrap_or_default());
            changes::of_overrides(before, side(new, &edit.after))
        });
        let change = LimitChange::of(old, new, overrides, effect.untold);
        self.changes.extend(change);
        if let Some(edit) = edit {
            self.overrides.insert(limit.name.clone(), edit);
        }
        if !effect.unfit.is_empty() {
            self.unfit.push((limit.name.clone(), effect.unfit));
        }
    }

    /// What does not fit any more, a line each; `None` if everything does.
    pub fn misfit(&self) -> Option<String> {
        let lines = self.unfit.iter().map(|(limit, lines)| {
            let lines = lines.join("\n  ");
            format!("overrides of {limit} do not fit it any more:\n  {lines}")
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        (!text.is_empty()).then_some(text)
    }
}

/// Whether every override of one means the same under the other.
fn same_numbers(a: &Limit, b: &Limit) -> bool {
    let numbers = |limit: &Limit| {
        (
            limit.quota,
            limit.if_missing,
            limit.scope,
            limit.lease_ttl_ms,
        )
    };
    numbers(a) == numbers(b)
}

#[cfg(test)]
mod tests;

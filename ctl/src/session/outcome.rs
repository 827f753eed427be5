//! What an edit of limits comes to, overrides included. There may be a hundred thousand of those:
//! they are read page by page, and only where the question needs them.

use std::collections::{BTreeMap, HashMap};

use policy::{Limit, Name, Override, Policy, Scope};
use store::{LimitOf, OverrideCursor, OverrideEdit, OverrideEdits, OverridePage, Unfit};

use super::Session;
use crate::{
    bucket::Values,
    changes::{self, LimitChange},
    error::Error,
    render::{self, counted},
};

/// Overrides of one limit that go and are remembered. The history keeps no more than 1 MiB of an
/// edit, which is fewer.
const REMEMBERED_MAX: u64 = 20_000;
/// Overrides that do not fit any more and are named; the others are counted.
const UNFIT_SHOWN: usize = 5;

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

/// What becomes of one limit's overrides.
#[derive(Default)]
struct Effect {
    edit: Option<OverrideEdit>,
    /// How many go that are too many to be told.
    untold: u64,
    unfit: Vec<String>,
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

    async fn effect(
        &self,
        domain: &Name,
        old: Option<(&Limit, u64)>,
        limit: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<Effect, Error> {
        let Some((old, count)) = old else {
            return Ok(Effect::listed(Vec::new(), limit.overrides.clone()));
        };
        if old.per != limit.per {
            let gone = self.all_go(domain, old, count).await?;
            return Ok(gone.with(limit.overrides.clone()));
        }
        if !limit.overrides.is_empty() {
            return self.compare(domain, old, limit).await;
        }
        let mut effect = self.deltas(domain, old, deltas).await?;
        if count > 0 && !same_numbers(old, limit) {
            effect.unfit = self.unfit(domain, limit, deltas, count).await?;
        }
        Ok(effect)
    }

    /// Every override goes; few enough are told.
    async fn all_go(&self, domain: &Name, limit: &Limit, count: u64) -> Result<Effect, Error> {
        if count == 0 {
            return Ok(Effect::default());
        }
        if count > REMEMBERED_MAX {
            return Ok(Effect::untold(count));
        }
        let mut gone = BTreeMap::new();
        let mut walk = Walk::new(domain, limit);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let Ok(found) = found else {
                    return Ok(Effect::untold(count));
                };
                gone.insert(found.values.clone(), found);
            }
        }
        Ok(Effect::listed(gone.into_values().collect(), Vec::new()))
    }

    /// The overrides that a limit lists, in the place of those it has.
    async fn compare(&self, domain: &Name, old: &Limit, limit: &Limit) -> Result<Effect, Error> {
        let listed = limit.overrides.iter();
        let mut listed: HashMap<&Values, (&Override, bool)> = listed
            .map(|found| (&found.values, (found, false)))
            .collect();
        let (mut before, mut after) = (BTreeMap::new(), Vec::new());
        let mut untold = 0;
        let mut walk = Walk::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let Ok(found) = found else {
                    untold += 1;
                    continue;
                };
                match listed.get_mut(&found.values) {
                    Some((_, true)) => continue,
                    Some((same, seen)) if same.reads_like(&found) => {
                        *seen = true;
                        continue;
                    }
                    Some((other, seen)) => {
                        *seen = true;
                        after.push((*other).clone());
                    }
                    None => {}
                }
                before.insert(found.values.clone(), found);
            }
        }
        let new = listed.into_values().filter(|(_, seen)| !seen);
        after.extend(new.map(|(found, _)| found.clone()));
        after.sort_by(|a, b| a.values.cmp(&b.values));
        let told = u64::try_from(before.len()).unwrap_or(u64::MAX);
        if untold > 0 || told > REMEMBERED_MAX {
            return Ok(Effect::untold(told + untold).with(after));
        }
        Ok(Effect::listed(before.into_values().collect(), after))
    }

    /// Only these overrides become others.
    async fn deltas(
        &self,
        domain: &Name,
        old: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<Effect, Error> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (values, new) in deltas {
            let found = self.override_of(domain, old, values).await?;
            let same = match (&found, new) {
                (Some(found), Some(new)) => found.reads_like(new),
                (found, new) => found.is_none() && new.is_none(),
            };
            if !same {
                before.extend(found);
                after.extend(new.clone());
            }
        }
        Ok(Effect {
            edit: Some(OverrideEdit {
                before: Some(before),
                after,
                listed: false,
            }),
            ..Effect::default()
        })
    }

    /// The overrides that do not fit a limit, in words.
    async fn unfit(
        &self,
        domain: &Name,
        limit: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
        count: u64,
    ) -> Result<Vec<String>, Error> {
        let max = u64::try_from(limit.scope.overrides_max()).unwrap_or(u64::MAX);
        if limit.scope == Scope::Proxy && count > max {
            return Ok(vec![format!(
                "{count} overrides, and every proxy would hold them: {max} at most"
            )]);
        }
        let (mut shown, mut more) = (Vec::new(), 0);
        let mut walk = Walk::new(domain, limit);
        while let Some(page) = walk.page(self).await? {
            for unfit in page.overrides.into_iter().filter_map(Result::err) {
                let values = unfit.values(&limit.per);
                if values.is_some_and(|values| deltas.contains_key(&values)) {
                    continue;
                }
                if shown.len() < UNFIT_SHOWN {
                    shown.push(in_words(&unfit));
                } else {
                    more += 1;
                }
            }
        }
        shown.sort_unstable();
        if more > 0 {
            shown.push(format!("and {}", counted(more, "more override")));
        }
        Ok(shown)
    }

    /// How many overrides a limit has and which of them an edit would leave without a bucket or
    /// without sense, in words; `None` if all of them fit.
    pub async fn overrides_left_over(
        &self,
        domain: &Name,
        before: &Limit,
        after: &Limit,
    ) -> Result<Option<(u64, Vec<String>)>, Error> {
        let split_otherwise = before.per != after.per;
        if !split_otherwise && same_numbers(before, after) {
            return Ok(None);
        }
        let count = self.override_count(domain, before).await?;
        let lines = match count {
            0 => Vec::new(),
            // One page tells it all.
            _ if split_otherwise => self.page_of_unfit(domain, after).await?,
            _ => self.unfit(domain, after, &BTreeMap::new(), count).await?,
        };
        Ok((!lines.is_empty()).then_some((count, lines)))
    }

    /// The overrides of a limit that do not fit it, in words.
    pub async fn unfit_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
    ) -> Result<Vec<String>, Error> {
        let count = self.override_count(domain, limit).await?;
        self.unfit(domain, limit, &BTreeMap::new(), count).await
    }

    async fn page_of_unfit(&self, domain: &Name, limit: &Limit) -> Result<Vec<String>, Error> {
        let page = Walk::new(domain, limit).page(self).await?;
        let overrides = page.map_or_else(Vec::new, |page| page.overrides);
        let unfit = overrides.into_iter().filter_map(Result::err);
        let mut lines: Vec<String> = unfit.map(|unfit| in_words(&unfit)).collect();
        lines.sort_unstable();
        lines.truncate(UNFIT_SHOWN);
        Ok(lines)
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

impl Effect {
    /// All overrides are known, and which of them go or become others.
    fn listed(before: Vec<Override>, after: Vec<Override>) -> Self {
        Self {
            edit: Some(OverrideEdit {
                before: Some(before),
                after,
                listed: true,
            }),
            ..Self::default()
        }
    }

    fn untold(count: u64) -> Self {
        Self {
            edit: Some(OverrideEdit::clear(None)),
            untold: count,
            ..Self::default()
        }
    }

    /// With others in their place.
    fn with(mut self, after: Vec<Override>) -> Self {
        match &mut self.edit {
            Some(edit) => edit.after = after,
            None => return Self::listed(Vec::new(), after),
        }
        self
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

/// `user=alice: burst: a log has no burst`.
fn in_words(unfit: &Unfit) -> String {
    let node: Option<policy::Node> = serde_json::from_str(&unfit.json).ok();
    let values = node.as_ref().and_then(|node| node.get("values"));
    let values = values.map_or_else(String::new, |values| {
        format!("{}: ", render::changes::words(values, "=", " "))
    });
    format!("{values}{}", unfit.problems.join("; "))
}

#[cfg(test)]
mod tests;

//! The plan of an edit of limits and their overrides. A domain may have 100,000 overrides: they are
//! read page by page, and only if the plan needs them.

mod invalid_overrides;
mod override_plan;

use std::collections::{BTreeMap, HashMap};

use policy::{Limit, Name, OVERRIDES_MAX, Override, Policy};
use store::{LimitOf, OverrideCursor, OverrideEdits, OverridePage};

use override_plan::OverridePlan;

use super::Session;
use crate::{
    bucket::Values,
    changes::{self, LimitChange},
    error::Error,
    exit::Exit,
    render::counted,
};

/// The most deleted overrides of one limit that are recorded. The history keeps at most 1 MiB of an
/// edit, which is fewer.
const RECORDED_MAX: u64 = 20_000;
/// The number of overrides to be deleted, for the confirmation prompt.
pub fn deletion_summary(count: u64) -> String {
    let overrides = counted(count, "override");
    if count > RECORDED_MAX {
        return format!("{overrides}, which rollback cannot restore");
    }
    overrides
}

/// Changed overrides, by limit and bucket; `None` deletes the override.
pub type Deltas = BTreeMap<Name, BTreeMap<Values, Option<Override>>>;

/// What an edit changes and writes.
#[derive(Debug, Default)]
pub struct EditPlan {
    /// Every limit, in the order of the policy; deleted ones come last.
    pub changes: Vec<LimitChange>,
    /// Whether any of the limits before had overrides, which then were read.
    pub overrides_read: bool,
    /// The edits of overrides to write.
    pub overrides: OverrideEdits,
    /// Overrides that stay and would be invalid for their limit, by limit. Such an edit must not be
    /// written.
    pub invalid_overrides: Vec<(Name, Vec<String>)>,
}

impl Session<'_> {
    /// The plan of an edit from the limits `before`, read without overrides, to `after`.
    ///
    /// A limit that lists overrides has exactly these afterwards. One that lists none keeps its
    /// own, changed by the deltas, unless its `per` changes.
    pub async fn plan_edit(
        &self,
        before: Option<&Policy>,
        after: &Policy,
        deltas: &Deltas,
    ) -> Result<EditPlan, Error> {
        let mut plan = EditPlan::default();
        let counts = match before {
            Some(before) => self.override_counts(before).await?,
            None => Vec::new(),
        };
        let before_total: u64 = counts.iter().sum();
        let mut total: u64 = 0;
        plan.overrides_read = counts.iter().any(|count| *count > 0);
        let old: HashMap<&Name, (&Limit, u64)> = { before.into_iter() }
            .flat_map(|before| &before.limits)
            .zip(counts)
            .map(|(limit, count)| (&limit.name, (limit, count)))
            .collect();
        let none = BTreeMap::new();
        for limit in &after.limits {
            let deltas = deltas.get(&limit.name).unwrap_or(&none);
            let old = old.get(&limit.name).copied();
            let override_plan = self
                .override_plan(&after.domain, old, limit, deltas)
                .await?;
            plan.note(old.map(|(old, _)| old), Some(limit), override_plan);
            let kept = old.map_or(0, |(_, count)| count);
            let listed = u64::try_from(limit.overrides.len()).unwrap_or(u64::MAX);
            total += if listed > 0 { listed } else { kept };
        }
        let max = u64::try_from(OVERRIDES_MAX).unwrap_or(u64::MAX);
        if total > max && total > before_total {
            let domain = &after.domain;
            let message = format!("the domain {domain} would have {total} overrides");
            return Err(Error::new(Exit::Refused, message).hint(format!("{max} at most")));
        }
        for gone in before.into_iter().flat_map(|before| &before.limits) {
            if after.limit(gone.name.as_str()).is_none() {
                let count = old.get(&gone.name).map_or(0, |(_, count)| *count);
                let override_plan = self.all_go(&after.domain, gone, count).await?;
                plan.note(Some(gone), None, override_plan);
            }
        }
        Ok(plan)
    }
}

/// The overrides of a limit, page by page.
pub struct OverridePages<'a> {
    of: LimitOf<'a>,
    next: Option<OverrideCursor>,
}

impl<'a> OverridePages<'a> {
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

impl EditPlan {
    fn note(&mut self, old: Option<&Limit>, new: Option<&Limit>, override_plan: OverridePlan) {
        let Some(limit) = new.or(old) else { return };
        let edit = override_plan.edit.filter(|edit| {
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
        let change = LimitChange::of(old, new, overrides, override_plan.unrecorded);
        self.changes.extend(change);
        if let Some(edit) = edit {
            self.overrides.insert(limit.name.clone(), edit);
        }
        if !override_plan.invalid.is_empty() {
            self.invalid_overrides
                .push((limit.name.clone(), override_plan.invalid));
        }
    }

    /// The overrides that would become invalid, one a line; `None` if there are none.
    pub fn invalid_overrides_text(&self) -> Option<String> {
        let lines = self.invalid_overrides.iter().map(|(limit, lines)| {
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

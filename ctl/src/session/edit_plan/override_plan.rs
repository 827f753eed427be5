//! What an edit does to the overrides of one limit.

use std::collections::{BTreeMap, HashMap};

use policy::{Limit, Name, Override};
use store::OverrideEdit;

use super::{OverridePages, RECORDED_MAX, Session, same_numbers};
use crate::{bucket::Values, error::Error};

/// What an edit does to the overrides of one limit.
#[derive(Default)]
pub(super) struct OverridePlan {
    pub(super) edit: Option<OverrideEdit>,
    /// How many are deleted without a record in the history.
    pub(super) unrecorded: u64,
    pub(super) invalid: Vec<String>,
}

impl Session<'_> {
    /// The plan if `old`, with this count of overrides, becomes `limit`.
    pub(super) async fn override_plan(
        &self,
        domain: &Name,
        old: Option<(&Limit, u64)>,
        limit: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<OverridePlan, Error> {
        let Some((old, count)) = old else {
            return Ok(OverridePlan::listed(Vec::new(), limit.overrides.clone()));
        };
        if old.per != limit.per {
            let gone = self.all_go(domain, old, count).await?;
            return Ok(gone.with(limit.overrides.clone()));
        }
        if !limit.overrides.is_empty() {
            return self.compare(domain, old, limit).await;
        }
        let mut override_plan = self.deltas(domain, old, deltas).await?;
        if count > 0 && !same_numbers(old, limit) {
            override_plan.invalid = self.find_invalid(domain, limit, deltas, count).await?;
        }
        Ok(override_plan)
    }

    /// Every override is deleted; they are recorded if they are few enough.
    pub(super) async fn all_go(
        &self,
        domain: &Name,
        limit: &Limit,
        count: u64,
    ) -> Result<OverridePlan, Error> {
        if count == 0 {
            return Ok(OverridePlan::default());
        }
        if count > RECORDED_MAX {
            return Ok(OverridePlan::unrecorded(count));
        }
        let mut gone = BTreeMap::new();
        let mut walk = OverridePages::new(domain, limit);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let Ok(found) = found else {
                    return Ok(OverridePlan::unrecorded(count));
                };
                gone.insert(found.values.clone(), found);
            }
        }
        Ok(OverridePlan::listed(
            gone.into_values().collect(),
            Vec::new(),
        ))
    }

    /// The plan that replaces a limit's overrides with the listed ones.
    async fn compare(
        &self,
        domain: &Name,
        old: &Limit,
        limit: &Limit,
    ) -> Result<OverridePlan, Error> {
        let listed = limit.overrides.iter();
        let mut listed: HashMap<&Values, (&Override, bool)> = listed
            .map(|found| (&found.values, (found, false)))
            .collect();
        let (mut before, mut after) = (BTreeMap::new(), Vec::new());
        let mut unrecorded = 0;
        let mut walk = OverridePages::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let Ok(found) = found else {
                    unrecorded += 1;
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
        let recorded = u64::try_from(before.len()).unwrap_or(u64::MAX);
        if unrecorded > 0 || recorded > RECORDED_MAX {
            return Ok(OverridePlan::unrecorded(recorded + unrecorded).with(after));
        }
        Ok(OverridePlan::listed(before.into_values().collect(), after))
    }

    /// The plan that changes only these overrides.
    async fn deltas(
        &self,
        domain: &Name,
        old: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<OverridePlan, Error> {
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
        Ok(OverridePlan {
            edit: Some(OverrideEdit {
                before: Some(before),
                after,
                listed: false,
            }),
            ..OverridePlan::default()
        })
    }
}

impl OverridePlan {
    /// The overrides before and after are listed in full.
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

    fn unrecorded(count: u64) -> Self {
        Self {
            edit: Some(OverrideEdit::clear(None)),
            unrecorded: count,
            ..Self::default()
        }
    }

    /// The plan with these overrides after the edit.
    fn with(mut self, after: Vec<Override>) -> Self {
        match &mut self.edit {
            Some(edit) => edit.after = after,
            None => return Self::listed(Vec::new(), after),
        }
        self
    }
}

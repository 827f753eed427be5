//! Overrides that are not in a limits file and stay.

use std::collections::HashSet;

use policy::{Limit, Name, Policy};

use super::{EditPlan, Session, edit_plan::OverridePages};
use crate::{bucket::Values, error::Error};

/// The overrides that are not in a file and stay.
#[derive(Debug, Default)]
pub struct KeptOverrides {
    /// How many stay, by limit; only those of limits that list some.
    pub by_limit: Vec<(Name, usize)>,
    /// Why some cannot be kept, a line each.
    pub problems: Vec<String>,
}

impl Session<'_> {
    /// Adds to each limit that lists overrides those of `before` that it does not list. Limits that
    /// list none keep theirs in any case: see [`Session::plan_edit`].
    pub async fn keep_unlisted(
        &self,
        before: &Policy,
        after: &mut Policy,
    ) -> Result<KeptOverrides, Error> {
        let mut result = KeptOverrides::default();
        let domain = &after.domain;
        for limit in &mut after.limits {
            let Some(old) = before.limit(limit.name.as_str()) else {
                continue;
            };
            if limit.overrides.is_empty() || old.per != limit.per {
                continue;
            }
            let kept = self
                .keep_of(domain, old, limit, &mut result.problems)
                .await?;
            if kept > 0 {
                result.by_limit.push((limit.name.clone(), kept));
            }
        }
        Ok(result)
    }

    async fn keep_of(
        &self,
        domain: &Name,
        old: &Limit,
        limit: &mut Limit,
        problems: &mut Vec<String>,
    ) -> Result<usize, Error> {
        let listed = limit.overrides.iter().map(|found| found.values.clone());
        let mut known: HashSet<Values> = listed.collect();
        let before = known.len();
        let mut walk = OverridePages::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let read = match found {
                    Ok(found) if known.contains(&found.values) => continue,
                    Ok(found) => limit
                        .read_override(&found.to_node(&limit.per))
                        .map_err(|problems| problems.to_string()),
                    Err(invalid) => match invalid.values(&limit.per) {
                        Some(values) if known.contains(&values) => continue,
                        _ => Err(format!("{}: {}", invalid.json, invalid.problems.join("; "))),
                    },
                };
                match read {
                    Ok(found) => {
                        known.insert(found.values.clone());
                        limit.overrides.push(found);
                    }
                    Err(why) => problems.push(format!("an override of {}: {why}", limit.name)),
                }
            }
        }
        let max = limit.scope.overrides_max();
        if limit.overrides.len() > max {
            problems.push(format!(
                "{} would have {} overrides, with those that are not in the file: {max} at most",
                limit.name,
                limit.overrides.len()
            ));
        }
        Ok(known.len() - before)
    }
}

impl EditPlan {
    /// How many overrides are deleted without a replacement.
    pub fn overrides_gone(&self) -> u64 {
        let removed = self.changes.iter().flat_map(|change| &change.overrides);
        let removed = removed.filter(|change| change.after.is_none()).count();
        let unrecorded: u64 = self
            .changes
            .iter()
            .map(|change| change.overrides_unrecorded)
            .sum();
        unrecorded.saturating_add(u64::try_from(removed).unwrap_or(u64::MAX))
    }
}

//! Overrides that a limits file does not list, and that stay all the same.

use std::collections::HashSet;

use policy::{Limit, Name, Policy};

use super::{Outcome, Session, outcome::Walk};
use crate::{bucket::Values, error::Error};

/// What stays of overrides that a file does not list.
#[derive(Debug, Default)]
pub struct Unlisted {
    /// How many stay, by limit; only those of limits that list some.
    pub kept: Vec<(Name, usize)>,
    /// What stands against it, a line each.
    pub misfit: Vec<String>,
}

impl Session<'_> {
    /// Adds to each limit that lists overrides those of `before` that it does not list. Limits that
    /// list none keep theirs in any case: see [`Session::outcome`].
    pub async fn keep_unlisted(
        &self,
        before: &Policy,
        after: &mut Policy,
    ) -> Result<Unlisted, Error> {
        let mut unlisted = Unlisted::default();
        let domain = &after.domain;
        for limit in &mut after.limits {
            let Some(old) = before.limit(limit.name.as_str()) else {
                continue;
            };
            if limit.overrides.is_empty() || old.per != limit.per {
                continue;
            }
            let kept = self
                .keep_of(domain, old, limit, &mut unlisted.misfit)
                .await?;
            if kept > 0 {
                unlisted.kept.push((limit.name.clone(), kept));
            }
        }
        Ok(unlisted)
    }

    async fn keep_of(
        &self,
        domain: &Name,
        old: &Limit,
        limit: &mut Limit,
        misfit: &mut Vec<String>,
    ) -> Result<usize, Error> {
        let listed = limit.overrides.iter().map(|found| found.values.clone());
        let mut known: HashSet<Values> = listed.collect();
        let before = known.len();
        let mut walk = Walk::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page.overrides {
                let read = match found {
                    Ok(found) if known.contains(&found.values) => continue,
                    Ok(found) => limit
                        .read_override(&found.to_node(&limit.per))
                        .map_err(|problems| problems.to_string()),
                    Err(unfit) => match unfit.values(&limit.per) {
                        Some(values) if known.contains(&values) => continue,
                        _ => Err(format!("{}: {}", unfit.json, unfit.problems.join("; "))),
                    },
                };
                match read {
                    Ok(found) => {
                        known.insert(found.values.clone());
                        limit.overrides.push(found);
                    }
                    Err(why) => misfit.push(format!("an override of {}: {why}", limit.name)),
                }
            }
        }
        let max = limit.scope.overrides_max();
        if limit.overrides.len() > max {
            misfit.push(format!(
                "{} would have {} overrides, with those that are not in the file: {max} at most",
                limit.name,
                limit.overrides.len()
            ));
        }
        Ok(known.len() - before)
    }
}

impl Outcome {
    /// How many overrides go without another in their place.
    pub fn overrides_gone(&self) -> u64 {
        let told = self.changes.iter().flat_map(|change| &change.overrides);
        let told = told.filter(|change| change.after.is_none()).count();
        let untold: u64 = self
            .changes
            .iter()
            .map(|change| change.overrides_untold)
            .sum();
        untold.saturating_add(u64::try_from(told).unwrap_or(u64::MAX))
    }
}

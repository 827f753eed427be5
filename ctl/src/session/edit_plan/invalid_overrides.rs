//! Overrides that are invalid for their limit, or would become so.

use std::collections::BTreeMap;

use policy::{Limit, Name, Override, Scope};
use store::InvalidOverride;

use super::{OverridePages, Session, same_numbers};
use crate::{
    bucket::Values,
    error::Error,
    render::{self, counted},
};

/// The most invalid overrides that are listed; the others are counted.
const INVALID_SHOWN: usize = 5;

impl Session<'_> {
    /// The overrides that do not fit a limit, in words.
    pub(super) async fn find_invalid(
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
        let mut walk = OverridePages::new(domain, limit);
        while let Some(page) = walk.page(self).await? {
            for invalid in page.overrides.into_iter().filter_map(Result::err) {
                let values = invalid.values(&limit.per);
                if values.is_some_and(|values| deltas.contains_key(&values)) {
                    continue;
                }
                if shown.len() < INVALID_SHOWN {
                    shown.push(describe(&invalid));
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

    /// The number of a limit's overrides and those that an edit would make invalid or leave without
    /// a bucket, in words; `None` if all stay valid.
    pub async fn overrides_invalidated(
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
            // One page is enough: all of them are invalid.
            _ if split_otherwise => self.first_invalid_overrides(domain, after).await?,
            _ => {
                self.find_invalid(domain, after, &BTreeMap::new(), count)
                    .await?
            }
        };
        Ok((!lines.is_empty()).then_some((count, lines)))
    }

    /// The overrides of a limit that do not fit it, in words.
    pub async fn invalid_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
    ) -> Result<Vec<String>, Error> {
        let count = self.override_count(domain, limit).await?;
        self.find_invalid(domain, limit, &BTreeMap::new(), count)
            .await
    }

    async fn first_invalid_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
    ) -> Result<Vec<String>, Error> {
        let page = OverridePages::new(domain, limit).page(self).await?;
        let overrides = page.map_or_else(Vec::new, |page| page.overrides);
        let invalid = overrides.into_iter().filter_map(Result::err);
        let mut lines: Vec<String> = invalid.map(|invalid| describe(&invalid)).collect();
        lines.sort_unstable();
        lines.truncate(INVALID_SHOWN);
        Ok(lines)
    }
}

/// `user=alice: burst: a log has no burst`.
fn describe(invalid: &InvalidOverride) -> String {
    let node: Option<policy::Node> = serde_json::from_str(&invalid.json).ok();
    let values = node.as_ref().and_then(|node| node.get("values"));
    let values = values.map_or_else(String::new, |values| {
        format!("{}: ", render::changes::format_map(values, "=", " "))
    });
    format!("{values}{}", invalid.problems.join("; "))
}

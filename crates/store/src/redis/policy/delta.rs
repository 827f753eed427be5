//! Reading only the overrides that changed, where there are very many.
//!
//! Reading 100,000 overrides takes the better part of a second of a limiter's time, and every edit
//! of one of them makes every limiter read. So the last record read is kept, and brought up to
//! date from the history while that tells of nothing but overrides and resets.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use policy::{Limit, Name, Policy};

use super::fields::{self, Fields};
use crate::{HistoryEntry, StoreError, record, redis::RedisStore, redis::value};

/// Fewer overrides than this are read anew.
const MANY: usize = 1000;
/// Domains of which the last record is kept.
const RECORDS_MAX: usize = 16;
/// Edits that are caught up with; after more, all is read anew.
const EDITS_MAX: u64 = 200;

/// Records with many overrides as last read.
#[derive(Default)]
pub(in crate::redis) struct Recent {
    records: Mutex<HashMap<Name, Arc<Policy>>>,
}

/// One bucket's override.
type Bucket<'a> = (&'a Name, Vec<Option<Vec<u8>>>);

impl Recent {
    fn get(&self, domain: &Name) -> Option<Arc<Policy>> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.get(domain).cloned()
    }

    /// Keeps a record, if it is one that is worth it.
    pub(super) fn keep(&self, policy: &Policy) {
        let overrides = policy.limits.iter().map(|limit| limit.overrides.len());
        let many = overrides.sum::<usize>() >= MANY;
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if !many {
            records.remove(&policy.domain);
        } else if records.len() < RECORDS_MAX || records.contains_key(&policy.domain) {
            records.insert(policy.domain.clone(), Arc::new(policy.clone()));
        }
    }
}

impl RedisStore {
    /// The policy of a record, made from the last one read; `None` if it has to be read whole.
    pub(super) async fn catch_up(
        &self,
        domain: &Name,
        now: &Fields,
    ) -> Result<Option<Policy>, StoreError> {
        let Some(known) = self.recent.get(domain) else {
            return Ok(None);
        };
        if known.revision == now.revision {
            return Ok(Some(Policy::clone(&known)));
        }
        let (from, to) = (known.revision.number, now.revision.number);
        if to < from || to - from > EDITS_MAX {
            return Ok(None);
        }
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys().history(domain));
        range.arg(format!("{from}-0")).arg(format!("{to}-0"));
        let entries = value::items(self.control(range).await?)?
            .into_iter()
            .map(fields::history_entry);
        let entries: Vec<HistoryEntry> = entries.collect::<Result<_, _>>()?;
        // The digest of the first tells that this is the same history, not a restored one.
        let ([first, edits @ ..], Some(last)) = (&entries[..], entries.last()) else {
            return Ok(None);
        };
        let whole = u64::try_from(edits.len()) == Ok(to - from);
        if !whole || first.revision != known.revision || last.revision != now.revision {
            return Ok(None);
        }
        merge(&known, edits, now)
    }
}

/// Whether an override means the same under both.
fn same_buckets(a: &Limit, b: &Limit) -> bool {
    let of = |limit: &Limit| {
        (
            limit.per.clone(),
            limit.quota,
            limit.if_missing,
            limit.scope,
        )
    };
    of(a) == of(b)
}

/// `known` with the edits made; `None` if one of them is of more than overrides.
fn merge(
    known: &Policy,
    edits: &[HistoryEntry],
    now: &Fields,
) -> Result<Option<Policy>, StoreError> {
    let mut changed: HashMap<Bucket<'_>, Option<&str>> = HashMap::new();
    for edit in edits {
        match (edit.operation.as_str(), &edit.limit) {
            // What edits of fields made is in the document, which is read anew in any case.
            ("reset" | "credit" | "fields", _) => {}
            ("override", Some(name)) => {
                let Some(limit) = known.limit(name.as_str()) else {
                    return Ok(None);
                };
                let after = Some(edit.after.as_str()).filter(|json| !json.is_empty());
                let json = after.unwrap_or(&edit.before);
                if json.is_empty() {
                    continue; // There was none to remove.
                }
                let Some(values) = record::override_values(json, &limit.per) else {
                    return Ok(None);
                };
                changed.insert((name, values), after);
            }
            _ => return Ok(None),
        }
    }
    let new = changed.iter().filter_map(|((name, _), after)| {
        let json = (*after)?.to_owned();
        Some(((*name).clone(), json))
    });
    let mut document = record::Document::parse(&now.limits)?;
    document.insert_overrides(new.collect())?;
    let mut policy = document.into_policy(&known.domain, now.revision.clone(), &now.generations)?;
    for limit in &mut policy.limits {
        let touched: HashSet<_> = changed
            .keys()
            .filter(|(name, _)| **name == limit.name)
            .map(|(_, values)| values)
            .collect();
        let old = known.limit(limit.name.as_str());
        if old.is_some_and(|old| !old.overrides.is_empty() && !same_buckets(old, limit)) {
            return Ok(None);
        }
        let old = old.map_or(&[][..], |old| &old.overrides);
        let kept = old.iter().filter(|o| !touched.contains(&o.values));
        limit.overrides.extend(kept.cloned());
    }
    Ok(Some(policy))
}

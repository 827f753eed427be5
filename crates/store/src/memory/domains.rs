//! The limits in the memory store.

use std::collections::{BTreeMap, HashSet, VecDeque};

use policy::{BucketEdit, BucketEdits, Limit, Name, OVERRIDES_MAX, Override, Policy, Revision};

use crate::{
    Change, DOMAINS_MAX, Edit, EditError, EditPlanError, Head, HeadState, HistoryEntry, LimitOf,
    Operation, OverrideEdits, OverridePage, Overrides, Record, Signature, Stored,
    plan::{
        edit::{self, Expected, HISTORY_BYTES_MAX, HISTORY_MAX, Plan},
        record,
    },
};

#[derive(Debug, Default)]
pub(super) struct Domains {
    domains: BTreeMap<Name, Domain>,
}

#[derive(Debug, Default)]
struct Domain {
    revision: Revision,
    /// `None`: deleted.
    policy: Option<Policy>,
    history: VecDeque<HistoryEntry>,
}

impl Domain {
    fn trim_history(&mut self) {
        self.history.truncate(HISTORY_MAX);
        let mut bytes = 0;
        let kept = self.history.iter().take_while(|entry| {
            bytes += entry.by.author.len() + entry.by.reason.len();
            bytes += entry.before.len() + entry.after.len();
            bytes <= HISTORY_BYTES_MAX
        });
        let kept = kept.count().max(1);
        self.history.truncate(kept);
    }
}

impl Domains {
    pub(super) fn heads(&self) -> Vec<Head> {
        let head = |(name, domain): (&Name, &Domain)| Head {
            domain: name.clone(),
            state: match domain.policy {
                Some(_) => HeadState::Live(domain.revision.clone()),
                None => HeadState::Deleted(domain.revision.clone()),
            },
        };
        self.domains.iter().map(head).collect()
    }

    pub(super) fn read(&self, domain: &Name, overrides: Overrides) -> Stored {
        let Some(domain) = self.domains.get(domain) else {
            return Stored::Absent;
        };
        let Some(policy) = &domain.policy else {
            return Stored::Deleted(domain.revision.clone());
        };
        let mut policy = policy.clone();
        if overrides == Overrides::None {
            policy.limits.iter_mut().for_each(|l| l.overrides.clear());
        }
        Stored::Live(Box::new(Record {
            policy,
            overrides,
            snapshot_bytes: None,
            is_part: false,
        }))
    }

    fn overrides(&self, domain: &Name, limit: &Name) -> &[Override] {
        let policy = self.domains.get(domain).and_then(|d| d.policy.as_ref());
        let limit = policy.and_then(|policy| policy.limit(limit.as_str()));
        limit.map_or(&[][..], |limit| &limit.overrides)
    }

    pub(super) fn override_of(
        &self,
        of: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Option<Override> {
        let mut overrides = self.overrides(of.domain, &of.limit.name).iter();
        overrides.find(|found| found.values == values).cloned()
    }

    pub(super) fn override_counts(&self, domain: &Name, limits: &[&Name]) -> Vec<u64> {
        let count = |limit: &&Name| u64::try_from(self.overrides(domain, limit).len());
        limits
            .iter()
            .map(|limit| count(limit).unwrap_or(u64::MAX))
            .collect()
    }

    /// All in one page: they are in memory anyway.
    pub(super) fn scan_overrides(&self, of: &LimitOf<'_>) -> OverridePage {
        let policy = self.domains.get(of.domain).and_then(|d| d.policy.as_ref());
        let stored = policy.and_then(|policy| policy.limit(of.limit.name.as_str()));
        let per = stored.map_or(&[][..], |limit| &limit.per);
        let overrides = self.overrides(of.domain, &of.limit.name).iter();
        OverridePage {
            texts: overrides
                .map(|found| record::override_json(per, found))
                .collect(),
            next: None,
        }
    }

    pub(super) fn write(&mut self, edit: &Edit<'_>, now_ms: u64) -> Result<Revision, EditError> {
        let plan = edit::plan(edit)?;
        let expected = edit::expected(edit.base);
        self.compare(edit.domain, &expected)?;
        let current = self.domains.get(edit.domain);
        if current.is_none() && self.domains.len() >= DOMAINS_MAX {
            return Err(EditError::TooManyDomains(self.domains.len()));
        }
        let current = current.and_then(|domain| domain.policy.as_ref());
        let (policy, before) = match (edit.change, current) {
            (Change::Limits(policy), _) => (Some(policy.clone()), None),
            (Change::Fields(policy), _) => (
                Some(with_edits(policy, current, &OverrideEdits::new())),
                None,
            ),
            (Change::Parts { limits, overrides }, _) => {
                (Some(with_edits(limits, current, overrides)), None)
            }
            (Change::Delete(_), _) | (Change::Override { .. }, None) => (None, None),
            (Change::Override { limit, values, to }, Some(current)) => {
                let mut policy = current.clone();
                let mut before = String::new();
                if let Some(limit) = policy.limits.iter_mut().find(|l| l.name == *limit) {
                    before = take_override(limit, values);
                    limit.overrides.extend(to.cloned());
                }
                (Some(policy), Some(before))
            }
        };
        if let Some(policy) = &policy {
            edit::fits(policy)?;
        }
        let count = |policy: &Policy| -> usize {
            let limits = policy.limits.iter();
            limits.map(|limit| limit.overrides.len()).sum()
        };
        let after = policy.as_ref().map_or(0, count);
        if after > OVERRIDES_MAX && after > current.map_or(0, count) {
            return Err(EditError::Plan(EditPlanError::TooManyOverrides {
                count: after,
                max: OVERRIDES_MAX,
            }));
        }
        let plan = Plan {
            before: before.unwrap_or_else(|| plan.before.clone()),
            ..plan
        };
        Ok(self.commit(edit.domain, policy, plan, edit.by, now_ms))
    }

    /// Raises the generations that the plan names.
    pub(super) fn reset(
        &mut self,
        domain: &Name,
        plan: Plan,
        by: &Signature,
        now_ms: u64,
    ) -> Result<Revision, EditError> {
        self.compare(domain, &Expected::Any)?;
        let current = self.domains.get(domain);
        let policy = current.and_then(|domain| domain.policy.clone());
        Ok(self.commit(domain, policy, plan, by, now_ms))
    }

    fn compare(&self, domain: &Name, expected: &Expected) -> Result<(), EditError> {
        let live = self.domains.get(domain).filter(|d| d.policy.is_some());
        let found = live.map(|domain| domain.revision.clone());
        let matches = match expected {
            Expected::Nothing => found.is_none(),
            Expected::Any => found.is_some(),
            Expected::At(revision) => found.as_ref() == Some(revision),
        };
        if matches {
            return Ok(());
        }
        Err(EditError::Conflict {
            expected: expected.revision(),
            found,
        })
    }

    fn commit(
        &mut self,
        name: &Name,
        policy: Option<Policy>,
        plan: Plan,
        by: &Signature,
        now_ms: u64,
    ) -> Revision {
        let domain = self.domains.entry(name.clone()).or_default();
        let number = domain.revision.number + 1;
        let contents = format!("{:x} {now_ms} {plan:?}", domain.revision.digest);
        let revision = Revision {
            number,
            digest: policy::digest(contents.as_bytes()),
        };
        let old = domain.policy.take();
        let raised: HashSet<&Name> = plan.raise.iter().collect();
        let known = old.as_ref().map(Policy::by_name).unwrap_or_default();
        domain.policy = policy.map(|mut policy| {
            let most = BucketEdits::most(policy.limits.len());
            for limit in &mut policy.limits {
                let same = known.get(limit.name.as_str());
                let raised = raised.contains(&limit.name);
                limit.generation = match same {
                    Some(old) if !raised => old.generation,
                    _ => number,
                };
                limit.reset_generation = match same {
                    Some(_) if plan.operation == Operation::Reset && raised => number,
                    Some(old) => old.reset_generation,
                    None => 0,
                };
                limit.bucket_edits =
                    same.map_or_else(BucketEdits::default, |old| old.bucket_edits.clone());
                if let Some(slot) = plan.bucket
                    && plan.limit.as_ref() == Some(&limit.name)
                {
                    let before = limit.bucket_edits.get(slot);
                    let before = before.map_or(0, |edit| edit.reset_generation);
                    let reset = plan.operation == Operation::Reset;
                    limit.bucket_edits.add(BucketEdit {
                        slot,
                        generation: number,
                        reset_generation: if reset { number } else { before },
                    });
                    if limit.bucket_edits.after(limit.generation) > most {
                        limit.generation = number;
                    }
                }
            }
            policy.revision = revision.clone();
            policy
        });
        domain.revision = revision.clone();
        domain.history.push_front(HistoryEntry {
            revision: revision.clone(),
            at_ms: now_ms,
            operation: plan.operation.word().to_owned(),
            by: by.clone(),
            limit: plan.limit,
            before: plan.before,
            after: plan.after,
        });
        domain.trim_history();
        revision
    }

    pub(super) fn history(&self, domain: &Name, max: usize) -> Vec<HistoryEntry> {
        let domain = self.domains.get(domain);
        domain.map_or_else(Vec::new, |d| d.history.iter().take(max).cloned().collect())
    }
}

/// The policy with the stored overrides and the changes to them. The overrides that it lists itself
/// count only where an edit says that they are all.
fn with_edits(policy: &Policy, current: Option<&Policy>, edits: &OverrideEdits) -> Policy {
    let mut policy = policy.clone();
    let known = current.map(Policy::by_name).unwrap_or_default();
    for limit in &mut policy.limits {
        let edit = edits.get(&limit.name);
        if edit.is_some_and(|edit| edit.listed) {
            continue;
        }
        let stored = known.get(limit.name.as_str());
        limit.overrides = stored.map_or_else(Vec::new, |stored| stored.overrides.clone());
        if let Some(edit) = edit {
            let touched: HashSet<_> = { edit.before.iter().flatten() }
                .chain(&edit.after)
                .map(|found| &found.values)
                .collect();
            limit
                .overrides
                .retain(|found| !touched.contains(&found.values));
            limit.overrides.extend(edit.after.iter().cloned());
        }
    }
    policy
}

/// Removes the override of a bucket; returns it as JSON, or an empty text if there was none.
fn take_override(limit: &mut Limit, values: &[Option<Vec<u8>>]) -> String {
    let Some(at) = limit.overrides.iter().position(|o| o.values == values) else {
        return String::new();
    };
    let old = limit.overrides.swap_remove(at);
    record::override_json(&limit.per, &old)
}

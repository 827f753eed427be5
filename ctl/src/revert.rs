//! Reverting edits.

use policy::{Exemption, Limit, Name, Node, Policy};

use crate::{history::HistoryChange, session::Deltas};

/// A domain with some of its last edits reverted.
#[derive(Debug)]
pub struct Reverted {
    /// The limits, without overrides.
    pub policy: Policy,
    /// The overrides that differ from those in the store.
    pub overrides: Deltas,
}

impl Reverted {
    /// The domain as stored; overrides need not be loaded.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            overrides: Deltas::new(),
        }
    }

    /// Reverts the latest edit, or with `only` the part of it that concerns that limit. `None` if
    /// that is impossible.
    pub fn revert(&mut self, change: &HistoryChange, only: Option<&Name>) -> Option<()> {
        let concerned = |name: &Name| only.is_none_or(|only| only == name);
        match change {
            HistoryChange::Limits {
                limits: [before, after],
                overrides: [was, became],
                paused,
                exempt: [exempt, then_exempt],
            } => {
                // The limit as the edit left it reads the overrides after the edit; the limit
                // before it reads those before.
                for (name, overrides) in became.iter().filter(|(name, _)| concerned(name)) {
                    self.set(name, overrides, false)?;
                }
                if let (Some([before, _]), None) = (paused, only) {
                    self.policy.paused = *before;
                }
                if only.is_none() {
                    self.revert_exempt(exempt, then_exempt);
                }
                self.revert_limits(before, after, concerned);
                for (name, overrides) in was.iter().filter(|(name, _)| concerned(name)) {
                    self.set(name, overrides, true)?;
                }
                Some(())
            }
            HistoryChange::Override {
                limit,
                before,
                after,
            } if concerned(limit) => {
                self.set(limit, after.as_slice(), false)?;
                self.set(limit, before.as_slice(), true)
            }
            HistoryChange::Override { .. }
            | HistoryChange::Reset { .. }
            | HistoryChange::Credit { .. } => Some(()),
            HistoryChange::TooLarge | HistoryChange::Unknown => None,
        }
    }

    fn revert_exempt(&mut self, before: &[Exemption], after: &[Exemption]) {
        let exempt = &mut self.policy.exempt;
        let named = |list: &[Exemption], name: &Name| list.iter().any(|other| other.name == *name);
        exempt.retain(|now| !named(after, &now.name) || named(before, &now.name));
        for old in before {
            match exempt.iter_mut().find(|now| now.name == old.name) {
                Some(now) => *now = old.clone(),
                None => exempt.push(old.clone()),
            }
        }
    }

    fn revert_limits(
        &mut self,
        before: &[Limit],
        after: &[Limit],
        concerned: impl Fn(&Name) -> bool,
    ) {
        let created = |limit: &Limit| {
            let known = |list: &[Limit]| list.iter().any(|other| other.name == limit.name);
            known(after) && !known(before)
        };
        let limits = &mut self.policy.limits;
        limits.retain(|limit| !(concerned(&limit.name) && created(limit)));
        for old in before.iter().filter(|limit| concerned(&limit.name)) {
            match limits.iter_mut().find(|limit| limit.name == old.name) {
                Some(limit) => *limit = old.clone(),
                None => limits.push(old.clone()),
            }
        }
    }

    /// Adds these overrides of a limit if `there`, and removes them otherwise.
    fn set(&mut self, name: &Name, overrides: &[Node], there: bool) -> Option<()> {
        let limit = self.policy.limit(name.as_str())?;
        let deltas = self.overrides.entry(name.clone()).or_default();
        for node in overrides {
            let found = limit.read_override(node).ok()?;
            deltas.insert(found.values.clone(), there.then_some(found));
        }
        Some(())
    }
}

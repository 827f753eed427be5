//! Edits of whole limits: what differs is written, and remembered.

use std::collections::{HashMap, HashSet};

use policy::{Limit, Node, Override, Pause, Policy};

use super::{How, OverrideWrites, Plan};
use crate::{EditError, Keys, StoreError, record};

/// The largest document that is written, in bytes; overrides are not part of it.
const DOCUMENT_MAX: usize = 1 << 20;
/// The largest `before` and `after` together that a history entry keeps, in bytes.
const HISTORY_ENTRY_MAX: usize = 1 << 20;
/// Overrides of one limit that one script call writes: about 5 ms of the server's time.
const STAGE_ABOVE: usize = 1000;

fn document(policy: &Policy) -> Result<String, EditError> {
    let document = record::limits_json(policy)?;
    if document.len() > DOCUMENT_MAX {
        return Err(EditError::TooLarge {
            bytes: document.len(),
            max: DOCUMENT_MAX,
        });
    }
    Ok(document)
}

/// The limits become these, with their overrides.
pub(super) fn replace(base: Option<&Policy>, policy: &Policy) -> Result<Plan, EditError> {
    let mut plan = Plan {
        operation: "limits",
        limits: Some(document(policy)?),
        ..Plan::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for limit in &policy.limits {
        let old = base.and_then(|base| base.limit(limit.name.as_str()));
        let writes = override_writes(old, limit)?;
        if old.is_some_and(|old| same_numbers(old, limit)) && writes.changes_nothing() {
            continue;
        }
        plan.raise.push(limit.name.clone());
        before.extend(old);
        after.push(limit);
        if !writes.changes_nothing() {
            plan.overrides.push((limit.name.clone(), writes));
        }
    }
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if policy.limit(gone.name.as_str()).is_none() {
            before.push(gone);
            plan.forget.push(gone.name.clone());
            let writes = OverrideWrites::CLEAR;
            plan.overrides.push((gone.name.clone(), writes));
        }
    }
    plan.remember(base, policy, (&before, &after), Limit::to_node)?;
    Ok(plan)
}

/// As [`replace`], with the overrides left alone, whether or not they were read.
pub(super) fn fields(base: Option<&Policy>, policy: &Policy) -> Result<Plan, EditError> {
    let mut plan = Plan {
        operation: "fields",
        limits: Some(document(policy)?),
        ..Plan::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for limit in &policy.limits {
        let old = base.and_then(|base| base.limit(limit.name.as_str()));
        if !old.is_some_and(|old| same_numbers(old, limit)) {
            plan.raise.push(limit.name.clone());
            before.extend(old);
            after.push(limit);
        }
    }
    let mut names = base.map_or(&[][..], |base| &base.limits).iter();
    if names.any(|old| policy.limit(old.name.as_str()).is_none()) {
        return Err(EditError::PartialBase);
    }
    let as_node = Limit::to_node_without_overrides;
    plan.remember(base, policy, (&before, &after), as_node)?;
    Ok(plan)
}

impl Plan {
    /// Notes for the history which limits an edit changes, and whether it pauses the domain.
    fn remember(
        &mut self,
        base: Option<&Policy>,
        policy: &Policy,
        (before, after): (&[&Limit], &[&Limit]),
        as_node: fn(&Limit) -> Node,
    ) -> Result<(), StoreError> {
        let paused = base.and_then(|base| base.paused);
        let side = |limits: &[&Limit], pause: Option<Pause>| {
            let limits = Node::list(limits.iter().map(|limit| as_node(limit)));
            if paused == policy.paused {
                return record::json(&limits);
            }
            let mut both = Node::map([("limits", limits)]);
            if let Some(pause) = pause {
                both.set("paused", pause.to_node());
            }
            record::json(&both)
        };
        let (before, after) = (side(before, paused)?, side(after, policy.paused)?);
        if before.len() + after.len() <= HISTORY_ENTRY_MAX {
            (self.before, self.after) = (before, after);
        }
        Ok(())
    }
}

/// Whether two limits say the same, apart from overrides and whichever edit made them.
fn same_numbers(a: &Limit, b: &Limit) -> bool {
    a.to_node_without_overrides() == b.to_node_without_overrides()
}

/// What turns the overrides of `old` into those of `limit`.
fn override_writes(old: Option<&Limit>, limit: &Limit) -> Result<OverrideWrites, StoreError> {
    // Under other `per` entries the old values name nothing.
    let clear = old.is_some_and(|old| old.per != limit.per);
    let old: HashMap<_, _> = match old {
        Some(old) if !clear => old.overrides.iter().map(|o| (&o.values, o)).collect(),
        _ => HashMap::new(),
    };
    let kept: HashSet<_> = limit.overrides.iter().map(|o| &o.values).collect();
    let gone: Vec<_> = old.keys().filter(|v| !kept.contains(*v)).collect();
    let differs = |new: &&Override| old.get(&new.values) != Some(new);
    let changes = gone.len() + limit.overrides.iter().filter(differs).count();
    let stage = changes > STAGE_ABOVE;
    let mut fields = Vec::with_capacity(changes);
    if !stage {
        let remove = |values| (Keys::override_field(values), None);
        fields.extend(gone.into_iter().map(|values| remove(values)));
    }
    for new in limit.overrides.iter().filter(|new| stage || differs(new)) {
        let json = record::override_json(&limit.per, new)?;
        fields.push((Keys::override_field(&new.values), Some(json)));
    }
    let how = match (stage, clear) {
        (true, _) if fields.is_empty() => How::Clear,
        (true, _) => How::Stage,
        (false, true) => How::Clear,
        (false, false) => How::Keep,
    };
    Ok(OverrideWrites { how, fields })
}

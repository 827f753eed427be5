//! Edits of whole limits: what differs is written, and recorded in the history.

use std::collections::{HashMap, HashSet};

use policy::{Limit, Override, Policy};

use super::{How, Operation, OverrideWrites, Plan, recorded::Recorded};
use crate::{EditPlanError, Keys, OverrideEdit, OverrideEdits, record};

/// Bound: bytes of a limit as it is stored. Beyond it, refused when it is written.
const DOCUMENT_MAX: usize = 1 << 20;
/// Overrides of one limit that one script call writes: about 5 ms of the server's time.
const STAGE_ABOVE: usize = 1000;

/// Whether limiters load limits of this size.
///
/// # Errors
/// How large the document is, and how large it may be.
pub fn fits(policy: &Policy) -> Result<(), EditPlanError> {
    document(policy).map(drop)
}

fn document(policy: &Policy) -> Result<String, EditPlanError> {
    let document = record::limits_json(policy);
    if document.len() > DOCUMENT_MAX {
        return Err(EditPlanError::TooLarge {
            bytes: document.len(),
            max: DOCUMENT_MAX,
        });
    }
    Ok(document)
}

/// Plans an edit to these limits, with the edits of overrides.
pub(super) fn parts(
    base: Option<&Policy>,
    policy: &Policy,
    edits: &OverrideEdits,
) -> Result<Plan, EditPlanError> {
    let mut plan = Plan {
        operation: if edits.is_empty() {
            Operation::Fields
        } else {
            Operation::Edit
        },
        limits: Some(document(policy)?),
        ..Plan::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (known, kept) = (by_name(base), policy.by_name());
    for limit in &policy.limits {
        let old = known.get(limit.name.as_str()).copied();
        let edit = edits.get(&limit.name);
        let same = old.is_some_and(|old| same_numbers(old, limit));
        if same && edit.is_none() {
            continue;
        }
        plan.raise.push(limit.name.clone());
        if !same {
            before.extend(old);
            after.push(limit);
        }
        if let Some(edit) = edit {
            let writes = writes(edit, old, limit);
            plan.overrides.push((limit.name.clone(), writes));
        }
    }
    plan.raise_all = !plan.raise.is_empty() && plan.raise.len() == policy.limits.len();
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if !kept.contains_key(gone.name.as_str()) {
            before.push(gone);
            plan.forget.push(gone.name.clone());
            let clear = OverrideWrites {
                how: How::Clear,
                fields: Vec::new(),
            };
            plan.overrides.push((gone.name.clone(), clear));
        }
    }
    let recorded = Recorded {
        sides: [(base, &before), (Some(policy), &after)],
        edits,
    };
    if let Some([before, after]) = recorded.as_json() {
        (plan.before, plan.after) = (before, after);
    }
    Ok(plan)
}

fn by_name(base: Option<&Policy>) -> HashMap<&str, &Limit> {
    base.map(Policy::by_name).unwrap_or_default()
}

/// Whether two limits say the same, apart from overrides and whichever edit made them.
fn same_numbers(a: &Limit, b: &Limit) -> bool {
    a.to_node_without_overrides() == b.to_node_without_overrides()
}

/// What turns the overrides of one policy into those of another.
pub(super) fn between(base: Option<&Policy>, policy: &Policy) -> OverrideEdits {
    let (known, kept) = (by_name(base), policy.by_name());
    let edits = policy.limits.iter().map(|limit| {
        let old = known.get(limit.name.as_str()).copied();
        (limit, of_limit(old, limit))
    });
    let mut edits: OverrideEdits = edits
        .filter(|(_, edit)| edit.before != Some(Vec::new()) || !edit.after.is_empty())
        .map(|(limit, edit)| (limit.name.clone(), edit))
        .collect();
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if !gone.overrides.is_empty() && !kept.contains_key(gone.name.as_str()) {
            let clear = OverrideEdit::clear(Some(gone.overrides.clone()));
            edits.insert(gone.name.clone(), clear);
        }
    }
    edits
}

fn of_limit(old: Option<&Limit>, limit: &Limit) -> OverrideEdit {
    // Under other `per` entries the old values name nothing.
    let split_otherwise = old.is_some_and(|old| old.per != limit.per);
    let before = old.map_or(&[][..], |old| &old.overrides);
    let known: HashMap<_, _> = before.iter().map(|o| (&o.values, o)).collect();
    let kept: HashMap<_, _> = limit.overrides.iter().map(|o| (&o.values, o)).collect();
    let differs = |one: &Override, others: &HashMap<&_, &Override>| {
        let other = others.get(&one.values);
        split_otherwise || !other.is_some_and(|other| one.reads_like(other))
    };
    OverrideEdit {
        before: Some(
            before
                .iter()
                .filter(|o| differs(o, &kept))
                .cloned()
                .collect(),
        ),
        after: limit
            .overrides
            .iter()
            .filter(|o| differs(o, &known))
            .cloned()
            .collect(),
        listed: true,
    }
}

/// The writes that an edit of a limit's overrides takes.
fn writes(edit: &OverrideEdit, old: Option<&Limit>, limit: &Limit) -> OverrideWrites {
    let field = |found: &Override| {
        let json = record::override_json(&limit.per, found);
        (Keys::override_field(&found.values), Some(json))
    };
    let changes = edit.before.as_ref().map_or(usize::MAX, Vec::len);
    let changes = changes.saturating_add(edit.after.len());
    let anew = old.is_some_and(|old| old.per != limit.per) || changes > STAGE_ABOVE;
    if edit.listed && anew {
        let how = match limit.overrides.len() {
            n if n > STAGE_ABOVE => How::Stage,
            _ => How::Clear,
        };
        return OverrideWrites {
            how,
            fields: limit.overrides.iter().map(field).collect(),
        };
    }
    let kept: HashSet<_> = edit.after.iter().map(|o| &o.values).collect();
    let before = edit.before.as_deref().unwrap_or_default().iter();
    let gone = before.filter(|old| !kept.contains(&old.values));
    let gone = gone.map(|o| (Keys::override_field(&o.values), None));
    OverrideWrites {
        how: How::Keep,
        fields: gone.chain(edit.after.iter().map(field)).collect(),
    }
}

//! What an edit changes, worked out before anything is sent.

use std::collections::{HashMap, HashSet};

use policy::{Limit, Name, Node, Override, Policy, Revision};

use crate::{Change, Edit, EditError, Keys, Overrides, StoreError, Stored, record};

/// The largest document that is written, in bytes; overrides are not part of it.
const DOCUMENT_MAX: usize = 1 << 20;

/// What has to be there for an edit to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// No live record.
    Nothing,
    /// This revision.
    At(Revision),
    /// Any live record: for edits that do not depend on what it says.
    Any,
}

pub(crate) fn expected(base: &Stored) -> Expected {
    match base {
        Stored::Absent | Stored::Deleted(_) => Expected::Nothing,
        Stored::Live(record) => Expected::At(record.policy.revision.clone()),
    }
}

impl Expected {
    /// ARGV 1 and 2 of `lua/policy_write.lua`.
    pub(crate) fn as_arguments(&self) -> (String, String) {
        match self {
            Self::Nothing => (String::new(), String::new()),
            Self::Any => ("*".to_owned(), String::new()),
            Self::At(revision) => (
                revision.number.to_string(),
                format!("{:016x}", revision.digest),
            ),
        }
    }

    pub(crate) fn revision(&self) -> Option<Revision> {
        match self {
            Self::At(revision) => Some(revision.clone()),
            Self::Nothing | Self::Any => None,
        }
    }
}

/// One edit, ready to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// For the history.
    pub(crate) operation: &'static str,
    pub(crate) before: String,
    pub(crate) after: String,
    /// The limit concerned, of an edit that concerns one.
    pub(crate) limit: Option<Name>,
    /// The new document, if it changes.
    pub(crate) limits: Option<String>,
    /// Limits whose generation rises.
    pub(crate) raise: Vec<Name>,
    /// Limits that are gone.
    pub(crate) forget: Vec<Name>,
    pub(crate) overrides: Vec<(Name, OverrideWrites)>,
}

/// Writes to the overrides of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverrideWrites {
    /// Whether all that are there go first.
    pub(crate) clear: bool,
    /// Fields and the JSON they become; `None` removes.
    pub(crate) fields: Vec<(String, Option<String>)>,
}

pub(crate) fn plan(edit: &Edit<'_>) -> Result<Plan, EditError> {
    let base = edit.base.policy();
    let partial = matches!(edit.base, Stored::Live(record) if record.overrides == Overrides::None);
    match edit.change {
        Change::Override { limit, values, to } => {
            let limit = base
                .and_then(|policy| policy.limit(limit.as_str()))
                .ok_or_else(|| EditError::UnknownLimit(limit.clone()))?;
            set_override(limit, values, to)
        }
        _ if partial => Err(EditError::PartialBase),
        Change::Limits(policy) => replace(base, policy),
        Change::Delete => match base {
            Some(base) => delete(base),
            None => Err(EditError::NothingToDelete),
        },
    }
}

/// Raises the generation of one limit and changes nothing else.
pub(crate) fn reset(limit: &Limit, what: &str) -> Plan {
    Plan {
        operation: "reset",
        after: what.to_owned(),
        limit: Some(limit.name.clone()),
        raise: vec![limit.name.clone()],
        ..Plan::default()
    }
}

fn replace(base: Option<&Policy>, policy: &Policy) -> Result<Plan, EditError> {
    let document = record::limits_json(policy)?;
    if document.len() > DOCUMENT_MAX {
        return Err(EditError::TooLarge {
            bytes: document.len(),
            max: DOCUMENT_MAX,
        });
    }
    let old = |name: &Name| base.and_then(|base| base.limit(name.as_str()));
    let mut plan = Plan {
        operation: "limits",
        limits: Some(document),
        ..Plan::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for limit in &policy.limits {
        let old = old(&limit.name);
        if old.is_some_and(|old| same(old, limit)) {
            continue;
        }
        plan.raise.push(limit.name.clone());
        before.extend(old.map(Limit::to_node));
        after.push(limit.to_node());
        let writes = override_writes(old, limit)?;
        if writes != OverrideWrites::default() {
            plan.overrides.push((limit.name.clone(), writes));
        }
    }
    for gone in base.map_or(&[][..], |base| &base.limits) {
        if policy.limit(gone.name.as_str()).is_none() {
            before.push(gone.to_node());
            plan.forget.push(gone.name.clone());
            let writes = OverrideWrites {
                clear: true,
                fields: Vec::new(),
            };
            plan.overrides.push((gone.name.clone(), writes));
        }
    }
    plan.before = record::json(&Node::list(before))?;
    plan.after = record::json(&Node::list(after))?;
    Ok(plan)
}

/// Whether two limits say the same, whichever edit made them.
fn same(a: &Limit, b: &Limit) -> bool {
    let generation = a.generation;
    *a == Limit {
        generation,
        ..b.clone()
    }
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
    let gone = old.keys().filter(|values| !kept.contains(*values));
    let mut fields: Vec<_> = gone
        .map(|values| (Keys::override_field(values), None))
        .collect();
    for new in &limit.overrides {
        if old.get(&new.values) != Some(&new) {
            let json = record::override_json(&limit.per, new)?;
            fields.push((Keys::override_field(&new.values), Some(json)));
        }
    }
    Ok(OverrideWrites { clear, fields })
}

fn set_override(
    limit: &Limit,
    values: &[Option<Vec<u8>>],
    to: Option<&Override>,
) -> Result<Plan, EditError> {
    let json = to
        .map(|found| record::override_json(&limit.per, found))
        .transpose()?;
    Ok(Plan {
        operation: "override",
        after: json.clone().unwrap_or_default(),
        limit: Some(limit.name.clone()),
        raise: vec![limit.name.clone()],
        overrides: vec![(
            limit.name.clone(),
            OverrideWrites {
                clear: false,
                fields: vec![(Keys::override_field(values), json)],
            },
        )],
        ..Plan::default()
    })
}

fn delete(base: &Policy) -> Result<Plan, EditError> {
    let empty = Policy::empty(base.domain.clone());
    Ok(Plan {
        operation: "delete",
        ..replace(Some(base), &empty)?
    })
}

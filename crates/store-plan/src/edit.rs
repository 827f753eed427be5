//! What an edit changes, worked out before anything is sent.

use policy::{Limit, Name, Override, Policy, Revision};

use crate::{Change, Edit, EditPlanError, Keys, OverrideEdits, Overrides, Stored, record};

mod limits;
mod recorded;
mod script_call;

pub use limits::fits;
use limits::{between, parts};
pub(crate) use recorded::read_overrides;
pub use recorded::{Operation, RecordedOverrides, RecordedSide, ResetOf};

/// Bound: edits in a domain's history. Beyond it, the oldest go.
pub const HISTORY_MAX: usize = 1000;
/// Bound: bytes of a domain's history. Beyond it, the oldest edits go.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;

/// What the store has to hold for an edit to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No live record.
    Nothing,
    /// This revision.
    At(Revision),
    /// Any live record: for edits that do not depend on its content.
    Any,
}

/// What an edit of this base expects.
pub fn expected(base: &Stored) -> Expected {
    match base {
        Stored::Absent | Stored::Deleted(_) => Expected::Nothing,
        Stored::Live(record) => Expected::At(record.policy.revision.clone()),
    }
}

impl Expected {
    /// The revision, if it has to be one.
    pub fn revision(&self) -> Option<Revision> {
        match self {
            Self::At(revision) => Some(revision.clone()),
            Self::Nothing | Self::Any => None,
        }
    }
}

/// One edit, ready to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// See [`crate::HistoryEntry::operation`].
    pub operation: Operation,
    /// See [`crate::HistoryEntry::before`].
    pub before: String,
    /// See [`crate::HistoryEntry::after`].
    pub after: String,
    /// The limit concerned, of an edit that concerns one.
    pub limit: Option<Name>,
    /// The new document, if it changes.
    pub limits: Option<String>,
    /// Limits whose generation rises.
    pub raise: Vec<Name>,
    /// Whether these are all limits that there are then.
    pub raise_all: bool,
    /// Limits that are removed.
    pub forget: Vec<Name>,
    /// Writes to overrides, by limit.
    pub overrides: Vec<(Name, OverrideWrites)>,
}

/// Writes to the overrides of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideWrites {
    /// What happens to the existing overrides.
    pub how: How,
    /// Fields and the JSON they become; `None` removes.
    pub fields: Vec<(String, Option<String>)>,
}

/// What happens to the existing overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// They stay, except for the fields that are written.
    Keep,
    /// They are deleted.
    Clear,
    /// They are deleted, and the fields are first written elsewhere, in steps: writing so many at
    /// once would hold up every check.
    Stage,
}

/// What the edit writes.
///
/// # Errors
/// [`EditPlanError`] where it does not fit its base, or is too large.
pub fn plan(edit: &Edit<'_>) -> Result<Plan, EditPlanError> {
    let base = edit.base.policy();
    let partial = matches!(edit.base, Stored::Live(record) if record.overrides == Overrides::None);
    match edit.change {
        Change::Override { limit, values, to } => {
            let limit = base
                .and_then(|policy| policy.limit(limit.as_str()))
                .ok_or_else(|| EditPlanError::UnknownLimit(limit.clone()))?;
            Ok(set_override(limit, values, to))
        }
        Change::Fields(policy) if any_goes(base, policy) => Err(EditPlanError::PartialBase),
        Change::Fields(policy) => parts(base, policy, &OverrideEdits::new()),
        Change::Parts { limits, overrides } => parts(base, limits, overrides),
        Change::Limits(_) if partial => Err(EditPlanError::PartialBase),
        Change::Limits(policy) => parts(base, policy, &between(base, policy)),
        Change::Delete(overrides) => {
            let base = base.ok_or(EditPlanError::NothingToDelete)?;
            let empty = Policy::empty(base.domain.clone());
            let read = (!partial).then(|| between(Some(base), &empty));
            Ok(Plan {
                operation: Operation::Delete,
                ..parts(Some(base), &empty, read.as_ref().unwrap_or(overrides))?
            })
        }
    }
}

fn any_goes(base: Option<&Policy>, policy: &Policy) -> bool {
    let kept = policy.by_name();
    let mut names = base.map_or(&[][..], |base| &base.limits).iter();
    names.any(|old| !kept.contains_key(old.name.as_str()))
}

/// As [`reset`], for units that were given back to a bucket.
pub fn credit(limit: &Limit, units: u64, key: &str) -> Plan {
    Plan {
        operation: Operation::Credit,
        after: recorded::credit(units, key),
        ..reset(limit, ResetOf::Bucket(key))
    }
}

/// Raises the generation of one limit and changes nothing else.
pub fn reset(limit: &Limit, of: ResetOf<'_>) -> Plan {
    Plan {
        operation: Operation::Reset,
        after: recorded::reset(of),
        limit: Some(limit.name.clone()),
        raise: vec![limit.name.clone()],
        ..Plan::default()
    }
}

fn set_override(limit: &Limit, values: &[Option<Vec<u8>>], to: Option<&Override>) -> Plan {
    let json = to.map(|found| record::override_json(&limit.per, found));
    Plan {
        operation: Operation::Override,
        after: json.clone().unwrap_or_default(),
        limit: Some(limit.name.clone()),
        raise: vec![limit.name.clone()],
        overrides: vec![(
            limit.name.clone(),
            OverrideWrites {
                how: How::Keep,
                fields: vec![(Keys::override_field(values), json)],
            },
        )],
        ..Plan::default()
    }
}

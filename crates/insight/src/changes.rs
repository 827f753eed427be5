//! The changes of an edit, by limit and field.

mod domain;
mod overrides;
mod text;

use policy::{Limit, Node, Value};
use serde::Serialize;

pub use domain::of_domain;
pub(crate) use domain::{EXEMPT, domain_fields};
pub use overrides::{OverrideChange, of_overrides, override_change};
pub use text::format_map;

/// What an edit does to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The limit is new.
    Created,
    /// Some fields change.
    Changed,
    /// The limit is deleted.
    Deleted,
    /// Nothing changes.
    Unchanged,
}

/// A limit and its changes.
#[derive(Clone, Debug, Serialize)]
pub struct LimitChange {
    /// The limit.
    pub limit: String,
    /// What the edit does to it.
    pub action: Action,
    /// The fields that differ; for a new limit, the fields that are not at their default.
    pub fields: Vec<FieldChange>,
    /// The buckets whose overrides differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideChange>,
    /// How many more overrides are deleted, too many for the history to record.
    #[serde(rename = "overrides_untold", skip_serializing_if = "is_zero")]
    pub overrides_unrecorded: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A field before and after; `None` is the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// The field.
    pub field: String,
    /// The value before.
    pub before: Option<Node>,
    /// The value after.
    pub after: Option<Node>,
}

impl LimitChange {
    /// How a limit differs between two policies, without its overrides; `None` if neither has it.
    pub fn between(before: Option<&Limit>, after: Option<&Limit>) -> Option<Self> {
        Self::of(before, after, Vec::new(), 0)
    }

    /// How a limit differs, with the changes of its overrides; `unrecorded` more are deleted.
    pub fn of(
        before: Option<&Limit>,
        after: Option<&Limit>,
        overrides: Vec<OverrideChange>,
        unrecorded: u64,
    ) -> Option<Self> {
        let name = &after.or(before)?.name;
        let fields = field_changes(before, after);
        let action = match (before, after) {
            (None, _) => Action::Created,
            (_, None) => Action::Deleted,
            _ if fields.is_empty() && overrides.is_empty() && unrecorded == 0 => Action::Unchanged,
            _ => Action::Changed,
        };
        Some(Self {
            limit: name.to_string(),
            action,
            fields,
            overrides,
            overrides_unrecorded: unrecorded,
        })
    }
}

/// Whether any limit differs.
pub fn any(changes: &[LimitChange]) -> bool {
    differing(changes).next().is_some()
}

/// The names of the limits that differ.
pub fn names(changes: &[LimitChange]) -> Vec<String> {
    differing(changes)
        .map(|change| change.limit.clone())
        .collect()
}

fn differing(changes: &[LimitChange]) -> impl Iterator<Item = &LimitChange> {
    let differs = |change: &&LimitChange| change.action != Action::Unchanged;
    changes.iter().filter(differs)
}

fn field_changes(before: Option<&Limit>, after: Option<&Limit>) -> Vec<FieldChange> {
    let before = before.map(Limit::to_node_without_overrides);
    let after = after.map(Limit::to_node_without_overrides);
    // Fields in the order of the manual: those after the edit, then the removed ones.
    let mut names = field_names(after.as_ref());
    for name in field_names(before.as_ref()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let field = |node: &Option<Node>, name| node.as_ref().and_then(|node| node.get(name)).cloned();
    names
        .into_iter()
        .filter(|name| *name != "name")
        .map(|name| FieldChange {
            field: name.to_owned(),
            before: field(&before, name),
            after: field(&after, name),
        })
        .filter(|change| change.before != change.after)
        .collect()
}

fn field_names(node: Option<&Node>) -> Vec<&str> {
    match node.map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.iter().map(|entry| entry.key.as_str()).collect(),
        _ => Vec::new(),
    }
}

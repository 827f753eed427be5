//! The changes of an edit, by limit and field.

use std::collections::BTreeMap;

use limits_file::ToNode as _;
use policy::{Exemption, Limit, Name, Node, Pause, Policy, Value};
use serde::Serialize;

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
        Self::new(before, after, Vec::new(), 0)
    }

    /// How a limit differs, with the changes of its overrides; `unrecorded` more are deleted.
    pub fn new(
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
    let before = before.map(limits_file::node_without_overrides);
    let after = after.map(limits_file::node_without_overrides);
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

// --- The changes of the domain's own fields: its pause, its exemptions, and the order of its limits.

/// How two policies differ in the domain's own fields.
pub fn of_domain(before: Option<&Policy>, after: &Policy) -> Vec<FieldChange> {
    let exempt = before.map_or(&[][..], |before| &before.exempt);
    let order = before.and_then(|before| store::reordered(&before.limits, &after.limits));
    let before = before.and_then(|before| before.paused);
    let paused = (before != after.paused).then_some([before, after.paused]);
    domain_fields(paused, [exempt, &after.exempt], &order.unwrap_or_default())
}

/// The changes of a pause, before and after, of each exemption, and of the order of these limits.
pub(crate) fn domain_fields(
    paused: Option<[Option<Pause>; 2]>,
    [before, after]: [&[Exemption]; 2],
    order: &[Vec<Name>; 2],
) -> Vec<FieldChange> {
    let names = |names: &[Name]| Node::list(names.iter().map(|name| Node::text(name.as_str())));
    let [old, new] = order.each_ref().map(|side| Some(names(side)));
    let order = FieldChange {
        field: ORDER.to_owned(),
        before: old,
        after: new,
    };
    let paused = paused.map(|[before, after]| FieldChange {
        field: "paused".to_owned(),
        before: before.map(|pause| pause.to_node()),
        after: after.map(|pause| pause.to_node()),
    });
    let of = |list: &[Exemption], name: &Name| {
        let found = list.iter().find(|exemption| exemption.name == *name);
        found.and_then(|exemption| exemption.to_node().get("match").cloned())
    };
    let gone = before.iter().map(|exemption| &exemption.name);
    let gone = gone.filter(|name| of(after, name).is_none());
    let names = after.iter().map(|exemption| &exemption.name).chain(gone);
    let exempt = names.map(|name| FieldChange {
        field: format!("{EXEMPT}{name}"),
        before: of(before, name),
        after: of(after, name),
    });
    let all = paused.into_iter().chain(exempt).chain([order]);
    all.filter(|change| change.before != change.after).collect()
}

/// The prefix of an exemption's field in a domain; its name follows.
pub(crate) const EXEMPT: &str = "exempt.";

/// The order of the limits, as a field of the domain.
pub(crate) const ORDER: &str = "order";

// --- The changes of overrides.

/// An override before and after; `None`: the bucket has the limit's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverrideChange {
    /// The bucket.
    pub values: Node,
    /// The override before.
    pub before: Option<Node>,
    /// The override after.
    pub after: Option<Node>,
}

/// How overrides differ, as documents that name their buckets: first those that exist afterwards,
/// then the deleted ones.
pub fn of_overrides(before: Vec<Node>, after: Vec<Node>) -> Vec<OverrideChange> {
    let mut before: BTreeMap<String, Node> = { before.into_iter() }
        .map(|node| (bucket_of(&node), node))
        .collect();
    let mut changes = Vec::new();
    for node in after {
        let old = before.remove(&bucket_of(&node));
        changes.extend(override_change(old.as_ref(), Some(&node)));
    }
    let gone = before.into_values();
    changes.extend(gone.flat_map(|node| override_change(Some(&node), None)));
    changes
}

/// A key that identifies the bucket, whatever the order of its entries.
fn bucket_of(node: &Node) -> String {
    let values = node.get("values").map(|values| &values.value);
    let mut entries = match values {
        Some(Value::Map(entries)) => entries
            .iter()
            .map(|e| (&e.key, e.value.to_yaml_line()))
            .collect(),
        _ => Vec::new(),
    };
    entries.sort();
    format!("{entries:?}")
}

/// The difference between two overrides of one bucket, as documents; empty if they are equal.
pub fn override_change(before: Option<&Node>, after: Option<&Node>) -> Vec<OverrideChange> {
    let values = after
        .or(before)
        .and_then(|node| node.get("values"))
        .cloned();
    let numbers = |node: &Node| {
        let mut node = node.clone();
        node.unset("values");
        node
    };
    let change = OverrideChange {
        values: values.unwrap_or_else(|| Value::Null.into()),
        before: before.map(numbers),
        after: after.map(numbers),
    };
    if change.before == change.after {
        Vec::new()
    } else {
        vec![change]
    }
}

// --- Changes as text.

impl FieldChange {
    /// The value before, as text; a missing field shows its default.
    pub fn before_text(&self) -> String {
        self.text(self.before.as_ref())
    }

    /// The value after.
    pub fn after_text(&self) -> String {
        self.text(self.after.as_ref())
    }

    fn text(&self, value: Option<&Node>) -> String {
        match value {
            Some(node) if self.field == "paused" => paused(node),
            Some(node) => node.to_yaml_line(),
            None => default_of(&self.field).to_owned(),
        }
    }
}

impl OverrideChange {
    /// The bucket: `user=alice`.
    pub fn bucket_text(&self) -> String {
        format_map(&self.values, "=", " ")
    }

    /// The numbers before, `none` without an override.
    pub fn before_text(&self) -> String {
        numbers(self.before.as_ref())
    }

    /// The numbers after.
    pub fn after_text(&self) -> String {
        numbers(self.after.as_ref())
    }
}

fn numbers(node: Option<&Node>) -> String {
    node.map_or_else(|| "none".to_owned(), |node| format_map(node, " ", ", "))
}

/// `yes`, `no`, `until 2026-12-01T00:00:00Z`.
fn paused(node: &Node) -> String {
    match node.value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        _ => format_map(node, " ", ", "),
    }
}

/// A map as words: `rate 100/s, until 2026-12-01T00:00:00Z`.
pub fn format_map(node: &Node, between: &str, separator: &str) -> String {
    let Value::Map(entries) = &node.value else {
        return node.to_yaml_line();
    };
    let words = entries
        .iter()
        .map(|entry| match (&entry.value.value, entry.value.as_text()) {
            (Value::Bool(true), _) => entry.key.clone(),
            (Value::Null, _) => format!("{}: none", entry.key),
            (_, Some(text)) => format!(
                "{}{between}{}",
                entry.key,
                crate::bucket::visible(text.as_bytes())
            ),
            _ => format!("{}{between}{}", entry.key, entry.value.to_yaml_line()),
        });
    words.collect::<Vec<_>>().join(separator)
}

/// The meaning of a missing field.
fn default_of(field: &str) -> &'static str {
    match field {
        "match" => "every request",
        "per" => "one bucket for all",
        "if_missing" => "share",
        "burst" => "same as the rate",
        "cost" => "1",
        "over_limit" => "reject",
        "max_delay" => "5s",
        "enforce" => "100%",
        "on_failure" => "local",
        "scope" => "global",
        "hidden" => "false",
        "strict" => "true",
        "align" => "epoch",
        "fleet_size" => "as counted",
        "paused" => "no",
        _ => "none",
    }
}

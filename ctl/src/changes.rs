//! What an edit does, limit by limit and field by field.

use std::collections::{BTreeMap, BTreeSet};

use policy::{Limit, Name, Node, Override, Pause, Policy, Value};
use serde::Serialize;

/// What happens to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is new.
    Created,
    /// Some fields become others.
    Changed,
    /// It is gone.
    Deleted,
    /// Nothing.
    Unchanged,
}

/// A limit and what happens to it.
#[derive(Clone, Debug, Serialize)]
pub struct LimitChange {
    /// The limit.
    pub limit: String,
    /// What happens to it.
    pub action: Action,
    /// The fields that differ; for a new limit, those that are not at their default.
    pub fields: Vec<FieldChange>,
    /// The buckets whose own numbers differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideChange>,
}

/// A field before and after; `None` is the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// The field.
    pub field: String,
    /// As it was.
    pub before: Option<Node>,
    /// As it is.
    pub after: Option<Node>,
}

/// An override before and after; `None`: the bucket has the limit's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverrideChange {
    /// The bucket.
    pub values: Node,
    /// As it was.
    pub before: Option<Node>,
    /// As it is.
    pub after: Option<Node>,
}

impl LimitChange {
    /// How a limit differs between two policies; `None`: it is in neither.
    pub fn between(before: Option<&Limit>, after: Option<&Limit>) -> Option<Self> {
        let name = &after.or(before)?.name;
        let fields = field_changes(before, after);
        let overrides = override_changes(before, after);
        let action = match (before, after) {
            (None, _) => Action::Created,
            (_, None) => Action::Deleted,
            _ if fields.is_empty() && overrides.is_empty() => Action::Unchanged,
            _ => Action::Changed,
        };
        Some(Self {
            limit: name.to_string(),
            action,
            fields,
            overrides,
        })
    }
}

/// How two policies of a domain differ, in the order of the later one; what it lacks comes last.
/// The order of limits means nothing, so another order is no difference.
pub fn between(before: &Policy, after: &Policy) -> Vec<LimitChange> {
    let old: BTreeMap<&Name, &Limit> = before.limits.iter().map(|l| (&l.name, l)).collect();
    let kept: BTreeSet<&Name> = after.limits.iter().map(|limit| &limit.name).collect();
    let there = after
        .limits
        .iter()
        .map(|limit| (old.get(&limit.name).copied(), Some(limit)));
    let gone = before
        .limits
        .iter()
        .filter(|limit| !kept.contains(&limit.name))
        .map(|limit| (Some(limit), None));
    there
        .chain(gone)
        .filter_map(|(before, after)| LimitChange::between(before, after))
        .collect()
}

/// How two policies differ in what they say of the domain itself.
pub fn of_domain(before: Option<&Policy>, after: &Policy) -> Vec<FieldChange> {
    let before = before.and_then(|before| before.paused);
    let changed = (before != after.paused).then(|| FieldChange {
        field: "paused".to_owned(),
        before: before.map(Pause::to_node),
        after: after.paused.map(Pause::to_node),
    });
    changed.into_iter().collect()
}

/// Whether anything would be different.
pub fn any(changes: &[LimitChange]) -> bool {
    changes
        .iter()
        .any(|change| change.action != Action::Unchanged)
}

fn field_changes(before: Option<&Limit>, after: Option<&Limit>) -> Vec<FieldChange> {
    let before = before.map(Limit::to_node_without_overrides);
    let after = after.map(Limit::to_node_without_overrides);
    // The fields in the order of the manual: those that are there, then those that were.
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

fn override_changes(before: Option<&Limit>, after: Option<&Limit>) -> Vec<OverrideChange> {
    let before = before.map(documents).unwrap_or_default();
    let after = after.map(documents).unwrap_or_default();
    let mut changes = Vec::new();
    for (key, (values, numbers)) in &after {
        let old = before.get(key).map(|(_, numbers)| numbers);
        if old != Some(numbers) {
            changes.push(OverrideChange {
                values: values.clone(),
                before: old.cloned(),
                after: Some(numbers.clone()),
            });
        }
    }
    for (key, (values, numbers)) in before {
        if !after.contains_key(&key) {
            changes.push(OverrideChange {
                values,
                before: Some(numbers),
                after: None,
            });
        }
    }
    changes
}

/// What tells buckets apart: the entries' names with their values.
type Bucket = Vec<(Name, Option<Vec<u8>>)>;

/// A limit's overrides as documents: the bucket, and its numbers.
fn documents(limit: &Limit) -> BTreeMap<Bucket, (Node, Node)> {
    let each = limit.overrides.iter().map(|entry| {
        let key = limit.per.iter().cloned().zip(entry.values.clone());
        (key.collect(), split(entry, &limit.per))
    });
    each.collect()
}

/// The difference between two documents of overrides of one bucket; none if there is none.
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

fn split(entry: &Override, per: &[Name]) -> (Node, Node) {
    let mut numbers = entry.to_node(per);
    let values = numbers.get("values").cloned();
    numbers.unset("values");
    (values.unwrap_or_else(|| Value::Null.into()), numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limits: &str) -> Policy {
        let file = format!("domain: shop\nlimits: [{limits}]\n");
        Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    fn actions(before: &str, after: &str) -> Vec<(String, Action)> {
        between(&policy(before), &policy(after))
            .into_iter()
            .map(|change| (change.limit, change.action))
            .collect()
    }

    #[test]
    fn limits_are_compared_by_name_whatever_their_order() {
        let found = actions(
            "{name: a, rate: 1/s}, {name: b, rate: 1/s}, {name: c, rate: 1/s}",
            "{name: c, rate: 1/s}, {name: d, rate: 1/s}, {name: a, rate: 2/s}",
        );
        let expected = [
            ("c", Action::Unchanged),
            ("d", Action::Created),
            ("a", Action::Changed),
            ("b", Action::Deleted),
        ];
        assert_eq!(
            found,
            expected.map(|(name, action)| (name.to_owned(), action))
        );
    }

    #[test]
    fn what_is_written_out_and_what_is_the_default_are_the_same() {
        let found = actions(
            "{name: a, rate: 60/60s}",
            "{name: a, rate: 60/1m, on_failure: local, cost: 1}",
        );
        assert_eq!(found, [("a".to_owned(), Action::Unchanged)]);
    }

    #[test]
    fn fields_are_named_with_what_they_were() {
        let changes = between(
            &policy("{name: a, rate: 1/s, burst: 5, hidden: true}"),
            &policy("{name: a, rate: 2/s, burst: 5, cost: 3}"),
        );
        let text = serde_json::to_value(&changes).unwrap();
        assert_eq!(
            text[0]["fields"],
            serde_json::json!([
                {"field": "rate", "before": "1/s", "after": "2/s"},
                {"field": "cost", "before": null, "after": 3},
                {"field": "hidden", "before": true, "after": null},
            ])
        );
    }

    #[test]
    fn overrides_are_compared_by_bucket() {
        let one = "{values: {user: x}, rate: 2/s}";
        let two = "{values: {user: y}, unlimited: true}";
        let three = "{values: {user: x}, rate: 3/s}";
        let limit = |overrides: &[&str]| {
            let overrides = overrides.join(", ");
            policy(&format!(
                "{{name: a, per: [user], rate: 1/s, overrides: [{overrides}]}}"
            ))
        };
        assert!(!any(&between(&limit(&[one, two]), &limit(&[two, one]))));
        let changes = between(&limit(&[one, two]), &limit(&[three]));
        let changes = serde_json::to_value(&changes).unwrap();
        assert_eq!(
            changes[0]["overrides"],
            serde_json::json!([
                {"values": {"user": "x"}, "before": {"rate": "2/s"}, "after": {"rate": "3/s"}},
                {"values": {"user": "y"}, "before": {"unlimited": true}, "after": null},
            ])
        );
    }
}

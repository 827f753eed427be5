//! The changes of overrides.

use std::collections::BTreeMap;

use policy::{Node, Value};
use serde::Serialize;

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

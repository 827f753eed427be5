//! Reports as documents. Unknown fields are skipped and unreadable ones left out: reports are for
//! operators, and no decision depends on them.

use policy::{Name, Node, Revision, Value, node_to_value, value_to_node};

const FORMAT: u64 = 1;

/// A report of this format with these fields.
pub(super) fn report(fields: impl IntoIterator<Item = (&'static str, Node)>) -> Node {
    let format = [("format", Node::number(FORMAT))];
    Node::map(format.into_iter().chain(fields))
}

/// Reads a report; `None`: it is of another format, or no report.
pub(super) fn read(json: &str) -> Option<Node> {
    let report: Node = serde_json::from_str(json).ok()?;
    (number(report.get("format")?) == Some(FORMAT)).then_some(report)
}

pub(super) fn json(report: &Node) -> String {
    crate::record::json(report)
}

pub(super) fn number(node: &Node) -> Option<u64> {
    node.as_text()?.parse().ok()
}

/// A field that counts something; absent, it is 0.
pub(super) fn count(report: &Node, field: &str) -> u64 {
    report.get(field).and_then(number).unwrap_or(0)
}

/// The entries of a map whose keys are names of limits.
pub(super) fn limits<'n>(report: &'n Node, field: &str) -> impl Iterator<Item = (Name, &'n Node)> {
    entries(report.get(field)).filter_map(|(key, node)| Some((key.parse().ok()?, node)))
}

/// The entries of a map whose keys are names or domains.
pub(super) fn named<'n>(report: &'n Node, field: &str) -> impl Iterator<Item = (Name, &'n Node)> {
    entries(report.get(field)).filter_map(|(key, node)| Some((Name::domain(key).ok()?, node)))
}

/// The entries of a map; none of anything else.
pub(super) fn entries(node: Option<&Node>) -> impl Iterator<Item = (&str, &Node)> {
    let entries = match node.map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|e| (e.key.as_str(), &e.value))
}

/// `[17, "00ff…"]`.
pub(super) fn revision_node(revision: &Revision) -> Node {
    let digest = format!("{:016x}", revision.digest);
    Node::list([Node::number(revision.number), Node::text(digest)])
}

pub(super) fn read_revision(node: &Node) -> Option<Revision> {
    let [number_node, digest] = node.items() else {
        return None;
    };
    Some(Revision {
        number: number(number_node)?,
        digest: u64::from_str_radix(digest.as_text()?, 16).ok()?,
    })
}

/// Entries of a descriptor or a bucket.
pub(super) fn values_node<'v>(
    values: impl IntoIterator<Item = (&'v Name, Option<&'v [u8]>)>,
) -> Node {
    let fields = values.into_iter();
    Node::map(fields.map(|(name, value)| (name.as_str(), value_to_node(value))))
}

pub(super) fn read_values(report: &Node, field: &str) -> Vec<(Name, Option<Vec<u8>>)> {
    named(report, field)
        .map(|(name, node)| (name, node_to_value(node)))
        .collect()
}

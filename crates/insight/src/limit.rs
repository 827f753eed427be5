//! A limit in a line.

use policy::{Limit, Node};

use crate::{pause_state, penalty};

/// The condition of a limit, given as a document: `path=/api/** method=GET|POST`, `*` for every request; the
/// entries of a descriptor as the file lists them, `message_type=marketing, to_number`.
pub fn matchers(limit: &Node) -> String {
    if let Some(entries) = limit.get("descriptor") {
        let entries: Vec<String> = entries.items().iter().map(plain).collect();
        return entries.join(", ");
    }
    let Some(Node {
        value: policy::Value::Map(entries),
        ..
    }) = limit.get("match")
    else {
        return "*".to_owned();
    };
    let one = |entry: &policy::Entry| {
        let patterns: Vec<String> = match entry.value.items() {
            [] => vec![plain(&entry.value)],
            many => many.iter().map(plain).collect(),
        };
        format!("{}={}", entry.key, patterns.join("|"))
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// What is unusual about a limit.
pub fn notes(limit: &Limit, now_ms: u64) -> String {
    let node = limit.to_node_without_overrides();
    let mut notes = Vec::from_iter(pause_state(limit.paused, now_ms));
    let text = |name: &str| node.get(name).map(plain);
    match text("enforce").as_deref() {
        Some("0%") => notes.push("shadow".to_owned()),
        Some(percent) => notes.push(format!("enforced {percent}")),
        None => {}
    }
    notes.extend(text("over_limit"));
    notes.extend(text("scope").map(|scope| format!("per {scope}")));
    notes.extend(text("precheck").map(|percent| format!("precheck {percent}")));
    notes.extend(
        node.get("lease")
            .and_then(|lease| lease.get("ttl"))
            .map(|ttl| format!("leased {}", plain(ttl))),
    );
    notes.extend(limit.penalty.as_ref().map(penalty::rule));
    notes.extend(text("hidden").map(|_| "hidden".to_owned()));
    notes.extend(node.get("replaces").map(|names| {
        let names: Vec<String> = names.items().iter().map(plain).collect();
        format!("replaces {}", names.join(","))
    }));
    notes.join(", ")
}

/// A value as text, without quotes.
pub fn plain(node: &Node) -> String {
    node.as_text()
        .map_or_else(|| node.to_yaml_line(), str::to_owned)
}

//! Reading an entry of the history.

use policy::{Limit, Name, Node, Pause, Value};
use store::{HistoryEntry, RESET_BEGUN};

use super::{HistoryChange, Overrides};

impl HistoryChange {
    /// What the entry did.
    pub fn parse(entry: &HistoryEntry) -> Self {
        let read = match entry.operation.as_str() {
            "limits" | "fields" | "edit" | "delete" if entry.after.is_empty() => {
                Some(Self::TooLarge)
            }
            "limits" | "fields" | "edit" | "delete" => limits_entry(entry),
            "override" => entry
                .limit
                .clone()
                .zip(document(&entry.before).zip(document(&entry.after)))
                .map(|(limit, (before, after))| Self::Override {
                    limit,
                    before,
                    after,
                }),
            "reset" => entry.limit.clone().map(|limit| Self::Reset {
                limit,
                key: Some(&entry.after)
                    .filter(|key| !key.starts_with('*'))
                    .cloned(),
                begun: entry.after == RESET_BEGUN,
            }),
            "credit" => credit(entry),
            _ => None,
        };
        read.unwrap_or(Self::Unknown)
    }
}

/// `50 rl:b:shop:per-user:alice`.
fn credit(entry: &HistoryEntry) -> Option<HistoryChange> {
    let (units, key) = entry.after.split_once(' ')?;
    Some(HistoryChange::Credit {
        limit: entry.limit.clone()?,
        units: units.parse().ok()?,
        key: key.to_owned(),
    })
}

fn limits_entry(entry: &HistoryEntry) -> Option<HistoryChange> {
    let (before, after) = (side(&entry.before)?, side(&entry.after)?);
    Some(HistoryChange::Limits {
        paused: (before.paused != after.paused).then_some([before.paused, after.paused]),
        limits: [before.limits, after.limits],
        overrides: [before.overrides, after.overrides],
    })
}

/// Limits before an edit or after it.
struct Side {
    limits: Vec<Limit>,
    overrides: Overrides,
    paused: Option<Pause>,
}

/// A JSON list of limits; or a map of them, their overrides and the domain's pause. Entries of
/// earlier versions have the overrides in the limits.
fn side(json: &str) -> Option<Side> {
    let node: Node = serde_json::from_str(json).ok()?;
    let limits = node.get("limits").unwrap_or(&node).items().iter();
    let limits: Option<Vec<Limit>> = limits.map(|node| Limit::from_record(node).ok()).collect();
    let mut limits = limits?;
    let mut overrides = apart(node.get("overrides"))?;
    for limit in &mut limits {
        let own = std::mem::take(&mut limit.overrides);
        if !own.is_empty() {
            let own = own.iter().map(|found| found.to_node(&limit.per));
            overrides.insert(limit.name.clone(), own.collect());
        }
    }
    Some(Side {
        limits,
        overrides,
        paused: node.get("paused").and_then(Pause::from_node),
    })
}

/// A map of limits' names and lists.
fn apart(node: Option<&Node>) -> Option<Overrides> {
    let entries = match node.map(|node| &node.value) {
        None => return Some(Overrides::new()),
        Some(Value::Map(entries)) => entries,
        Some(_) => return None,
    };
    let one = |entry: &policy::Entry| {
        let name: Name = entry.key.parse().ok()?;
        Some((name, entry.value.items().to_vec()))
    };
    entries.iter().map(one).collect()
}

/// A JSON document, or nothing.
#[expect(
    clippy::option_option,
    reason = "the outer one says whether the text could be read"
)]
fn document(json: &str) -> Option<Option<Node>> {
    if json.is_empty() {
        return Some(None);
    }
    serde_json::from_str(json).ok().map(Some)
}

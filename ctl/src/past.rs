//! Edits of the past, read back from the history.

use policy::{Limit, Name, Node, Override, Pause, Policy};
use store::HistoryEntry;

use crate::changes::{Action, FieldChange, LimitChange};

/// What an entry of the history did.
#[derive(Clone, Debug)]
pub enum Past {
    /// Limits were created, changed or deleted.
    Limits {
        /// Those that were changed or deleted, as they were.
        before: Vec<Limit>,
        /// Those that were created or changed, as they became.
        after: Vec<Limit>,
        /// Whether their overrides were left alone, and are not among this.
        fields_only: bool,
        /// The pause of the domain before and after, where that changed.
        paused: Option<[Option<Pause>; 2]>,
    },
    /// One bucket got other numbers, or its limit's again. Both are documents, as stored.
    Override {
        /// The limit.
        limit: Name,
        /// The override as it was.
        before: Option<Node>,
        /// The override as it became.
        after: Option<Node>,
    },
    /// Usage was forgotten.
    Reset {
        /// The limit.
        limit: Name,
        /// The bucket's key; `*` for all of them.
        key: String,
    },
    /// Units were given back to a bucket.
    Credit {
        /// The limit.
        limit: Name,
        /// How many.
        units: u64,
    },
    /// An edit that this version does not know, or a record that it cannot read.
    Unknown,
}

impl Past {
    /// What the entry did.
    pub fn of(entry: &HistoryEntry) -> Self {
        let read = match entry.operation.as_str() {
            "limits" | "fields" | "delete" => limits_entry(entry),
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
                key: entry.after.clone(),
            }),
            "credit" => credit(entry),
            _ => None,
        };
        read.unwrap_or(Self::Unknown)
    }

    /// The names of the limits concerned.
    pub fn limits(&self) -> Vec<&Name> {
        match self {
            Self::Limits { before, after, .. } => {
                let mut names: Vec<&Name> = after.iter().chain(before).map(|l| &l.name).collect();
                let mut seen = std::collections::BTreeSet::new();
                names.retain(|name| seen.insert(*name));
                names
            }
            Self::Override { limit, .. }
            | Self::Reset { limit, .. }
            | Self::Credit { limit, .. } => vec![limit],
            Self::Unknown => Vec::new(),
        }
    }

    /// What it changed about the domain itself.
    pub fn domain_changes(&self) -> Vec<FieldChange> {
        let Self::Limits {
            paused: Some([before, after]),
            ..
        } = self
        else {
            return Vec::new();
        };
        vec![FieldChange {
            field: "paused".to_owned(),
            before: before.map(Pause::to_node),
            after: after.map(Pause::to_node),
        }]
    }

    /// What it changed about each limit.
    pub fn changes(&self) -> Vec<LimitChange> {
        match self {
            Self::Limits { before, after, .. } => {
                let find =
                    |list: &'_ [Limit], name: &Name| list.iter().find(|l| l.name == *name).cloned();
                let between = |name| {
                    LimitChange::between(find(before, name).as_ref(), find(after, name).as_ref())
                };
                self.limits().into_iter().filter_map(between).collect()
            }
            Self::Override {
                limit,
                before,
                after,
            } => {
                vec![LimitChange {
                    limit: limit.to_string(),
                    action: Action::Changed,
                    fields: Vec::new(),
                    overrides: crate::changes::override_change(before.as_ref(), after.as_ref()),
                }]
            }
            Self::Reset { .. } | Self::Credit { .. } | Self::Unknown => Vec::new(),
        }
    }

    /// Takes the edit back from `policy`, which is as the edit left it, or with `only` as much of
    /// it as concerns that limit. `None` if that cannot be done.
    pub fn undo(&self, policy: &mut Policy, only: Option<&Name>) -> Option<()> {
        let concerned = |name: &Name| only.is_none_or(|only| only == name);
        match self {
            Self::Limits {
                before,
                after,
                fields_only,
                paused,
            } => {
                if let (Some([before, _]), None) = (paused, only) {
                    policy.paused = *before;
                }
                let created = |limit: &Limit| {
                    after.iter().any(|new| new.name == limit.name)
                        && !before.iter().any(|old| old.name == limit.name)
                };
                policy
                    .limits
                    .retain(|limit| !(concerned(&limit.name) && created(limit)));
                for old in before.iter().filter(|limit| concerned(&limit.name)) {
                    match policy
                        .limits
                        .iter_mut()
                        .find(|limit| limit.name == old.name)
                    {
                        Some(limit) => {
                            let kept = fields_only.then(|| limit.overrides.clone());
                            *limit = old.clone();
                            limit.overrides = kept.unwrap_or_else(|| old.overrides.clone());
                        }
                        None => policy.limits.push(old.clone()),
                    }
                }
                Some(())
            }
            Self::Override {
                limit,
                before,
                after,
            } if concerned(limit) => {
                let limit = policy
                    .limits
                    .iter_mut()
                    .find(|found| found.name == *limit)?;
                undo_override(limit, before.as_ref(), after.as_ref())
            }
            Self::Override { .. } | Self::Reset { .. } | Self::Credit { .. } => Some(()),
            Self::Unknown => None,
        }
    }
}

fn undo_override(limit: &mut Limit, before: Option<&Node>, after: Option<&Node>) -> Option<()> {
    let read = |node: &Node| limit.read_override(node).ok();
    let before: Option<Override> = before.map(read).map_or(Some(None), |read| read.map(Some))?;
    let after: Option<Override> = after.map(read).map_or(Some(None), |read| read.map(Some))?;
    if let Some(after) = after {
        limit.overrides.retain(|entry| entry.values != after.values);
    }
    if let Some(before) = before {
        limit
            .overrides
            .retain(|entry| entry.values != before.values);
        limit.overrides.push(before);
        limit.overrides.sort_by(|a, b| a.values.cmp(&b.values));
    }
    Some(())
}

/// `50 rl:b:shop:per-user:alice`.
fn credit(entry: &HistoryEntry) -> Option<Past> {
    let (units, _) = entry.after.split_once(' ')?;
    Some(Past::Credit {
        limit: entry.limit.clone()?,
        units: units.parse().ok()?,
    })
}

fn limits_entry(entry: &HistoryEntry) -> Option<Past> {
    let (before, paused_before) = side(&entry.before)?;
    let (after, paused_after) = side(&entry.after)?;
    Some(Past::Limits {
        before,
        after,
        fields_only: entry.operation == "fields",
        paused: (paused_before != paused_after).then_some([paused_before, paused_after]),
    })
}

/// A JSON list of limits; or a map of them and the domain's pause.
fn side(json: &str) -> Option<(Vec<Limit>, Option<Pause>)> {
    let node: Node = serde_json::from_str(json).ok()?;
    let limits = node.get("limits").unwrap_or(&node).items().iter();
    let limits: Option<_> = limits.map(|node| Limit::from_record(node).ok()).collect();
    let paused = node.get("paused").and_then(Pause::from_node);
    Some((limits?, paused))
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

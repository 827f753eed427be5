//! The entries of a domain's history: what each edit changed, and how to revert it.

use std::collections::{BTreeMap, HashMap};

use policy::{Exemption, Limit, Name, Node, Pause};
use store::{HistoryEntry, Operation, RecordedOverrides, RecordedSide, ResetOf};

use crate::{
    bucket::{self, visible},
    changes::{self, Action, EXEMPT, FieldChange, LimitChange, ORDER},
    counted,
};

/// What an entry of the history did.
#[derive(Clone, Debug)]
pub enum HistoryChange {
    /// Limits were created, changed or deleted.
    Limits {
        /// The changed and deleted limits before the edit, then the created and changed ones after
        /// it, without overrides.
        limits: [Vec<Limit>; 2],
        /// The changed overrides before and after, as documents.
        overrides: [RecordedOverrides; 2],
        /// The pause of the domain before and after, if it changed.
        paused: Option<[Option<Pause>; 2]>,
        /// The changed exemptions before and after.
        exempt: [Vec<Exemption>; 2],
        /// Where limits that were deleted or moved had been: [`Limit::place`].
        places: BTreeMap<Name, u64>,
        /// The limits whose order changed, before and after.
        order: [Vec<Name>; 2],
    },
    /// An override of one bucket was set or deleted. Both are documents, as stored.
    Override {
        /// The limit.
        limit: Name,
        /// The override before; `None` if there was none.
        before: Option<Node>,
        /// The override after; `None` if it was deleted.
        after: Option<Node>,
    },
    /// Buckets became unused.
    Reset {
        /// The limit.
        limit: Name,
        /// The bucket's key; `None` for all of them.
        key: Option<String>,
        /// Whether the entry was written at the start of the reset; another one follows at its end.
        started: bool,
    },
    /// Units were given back to a bucket.
    Credit {
        /// The limit.
        limit: Name,
        /// How many.
        units: u64,
        /// The bucket's key.
        key: String,
    },
    /// An edit too large for the history to record.
    TooLarge,
    /// An operation that this version does not support, or an entry that it cannot read.
    Unknown,
}

impl HistoryChange {
    /// The names of the limits concerned.
    pub fn limits(&self) -> Vec<&Name> {
        match self {
            Self::Limits {
                limits: [before, after],
                overrides,
                ..
            } => {
                let limits = after.iter().chain(before).map(|limit| &limit.name);
                let overrides = overrides.iter().flat_map(BTreeMap::keys);
                let mut names: Vec<&Name> = limits.chain(overrides).collect();
                let mut seen = std::collections::BTreeSet::new();
                names.retain(|name| seen.insert(*name));
                names
            }
            Self::Override { limit, .. }
            | Self::Reset { limit, .. }
            | Self::Credit { limit, .. } => vec![limit],
            Self::TooLarge | Self::Unknown => Vec::new(),
        }
    }

    /// The key of the bucket that was reset or credited.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Reset { key, .. } => key.as_deref(),
            Self::Credit { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The changes of the domain's own fields.
    pub fn domain_changes(&self) -> Vec<FieldChange> {
        let Self::Limits {
            paused,
            exempt: [before, after],
            order,
            ..
        } = self
        else {
            return Vec::new();
        };
        changes::domain_fields(*paused, [before, after], order)
    }

    /// The changes of each limit.
    pub fn changes(&self) -> Vec<LimitChange> {
        match self {
            Self::Limits {
                limits, overrides, ..
            } => {
                let by_name = limits.each_ref().map(|side| by_name(side));
                let change = |name| of_limit(&by_name, overrides, name);
                self.limits().into_iter().map(change).collect()
            }
            Self::Override {
                limit,
                before,
                after,
            } => {
                let overrides = changes::override_change(before.as_ref(), after.as_ref());
                vec![only_overrides(limit, overrides)]
            }
            Self::Reset { .. } | Self::Credit { .. } | Self::TooLarge | Self::Unknown => Vec::new(),
        }
    }
}

/// An edit may have 10,000 limits.
fn by_name(limits: &[Limit]) -> HashMap<&Name, &Limit> {
    limits.iter().map(|limit| (&limit.name, limit)).collect()
}

/// The changes of one limit in an edit.
fn of_limit(
    limits: &[HashMap<&Name, &Limit>; 2],
    overrides: &[RecordedOverrides; 2],
    name: &Name,
) -> LimitChange {
    let [before, after] = limits.each_ref().map(|side| side.get(name).copied());
    let [gone, come] = overrides
        .each_ref()
        .map(|side| side.get(name).cloned().unwrap_or_default());
    let overrides = changes::of_overrides(gone, come);
    let change = LimitChange::new(before, after, overrides.clone(), 0);
    change.unwrap_or_else(|| only_overrides(name, overrides))
}

fn only_overrides(limit: &Name, overrides: Vec<changes::OverrideChange>) -> LimitChange {
    LimitChange {
        limit: limit.to_string(),
        action: Action::Changed,
        fields: Vec::new(),
        overrides,
        overrides_unrecorded: 0,
    }
}

// --- Reading an entry of the history.

impl HistoryChange {
    /// What the entry did.
    pub fn parse(entry: &HistoryEntry) -> Self {
        let read = match entry.kind() {
            Some(Operation::Fields | Operation::Edit | Operation::Delete)
                if entry.after.is_empty() =>
            {
                Some(Self::TooLarge)
            }
            Some(Operation::Fields | Operation::Edit | Operation::Delete) => limits(entry),
            Some(Operation::Override) => one_override(entry),
            Some(Operation::Reset) => reset(entry),
            Some(Operation::Credit) => credit(entry),
            None => None,
        };
        read.unwrap_or(Self::Unknown)
    }
}

fn limits(entry: &HistoryEntry) -> Option<HistoryChange> {
    let before = RecordedSide::read(&entry.before)?;
    let after = RecordedSide::read(&entry.after)?;
    Some(HistoryChange::Limits {
        paused: (before.paused != after.paused).then_some([before.paused, after.paused]),
        exempt: [before.exempt, after.exempt],
        places: before.places,
        order: [before.order, after.order],
        limits: [before.limits, after.limits],
        overrides: [before.overrides, after.overrides],
    })
}

fn one_override(entry: &HistoryEntry) -> Option<HistoryChange> {
    Some(HistoryChange::Override {
        limit: entry.limit.clone()?,
        before: document(&entry.before).ok()?,
        after: document(&entry.after).ok()?,
    })
}

fn reset(entry: &HistoryEntry) -> Option<HistoryChange> {
    let of = entry.reset_of();
    Some(HistoryChange::Reset {
        limit: entry.limit.clone()?,
        key: match of {
            ResetOf::Bucket(key) => Some(key.to_owned()),
            ResetOf::All | ResetOf::AllStarted => None,
        },
        started: of == ResetOf::AllStarted,
    })
}

fn credit(entry: &HistoryEntry) -> Option<HistoryChange> {
    let (units, key) = entry.credited()?;
    Some(HistoryChange::Credit {
        limit: entry.limit.clone()?,
        units,
        key: key.to_owned(),
    })
}

/// A JSON document; `None` if the text is empty.
fn document(json: &str) -> Result<Option<Node>, serde_json::Error> {
    if json.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(json).map(Some)
}

// --- What an entry of the history did, in a line.

/// The most limits that are named.
const NAMED_MAX: usize = 5;

/// `+exports ~per-user -old`; `bucket` is the one that was reset or credited, if known.
pub fn summary(
    change: &HistoryChange,
    changes: &[LimitChange],
    bucket: Option<&[(String, Option<String>)]>,
) -> String {
    let bucket = |key: &str| bucket.map_or_else(|| visible(key.as_bytes()), bucket::describe_key);
    match change {
        HistoryChange::Limits { .. } => {
            let sign = |change: &LimitChange| match change.action {
                Action::Changed if only_pause(change).is_some() => {
                    only_pause(change).map_or_else(String::new, |c| kill_switch(c, &change.limit))
                }
                Action::Created => format!("+{}", change.limit),
                Action::Deleted => format!("-{}", change.limit),
                Action::Changed | Action::Unchanged => format!("~{}", change.limit),
            };
            let domain = change.domain_changes();
            let domain = domain.iter().take(NAMED_MAX).map(of_domain);
            let limits = changes.iter().take(NAMED_MAX).map(sign);
            let more = changes.len().saturating_sub(NAMED_MAX);
            let more = (more > 0).then(|| format!("and {}", counted(more, "more limit")));
            let all = domain.chain(limits).chain(more);
            all.collect::<Vec<_>>().join(" ")
        }
        HistoryChange::Override { limit, after, .. } => match after {
            Some(_) => format!("~{limit} override"),
            None => format!("~{limit} -override"),
        },
        HistoryChange::Reset {
            limit,
            started: true,
            ..
        } => format!("reset {limit}, every bucket: started"),
        HistoryChange::Reset {
            limit, key: None, ..
        } => format!("reset {limit}, every bucket"),
        HistoryChange::Reset {
            limit,
            key: Some(key),
            ..
        } => format!("reset {limit} {}", bucket(key)),
        HistoryChange::Credit { limit, units, key } => {
            format!("credit {limit} {}: {units}", bucket(key))
        }
        HistoryChange::TooLarge => "(too large for the history)".to_owned(),
        HistoryChange::Unknown => "(unknown to this version)".to_owned(),
    }
}

/// The change of `paused`, if nothing else changed about a limit.
fn only_pause(change: &LimitChange) -> Option<&FieldChange> {
    match change.fields.as_slice() {
        [only] if only.field == "paused" && change.overrides.is_empty() => Some(only),
        _ => None,
    }
}

/// `paused the domain`, `+exempt.health`.
fn of_domain(change: &FieldChange) -> String {
    let field = &change.field;
    if !field.starts_with(EXEMPT) && field != ORDER {
        return kill_switch(change, "the domain");
    }
    match (&change.before, &change.after) {
        (None, _) => format!("+{field}"),
        (_, None) => format!("-{field}"),
        _ => format!("~{field}"),
    }
}

/// `paused per-user`, `resumed the domain`.
fn kill_switch(change: &FieldChange, what: &str) -> String {
    let word = if change.after.is_some() {
        "paused"
    } else {
        "resumed"
    };
    format!("{word} {what}")
}

//! The entries of a domain's history: what each edit changed, and how to revert it.

mod parse;
mod summary;

use std::collections::BTreeMap;

use policy::{Exemption, Limit, Name, Node, Pause};
use store::RecordedOverrides;

use crate::changes::{self, Action, FieldChange, LimitChange};

pub use summary::summary;

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
            ..
        } = self
        else {
            return Vec::new();
        };
        changes::domain_fields(*paused, before, after)
    }

    /// The changes of each limit.
    pub fn changes(&self) -> Vec<LimitChange> {
        match self {
            Self::Limits {
                limits, overrides, ..
            } => {
                let change = |name| of_limit(limits, overrides, name);
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

/// The changes of one limit in an edit.
fn of_limit(
    limits: &[Vec<Limit>; 2],
    overrides: &[RecordedOverrides; 2],
    name: &Name,
) -> LimitChange {
    let find = |list: &'_ [Limit]| list.iter().find(|limit| limit.name == *name).cloned();
    let [before, after] = limits.each_ref().map(|side| find(side));
    let [gone, come] = overrides
        .each_ref()
        .map(|side| side.get(name).cloned().unwrap_or_default());
    let overrides = changes::of_overrides(gone, come);
    let change = LimitChange::of(before.as_ref(), after.as_ref(), overrides.clone(), 0);
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

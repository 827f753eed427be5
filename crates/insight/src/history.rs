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
        /// Those that were changed or deleted, as they were; then those that were created or
        /// changed, as they became. Their overrides are not among this.
        limits: [Vec<Limit>; 2],
        /// The overrides that changed, as documents, as they were and as they became.
        overrides: [RecordedOverrides; 2],
        /// The pause of the domain before and after, where that changed.
        paused: Option<[Option<Pause>; 2]>,
        /// The exemptions that changed, as they were and as they became.
        exempt: [Vec<Exemption>; 2],
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
    /// Buckets became unused.
    Reset {
        /// The limit.
        limit: Name,
        /// The bucket's key; `None` for all of them.
        key: Option<String>,
        /// Whether the entry was written at the start; that of the end follows.
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
    /// An edit that changed more than the history keeps.
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

    /// The key of the one bucket that was reset or credited.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Reset { key, .. } => key.as_deref(),
            Self::Credit { key, .. } => Some(key),
            _ => None,
        }
    }

    /// What it changed about the domain itself.
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

    /// What it changed about each limit.
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

/// What an edit of limits changed about one of them.
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

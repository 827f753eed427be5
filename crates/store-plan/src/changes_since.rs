//! Reading only what changed, where there are very many overrides.
//!
//! Reading 100,000 overrides takes the better part of a second of a limiter's time, and every edit
//! of one of them makes every limiter read. The history lists which overrides changed.

use std::collections::{BTreeMap, HashMap};

use policy::{Limit, Name, Node, Override, Policy, Revision};

use crate::{HistoryEntry, Operation, edit, record};

/// The most edits to catch up with; after more, limiters read the whole record.
pub const EDITS_MAX: u64 = 200;

/// What changed in a domain since a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesSince {
    /// The limits as they are, without overrides.
    pub policy: Policy,
    /// The overrides that came, changed or went. Where a limit's `per` or numbers changed as well,
    /// its other overrides mean something else now, too.
    pub overrides: Vec<OverrideChange>,
}

/// A change of one override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideChange {
    /// The limit.
    pub limit: Name,
    /// The bucket.
    pub values: Vec<Option<Vec<u8>>>,
    /// `None`: it is gone.
    pub to: Option<Override>,
}

impl ChangesSince {
    /// The changes that these edits made, the last ones, oldest first; `None` if one of them does
    /// not list its changes. `policy` is what is stored now.
    pub fn new(policy: Policy, edits: &[HistoryEntry]) -> Option<Self> {
        let overrides = changed(&policy, edits)?;
        Some(Self { policy, overrides })
    }
}

/// Overrides by limit and bucket, `None` where they are gone.
type Changed = BTreeMap<(Name, Vec<Option<Vec<u8>>>), Option<Node>>;

/// The limits as they are now, by name.
type Limits<'p> = HashMap<&'p str, &'p Limit>;

/// The edits after `known`, up to `now` and without a gap. The digest of the first entry shows
/// that this is the same history, not a restored one.
pub fn edits_between<'h>(
    entries: &'h [HistoryEntry],
    known: &Revision,
    now: &Revision,
) -> Option<&'h [HistoryEntry]> {
    // One more may have been written after the record was read.
    let end = entries.iter().position(|entry| entry.revision == *now)?;
    let (first, edits) = entries.get(..=end)?.split_first()?;
    let whole = known.number.checked_add(u64::try_from(edits.len()).ok()?) == Some(now.number);
    (whole && first.revision == *known).then_some(edits)
}

/// The overrides that edits changed, as the last of them left each; `None` if one of the edits
/// does not list them.
fn changed(policy: &Policy, edits: &[HistoryEntry]) -> Option<Vec<OverrideChange>> {
    let limits = &policy.by_name();
    let mut changed = Changed::new();
    for edit in edits {
        match edit.kind()? {
            // What edits of fields made is in the document, which is read again in any case.
            Operation::Reset | Operation::Credit | Operation::Fields => {}
            Operation::Override => {
                apply_override(limits, &mut changed, edit.limit.as_ref()?, edit)?;
            }
            Operation::Edit => apply_edit(limits, &mut changed, edit)?,
            Operation::Delete => return None,
        }
    }
    let read = |((name, values), node): ((Name, _), Option<Node>)| {
        let limit = limits.get(name.as_str())?;
        let to = node
            .map(|node| limit.read_override(&node))
            .transpose()
            .ok()?;
        Some(OverrideChange {
            limit: name,
            values,
            to,
        })
    };
    changed.into_iter().map(read).collect()
}

/// An edit of one override.
fn apply_override(
    limits: &Limits<'_>,
    changed: &mut Changed,
    name: &Name,
    edit: &HistoryEntry,
) -> Option<()> {
    for (json, stays) in [(&edit.before, false), (&edit.after, true)] {
        if !json.is_empty() {
            apply_one(
                limits,
                changed,
                name,
                (serde_json::from_str(json).ok()?, stays),
            )?;
        }
    }
    Some(())
}

/// An edit of limits and overrides.
fn apply_edit(limits: &Limits<'_>, changed: &mut Changed, entry: &HistoryEntry) -> Option<()> {
    for (json, stays) in [(&entry.before, false), (&entry.after, true)] {
        for (name, overrides) in edit::read_overrides(json)? {
            for found in overrides {
                apply_one(limits, changed, &name, (found, stays))?;
            }
        }
    }
    Some(())
}

/// Applies an override as an edit found it, or as it left it. `None` if it does not fit the limit's
/// current `per`: the limit was another one in between.
fn apply_one(
    limits: &Limits<'_>,
    changed: &mut Changed,
    name: &Name,
    (node, stays): (Node, bool),
) -> Option<()> {
    // The overrides of a removed limit are gone with it.
    if let Some(limit) = limits.get(name.as_str()) {
        let values = record::override_values(&node, &limit.per)?;
        changed.insert((name.clone(), values), stays.then_some(node));
    }
    Some(())
}

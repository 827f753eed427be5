//! Reading an entry of the history.

use policy::Node;
use store::{HistoryEntry, Operation, RecordedSide, ResetOf};

use super::HistoryChange;

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

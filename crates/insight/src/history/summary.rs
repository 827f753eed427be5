//! What an entry of the history did, in a line.

use super::HistoryChange;
use crate::{
    bucket::{key, visible},
    changes::{Action, EXEMPT, FieldChange, LimitChange},
    counted,
};

/// The most limits that are named.
const NAMED_MAX: usize = 5;

/// `+exports ~per-user -old`; `bucket` is the one that was reset or credited, if known.
pub fn summary(
    change: &HistoryChange,
    changes: &[LimitChange],
    bucket: Option<&[(String, Option<String>)]>,
) -> String {
    let bucket = |key: &str| bucket.map_or_else(|| visible(key.as_bytes()), key::describe);
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
    if !field.starts_with(EXEMPT) {
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

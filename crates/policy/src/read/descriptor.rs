//! What only limits of the rate limit service have.

use documents::{Field, Path, Report, Take, Value};

use crate::{ChargeMode, DescriptorLimit, DescriptorPattern, EntryPattern, read::together::refuse};

/// Fields that a limit of the rate limit service cannot have: clients of that service send the
/// descriptor themselves, and get an answer at once.
const FOREIGN: [(&str, &str); 6] = [
    ("match", "`descriptor` says when the limit applies"),
    ("per", "each descriptor has a bucket of its own"),
    ("if_missing", "a descriptor lacks nothing"),
    ("partition", "each descriptor has a bucket of its own"),
    ("precheck", "it is for the filter"),
    ("lease", "it is for the filter"),
];

/// Fields that only a limit of the rate limit service has.
const OWN: [&str; 4] = ["unlimited", "share_threshold", "quota_mode", "charge"];

/// Reads the fields; `None` for other limits.
pub(super) fn read_descriptor(
    take: &mut Take<'_, '_>,
    limit: &Field<'_>,
) -> Option<Box<DescriptorLimit>> {
    let unlimited = take.boolean("unlimited").unwrap_or(false);
    let share = take.field("share_threshold");
    let quota_mode = take.boolean("quota_mode").unwrap_or(false);
    let charge: ChargeMode = take.choice("charge");
    let Some(field) = take.field("descriptor") else {
        for name in OWN {
            if limit.node.get(name).is_some() {
                let message = format!("`{name}` is for limits of Envoy's rate limit service");
                refuse(limit, name, message, take.report)
                    .push_hint("such a limit has a `descriptor`");
            }
        }
        return None;
    };
    for (name, why) in FOREIGN {
        if limit.node.get(name).is_some() {
            let message = format!("`{name}` on a limit that has a `descriptor`");
            refuse(limit, name, message, take.report).push_hint(why);
        }
    }
    if unlimited {
        for name in ["algorithm", "rate", "burst", "penalty", "overrides"] {
            if limit.node.get(name).is_some() {
                let message = format!("`{name}` on a limit that is `unlimited`");
                refuse(limit, name, message, take.report);
            }
        }
    }
    let mut entries = read_entries(&field, take.report)?;
    if let Some(share) = share {
        read_share(&share, &mut entries, take.report);
    }
    match DescriptorPattern::new(entries) {
        Ok(pattern) => Some(Box::new(DescriptorLimit {
            pattern,
            unlimited,
            quota_mode,
            charge,
        })),
        Err(error) => {
            field.report(take.report, error.to_string());
            None
        }
    }
}

/// `None`, and a problem, if any entry is invalid.
fn read_entries(field: &Field<'_>, report: &mut Report) -> Option<Vec<EntryPattern>> {
    const WHAT: &str = "an entry like user=alice, user or path=/api/*";
    let entry = |item: &Field<'_>, report: &mut Report| {
        if let Value::Map(_) = item.node.value {
            let problem = item.expected(WHAT, report);
            problem.push_hint("write `key=value`, not `key: value`");
            return None;
        }
        item.parsed(WHAT, EntryPattern::parse, report)
    };
    let Value::List(items) = &field.node.value else {
        return entry(field, report).map(|entry| vec![entry]);
    };
    let mut entries = Vec::with_capacity(items.len());
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        entries.push(entry(&item, report));
    }
    entries.into_iter().collect()
}

fn read_share(field: &Field<'_>, entries: &mut [EntryPattern], report: &mut Report) {
    const WHAT: &str = "true, or the keys of entries with a `*`";
    let mut share = |key: Option<&str>| {
        let mut found = false;
        for entry in entries.iter_mut().filter(|entry| entry.is_wildcard()) {
            if key.is_none_or(|key| entry.key() == key) {
                entry.share_threshold = true;
                found = true;
            }
        }
        found
    };
    let items = match &field.node.value {
        Value::Bool(false) => return,
        Value::Bool(true) => {
            if !share(None) {
                field
                    .report(report, "no entry of the descriptor has a `*`")
                    .push_hint("the values of `path=/api/*` can share one bucket");
            }
            return;
        }
        Value::List(items) => items,
        _ => {
            field.expected(WHAT, report);
            return;
        }
    };
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        match item.text(WHAT, report) {
            Some(key) if !share(Some(key)) => {
                item.expected("the key of an entry with a `*`", report);
            }
            _ => {}
        }
    }
}

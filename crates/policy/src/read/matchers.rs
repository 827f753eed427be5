//! `match`: when a limit applies.

use documents::{Field, Path, Report, Take, Value, name_hint, quoted};
use patterns::Pattern;

use crate::Matcher;

/// The most conditions of one limit.
const MAX_MATCHERS: usize = 32;
/// The most patterns of one condition.
const MAX_PATTERNS: usize = 1000;

pub(crate) fn read_matchers(take: &mut Take<'_, '_>) -> Vec<Matcher> {
    let Some(field) = take.field("match") else {
        return Vec::new();
    };
    let report = &mut *take.report;
    let what = "a map of descriptor entries and their patterns, like {path: \"/api/**\"}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MAX_MATCHERS {
        field.report(report, format!("more than {MAX_MATCHERS} entries"));
    }
    let mut matchers = Vec::with_capacity(entries.len());
    for entry in entries {
        let key_field = Field {
            node: &entry.value,
            path: Path::Field(&field.path, &entry.key),
        };
        let key = match entry.key.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("{} is not a name", quoted(&entry.key));
                report
                    .add(&key_field.path, entry.place, message)
                    .push_hint(name_hint(&entry.key, &error));
                None
            }
        };
        let patterns = read_patterns(&key_field, report);
        if let Some(key) = key {
            matchers.push(Matcher::new(key, patterns));
        }
    }
    matchers
}

fn read_patterns(field: &Field<'_>, report: &mut Report) -> Vec<Pattern> {
    let Value::List(items) = &field.node.value else {
        return read_pattern(field, report).into_iter().collect();
    };
    if items.is_empty() {
        field
            .report(report, "an empty list of patterns")
            .push_hint("no value would match; remove the entry to match every value");
    }
    if items.len() > MAX_PATTERNS {
        field.report(report, format!("more than {MAX_PATTERNS} patterns"));
    }
    let mut patterns = Vec::with_capacity(items.len().min(MAX_PATTERNS));
    for (index, node) in items.iter().take(MAX_PATTERNS).enumerate() {
        let path = Path::Item(&field.path, index);
        patterns.extend(read_pattern(&Field { node, path }, report));
    }
    patterns
}

fn read_pattern(field: &Field<'_>, report: &mut Report) -> Option<Pattern> {
    field.parsed("a pattern", Pattern::parse, report)
}

//! The changes of an edit as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
pub use insight::changes::format_map;

use super::{Page, counted};
use crate::changes::{Action, FieldChange, LimitChange, OverrideChange};

/// Overrides of one limit that are listed one by one.
const OVERRIDES_SHOWN: usize = 20;
/// Limits that are listed one by one.
const LIMITS_SHOWN: usize = 40;

const CREATED: Style = AnsiColor::Green.on_default();
const CHANGED: Style = AnsiColor::Yellow.on_default();
const DELETED: Style = AnsiColor::Red.on_default();
const NAME: Style = Style::new().bold();

/// The changed limits with their fields before and after, at most `LIMITS_SHOWN`; on a wide page
/// all limits.
pub fn text(changes: &[LimitChange], page: Page) -> String {
    let wanted = |change: &&LimitChange| page.wide || change.action != Action::Unchanged;
    let mut wanted = changes.iter().filter(wanted);
    let max = if page.wide { usize::MAX } else { LIMITS_SHOWN };
    let mut text: String = { wanted.by_ref().take(max) }
        .map(|change| one(change, page))
        .collect();
    let more = wanted.count();
    if more > 0 {
        let more = counted(more, "more limit");
        let _ = writeln!(text, "… and {more}; -o wide shows all");
    }
    text
}

/// The changes of the domain's own fields; empty if there are none.
pub fn of_domain(domain: &str, changes: &[FieldChange], page: Page) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut text = format!("{CHANGED}~{CHANGED:#} {NAME}domain {domain}{NAME:#}\n");
    for change in changes {
        let _ = writeln!(text, "    {}", field_line(change, Action::Changed, page));
    }
    text
}

/// `domain changed, 1 created, 2 changed, 1 deleted, 3 unchanged`.
pub fn summary(domain: &[FieldChange], changes: &[LimitChange]) -> String {
    let of_limits = summary_of_limits(changes);
    match (domain.is_empty(), changes.is_empty()) {
        (true, true) => "unchanged".to_owned(),
        (true, false) => of_limits,
        (false, true) => "domain changed".to_owned(),
        (false, false) => format!("domain changed, {of_limits}"),
    }
}

fn summary_of_limits(changes: &[LimitChange]) -> String {
    let kinds = [
        (Action::Created, "created"),
        (Action::Changed, "changed"),
        (Action::Deleted, "deleted"),
        (Action::Unchanged, "unchanged"),
    ];
    let counts = kinds.map(|(action, word)| {
        (
            changes
                .iter()
                .filter(|change| change.action == action)
                .count(),
            word,
        )
    });
    let there: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if there.is_empty() {
        "no limits".to_owned()
    } else {
        there.join(", ")
    }
}

fn one(change: &LimitChange, page: Page) -> String {
    let (sign, style, word) = match change.action {
        Action::Created => ("+", CREATED, "  (new)"),
        Action::Changed => ("~", CHANGED, ""),
        Action::Deleted => ("-", DELETED, "  (deleted)"),
        Action::Unchanged => ("=", Style::new(), "  (unchanged)"),
    };
    let name = &change.limit;
    let mut text = format!("{style}{sign}{style:#} {NAME}{name}{NAME:#}{word}\n");
    for field in &change.fields {
        let _ = writeln!(text, "    {}", field_line(field, change.action, page));
    }
    for entry in change.overrides.iter().take(OVERRIDES_SHOWN) {
        let _ = writeln!(text, "    {}", override_line(entry, change.action, page));
    }
    let more = change.overrides.len().saturating_sub(OVERRIDES_SHOWN);
    if more > 0 {
        let _ = writeln!(text, "    and {}", counted(more, "more override"));
    }
    if change.overrides_unrecorded > 0 {
        let count = counted(change.overrides_unrecorded, "override");
        let _ = writeln!(text, "    without the {count} it has now");
    }
    text
}

fn field_line(change: &FieldChange, action: Action, page: Page) -> String {
    let field = &change.field;
    let (before, after) = (change.before_text(), change.after_text());
    match action {
        Action::Created => format!("{field}: {after}"),
        Action::Deleted => format!("{field}: {before}"),
        _ => format!("{field}: {before} {} {after}", arrow(page)),
    }
}

fn override_line(change: &OverrideChange, action: Action, page: Page) -> String {
    let bucket = change.bucket_text();
    let (before, after) = (change.before_text(), change.after_text());
    match action {
        Action::Created => format!("override for {bucket}: {after}"),
        Action::Deleted => format!("override for {bucket}: {before}"),
        _ => format!("override for {bucket}: {before} {} {after}", arrow(page)),
    }
}

/// The arrow between before and after.
pub fn arrow(page: Page) -> &'static str {
    if page.unicode { "→" } else { "->" }
}

//! The last edits with their differences.

use insight::{
    age,
    changes::{Action, FieldChange, LimitChange, OverrideChange},
    history::{HistoryChange, summary},
};
use maud::{Markup, html};
use policy::format_timestamp;
use store::HistoryEntry;

use super::{
    super::{
        data::{EDITS, EDITS_MAX, Shared},
        query::Query,
    },
    parts,
};

/// Limits of one edit that are shown, and overrides of one limit.
const LIMITS: usize = 20;
const OVERRIDES: usize = 20;

pub(super) fn view(
    shared: &Shared,
    edits: &Result<Vec<HistoryEntry>, String>,
    query: &Query,
) -> Markup {
    let page = query.number("page", 1).clamp(1, EDITS_MAX / EDITS);
    html! {
        h1 { "History" }
        (parts::store_away(shared))
        @match edits {
            Err(why) => p.stale { "Not known: " (why) },
            Ok(edits) => {
                @if edits.is_empty() { p.empty { "No edit is recorded." } }
                @for entry in edits.iter().take(EDITS) { (edit(shared, entry)) }
                (parts::pages(page, edits.len() <= EDITS || page >= EDITS_MAX / EDITS, |page| {
                    parts::link(shared, "/history", &format!("page={page}"))
                }))
                @if page >= EDITS_MAX / EDITS && edits.len() > EDITS {
                    p.muted { "Older edits: " code { "rlctl history" } }
                }
            }
        }
    }
}

fn edit(shared: &Shared, entry: &HistoryEntry) -> Markup {
    let change = HistoryChange::parse(entry);
    let (domain, limits) = (change.domain_changes(), change.changes());
    let at = format_timestamp(entry.at_ms / 1000 * 1000);
    html! {
        article.edit {
            h2 {
                span.muted { "Revision " } (entry.revision.number) " "
                span.by {
                    (parts::value(&entry.by.author)) ", "
                    time datetime=(at) title=(at) { (age(shared.now_ms.saturating_sub(entry.at_ms))) }
                }
            }
            @if !entry.by.reason.is_empty() { p.reason { (parts::value(&entry.by.reason)) } }
            @if domain.is_empty() && limits.is_empty() {
                p { (parts::value(&summary(&change, &limits, None))) }
            } @else {
                (differences(&domain, &limits))
            }
        }
    }
}

fn differences(domain: &[FieldChange], limits: &[LimitChange]) -> Markup {
    html! {
        table.changes {
            caption { "Differences" }
            thead { tr { th scope="col" { "Limit" } th scope="col" { "Field" } th scope="col" { "Before" } th scope="col" { "After" } } }
            tbody {
                @for change in domain { (line("the domain", change, Action::Changed)) }
                @for change in limits.iter().take(LIMITS) {
                    @for field in &change.fields { (line(&change.limit, field, change.action)) }
                    @for found in change.overrides.iter().take(OVERRIDES) { (override_line(&change.limit, found)) }
                    @let more = change.overrides.len().saturating_sub(OVERRIDES);
                    @if more > 0 { tr { td { (change.limit) } td colspan="3" { "and " (more) " more overrides" } } }
                    @if change.fields.is_empty() && change.overrides.is_empty() {
                        tr { td { (change.limit) } td colspan="3" { (word(change.action)) } }
                    }
                }
            }
        }
        @let more = limits.len().saturating_sub(LIMITS);
        @if more > 0 { p.muted { "and " (more) " more limits: " code { "rlctl history -o wide" } } }
    }
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Created => "created",
        Action::Changed => "changed",
        Action::Deleted => "deleted",
        Action::Unchanged => "unchanged",
    }
}

fn line(limit: &str, change: &FieldChange, action: Action) -> Markup {
    html! {
        tr {
            td.name { (limit) @if action != Action::Changed { " " span.tag { (word(action)) } } }
            td { (change.field) }
            td.name { @if action != Action::Created { del { (parts::value(&change.before_text())) } } }
            td.name { @if action != Action::Deleted { ins { (parts::value(&change.after_text())) } } }
        }
    }
}

fn override_line(limit: &str, change: &OverrideChange) -> Markup {
    html! {
        tr {
            td.name { (limit) }
            td.name { "override for " (parts::value(&change.bucket_text())) }
            td.name { del { (parts::value(&change.before_text())) } }
            td.name { ins { (parts::value(&change.after_text())) } }
        }
    }
}

//! A domain as a whole: how busy it is, whether something is wrong, its proxies and its last edits.

use insight::{
    Finding, Severity, age,
    changes::{Action, FieldChange, LimitChange, OverrideChange},
    findings::is_current,
    history::{HistoryChange, summary},
    limiter_name, proxy_name,
};
use maud::{Markup, html};
use policy::{Revision, format_timestamp};
use store::{ActivitySummary, BucketActivity, Fleet, HistoryEntry, SlotActivity};

use super::{
    limits,
    parts::{self, Counts},
};
use crate::admin::page::{
    Query,
    data::{EDITS, EDITS_MAX, Edits, Reading, Shared},
};

/// Rows of each table.
const ROWS: usize = 8;
/// Problems that are shown here.
const PROBLEMS_SHOWN: usize = 3;

pub(super) fn view(
    shared: &Shared,
    activity: &Reading<ActivitySummary>,
    trend: Option<&Vec<SlotActivity>>,
    fleet: &Reading<Fleet>,
    day: &Reading<Vec<BucketActivity>>,
) -> Markup {
    let none = ActivitySummary::default();
    let seen = activity.value.as_deref().unwrap_or(&none);
    let requests = seen.activity.requests;
    let limits = seen.activity.limits.values();
    let over = limits.fold(0, |sum: u64, limit| {
        sum.saturating_add(Counts::from_activity(limit).over)
    });
    let over_time = trend.into_iter().flatten().map(|slot| Counts {
        allowed: slot.requests.allowed,
        denied: slot.requests.denied,
        over: 0,
    });
    let problems = shared
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Info);
    let denied = parts::top(seen, None, ROWS, insight::bucket::denial_rank);
    let busiest = parts::top(seen, None, ROWS, |bucket| bucket.requests);
    html! {
        h1 { "Overview" }
        (parts::store_away(shared))
        (parts::stale(activity))
        @if shared.memory {
            p.notice { "The store is this process's memory, which keeps no rates and no busy buckets. Use Redis or Valkey to see them." }
        }
        dl.tiles {
            (tile("Allowed", &parts::rate(requests.allowed, seen), "requests a second", false))
            (tile("Denied", &parts::rate(requests.denied, seen), "requests a second", requests.denied > 0))
            (tile("Would be denied", &parts::rate(over, seen), "a second, shadow and degrade", false))
            (policy_tiles(shared))
            (fleet_tiles(shared, fleet))
        }
        (parts::trend(over_time.collect::<Vec<Counts>>().as_slice()))
        @for finding in problems.clone().take(PROBLEMS_SHOWN) { (card(finding)) }
        @if problems.clone().count() > PROBLEMS_SHOWN {
            p { a href=(parts::link(shared, "/problems", "")) { "All " (problems.count()) " problems" } }
        }
        section {
            h2 { "Busiest limits" }
            (limits::busiest(shared, seen, ROWS))
        }
        div.pair.buckets {
            section {
                h2 { "Most denied buckets" }
                @if denied.is_empty() { p.empty { "No bucket was denied in the last 10 s." } }
                @else { (parts::buckets(shared, seen, &denied, "Most denied buckets of the last 10 s")) }
            }
            section {
                h2 { "Busiest buckets" }
                @if busiest.is_empty() { p.empty { "No bucket had a request in the last 10 s." } }
                @else { (parts::buckets(shared, seen, &busiest, "Busiest buckets of the last 10 s")) }
            }
        }
        (most_used(shared, day))
    }
}

fn most_used(shared: &Shared, day: &Reading<Vec<BucketActivity>>) -> Markup {
    html! {
        @if let Some(day) = &day.value {
            section {
                h2 { "Most used today" }
                @if day.is_empty() { p.empty { "No bucket had a request in the last 24 hours." } }
                @else { (parts::most_used(shared, day, "Buckets with the most requests in the last 24 hours")) }
            }
        }
    }
}

fn policy_tiles(shared: &Shared) -> Markup {
    html! {
        @if let Some(active) = &shared.active {
            (tile("Limits", &active.compiled.limits().len().to_string(),
                &format!("revision {}", active.compiled.revision().number), false))
        } @else {
            (tile("Limits", "none", "not loaded", true))
        }
    }
}

fn fleet_tiles(shared: &Shared, fleet: &Reading<Fleet>) -> Markup {
    let (Some(fleet), Some(domain)) = (&fleet.value, &shared.domain) else {
        return html! {};
    };
    let current = shared
        .active
        .as_ref()
        .map(|active| active.compiled.revision());
    let proxies = fleet.proxies.get(domain).map_or(&[][..], Vec::as_slice);
    let late_proxies = proxies
        .iter()
        .filter(|proxy| !is_current(proxy.revision.as_ref(), current));
    let late_limiters = fleet
        .limiters
        .iter()
        .filter(|limiter| !is_current(limiter.revisions.get(domain), current));
    let note = |late: usize| match late {
        0 => "all current".to_owned(),
        late => format!("{late} behind"),
    };
    let (late_limiters, late_proxies) = (late_limiters.count(), late_proxies.count());
    html! {
        (tile("Limiters", &fleet.limiters.len().to_string(), &note(late_limiters), late_limiters > 0))
        (tile("Proxies", &proxies.len().to_string(), &note(late_proxies), late_proxies > 0))
    }
}

fn tile(name: &str, value: &str, note: &str, hot: bool) -> Markup {
    html! {
        div.hot[hot] {
            dt { (name) }
            dd { strong { (value) } span.muted { (note) } }
        }
    }
}

// --- Problems, and the commands that fix them

/// Findings that are shown.
const FINDINGS_SHOWN: usize = 200;

pub(super) fn problems_view(shared: &Shared, error: Option<&str>) -> Markup {
    let wrong = shared
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Info)
        .count();
    html! {
        h1 { "Problems" }
        (parts::store_away(shared))
        @if let Some(why) = error { p.stale { "Not current: " (why) } }
        @if wrong == 0 { p.empty { "No problem was found." } }
        @for finding in shared.findings.iter().take(FINDINGS_SHOWN) { (card(finding)) }
        @let more = shared.findings.len().saturating_sub(FINDINGS_SHOWN);
        @if more > 0 { p.muted { "and " (more) " more: " code { "rlctl doctor" } } }
        p.muted { code { "rlctl doctor" } " also looks for keys that no limit uses." }
    }
}

fn card(finding: &Finding) -> Markup {
    let (class, word) = match finding.severity {
        Severity::Error => ("error", "Error"),
        Severity::Warning => ("warning", "Warning"),
        Severity::Info => ("info", "Info"),
    };
    html! {
        article class={ "notice " (class) } {
            p { strong { (word) } " " span.place { (parts::value(&finding.place)) } ": " (parts::value(&finding.what)) }
            p.muted { (parts::value(&finding.why)) }
            @if let Some(mend) = &finding.mend { p { code.command { (mend) } } }
        }
    }
}

// --- The revisions that limiters and proxies have in force

/// Proxies on one view.
const PROXIES_SHOWN: usize = 100;

struct Row {
    name: String,
    revision: Option<Revision>,
    ago_ms: u64,
}

pub(super) fn fleet_view(shared: &Shared, fleet: &Reading<Fleet>, query: &Query) -> Markup {
    let none = Fleet::default();
    let seen = fleet.value.as_deref().unwrap_or(&none);
    let current = shared
        .active
        .as_ref()
        .map(|active| active.compiled.revision());
    let limiters: Vec<Row> = seen
        .limiters
        .iter()
        .map(|limiter| Row {
            name: limiter_name(&limiter.id).to_owned(),
            revision: shared
                .domain
                .as_ref()
                .and_then(|domain| limiter.revisions.get(domain))
                .cloned(),
            ago_ms: limiter.ago_ms,
        })
        .collect();
    let proxies = shared
        .domain
        .as_ref()
        .and_then(|domain| seen.proxies.get(domain));
    let mut proxies: Vec<Row> = proxies
        .into_iter()
        .flatten()
        .map(|proxy| Row {
            name: proxy_name(proxy),
            revision: proxy.revision.clone(),
            ago_ms: proxy.ago_ms,
        })
        .collect();
    // Stale ones first, since readers look for them.
    proxies.sort_by_key(|row| is_current(row.revision.as_ref(), current));
    let pages = proxies.len().div_ceil(PROXIES_SHOWN).max(1);
    let page = query.number("page", 1).clamp(1, pages);
    let first = (page - 1).saturating_mul(PROXIES_SHOWN).min(proxies.len());
    let shown = proxies
        .get(first..proxies.len().min(first.saturating_add(PROXIES_SHOWN)))
        .unwrap_or_default();
    html! {
        h1 { "Fleet" }
        (parts::store_away(shared))
        (parts::stale(fleet))
        @if let Some(current) = current { p.lead { "In force here: revision " strong { (current.number) } } }
        section {
            h2 { "Limiters" }
            @if limiters.is_empty() { p.empty { "No limiter has reported in the last 10 s." } }
            @else { (fleet_table(&limiters, current, "Limiters")) }
        }
        section {
            h2 { "Proxies" }
            @if proxies.is_empty() { p.empty { "No proxy has asked for this domain in the last 10 s." } }
            @else { (fleet_table(shown, current, "Proxies")) }
            (parts::pages(page, page >= pages, |page| parts::link(shared, "/fleet", &format!("page={page}"))))
        }
    }
}

fn fleet_table(rows: &[Row], current: Option<&Revision>, caption: &str) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "Name" }
                    th.num scope="col" { "Revision" }
                    th scope="col" { "State" }
                    th.num scope="col" { "Last seen" }
                } }
                tbody {
                    @for row in rows {
                        @let is_current = is_current(row.revision.as_ref(), current);
                        tr {
                            td.name { (parts::value(&row.name)) }
                            td.num { (row.revision.as_ref().map_or_else(|| "none".to_owned(), |has| has.number.to_string())) }
                            td { @if is_current { span.good { "current" } } @else { span.bad { "behind" } } }
                            td.num { (age(row.ago_ms)) }
                        }
                    }
                }
            }
        }
    }
}

// --- The last edits with their differences

/// Limits of one edit that are shown, and overrides of one limit.
const EDIT_LIMITS: usize = 20;
const EDIT_OVERRIDES: usize = 20;

pub(super) fn history_view(
    shared: &Shared,
    edits: &Result<Edits, String>,
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
                @for change in limits.iter().take(EDIT_LIMITS) {
                    @for field in &change.fields { (line(&change.limit, field, change.action)) }
                    @for found in change.overrides.iter().take(EDIT_OVERRIDES) { (override_line(&change.limit, found)) }
                    @let more = change.overrides.len().saturating_sub(EDIT_OVERRIDES);
                    @if more > 0 { tr { td { (change.limit) } td colspan="3" { "and " (more) " more overrides" } } }
                    @if change.fields.is_empty() && change.overrides.is_empty() {
                        tr { td { (change.limit) } td colspan="3" { (word(change.action)) } }
                    }
                }
            }
        }
        @let more = limits.len().saturating_sub(EDIT_LIMITS);
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

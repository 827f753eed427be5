//! The limits of a domain, one limit, and one bucket.

use hyper::StatusCode;
use insight::{
    Window,
    bucket::{adaptive_state, denial_rank, display, matchers, notes, penalty_state, plain},
    duration,
};
use limits_file::ToNode as _;
use maud::{Markup, html};
use policy::{Exemption, Limit, Node, OverrideQuota, Scope, Value, format_timestamp};
use protocol::{Mode, Outcome, RetryAfter};
use store::{ActivitySummary, Inspection, LimitActivity, SlotActivity};

use super::parts::{self, Counts};
use crate::admin::page::{
    Query,
    data::{Bucket, Reading, Shared},
    encode,
};

/// Limits on one view.
const LIMITS_SHOWN: usize = 50;

/// The longest search.
const SEARCH_MAX: usize = 100;

const SORTS: [(&str, &str); 3] = [
    ("denied", "Most denied"),
    ("busy", "Busiest"),
    ("name", "Name"),
];

pub(super) fn view(shared: &Shared, activity: &Reading<ActivitySummary>, query: &Query) -> Markup {
    let none = ActivitySummary::default();
    let seen = activity.value.as_deref().unwrap_or(&none);
    let search: String = query
        .text("q")
        .unwrap_or_default()
        .chars()
        .take(SEARCH_MAX)
        .collect();
    let sort = query.text("sort").unwrap_or_default();
    let sort = SORTS
        .into_iter()
        .find(|(word, _)| *word == sort)
        .map_or("denied", |(word, _)| word);
    let rows = found(shared, seen, &search, sort);
    let pages = rows.len().div_ceil(LIMITS_SHOWN).max(1);
    let page = query.number("page", 1).clamp(1, pages);
    let shown: Vec<_> = rows
        .iter()
        .skip((page - 1) * LIMITS_SHOWN)
        .take(LIMITS_SHOWN)
        .copied()
        .collect();
    let to = |page: usize| {
        let parameters = format!("q={}&sort={sort}&page={page}", encode(&search));
        parts::link(shared, "/limits", &parameters)
    };
    html! {
        h1 { "Limits" }
        (parts::store_away(shared))
        (parts::stale(activity))
        form.search method="get" action="/limits" role="search" {
            @if let Some(domain) = &shared.domain { input type="hidden" name="domain" value=(domain); }
            label { span { "Name, description or entry" } input name="q" type="search" value=(search) maxlength=(SEARCH_MAX); }
            label { span { "Order" } select name="sort" {
                @for (word, name) in SORTS { option value=(word) selected[word == sort] { (name) } }
            } }
            button type="submit" { "Show" }
        }
        p.muted { (insight::counted(u64::try_from(rows.len()).unwrap_or(u64::MAX), "limit")) @if !search.is_empty() { " found" } }
        @if shown.is_empty() { p.empty { "No limit is named so." } }
        @else { (table(shared, seen, &shown, "Limits, rates of the last 10 s")) }
        (parts::pages(page, page >= pages, to))
        @if let Some(active) = shared.active.as_ref().filter(|_| search.is_empty()) {
            (exemptions(active.compiled.exemptions()))
        }
    }
}

type Row<'a> = (&'a Limit, Counts);

/// The limits that match the search, sorted.
fn found<'a>(shared: &'a Shared, seen: &ActivitySummary, search: &str, sort: &str) -> Vec<Row<'a>> {
    let limits = shared
        .active
        .as_ref()
        .map_or(&[][..], |active| active.compiled.limits());
    let search = search.trim().to_lowercase();
    let has = |limit: &&Limit| {
        search.is_empty()
            || limit.name.as_str().contains(&search)
            || limit.per.iter().any(|key| key.as_str().contains(&search))
            || limit
                .matchers
                .iter()
                .any(|matcher| matcher.key.as_str().contains(&search))
            || limit
                .description
                .as_ref()
                .is_some_and(|text| text.to_lowercase().contains(&search))
    };
    let counts = |limit: &Limit| {
        let activity = seen.activity.limits.get(&limit.name);
        activity.map(Counts::from_activity).unwrap_or_default()
    };
    let mut rows: Vec<Row<'a>> = limits
        .iter()
        .map(|limit| &**limit)
        .filter(has)
        .map(|limit| (limit, counts(limit)))
        .collect();
    // Stable: limits that are equally busy stay in the order of the file.
    match sort {
        "name" => rows.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name)),
        "busy" => rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.all())),
        _ => rows.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.denied, counts.all()))),
    }
    rows
}

/// The limits with the most requests, or the first of the file if there are none.
pub(super) fn busiest(shared: &Shared, seen: &ActivitySummary, max: usize) -> Markup {
    let mut rows = found(shared, seen, "", "busy");
    let all = rows.len();
    rows.truncate(max);
    html! {
        @if rows.is_empty() { p.empty { "The domain has no limits." } }
        @else { (table(shared, seen, &rows, "Busiest limits, rates of the last 10 s")) }
        @if all > max {
            p { a href=(parts::link(shared, "/limits", "")) { "All " (all) " limits" } }
        }
    }
}

/// The columns that only some limits have values for.
#[derive(Clone, Copy)]
struct Extra {
    costs: bool,
    penalties: bool,
    slots: bool,
}

impl Extra {
    fn new(rows: &[Row<'_>]) -> Self {
        let any = |has: fn(&Limit) -> bool| rows.iter().any(|(limit, _)| has(limit));
        Self {
            costs: any(|limit| limit.response_price().is_some()),
            penalties: any(|limit| limit.penalty.is_some()),
            slots: any(Limit::gives_slots),
        }
    }
}

fn table(shared: &Shared, seen: &ActivitySummary, rows: &[Row<'_>], caption: &str) -> Markup {
    let extra = Extra::new(rows);
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "Limit" }
                    th.num scope="col" { "Denied/s" }
                    th.num scope="col" { "Allowed/s" }
                    th.bar scope="col" { "Share denied" }
                    @if extra.costs { th.num scope="col" { "Units/s" } }
                    @if extra.penalties { th.num scope="col" { "Penalties" } }
                    @if extra.slots { th.num scope="col" { "Slots in use" } }
                    th.num scope="col" { "Quota" }
                    th.wide scope="col" { "Per" }
                    th.wide scope="col" { "Applies to" }
                } }
                tbody { @for (limit, counts) in rows { (row(shared, seen, extra, limit, *counts)) } }
            }
        }
    }
}

fn row(
    shared: &Shared,
    seen: &ActivitySummary,
    extra: Extra,
    limit: &Limit,
    counts: Counts,
) -> Markup {
    let node = limits_file::node_without_overrides(limit);
    let per: Vec<&str> = limit.per.iter().map(policy::Name::as_str).collect();
    let notes = notes(limit, shared.now_ms);
    let decided = seen.activity.limits.get(&limit.name);
    let count = |of: fn(&LimitActivity) -> u64| decided.map_or(0, of);
    let penalties = count(|decided| decided.penalties);
    html! {
        tr {
            td.name title=(limit.name) {
                a href=(parts::limit_link(shared, &limit.name)) { (limit.name) }
                @if !notes.is_empty() { " " span.tag { (notes) } }
            }
            td.num.hot[counts.denied > 0] {
                (parts::rate(counts.denied, seen))
                @if counts.over > 0 { " " span.muted { "+" (parts::rate(counts.over, seen)) " over" } }
            }
            td.num { (parts::rate(counts.allowed, seen)) }
            td.bar { (parts::share(counts)) }
            @if extra.costs { td.num { (parts::rate(count(|decided| decided.settled_units), seen)) } }
            @if extra.penalties { td.num.hot[penalties > 0] { (penalties) } }
            @if extra.slots { (parts::in_use(fullest(shared, limit))) }
            td.num { (quota(&node)) }
            td.wide.name { (per.join(", ")) }
            td.wide.name { (parts::value(&matchers(&node))) }
        }
    }
}

/// The slots in use of the limit's bucket, or of the fullest of its busy ones.
fn fullest(shared: &Shared, limit: &Limit) -> Option<(u64, u64)> {
    let buckets = shared.slots.iter();
    let buckets = buckets.filter(|((name, _), _)| *name == limit.name);
    let slots = buckets.map(|(_, slots)| *slots);
    slots.max_by_key(|(used, of)| u128::from(*used) * 1000 / u128::from((*of).max(1)))
}

/// The rate, or what a limit on requests in flight has in its place.
fn quota(node: &Node) -> String {
    let quota = node.get("rate").or_else(|| node.get("limit"));
    quota.map(plain).unwrap_or_default()
}

// --- One limit: its fields, its rates, its busy buckets, and a form that leads to one bucket

/// Rows of each table of buckets.
const BUCKETS_SHOWN: usize = 20;

pub(super) fn limit_view(
    shared: &Shared,
    activity: &Reading<ActivitySummary>,
    trend: Option<&Vec<SlotActivity>>,
    query: &Query,
) -> (StatusCode, &'static str, String, Markup) {
    let name = query.text("name").unwrap_or_default();
    let compiled = shared.active.as_ref().map(|active| &active.compiled);
    let limit = compiled.and_then(|compiled| compiled.limit(compiled.position(&name)?));
    let Some(limit) = limit else {
        let body = html! {
            h1 { "Limit" }
            (parts::store_away(shared))
            p.empty { "There is no limit " (parts::value(&name)) " in this domain." }
        };
        return (
            StatusCode::NOT_FOUND,
            "/limits",
            "No such limit".to_owned(),
            body,
        );
    };
    let none = ActivitySummary::default();
    let seen = activity.value.as_deref().unwrap_or(&none);
    (
        StatusCode::OK,
        "/limits",
        limit.name.to_string(),
        limit_body(shared, activity, seen, trend, limit),
    )
}

fn limit_body(
    shared: &Shared,
    activity: &Reading<ActivitySummary>,
    seen: &ActivitySummary,
    trend: Option<&Vec<SlotActivity>>,
    limit: &Limit,
) -> Markup {
    let of_slot = |slot: &SlotActivity| slot.limits.get(&limit.name).map(Counts::from_activity);
    let slots = trend.into_iter().flatten();
    let slots: Vec<Counts> = slots
        .map(|slot| of_slot(slot).unwrap_or_default())
        .collect();
    let decided = seen.activity.limits.get(&limit.name);
    let denied = parts::top(seen, Some(&limit.name), BUCKETS_SHOWN, denial_rank);
    let busiest = parts::top(seen, Some(&limit.name), BUCKETS_SHOWN, |bucket| {
        bucket.requests
    });
    html! {
        h1 { span.muted { "Limit " } (limit.name) }
        @if let Some(description) = &limit.description { p.lead { (parts::value(description)) } }
        (parts::store_away(shared))
        (parts::stale(activity))
        div.pair {
            section { h2 { "Settings" } (settings(shared, limit)) }
            section {
                h2 { "Last 10 seconds" }
                (rates(seen, decided))
                (parts::trend(&slots))
            }
        }
        section {
            h2 { "Look up a bucket" }
            @if limit.scope == Scope::Proxy {
                p.empty { "The buckets of this limit are in the proxies, not in the store." }
            } @else { (lookup(shared, limit)) }
        }
        @if !denied.is_empty() {
            section { h2 { "Most denied buckets" } (parts::buckets(shared, seen, &denied, "Most denied buckets of this limit")) }
        }
        @if !busiest.is_empty() {
            section { h2 { "Busiest buckets" } (parts::buckets(shared, seen, &busiest, "Busiest buckets of this limit")) }
        }
    }
}

fn settings(shared: &Shared, limit: &Limit) -> Markup {
    let node = limits_file::node_without_overrides(limit);
    let fields = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    let shown = fields
        .iter()
        .filter(|entry| !matches!(entry.key.as_str(), "name" | "description"));
    html! {
        dl.fields {
            @for entry in shown {
                dt { (entry.key) }
                dd { (field(&entry.value)) }
            }
            @if let Some(window) = Window::from_quota(&limit.quota, shared.now_ms) {
                dt { "window now" } dd { (window) }
            }
            dt { "generation" } dd { (limit.generation) }
        }
    }
}

fn field(node: &Node) -> Markup {
    html! {
        @match &node.value {
            Value::List(items) => @for (at, item) in items.iter().enumerate() {
                @if at > 0 { ", " }
                (parts::value(&plain(item)))
            },
            Value::Map(entries) => @for entry in entries {
                div { (entry.key) ": " (field(&entry.value)) }
            },
            _ => (parts::value(&plain(node))),
        }
    }
}

fn rates(seen: &ActivitySummary, decided: Option<&LimitActivity>) -> Markup {
    let Some(decided) = decided else {
        return html! { p.empty { "No request." } };
    };
    html! {
        (parts::share(Counts::from_activity(decided)))
        table {
            caption { "Decisions of the last 10 s" }
            thead { tr { th scope="col" { "Decision" } th scope="col" { "Decided by" } th.num scope="col" { "Requests/s" } } }
            tbody {
                @for ((outcome, by), count) in &decided.counts {
                    tr {
                        td { (outcome.word()) }
                        td { (by.word()) }
                        td.num.hot[*outcome == Outcome::Denied] { (parts::rate(*count, seen)) }
                    }
                }
            }
        }
    }
}

fn lookup(shared: &Shared, limit: &Limit) -> Markup {
    html! {
        form.search method="get" action="/bucket" {
            @if let Some(domain) = &shared.domain { input type="hidden" name="domain" value=(domain); }
            input type="hidden" name="limit" value=(limit.name);
            @for key in &limit.per {
                label { span { (key) } input name=(format!("v.{key}")) autocomplete="off"; }
            }
            button type="submit" { @if limit.per.is_empty() { "Show its one bucket" } @else { "Show" } }
        }
    }
}

// --- One bucket in full

pub(super) fn bucket_view(
    shared: &Shared,
    bucket: &Result<Bucket, String>,
    query: &Query,
) -> (StatusCode, &'static str, String, Markup) {
    let title = "Bucket".to_owned();
    let bucket = match bucket {
        Ok(bucket) => bucket,
        Err(why) => {
            let limit = query.text("limit").unwrap_or_default();
            let body = html! {
                h1 { span.muted { "Bucket of " } (parts::value(&limit)) }
                (parts::store_away(shared))
                p.empty { (why) }
                p { a href=(parts::link(shared, "/limits", "")) { "All limits" } }
            };
            return (StatusCode::NOT_FOUND, "/limits", title, body);
        }
    };
    let name = display(&bucket.limit.per, &bucket.values);
    let body = html! {
        h1 { span.muted { "Bucket " } (parts::value(&name)) }
        p.lead { "of limit " a href=(parts::limit_link(shared, &bucket.limit.name)) { (bucket.limit.name) } }
        @for note in &bucket.notes { p.muted { (parts::value(note)) } }
        (parts::store_away(shared))
        @match &bucket.inspection {
            Ok(found) => { (usage(&bucket.limit, found)) (rest(bucket, found)) },
            Err(why) => p.notice.error role="status" { "The bucket cannot be read: " (why) },
        }
    };
    (StatusCode::OK, "/limits", title, body)
}

fn usage(limit: &Limit, found: &Inspection) -> Markup {
    let verdict = &found.answer.verdict;
    let (decision, leased, reserved) = (&verdict.decision, verdict.leased, verdict.reserved.open);
    let (units, used_up) = if limit.gives_slots() {
        ("slots", "in use")
    } else {
        ("units", "used")
    };
    html! {
        @if let Some(quota) = found.answer.limit {
            @let used = quota.saturating_sub(decision.remaining);
            p.usage { strong { (used) } " of " (quota) " " (units) " " (used_up) @if leased > 0 { ", " (leased) " of them leased" } @if reserved > 0 { ", " (reserved) " reserved until responses say their cost" } }
            (parts::used_bar(used, quota))
            dl.tiles {
                div { dt { "Left" } dd { strong { (decision.remaining) } span.muted { (units) } } }
                div.hot[!decision.allowed] {
                    dt { "A request now" }
                    dd {
                        strong { @if decision.allowed { "passes" } @else { "is denied" } }
                        span.muted { (retry(decision.retry_after)) }
                    }
                }
                div { dt { "Unused again" } dd { strong { (duration(decision.reset_after_ms)) } span.muted { "from now, without requests" } } }
            }
        } @else {
            p.usage { "The bucket is not limited." }
        }
    }
}

fn retry(retry_after: RetryAfter) -> String {
    match retry_after {
        RetryAfter::Now => "of cost 1".to_owned(),
        RetryAfter::Millis(ms) => format!("passes in {}", duration(ms)),
        RetryAfter::Never => "never passes".to_owned(),
    }
}

/// The calendar window that the bucket counts in, by its own zone.
fn window(bucket: &Bucket, now_ms: u64) -> Option<Window> {
    let quota = match &bucket.in_force {
        None => bucket.limit.quota,
        Some(found) => found.quota.of(&bucket.limit.quota)?,
    };
    Window::from_quota(&quota, now_ms)
}

/// What an adaptive limit is and why, and its window; `None`: it is none, or no answer came yet.
fn adaptive(limit: &Limit, found: &Inspection) -> Option<[String; 2]> {
    let rule = limit.quota.parameters().adaptive.as_ref()?;
    let state = found.answer.verdict.adaptive.as_ref()?;
    Some(adaptive_state(rule, state))
}

fn rest(bucket: &Bucket, found: &Inspection) -> Markup {
    html! {
        section {
            h2 { "Details" }
            dl.fields {
                @if let Some(found) = &bucket.in_force {
                    dt { "override" }
                    dd {
                        @match &found.quota {
                            OverrideQuota::Unlimited => "unlimited",
                            OverrideQuota::Quota { .. } => { "other numbers than the limit's" }
                        }
                        @if let Some(until) = found.until_ms { ", until " (format_timestamp(until)) }
                    }
                }
                @if let Some(penalty) = &bucket.limit.penalty {
                    @let enforced = found.answer.mode != Mode::Shadow;
                    dt { "penalty" } dd { (penalty_state(penalty, &found.answer.verdict.penalty, enforced, found.now_ms)) }
                }
                @if let Some([now, answers]) = adaptive(&bucket.limit, found) {
                    dt { "adaptive" } dd { (now) }
                    dt { "answers" } dd { (answers) }
                }
                @if let Some(window) = window(bucket, found.now_ms) {
                    dt { "window now" } dd { (window) }
                }
                dt { "key in the store" } dd { code { (parts::value(&found.key)) } }
                dt { "slot" } dd { (found.slot) }
                @if let Some(node) = &found.node { dt { "node" } dd { (parts::value(node)) } }
                dt { "kept for" } dd { (found.ttl_ms.map_or_else(|| "not stored".to_owned(), duration)) }
                dt { "generation" } dd { (found.answer.generation) }
                dt { "state" } dd { (found.state.as_deref().map_or_else(|| html! { "unused: nothing is stored" }, |state| html! { code { (parts::value(state)) } })) }
            }
        }
    }
}

// --- Requests of a domain that no limit applies to

/// Exemptions shown; the rest is only counted.
const EXEMPTIONS_SHOWN: usize = 50;

/// The first exemptions, in the order of the file; nothing without any.
pub(super) fn exemptions(exempt: &[Exemption]) -> Markup {
    let more = exempt.len().saturating_sub(EXEMPTIONS_SHOWN);
    let caption = "Exemptions: no limit applies to these requests";
    html! {
        @if !exempt.is_empty() {
            section {
                h2 { "Exemptions" }
                div.scroll role="region" aria-label=(caption) tabindex="0" {
                    table {
                        caption { (caption) }
                        thead { tr {
                            th scope="col" { "Exemption" }
                            th.wide scope="col" { "Applies to" }
                        } }
                        tbody {
                            @for exemption in exempt.iter().take(EXEMPTIONS_SHOWN) {
                                tr {
                                    td.name { (exemption.name) }
                                    td.wide.name { (parts::value(&matchers(&exemption.to_node()))) }
                                }
                            }
                        }
                    }
                }
                @if more > 0 { p.muted { "And " (more) " more: rlctl list-limits shows all" } }
            }
        }
    }
}

#[cfg(test)]
mod tests;

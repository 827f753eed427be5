//! The limits of a domain with their rates.

use insight::limit::{matchers, notes, plain};
use maud::{Markup, html};
use policy::{Limit, Node};
use store::{ActivitySummary, LimitActivity};

use super::{
    super::{
        cache::Reading,
        data::Shared,
        query::{Query, encode},
    },
    exempt,
    parts::{self, Counts},
};

/// Limits on one view.
const ROWS: usize = 50;

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
    let pages = rows.len().div_ceil(ROWS).max(1);
    let page = query.number("page", 1).clamp(1, pages);
    let shown: Vec<_> = rows
        .iter()
        .skip((page - 1) * ROWS)
        .take(ROWS)
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
            (exempt::section(active.compiled.exemptions()))
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
        activity.map(Counts::of).unwrap_or_default()
    };
    let mut rows: Vec<Row<'a>> = limits
        .iter()
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
    fn of(rows: &[Row<'_>]) -> Self {
        let any = |has: fn(&Limit) -> bool| rows.iter().any(|(limit, _)| has(limit));
        Self {
            costs: any(|limit| limit.response_price().is_some()),
            penalties: any(|limit| limit.penalty.is_some()),
            slots: any(Limit::gives_slots),
        }
    }
}

fn table(shared: &Shared, seen: &ActivitySummary, rows: &[Row<'_>], caption: &str) -> Markup {
    let extra = Extra::of(rows);
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
                    @if extra.slots { th.num scope="col" { "Slots/s" } }
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
    let node = limit.to_node_without_overrides();
    let per: Vec<&str> = limit.per.iter().map(policy::Name::as_str).collect();
    let notes = notes(limit, shared.now_ms);
    let decided = seen.activity.limits.get(&limit.name);
    let count = |of: fn(&LimitActivity) -> u64| decided.map_or(0, of);
    let penalties = count(|decided| decided.penalties);
    html! {
        tr {
            td.name {
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
            @if extra.slots { td.num { (parts::rate(count(|decided| decided.slots_taken), seen)) } }
            td.num { (quota(&node)) }
            td.wide.name { (per.join(", ")) }
            td.wide.name { (parts::value(&matchers(&node))) }
        }
    }
}

/// The rate, or what a limit on requests in flight has in its place.
fn quota(node: &Node) -> String {
    let quota = node.get("rate").or_else(|| node.get("limit"));
    quota.map(plain).unwrap_or_default()
}

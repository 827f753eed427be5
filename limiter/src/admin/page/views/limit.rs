//! One limit: its fields, its rates, its busy buckets, and a form that leads to one bucket.

use hyper::StatusCode;
use insight::{Window, limit::plain};
use maud::{Markup, html};
use policy::{Limit, Node, Scope, Value};
use protocol::Outcome;
use store::{ActivitySummary, LimitActivity, SlotActivity};

use super::{
    super::{cache::Reading, data::Shared, query::Query},
    parts::{self, Counts},
};

/// Rows of each table of buckets.
const ROWS: usize = 20;

pub(super) fn view(
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
        found(shared, activity, seen, trend, limit),
    )
}

fn found(
    shared: &Shared,
    activity: &Reading<ActivitySummary>,
    seen: &ActivitySummary,
    trend: Option<&Vec<SlotActivity>>,
    limit: &Limit,
) -> Markup {
    let of_slot = |slot: &SlotActivity| slot.limits.get(&limit.name).map(Counts::of);
    let slots = trend.into_iter().flatten();
    let slots: Vec<Counts> = slots
        .map(|slot| of_slot(slot).unwrap_or_default())
        .collect();
    let decided = seen.activity.limits.get(&limit.name);
    let denied = parts::top(seen, Some(&limit.name), ROWS, insight::bucket::denial_rank);
    let busiest = parts::top(seen, Some(&limit.name), ROWS, |bucket| bucket.requests);
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
    let node = limit.to_node_without_overrides();
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
            @if let Some(window) = Window::of(&limit.quota, shared.now_ms) {
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
        (parts::share(Counts::of(decided)))
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

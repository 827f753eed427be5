//! The revisions that limiters and proxies have in force.

use insight::{age, findings::fleet::is_current, limiter_name, proxy_name};
use maud::{Markup, html};
use policy::Revision;
use store::Fleet;

use super::{
    super::{cache::Reading, data::Shared, query::Query},
    parts,
};

/// Proxies on one view.
const ROWS: usize = 100;

struct Row {
    name: String,
    revision: Option<Revision>,
    ago_ms: u64,
}

pub(super) fn view(shared: &Shared, fleet: &Reading<Fleet>, query: &Query) -> Markup {
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
    let pages = proxies.len().div_ceil(ROWS).max(1);
    let page = query.number("page", 1).clamp(1, pages);
    let first = (page - 1).saturating_mul(ROWS).min(proxies.len());
    let shown = proxies
        .get(first..proxies.len().min(first.saturating_add(ROWS)))
        .unwrap_or_default();
    html! {
        h1 { "Fleet" }
        (parts::store_away(shared))
        (parts::stale(fleet))
        @if let Some(current) = current { p.lead { "In force here: revision " strong { (current.number) } } }
        section {
            h2 { "Limiters" }
            @if limiters.is_empty() { p.empty { "No limiter has reported in the last 10 s." } }
            @else { (table(&limiters, current, "Limiters")) }
        }
        section {
            h2 { "Proxies" }
            @if proxies.is_empty() { p.empty { "No proxy has asked for this domain in the last 10 s." } }
            @else { (table(shown, current, "Proxies")) }
            (parts::pages(page, page >= pages, |page| parts::link(shared, "/fleet", &format!("page={page}"))))
        }
    }
}

fn table(rows: &[Row], current: Option<&Revision>, caption: &str) -> Markup {
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

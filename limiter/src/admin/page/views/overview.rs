//! The overview: how busy the domain is, and whether something is wrong.

use insight::{Severity, findings::fleet::is_current};
use maud::{Markup, html};
use store::{ActivitySummary, Fleet, SlotActivity};

use super::{
    super::{cache::Reading, data::Shared},
    limits,
    parts::{self, Counts},
    problems,
};

/// Rows of each table.
const ROWS: usize = 8;
/// Problems that are shown here.
const PROBLEMS: usize = 3;

pub(super) fn view(
    shared: &Shared,
    activity: &Reading<ActivitySummary>,
    trend: Option<&Vec<SlotActivity>>,
    fleet: &Reading<Fleet>,
) -> Markup {
    let none = ActivitySummary::default();
    let seen = activity.value.as_deref().unwrap_or(&none);
    let requests = seen.activity.requests;
    let limits = seen.activity.limits.values();
    let over = limits.fold(0, |sum: u64, limit| {
        sum.saturating_add(Counts::of(limit).over)
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
        @for finding in problems.clone().take(PROBLEMS) { (problems::card(finding)) }
        @if problems.clone().count() > PROBLEMS {
            p { a href=(parts::link(shared, "/problems", "")) { "All " (problems.count()) " problems" } }
        }
        section {
            h2 { "Busiest limits" }
            (limits::busiest(shared, seen, ROWS))
        }
        div.pair {
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

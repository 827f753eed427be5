//! Elements used by several views.

use insight::{Rate, bucket::visible, duration};
use maud::{Markup, html};
use policy::Name;
use protocol::Outcome;
use store::{ActivitySummary, BucketActivity, LimitActivity};

use super::super::data::{CUT, Shared, values};
use crate::admin::page::data::Reading;
use crate::admin::page::encode;

/// A text from an untrusted source, isolated from the surrounding text direction.
pub(super) fn value(text: &str) -> Markup {
    let text = visible(text.as_bytes());
    html! { bdi.value title=(text) { (text) } }
}

/// A link within the domain.
pub(super) fn link(shared: &Shared, path: &str, parameters: &str) -> String {
    let domain = shared.domain.as_ref().map_or("", Name::as_str);
    let domain = encode(domain);
    let and = if parameters.is_empty() { "" } else { "&" };
    format!("{path}?domain={domain}{and}{parameters}")
}

pub(super) fn limit_link(shared: &Shared, limit: &Name) -> String {
    link(
        shared,
        "/limit",
        &format!("name={}", encode(limit.as_str())),
    )
}

/// The link to a bucket's view; `None` if a value was cut and is not known in full.
fn bucket_link(
    shared: &Shared,
    limit: &Name,
    bucket: &[(Name, Option<Vec<u8>>)],
) -> Option<String> {
    let mut parameters = format!("limit={}", encode(limit.as_str()));
    for (key, value) in bucket {
        match value {
            Some(value) if value.len() >= CUT => return None,
            Some(value) => parameters.extend(["&v.", &encode(key.as_str()), "=", &encode(value)]),
            None => parameters.extend(["&without=", &encode(key.as_str())]),
        }
    }
    Some(link(shared, "/bucket", &parameters))
}

/// Requests of the last ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Over a limit that denies nothing.
    pub(super) over: u64,
}

impl Counts {
    pub(super) fn from_activity(activity: &LimitActivity) -> Self {
        let over = activity.total(Outcome::WouldDeny);
        Self {
            allowed: activity.total(Outcome::Allowed),
            denied: activity.total(Outcome::Denied),
            over: over.saturating_add(activity.total(Outcome::Degraded)),
        }
    }

    pub(super) fn all(self) -> u64 {
        self.allowed
            .saturating_add(self.denied)
            .saturating_add(self.over)
    }
}

/// A rate as people read it.
pub(super) fn rate(count: u64, activity: &ActivitySummary) -> String {
    Rate::new(count, activity.covered_ms).text()
}

/// Which share of `all` was denied, as a bar and in words for screen readers.
pub(super) fn share(counts: Counts) -> Markup {
    let percent = |part: u64| {
        let percent = u128::from(part) * 100 / u128::from(counts.all().max(1));
        u64::try_from(percent).unwrap_or(100)
    };
    let (denied, over) = (percent(counts.denied), percent(counts.over));
    html! {
        svg.share viewBox="0 0 100 8" preserveAspectRatio="none" role="img"
            aria-label=(format!("{denied}% denied")) {
            rect.rest width="100" height="8" {}
            @if counts.all() > 0 {
                rect.fit width="100" height="8" {}
                rect.over x=(100 - over.saturating_add(denied).min(100)) width=(over.saturating_add(denied).min(100)) height="8" {}
                rect.denied x=(100 - denied.min(100)) width=(denied.min(100)) height="8" {}
            }
        }
    }
}

/// Requests a second over the last minute: a bar for each time slot, denied ones at its foot.
pub(super) fn trend(slots: &[Counts]) -> Markup {
    /// Seconds of a slot.
    const SLOT_S: u64 = 5;
    const HEIGHT: u64 = 40;
    let most = slots.iter().map(|slot| slot.all()).max().unwrap_or(0);
    if most == 0 {
        return html! {};
    }
    let height = |count: u64| {
        let height = u128::from(count) * u128::from(HEIGHT) / u128::from(most);
        u64::try_from(height).unwrap_or(HEIGHT)
    };
    let bars = (0_u64..).step_by(10).zip(slots).map(|(x, slot)| {
        let (all, denied) = (height(slot.all()), height(slot.denied));
        (
            x,
            all,
            denied,
            height(slot.denied.saturating_add(slot.over)),
        )
    });
    let a_second: Vec<String> = slots
        .iter()
        .map(|slot| Rate::new(slot.all(), SLOT_S * 1000).text())
        .collect();
    let width = slots.len() * 10;
    html! {
        figure.trend {
            svg viewBox=(format!("0 0 {width} {HEIGHT}")) preserveAspectRatio="none" role="img"
                aria-label=(format!("Requests a second in each 5 s of the last minute: {}", a_second.join(", "))) {
                @for (x, all, denied, over) in bars {
                    rect.fit x=(x + 1) y=(HEIGHT - all) width="8" height=(all) {}
                    rect.over x=(x + 1) y=(HEIGHT - over.min(all)) width="8" height=(over.min(all)) {}
                    rect.denied x=(x + 1) y=(HEIGHT - denied) width="8" height=(denied) {}
                }
            }
            figcaption.muted { "The last minute, at most " (Rate::new(most, SLOT_S * 1000).text()) " requests a second" }
        }
    }
}

/// How much of a quota is used, as a bar.
pub(super) fn used_bar(used: u64, quota: u64) -> Markup {
    let percent = u128::from(used) * 100 / u128::from(quota.max(1));
    let percent = u64::try_from(percent).unwrap_or(100).min(100);
    let class = if percent >= 100 {
        "denied"
    } else if percent >= 80 {
        "over"
    } else {
        "fit"
    };
    html! {
        svg.used viewBox="0 0 100 8" preserveAspectRatio="none" role="img"
            aria-label=(format!("{percent}% used")) {
            rect.rest width="100" height="8" {}
            rect class=(class) width=(percent) height="8" {}
        }
    }
}

/// A message where the store cannot be read.
pub(super) fn store_away(shared: &Shared) -> Markup {
    html! {
        @if let Some(why) = &shared.away {
            div.notice.error role="status" {
                strong { "The store does not answer." } " "
                (visible(why.as_bytes())) ". Limits shown are those in force here; rates and fleet are as last read."
            }
        }
    }
}

/// A message where a reading is old.
pub(super) fn stale<T>(reading: &Reading<T>) -> Markup {
    let age_ms = u64::try_from(reading.age.as_millis()).unwrap_or(u64::MAX);
    html! {
        @if reading.error.is_some() {
            @if reading.value.is_some() {
                p.stale { "As of " (duration(age_ms)) " ago: the store does not answer." }
            } @else {
                p.stale { "Not known: the store does not answer." }
            }
        }
    }
}

/// The buckets with the most requests or denials.
pub(super) fn buckets(
    shared: &Shared,
    activity: &ActivitySummary,
    buckets: &[&BucketActivity],
    caption: &str,
) -> Markup {
    let slots_of = |found: &BucketActivity| {
        let slots = shared.slots.get(&(found.limit.clone(), values(found)));
        slots.copied()
    };
    let slots = buckets.iter().any(|found| slots_of(found).is_some());
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "Bucket" }
                    th.num scope="col" { "Denied/s" }
                    th.num scope="col" { "Requests/s" }
                    @if slots { th.num scope="col" { "Slots in use" } }
                    th scope="col" { "Limit" }
                    th.wide scope="col" { "Last denied request" }
                } }
                tbody {
                    @for found in buckets {
                        tr {
                            td.name { (bucket_name(shared, found)) }
                            (denied(found, activity))
                            td.num { (rate(found.requests, activity)) }
                            @if slots { (in_use(slots_of(found))) }
                            td.limit title=(found.limit) { a href=(limit_link(shared, &found.limit)) { (found.limit) } }
                            td.wide.name {
                                @if let Some(last) = &found.last {
                                    (value(&insight::bucket::request_text(&last.descriptor)))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Buckets with their counts.
pub(super) fn most_used(shared: &Shared, buckets: &[BucketActivity], caption: &str) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "Bucket" }
                    th.num scope="col" { "Requests" }
                    th.num scope="col" { "Denied" }
                    th scope="col" { "Limit" }
                } }
                tbody {
                    @for found in buckets {
                        tr {
                            td.name { (bucket_name(shared, found)) }
                            td.num { (found.requests) }
                            td.num.hot[found.denied > 0] {
                                (found.denied)
                                @if found.over > 0 { span.muted { " +" (found.over) " over" } }
                            }
                            td.limit title=(found.limit) { a href=(limit_link(shared, &found.limit)) { (found.limit) } }
                        }
                    }
                }
            }
        }
    }
}

/// The slots in use of a bucket.
pub(super) fn in_use(slots: Option<(u64, u64)>) -> Markup {
    html! {
        @match slots {
            Some((used, of)) => td.num.hot[used >= of] { (used) " of " (of) },
            None => td.num {},
        }
    }
}

/// A bucket's denials, separate from those it would have made.
fn denied(found: &BucketActivity, activity: &ActivitySummary) -> Markup {
    html! {
        td.num.hot[found.denied > 0] {
            (rate(found.denied, activity))
            @if found.over > 0 { span.muted { " +" (rate(found.over, activity)) " over" } }
        }
    }
}

fn bucket_name(shared: &Shared, found: &BucketActivity) -> Markup {
    let text = insight::bucket::bucket_text(found);
    html! {
        @if let Some(link) = bucket_link(shared, &found.limit, &found.bucket) {
            a href=(link) { (value(&text)) }
        } @else {
            (value(&text))
        }
    }
}

/// The buckets with the highest key, without those at 0.
pub(super) fn top<'a, K: Ord + Default>(
    activity: &'a ActivitySummary,
    limit: Option<&Name>,
    max: usize,
    key: impl Fn(&BucketActivity) -> K,
) -> Vec<&'a BucketActivity> {
    let buckets = activity.activity.buckets.iter();
    let mut found: Vec<&BucketActivity> = buckets
        .filter(|bucket| {
            limit.is_none_or(|limit| bucket.limit == *limit) && key(bucket) > K::default()
        })
        .collect();
    found.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| a.bucket.cmp(&b.bucket)));
    found.truncate(max);
    found
}

/// Links to the previous and next page; `last`: there is no next page.
pub(super) fn pages(page: usize, last: bool, link: impl Fn(usize) -> String) -> Markup {
    html! {
        @if page > 1 || !last {
            nav.pages aria-label="Pages" {
                @if page > 1 { a rel="prev" href=(link(page - 1)) { "Previous" } }
                span { "Page " (page) }
                @if !last { a rel="next" href=(link(page.saturating_add(1))) { "Next" } }
            }
        }
    }
}

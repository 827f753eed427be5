//! One bucket in full.

use hyper::StatusCode;
use insight::{Window, bucket::display, duration, penalty};
use maud::{Markup, html};
use policy::{OverrideQuota, format_timestamp};
use protocol::Mode;
use store::Inspection;

use super::{
    super::{
        data::{Bucket, Shared},
        query::Query,
    },
    parts,
};

pub(super) fn view(
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
        (parts::store_away(shared))
        @match &bucket.inspection {
            Ok(found) => { (usage(found)) (rest(bucket, found)) },
            Err(why) => p.notice.error role="status" { "The bucket cannot be read: " (why) },
        }
    };
    (StatusCode::OK, "/limits", title, body)
}

fn usage(found: &Inspection) -> Markup {
    let answer = &found.answer;
    html! {
        @if let Some(quota) = answer.limit {
            @let used = quota.saturating_sub(answer.remaining);
            p.usage { strong { (used) } " of " (quota) " units used" @if found.leased > 0 { ", " (found.leased) " of them leased" } @if found.reserved > 0 { ", " (found.reserved) " reserved until responses say their cost" } }
            (parts::used_bar(used, quota))
            dl.tiles {
                div { dt { "Left" } dd { strong { (answer.remaining) } span.muted { "units" } } }
                div.hot[!answer.allowed] {
                    dt { "A request now" }
                    dd {
                        strong { @if answer.allowed { "passes" } @else { "is denied" } }
                        span.muted { (retry(answer.allowed, answer.retry_after_ms)) }
                    }
                }
                div { dt { "Unused again" } dd { strong { (duration(answer.reset_after_ms)) } span.muted { "from now, without requests" } } }
            }
        } @else {
            p.usage { "The bucket is not limited." }
        }
    }
}

fn retry(allowed: bool, retry_after_ms: Option<u64>) -> String {
    match retry_after_ms {
        _ if allowed => "of cost 1".to_owned(),
        Some(ms) => format!("passes in {}", duration(ms)),
        None => "never passes".to_owned(),
    }
}

/// The calendar window that the bucket counts in, by its own zone.
fn window(bucket: &Bucket, now_ms: u64) -> Option<Window> {
    let quota = match &bucket.in_force {
        None => bucket.limit.quota,
        Some(found) => found.quota.of(&bucket.limit.quota)?,
    };
    Window::of(&quota, now_ms)
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
                    dt { "penalty" } dd { (penalty::state(penalty, &found.answer.penalty, enforced, found.now_ms)) }
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

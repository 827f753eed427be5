//! Problems, and the commands that fix them.

use insight::{Finding, Severity};
use maud::{Markup, html};

use super::{super::data::Shared, parts};

/// Findings that are shown.
const SHOWN: usize = 200;

pub(super) fn view(shared: &Shared, error: Option<&str>) -> Markup {
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
        @for finding in shared.findings.iter().take(SHOWN) { (card(finding)) }
        @let more = shared.findings.len().saturating_sub(SHOWN);
        @if more > 0 { p.muted { "and " (more) " more: " code { "rlctl doctor" } } }
        p.muted { code { "rlctl doctor" } " also looks for keys that no limit uses." }
    }
}

pub(super) fn card(finding: &Finding) -> Markup {
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

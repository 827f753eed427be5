//! The views as HTML. Every value is escaped by the templates.

mod limits;
mod overview;
mod parts;

use hyper::StatusCode;
use insight::Severity;
use maud::{DOCTYPE, Markup, html};

use super::{
    Query,
    data::{Shared, View, What},
};

impl View {
    /// The whole document.
    pub(super) fn render(&self, query: &Query) -> (StatusCode, Markup) {
        let shared = &self.shared;
        let found = |tab, title: &str, body| (StatusCode::OK, tab, title.to_owned(), body);
        let needs_domain = !matches!(self.what, What::Fleet(_) | What::Problems(_));
        let (status, tab, title, body) = match &self.what {
            _ if shared.domain.is_none() && needs_domain => {
                found("/", "Overview", no_domain(shared, query))
            }
            What::Overview(activity, trend, fleet, day) => {
                let body = overview::view(shared, activity, trend.as_deref(), fleet, day);
                found("/", "Overview", body)
            }
            What::Limits(activity) => {
                found("/limits", "Limits", limits::view(shared, activity, query))
            }
            What::Limit(activity, trend) => {
                limits::limit_view(shared, activity, trend.as_deref(), query)
            }
            What::Bucket(bucket) => limits::bucket_view(shared, bucket, query),
            What::Fleet(fleet) => found(
                "/fleet",
                "Fleet",
                overview::fleet_view(shared, fleet, query),
            ),
            What::History(edits) => found(
                "/history",
                "History",
                overview::history_view(shared, edits, query),
            ),
            What::Problems(error) => {
                let body = overview::problems_view(shared, error.as_deref());
                found("/problems", "Problems", body)
            }
        };
        (status, page(shared, tab, &title, &body))
    }
}

fn no_domain(shared: &Shared, query: &Query) -> Markup {
    html! {
        h1 { "Overview" }
        (parts::store_away(shared))
        @if let Some(domain) = query.text("domain") {
            p.empty { "There is no domain " (parts::value(&domain)) ". " a href="/" { "Show another" } "." }
        } @else {
            p.empty { "There are no limits yet. Write some: " code { "rlctl apply -f limits.yaml" } }
        }
    }
}

// --- What surrounds every view

const TABS: [(&str, &str); 5] = [
    ("/", "Overview"),
    ("/limits", "Limits"),
    ("/fleet", "Fleet"),
    ("/history", "History"),
    ("/problems", "Problems"),
];

fn document(title: &str, live: bool, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { (title) " · rate limits" }
                link rel="stylesheet" href="/page.css";
                @if live {
                    script src="/page.js" defer {}
                    noscript { meta http-equiv="refresh" content="10"; }
                }
            }
            (body)
        }
    }
}

/// A view with its navigation.
fn page(shared: &Shared, tab: &str, title: &str, view: &Markup) -> Markup {
    let problems = shared
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Info)
        .count();
    document(
        title,
        true,
        &html! {
            body {
                a.skip href="#view" { "Skip to the content" }
                header {
                    span.brand { "Rate limits" }
                    (domains(shared, tab))
                    div.tools {
                        button #live type="button" aria-pressed="true" hidden { "Live" }
                        form method="post" action="/logout" { button type="submit" { "Sign out" } }
                    }
                    nav aria-label="Views" data-live="nav" {
                        @for (path, name) in TABS {
                            a href=(parts::link(shared, path, "")) aria-current=[(path == tab).then_some("page")] {
                                (name)
                                @if path == "/problems" && problems > 0 {
                                    " " span.count { (problems) }
                                }
                            }
                        }
                    }
                }
                main #view data-live="view" tabindex="-1" { (view) }
                footer {
                    "Limiter " (parts::value(&shared.limiter)) " · store " (parts::value(&shared.store))
                    " · read-only: edit with " code { "rlctl" }
                }
            }
        },
    )
}

fn domains(shared: &Shared, tab: &str) -> Markup {
    html! {
        @match (&shared.domain, shared.domains.as_slice()) {
            (Some(domain), [_]) => span.domain { span.muted { "domain " } (parts::value(domain.as_str())) },
            (_, []) => {},
            (current, all) => form.domain method="get" action=(tab) {
                label for="domain" { "Domain" }
                select #domain name="domain" {
                    @for name in all {
                        option value=(name) selected[current.as_ref() == Some(name)] { (name) }
                    }
                }
                button type="submit" { "Show" }
            }
        }
    }
}

/// The form that begins a session.
pub(super) fn login(next: &str, reason: Option<&str>) -> Markup {
    document(
        "Sign in",
        false,
        &html! {
            body.login {
                main {
                    h1 { "Rate limits" }
                    @if let Some(reason) = reason { p.notice.error role="alert" { (reason) } }
                    form method="post" action="/login" {
                        label for="token" { "Token" }
                        input #token name="token" type="password" autocomplete="current-password" required autofocus;
                        input type="hidden" name="next" value=(next);
                        button type="submit" { "Sign in" }
                    }
                    p.muted { "A token of the file that the limiter was given with " code { "--page-token-file" } "." }
                }
            }
        },
    )
}

/// There is no such view.
pub(super) fn not_found() -> Markup {
    document(
        "Not found",
        false,
        &html! {
            body.login { main { h1 { "Not found" } p { a href="/" { "To the overview" } } } }
        },
    )
}

/// The page when the limiter is busy with other views.
pub(super) fn busy() -> Markup {
    document(
        "Busy",
        false,
        &html! {
            body.login { main { h1 { "Busy" } p { "The limiter answers checks first. Reload in a moment." } } }
        },
    )
}

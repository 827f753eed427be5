//! What surrounds every view.

use insight::Severity;
use maud::{DOCTYPE, Markup, html};

use super::{super::data::Shared, parts};

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
pub(super) fn page(shared: &Shared, tab: &str, title: &str, view: &Markup) -> Markup {
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
pub(in super::super) fn login(next: &str, reason: Option<&str>) -> Markup {
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
pub(in super::super) fn not_found() -> Markup {
    document(
        "Not found",
        false,
        &html! {
            body.login { main { h1 { "Not found" } p { a href="/" { "To the overview" } } } }
        },
    )
}

/// The page when the limiter is busy with other views.
pub(in super::super) fn busy() -> Markup {
    document(
        "Busy",
        false,
        &html! {
            body.login { main { h1 { "Busy" } p { "The limiter answers checks first. Reload in a moment." } } }
        },
    )
}

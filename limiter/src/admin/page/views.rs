//! The views as HTML. Every value is escaped by the templates.

mod bucket;
mod exempt;
mod fleet;
mod history;
mod layout;
mod limit;
mod limits;
mod overview;
mod parts;
mod problems;

use hyper::StatusCode;
use maud::{Markup, html};

use super::{
    data::{Shared, View, What},
    query::Query,
};

pub(super) use layout::{busy, login, not_found};

impl View {
    /// The whole document.
    pub(super) fn render(&self, query: &Query) -> (StatusCode, Markup) {
        let shared = &self.shared;
        let (status, tab, title, body) = match &self.what {
            _ if shared.domain.is_none()
                && !matches!(self.what, What::Fleet(_) | What::Problems(_)) =>
            {
                (
                    StatusCode::OK,
                    "/",
                    "Overview".to_owned(),
                    no_domain(shared, query),
                )
            }
            What::Overview(activity, trend, fleet) => (
                StatusCode::OK,
                "/",
                "Overview".to_owned(),
                overview::view(shared, activity, trend.as_deref(), fleet),
            ),
            What::Limits(activity) => (
                StatusCode::OK,
                "/limits",
                "Limits".to_owned(),
                limits::view(shared, activity, query),
            ),
            What::Limit(activity, trend) => limit::view(shared, activity, trend.as_deref(), query),
            What::Bucket(bucket) => bucket::view(shared, bucket, query),
            What::Fleet(fleet) => (
                StatusCode::OK,
                "/fleet",
                "Fleet".to_owned(),
                fleet::view(shared, fleet, query),
            ),
            What::History(edits) => (
                StatusCode::OK,
                "/history",
                "History".to_owned(),
                history::view(shared, edits, query),
            ),
            What::Problems(error) => {
                let body = problems::view(shared, error.as_deref());
                (StatusCode::OK, "/problems", "Problems".to_owned(), body)
            }
        };
        (status, layout::page(shared, tab, &title, &body))
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

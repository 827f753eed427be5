//! Denials as text.

use std::collections::BTreeMap;

use policy::{Name, Node, format_timestamp, value_to_node};
use protocol::Outcome;
use serde::Serialize;
use store::BucketActivity;

use crate::{
    activity::{bucket_text, request_text},
    render::{Page, Table, View, age},
};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Report(pub(super) Vec<Row>);

/// A bucket that was denied, and the request that was denied last.
#[derive(Clone, Serialize)]
pub(super) struct Row {
    pub(super) limit: String,
    bucket: BTreeMap<String, Node>,
    outcome: &'static str,
    by: &'static str,
    /// How often in the span.
    denied: u64,
    #[serde(rename = "last_at_ms")]
    pub(super) at_ms: u64,
    /// The descriptor of the last request.
    request: BTreeMap<String, Node>,
    proxy: Option<String>,
    #[serde(skip)]
    pub(super) shown: String,
    #[serde(skip)]
    shown_request: String,
    #[serde(skip)]
    ago_ms: u64,
}

impl Row {
    /// `None` if no request was denied.
    pub(super) fn of(found: BucketActivity, now_ms: u64) -> Option<Self> {
        let shown = bucket_text(&found);
        let last = found.last?;
        let entry = |name: &Name, value| (name.to_string(), value_to_node(value));
        let bucket = found.bucket.iter();
        let request = last.descriptor.iter();
        Some(Self {
            limit: found.limit.to_string(),
            bucket: bucket.map(|(name, v)| entry(name, v.as_deref())).collect(),
            outcome: last.outcome.word(),
            by: last.by.word(),
            denied: found.denied,
            at_ms: last.at_ms,
            request: request.map(|(name, v)| entry(name, Some(v))).collect(),
            proxy: last.proxy,
            shown,
            shown_request: request_text(&last.descriptor),
            ago_ms: now_ms.saturating_sub(last.at_ms),
        })
    }

    /// `2026-11-21T10:24:00Z per-user user=alice denied by deny_cache: path=/x`.
    pub(super) fn line(&self) -> String {
        let at = format_timestamp(self.at_ms / 1000 * 1000);
        let (limit, bucket, outcome) = (&self.limit, &self.shown, self.outcome());
        let (by, request) = (self.by, &self.shown_request);
        format!("{at} {limit} {bucket} {outcome} by {by}: {request}\n")
    }

    fn outcome(&self) -> String {
        self.outcome.replace('_', " ")
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let reported = |row: &Row| row.outcome != Outcome::Denied.word();
        let mut headers = vec!["LAST", "LIMIT", "BUCKET", "TIMES", "NOTE", "BY", "REQUEST"];
        if page.wide {
            headers.push("PROXY");
        }
        let mut table = Table::new(headers);
        for row in &self.0 {
            let note = if reported(row) {
                row.outcome()
            } else {
                String::new()
            };
            let mut cells = vec![
                age(row.ago_ms),
                row.limit.clone(),
                row.shown.clone(),
                row.denied.to_string(),
                note,
                row.by.to_owned(),
                row.shown_request.clone(),
            ];
            if page.wide {
                cells.push(row.proxy.clone().unwrap_or_default());
            }
            table.row(cells);
        }
        table.draw(page)
    }

    /// The limit and the bucket of each.
    fn names(&self) -> Vec<String> {
        let name = |row: &Row| format!("{} {}", row.limit, row.shown);
        self.0.iter().map(name).collect()
    }
}

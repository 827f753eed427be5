//! `rlctl denials`.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use clap::Args;
use policy::{Name, Node, format_timestamp, value_to_node};
use protocol::Outcome;
use serde::Serialize;
use store::{ActivitySummary, BucketActivity, Overrides};
use tokio::time::sleep;

use crate::{
    bucket::{self, Pair},
    cli::{Format, Global, examples},
    commands::stats::{Span, bucket_text, request_text},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, age},
    session::{self, Session},
};

/// Limiters report once a second.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Show who was denied just now, by which limit, and from where.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl denials"
    "rlctl denials -d user=alice                # of a bucket, or of a request, with this entry"
    "rlctl denials --limit per-user --follow    # those to come, until Ctrl-C"
    "rlctl denials --follow -o json | jq -r .request.remote_address"
))]
pub struct Denials {
    /// Only those with this entry, in the bucket or in the request that was denied last.
    #[arg(short, long = "descriptor", value_name = "KEY=VALUE")]
    descriptor: Vec<Pair>,

    /// Only those of this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    /// Go on with those to come, a line each.
    #[arg(short, long)]
    follow: bool,
}

impl Denials {
    /// Lists the buckets that were denied most in the last minute, the latest first.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        // Only for the error message of a wrong entry.
        bucket::descriptor(&self.descriptor)?;
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let domain = &policy.domain;
        let wanted = session.as_proxies_have(domain, &self.descriptor).await?;
        if let Some(name) = &self.limit {
            session::find_limit(&policy, name)?;
        }
        if self.follow {
            return self.follow(&session, domain, &wanted).await;
        }
        let denied = |observed: &ActivitySummary| {
            let mut buckets = observed.activity.buckets.iter();
            buckets.any(|bucket| bucket.last.is_some() && self.wants(&wanted, bucket))
        };
        let observed = session.activity_with(domain, Span::Minute, denied);
        let observed = observed.await?;
        let mut rows = self.rows(&wanted, observed.activity.buckets, observed.now_ms);
        rows.sort_by_key(|row| std::cmp::Reverse(row.at_ms));
        if observed.covered_ms == 0 {
            printer.note("no limiter reported decisions in the last minute");
            printer.hint("`rlctl list-proxies` shows which limiters are alive");
        } else if rows.is_empty() {
            printer.note("no request was denied in the last minute");
        }
        printer.data(&Report(rows))?;
        Ok(Exit::Done)
    }

    async fn follow(
        &self,
        session: &Session<'_>,
        domain: &Name,
        wanted: &[Pair],
    ) -> Result<Exit, Error> {
        let printer = session.printer;
        let mut shown: HashMap<(String, String), u64> = HashMap::new();
        loop {
            let observed = session.activity(domain, Span::TenSeconds).await?;
            let mut rows = self.rows(wanted, observed.activity.buckets, observed.now_ms);
            rows.sort_by_key(|row| row.at_ms);
            for row in rows {
                let key = (row.limit.clone(), row.shown.clone());
                if shown.get(&key).is_none_or(|at_ms| *at_ms < row.at_ms) {
                    shown.insert(key, row.at_ms);
                    printer.raw(&line(printer, &row)?)?;
                }
            }
            if printer.is_closed() {
                return Ok(Exit::Done);
            }
            // Denials that are too old to be reported again are dropped.
            let oldest = observed.now_ms.saturating_sub(60_000);
            shown.retain(|_, at_ms| *at_ms >= oldest);
            sleep(POLL_INTERVAL).await;
        }
    }

    fn rows(&self, pairs: &[Pair], buckets: Vec<BucketActivity>, now_ms: u64) -> Vec<Row> {
        let buckets = buckets.into_iter();
        let buckets = buckets.filter(|bucket| self.wants(pairs, bucket));
        buckets
            .filter_map(|bucket| Row::from_activity(bucket, now_ms))
            .collect()
    }

    fn wants(&self, pairs: &[Pair], bucket: &BucketActivity) -> bool {
        self.limit
            .as_ref()
            .is_none_or(|name| bucket.limit.as_str() == name)
            && pairs.iter().all(|pair| has(bucket, pair))
    }
}

/// Whether the bucket, or the request of it that was denied last, has an entry.
fn has(bucket: &BucketActivity, pair: &Pair) -> bool {
    let is = |name: &Name, value: &[u8]| name.as_str() == pair.key && value == pair.bytes();
    let own = |(name, value): &(Name, Option<Vec<u8>>)| {
        value.as_ref().is_some_and(|value| is(name, value))
    };
    let last = bucket.last.as_ref();
    let mut entries = last.into_iter().flat_map(|last| &last.descriptor);
    bucket.bucket.iter().any(own) || entries.any(|(name, value)| is(name, value))
}

/// One denial as a line, in the format that was asked for.
fn line(printer: &Printer, row: &Row) -> Result<String, Error> {
    Ok(match printer.format() {
        Format::Json => {
            let json = serde_json::to_string(row);
            let json = json.map_err(|e| Error::new(Exit::Refused, e.to_string()))?;
            json + "\n"
        }
        Format::Yaml => crate::render::yaml_of(&Report(vec![row.clone()]))?,
        Format::Name => format!("{} {}\n", row.limit, row.shown),
        _ => row.line(),
    })
}

// --- Denials as text.

#[derive(Serialize)]
#[serde(transparent)]
struct Report(pub(super) Vec<Row>);

/// A bucket that was denied, and the request that was denied last.
#[derive(Clone, Serialize)]
struct Row {
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
    pub(super) fn from_activity(found: BucketActivity, now_ms: u64) -> Option<Self> {
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
            denied: found.denied.saturating_add(found.over),
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
        let note = |row: &Row| match row.outcome {
            outcome if outcome == Outcome::Denied.word() => String::new(),
            _ => row.outcome(),
        };
        Table::of(&self.0)
            .column("LAST", |row| age(row.ago_ms))
            .column("LIMIT", |row| &row.limit)
            .column("BUCKET", |row| &row.shown)
            .column("TIMES", |row| row.denied)
            .column("NOTE", note)
            .column("BY", |row| row.by)
            .column("REQUEST", |row| &row.shown_request)
            .wide(page, "PROXY", |row| {
                row.proxy.as_deref().unwrap_or_default()
            })
            .draw(page)
    }

    /// The limit and the bucket of each.
    fn names(&self) -> Vec<String> {
        let name = |row: &Row| format!("{} {}", row.limit, row.shown);
        self.0.iter().map(name).collect()
    }
}

//! `rlctl stats`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::{Args, ValueEnum};
pub use insight::{
    Rate,
    bucket::{bucket_text, denial_rank, request_text},
};
use policy::{Name, Node, value_to_node};
use protocol::{DecidedBy, Outcome};
use serde::Serialize;
use store::{ActivitySummary, BucketActivity, LimitActivity, Overrides, Resolution};
use tokio::time::{Instant, sleep};

use crate::{
    cli::{Global, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, duration},
    session::{self, Session},
};

/// Show the decisions of each limit, per second and in total, and the buckets that used most.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl stats"
    "rlctl stats per-user orders --over 1h"
    "rlctl stats --over 24h --buckets           # who used most today"
    "rlctl stats -o json | jq '.limits[] | select(.denied.count > 0) | .limit'"
    "watch -n1 rlctl stats --over 10s"
))]
pub struct Stats {
    /// Only these limits.
    #[arg(value_name = "LIMIT")]
    limits: Vec<String>,

    /// The same, as `denials` and `list-keys` name them.
    #[arg(
        long = "limit",
        value_name = "NAME",
        value_delimiter = ',',
        hide = true
    )]
    named: Vec<String>,

    /// How far back to look: 10s, 1m, 1h or 24h.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1m",
        hide_possible_values = true
    )]
    over: Span,

    /// Also show so many of the buckets with the most requests [default: 10].
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10"
    )]
    buckets: Option<usize>,
}

impl Stats {
    /// Adds up the reports of all limiters.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let wanted: Vec<&String> = self.limits.iter().chain(&self.named).collect();
        for name in &wanted {
            session::find_limit(&policy, name)?;
        }
        let wanted = |name: &&Name| {
            wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name.as_str())
        };
        let limits: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        let limits: Vec<&Name> = limits.into_iter().filter(wanted).collect();
        let reported = |observed: &ActivitySummary| observed.covered_ms > 0;
        let observed = session.activity_with(&policy.domain, self.over, reported);
        let observed = observed.await?;
        let proxies = session.proxies(&policy.domain, limits.iter().copied());
        let proxies = proxies.await?;
        if observed.covered_ms == 0 {
            let (span, domain) = (self.over.text(), &policy.domain);
            printer.note(format_args!(
                "no limiter reported decisions in domain {domain} in the last {span}"
            ));
            printer.hint("`rlctl list-proxies` shows which limiters are alive");
        }
        let mut report = Report::new(&policy.domain, self.over, &limits, &observed, &proxies);
        report.show_buckets(&observed, &limits, self.buckets.unwrap_or(0));
        printer.data(&report)?;
        Ok(Exit::Done)
    }
}

// --- Decisions as a table.

#[derive(Serialize)]
struct Report {
    domain: String,
    over: Span,
    /// What rates are divided by, in milliseconds.
    covered_ms: u64,
    limits: Vec<Row>,
    /// The buckets with the most requests, as far as they were asked for.
    buckets: Vec<BucketRow>,
    /// Checks that no limit matched.
    unmatched: u64,
    /// Checks that got no decision.
    errors: u64,
}

#[derive(Serialize)]
struct Row {
    limit: String,
    allowed: Counted,
    denied: Counted,
    would_deny: Counted,
    degraded: Counted,
    /// Allowed requests that were delayed.
    delayed: u64,
    /// The units that responses cost.
    costs: Sum,
    /// Slots that requests in flight took.
    slots: Sum,
    /// Penalties that began.
    penalties: u64,
    /// The number of proxies that share the limit.
    proxies: u64,
}

/// A bucket, and what was counted of it: at least.
#[derive(Serialize)]
struct BucketRow {
    limit: String,
    bucket: BTreeMap<String, Node>,
    requests: Sum,
    denied: u64,
    /// Over a limit that denies nothing.
    over: u64,
    #[serde(skip)]
    shown: String,
}

#[derive(Serialize)]
struct Sum {
    count: u64,
    per_second: Rate,
}

#[derive(Serialize)]
struct Counted {
    count: u64,
    per_second: Rate,
    by: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(super) fn new(
        domain: &Name,
        over: Span,
        limits: &[&Name],
        observed: &ActivitySummary,
        proxies: &BTreeMap<Name, u64>,
    ) -> Self {
        let nothing = LimitActivity::default();
        let row = |name: &&Name| {
            let activity = observed.activity.limits.get(*name).unwrap_or(&nothing);
            let proxies = proxies.get(*name).copied().unwrap_or(0);
            Row::new(name, activity, observed.covered_ms, proxies)
        };
        Self {
            domain: domain.to_string(),
            over,
            covered_ms: observed.covered_ms,
            limits: limits.iter().map(row).collect(),
            buckets: Vec::new(),
            unmatched: observed.activity.unmatched,
            errors: observed.activity.errors,
        }
    }

    /// Adds the buckets of these limits with the most requests.
    fn show_buckets(&mut self, observed: &ActivitySummary, limits: &[&Name], max: usize) {
        let limits: BTreeSet<&Name> = limits.iter().copied().collect();
        let found = observed.activity.buckets.iter();
        let mut found: Vec<&BucketActivity> = found
            .filter(|bucket| limits.contains(&bucket.limit))
            .collect();
        found.sort_by_key(|bucket| std::cmp::Reverse((bucket.requests, denial_rank(bucket))));
        found.truncate(max);
        let row = |found: &&BucketActivity| {
            let entries = found.bucket.iter();
            BucketRow {
                limit: found.limit.to_string(),
                bucket: entries
                    .map(|(name, value)| (name.to_string(), value_to_node(value.as_deref())))
                    .collect(),
                requests: Sum {
                    count: found.requests,
                    per_second: Rate::new(found.requests, observed.covered_ms),
                },
                denied: found.denied,
                over: found.over,
                shown: bucket_text(found),
            }
        };
        self.buckets = found.iter().map(row).collect();
    }

    fn buckets_text(&self, page: Page) -> String {
        Table::of(&self.buckets)
            .column("LIMIT", |row| &row.limit)
            .column("BUCKET", |row| &row.shown)
            .column("REQUESTS", |row| row.requests.count)
            .column("PER S", |row| row.requests.per_second.text())
            .column("DENIED", |row| some(row.denied))
            .column("OVER", |row| some(row.over))
            .draw(page)
    }
}

impl Row {
    fn new(limit: &Name, activity: &LimitActivity, covered_ms: u64, proxies: u64) -> Self {
        let counted = |outcome| {
            let count = activity.total(outcome);
            let by = DecidedBy::ALL.into_iter().filter_map(|by| {
                let count = activity.counts.get(&(outcome, by)).copied()?;
                (count > 0).then_some((by.word(), count))
            });
            Counted {
                count,
                per_second: Rate::new(count, covered_ms),
                by: by.collect(),
            }
        };
        let sum = |count| Sum {
            count,
            per_second: Rate::new(count, covered_ms),
        };
        Self {
            limit: limit.to_string(),
            allowed: counted(Outcome::Allowed),
            denied: counted(Outcome::Denied),
            would_deny: counted(Outcome::WouldDeny),
            degraded: counted(Outcome::Degraded),
            delayed: activity.delayed,
            costs: sum(activity.settled_units),
            slots: sum(activity.slots_taken),
            penalties: activity.penalties,
            proxies,
        }
    }
}

/// Empty for 0, so that the table drops a column without counts.
fn some(count: u64) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}

/// `limiter 12, deny_cache 40`, the largest first.
fn by(counted: &Counted) -> String {
    let mut by: Vec<(&str, u64)> = counted.by.iter().map(|(by, n)| (*by, *n)).collect();
    by.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let one = |(by, count): (&str, u64)| format!("{by} {count}");
    by.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let costs = |row: &Row| match row.costs.count {
            0 => String::new(),
            _ => row.costs.per_second.text(),
        };
        let mut text = Table::of(&self.limits)
            .column("LIMIT", |row| &row.limit)
            .column("ALLOWED", |row| row.allowed.count)
            .column("PER S", |row| row.allowed.per_second.text())
            .column("DENIED", |row| row.denied.count)
            .column("PER S", |row| row.denied.per_second.text())
            .column("WOULD DENY", |row| some(row.would_deny.count))
            .column("DEGRADED", |row| some(row.degraded.count))
            .column("DELAYED", |row| some(row.delayed))
            .column("COST", |row| some(row.costs.count))
            .column("PER S", costs)
            .column("SLOTS", |row| some(row.slots.count))
            .column("PENALTIES", |row| some(row.penalties))
            .column("PROXIES", |row| row.proxies)
            .column("DENIED BY", |row| by(&row.denied))
            .wide(page, "ALLOWED BY", |row| by(&row.allowed))
            .draw(page);
        text.push_str(&self.buckets_text(page));
        let mut notes = vec![format!("domain {}", self.domain)];
        if self.covered_ms > 0 {
            notes.push(format!("over {}", duration(self.covered_ms)));
        }
        if self.unmatched > 0 {
            notes.push(format!("{} matched no limit", self.unmatched));
        }
        if self.errors > 0 {
            notes.push(format!("{} got no decision", self.errors));
        }
        text.push_str(&notes.join("; "));
        text.push('\n');
        text
    }

    /// The limits that decided anything.
    fn names(&self) -> Vec<String> {
        let decided = |row: &&Row| {
            let counts = [&row.allowed, &row.denied, &row.would_deny, &row.degraded];
            counts.iter().any(|counted| counted.count > 0)
        };
        let rows = self.limits.iter().filter(decided);
        rows.map(|row| row.limit.clone()).collect()
    }
}

// --- The activity that limiters report: decisions over a span of time.

/// How far back to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Span {
    /// Ten seconds.
    #[serde(rename = "10s")]
    #[value(name = "10s")]
    TenSeconds,
    /// A minute.
    #[default]
    #[serde(rename = "1m")]
    #[value(name = "1m")]
    Minute,
    /// An hour.
    #[serde(rename = "1h")]
    #[value(name = "1h")]
    Hour,
    /// A day.
    #[serde(rename = "24h")]
    #[value(name = "24h")]
    Day,
}

impl Span {
    /// Its spelling in messages.
    pub fn text(self) -> &'static str {
        match self {
            Self::TenSeconds => "10 s",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "24 h",
        }
    }

    fn slots(self) -> (Resolution, u64) {
        match self {
            Self::TenSeconds => (Resolution::Fine, 10_000),
            Self::Minute => (Resolution::Fine, 60_000),
            Self::Hour => (Resolution::Coarse, 3_600_000),
            Self::Day => (Resolution::Hourly, 86_400_000),
        }
    }
}

/// Until a decision of this moment is in the store: a proxy reports once a second, and so does the
/// limiter that receives its report.
const REPORTED_AFTER: Duration = Duration::from_millis(2500);

/// The time between two reads until then.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Session<'_> {
    /// The activity of a domain, as all limiters report it.
    pub async fn activity(&self, domain: &Name, span: Span) -> Result<ActivitySummary, Error> {
        let (resolution, span_ms) = span.slots();
        self.call(self.store.activity(domain, resolution, span_ms))
            .await
    }

    /// The activity of a domain as soon as it has what was asked for. If it has not, decisions of
    /// this moment are waited for, since they are reported a little later, if a limiter runs.
    pub async fn activity_with(
        &self,
        domain: &Name,
        span: Span,
        has: impl Fn(&ActivitySummary) -> bool,
    ) -> Result<ActivitySummary, Error> {
        let reported = Instant::now() + REPORTED_AFTER;
        let mut observed = self.activity(domain, span).await?;
        if has(&observed) || self.no_limiter_runs().await {
            return Ok(observed);
        }
        while !has(&observed) && Instant::now() < reported {
            sleep(POLL_INTERVAL).await;
            observed = self.activity(domain, span).await?;
        }
        Ok(observed)
    }

    /// Whether no limiter has reported for ten seconds, as each does once a second.
    async fn no_limiter_runs(&self) -> bool {
        // Who may not read reports of the fleet cannot know.
        let fleet = self.store.fleet().await;
        fleet.is_ok_and(|fleet| fleet.limiters.is_empty())
    }
}

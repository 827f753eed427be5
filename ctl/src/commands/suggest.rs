//! `rlctl suggest`.

use std::{
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use access_log::{Counts, Request};
use clap::Args;
use policy::{Compiled, Duration, Limit, Match, Name, Node, Policy, Scope, format_timestamp};
use serde::Serialize;
use store::{ActivitySummary, Overrides, Resolution};

use crate::{
    bucket::{self, Pair},
    cli::{Global, examples},
    commands::{set_limit::matchers, stats::Span},
    error::{Error, Exit},
    log::{LogArgs, LogReport, Reading, watched},
    printer::Printer,
    render::{Page, Table, View, counted, diagnostics, duration, wrapped},
    replay::{parse_percent, percent},
    session::{self, Session},
    suggest::{
        DAY_MS, Of, Proposed, Row, Spread, Suggestion, Target, Usage,
        counted::{Counted, FromCounts, suggest_from_counts},
        suggest, times,
    },
};

/// Suggest a first number for a limit, from access logs or from what limiters count.
///
/// It shows what buckets used, and for each second, minute, hour and day the smallest limit that would
/// have denied at most a share of the first half of the log, beside what that denies of the rest. REACH is
/// what a bucket that takes all it can gets, as multiples of what the p99.9 bucket took. It proposes the
/// limit with the least reach in a minute that keeps the target on the rest, or two together; with
/// `enforce: 0%`, so that it denies nobody yet. Clients whose every request was answered 401, 403 or
/// 429 are left out.
///
/// With --limit it goes by the counts of limiters in the last day, also of a limit in shadow mode: requests, and
/// the busiest buckets of each 5 seconds, 5 minutes and hour. It needs no log, and says less than one.
#[derive(Debug, Args)]
#[command(
    override_usage = "rlctl suggest [OPTIONS] --per <KEY> <LOG>...\n       rlctl suggest [OPTIONS] --limit <NAME>"
)]
#[command(after_help = examples!(
    "rlctl suggest access.log --per remote_address"
    "rlctl suggest access.jsonl* --per user --match 'path=/api/**' --entry user=/headers/x-user-id"
    "rlctl suggest access.log.gz --per user --deny 1% --of buckets"
    "rlctl suggest access.log --per user -o name > limit.yaml     # only the limits"
    "rlctl suggest --limit per-user                               # from what limiters counted today"
))]
pub struct Suggest {
    /// The log; - is stdin. May be given several times: logs of several proxies, or rotated ones.
    #[arg(required_unless_present = "limit", value_name = "LOG")]
    logs: Vec<String>,

    /// Go by what limiters counted of this limit in the last day, in place of a log.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["logs", "per", "matches", "of", "name"]
    )]
    limit: Option<String>,

    /// One bucket per value of this entry; may be given several times.
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        required_unless_present = "limit"
    )]
    per: Vec<String>,

    /// Only requests where this entry matches; may be given several times.
    #[arg(long = "match", value_name = "KEY=PATTERN")]
    matches: Vec<Pair>,

    /// The share that may be denied.
    #[arg(long, value_name = "PERCENT", default_value = "0.1%", value_parser = parse_percent)]
    deny: u64,

    /// What that is a share of: requests, or buckets that are denied at least once.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "requests",
        hide_possible_values = true
    )]
    of: Of,

    /// The name of the limit [default: per- and its entries].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Propose a limit that is enforced.
    #[arg(long)]
    enforced: bool,

    #[command(flatten)]
    log: LogArgs,
}

impl Suggest {
    /// Whether it goes by logs, which Ctrl-C ends where they are.
    pub fn reads_logs(&self) -> bool {
        self.limit.is_none()
    }

    /// Reads, tries and proposes.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        if let Some(limit) = &self.limit {
            return self.by_counts(limit, global, printer).await;
        }
        let policy = self.policy()?;
        let name = self.name()?;
        let (layout, _) = self.log.layout(&[&policy])?;
        let compiled = Compiled::new(policy);
        let reading = Reading::start(&self.logs, layout)?;
        let progress = Arc::clone(&reading.progress);
        let work = move || collect(reading, &compiled);
        let (usage, [lacking, unmatched], counts) = watched(printer, &progress, work).await?;
        let log = LogReport::new(&progress, counts);
        log.warn(printer, log.counts.requests);
        let target = Target {
            deny: self.deny,
            of: self.of,
        };
        let requests = usage.requests;
        let trying = tokio::task::spawn_blocking(move || suggest(&usage, target));
        let found = tokio::select! {
            found = trying => found,
            _ = tokio::signal::ctrl_c() => return Err(printer.interrupted()),
        };
        let found = found
            .map_err(|error| Error::new(Exit::Refused, format!("trying limits failed: {error}")))?;
        let Some(found) = found else {
            if progress.is_stopped() {
                return Err(printer.interrupted());
            }
            let error = Error::usage("there is no request in the log to go by");
            return Err(error.maybe_hint((requests > 0).then_some(
                "every client was refused: the status of all its requests is 401, 403 or 429",
            )));
        };
        let limits = self.limits(&name, &found, lacking > 0)?;
        printer.data(&Report {
            per: self.per.clone(),
            lacking: lacking + unmatched,
            log,
            suggestion: found,
            limits,
        })?;
        if progress.is_stopped() {
            return Err(printer.interrupted());
        }
        Ok(Exit::Done)
    }

    /// Proposes by what limiters counted of a limit, a request each, whatever it costs.
    async fn by_counts(
        &self,
        limit: &str,
        global: &Global,
        printer: &Printer,
    ) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let limit = session::find_limit(&policy, limit)?;
        if limit.scope == Scope::Proxy {
            return Err(session::buckets_in_proxies(limit));
        }
        if limit.gives_slots() {
            return Err(Error::usage(format!(
                "limit {} counts requests in flight: a rate says nothing about them",
                limit.name
            )));
        }
        let counted = async |resolution, span| {
            let seen: ActivitySummary = session.activity(&policy.domain, span).await?;
            Ok::<_, Error>(Counted::new(&limit.name, resolution, seen))
        };
        let counted = [
            counted(Resolution::Fine, Span::Minute).await?,
            counted(Resolution::Coarse, Span::Hour).await?,
            counted(Resolution::Hourly, Span::Day).await?,
        ];
        let Some(found) = suggest_from_counts(counted, self.deny) else {
            let nothing = format!("no limiter counted a request of limit {}", limit.name);
            return Err(Error::usage(format!("{nothing} in the last 24 h"))
                .hint("`rlctl list-proxies` shows which limiters are alive; `rlctl suggest LOG` goes by a log"));
        };
        let limits = self.limit_by_counts(limit, &found)?;
        printer.data(&CountsReport {
            limit: limit.name.to_string(),
            counts: found,
            limits,
        })?;
        Ok(Exit::Done)
    }

    /// The proposed limit with its own conditions, ready to be pasted; none if none is proposed.
    fn limit_by_counts(&self, limit: &Limit, found: &FromCounts) -> Result<Vec<Node>, Error> {
        let whole = limits_file::node_without_overrides(limit);
        let kept = ["name", "descriptor", "match", "per", "if_missing"].into_iter();
        let kept = kept.filter_map(|key| Some((key, whole.get(key)?.clone())));
        let node = Node::map(kept);
        let proposed = found
            .proposed
            .iter()
            .map(|row| self.with_rate(node.clone(), (row.units, row.period_ms), found.bursts));
        proposed.collect()
    }

    /// A domain whose only limit applies to the requests that are looked at.
    fn policy(&self) -> Result<Policy, Error> {
        let mut limit = self.limit("suggested");
        limit.set("rate", Node::text("1/s"));
        for (flag, entries) in [
            ("--per", self.per.iter().map(String::as_str).collect()),
            (
                "--match",
                { self.matches.iter() }
                    .map(|pair| pair.key.as_str())
                    .collect::<Vec<_>>(),
            ),
        ] {
            for entry in entries {
                let wrong = |error| Error::usage(format!("{flag} {entry}: {error}"));
                entry.parse::<Name>().map(drop).map_err(wrong)?;
            }
        }
        let document = Node::map([
            ("domain", Node::text("log")),
            ("limits", Node::list([limit])),
        ]);
        limits_file::policy_from_node(&document)
            .map_err(|problems| Error::usage(diagnostics(&problems).trim_end().to_owned()))
    }

    fn limit(&self, name: &str) -> Node {
        let mut limit = Node::map([("name", Node::text(name))]);
        if !self.matches.is_empty() {
            limit.set("match", matchers(&self.matches));
        }
        limit.set("per", Node::list(self.per.iter().map(Node::text)));
        limit
    }

    /// The name of the limit, to which two of them add their periods. An error comes before a long log is read.
    fn name(&self) -> Result<String, Error> {
        let of_entries = || format!("per-{}", self.per.join("-"));
        let name = self.name.clone().unwrap_or_else(of_entries);
        for name in [name.clone(), format!("{name}-1d")] {
            if let Err(error) = name.parse::<Name>() {
                return Err(Error::usage(format!("a limit cannot be called `{name}`: {error}"))
                    .hint("--name gives another; where two limits are proposed, each name ends in its period"));
            }
        }
        Ok(name)
    }

    /// The proposed limits, ready to be pasted. Requests that lacked an entry had no part in finding them: all in one
    /// bucket, they would be denied more than is said.
    fn limits(&self, name: &str, found: &Suggestion, skip: bool) -> Result<Vec<Node>, Error> {
        let several = found.proposed.len() > 1;
        let one = |proposed: &Proposed| {
            let Proposed { units, period_ms } = *proposed;
            let mut limit = self.limit(&if several {
                format!("{name}-{}", Duration(period_ms))
            } else {
                name.to_owned()
            });
            if skip {
                limit.set("if_missing", Node::text("skip"));
            }
            self.with_rate(limit, (units, period_ms), found.bursts)
        };
        found.proposed.iter().map(one).collect()
    }

    /// A limit of so many units in so many milliseconds.
    fn with_rate(
        &self,
        mut limit: Node,
        (units, period_ms): (u64, u64),
        bursts: bool,
    ) -> Result<Node, Error> {
        let by_day = period_ms == DAY_MS;
        let period = if by_day {
            "day".to_owned()
        } else {
            Duration(period_ms).to_string()
        };
        limit.set("rate", Node::text(format!("{units}/{period}")));
        if !by_day {
            let algorithm = if bursts { "token_bucket" } else { "gcra" };
            limit.set("algorithm", Node::text(algorithm));
        }
        if !self.enforced {
            limit.set("enforce", Node::text("0%"));
        }
        let valid = limits_file::limit_from_node(&limit);
        valid.map_err(|problems| Error::usage(diagnostics(&problems).trim_end().to_owned()))?;
        Ok(limit)
    }
}

/// What buckets used, how many requests lack an entry and how many do not match, and what was read.
fn collect(mut reading: Reading, policy: &Compiled) -> Result<(Usage, [u64; 2], Counts), Error> {
    let (mut usage, [mut lacking, mut unmatched]) = (Usage::default(), [0, 0]);
    while let Some(requests) = reading.batch() {
        for request in &requests {
            let found = policy.matching(&request.descriptor, request.at_ms);
            match found.first() {
                None => unmatched += 1,
                Some(found) if found.values.contains(&None) => lacking += 1,
                Some(found) => add(&mut usage, found, request),
            }
        }
        reading.give_back(requests);
    }
    Ok((usage, [lacking, unmatched], reading.end()?))
}

fn add(usage: &mut Usage, found: &Match<'_, '_>, request: &Request) {
    let mut hasher = DefaultHasher::new();
    found.values.hash(&mut hasher);
    let per: &[Name] = &found.limit.per;
    let name = || bucket::display(per, &found.values);
    usage.add(hasher.finish(), name, request.at_ms, request.status);
}

// --- What is reported.

#[derive(Debug, Serialize)]
struct Report {
    per: Vec<String>,
    /// Requests that lack an entry of `per`, or do not match.
    lacking: u64,
    log: LogReport,
    #[serde(flatten)]
    suggestion: Suggestion,
    limits: Vec<Node>,
}

impl Report {
    fn heading(&self) -> String {
        let found = &self.suggestion;
        let (first, rest) = (found.parts[0], found.parts[1]);
        let requests = counted(first.requests + rest.requests, "request");
        let per = self.per.join(" and ");
        let times = [found.first_ms, found.cut_ms, found.last_ms].map(format_timestamp);
        let [from, cut, to] = times;
        let mut text = format!("{requests} by {per}, from {from} to {to}\n");
        let _ = writeln!(
            text,
            "first part: {} of {}; rest from {cut} on: {} of {}",
            counted(first.requests, "request"),
            counted(first.buckets, "bucket"),
            counted(rest.requests, "request"),
            counted(rest.buckets, "bucket")
        );
        if self.lacking > 0 {
            let _ = writeln!(
                text,
                "left out: {} without {per}, or that do not match",
                counted(self.lacking, "request")
            );
        }
        let refused = found.refused;
        if refused.buckets > 0 {
            let _ = writeln!(
                text,
                "left out: {} whose every request was answered 401, 403 or 429, {}",
                counted(refused.buckets, "bucket"),
                counted(refused.requests, "request")
            );
        }
        text
    }

    fn usage(&self, page: Page) -> String {
        let within =
            |spread: &Spread| { spread.period_ms }.map_or("whole log".to_owned(), duration);
        Table::of(&self.suggestion.usage)
            .column("IN ANY", within)
            .column("P50", |spread| spread.p50)
            .column("P99", |spread| spread.p99)
            .column("P99.9", |spread| spread.p999)
            .column("LARGEST", |spread| spread.largest)
            .column("BUCKET", |spread| &spread.bucket)
            .draw(page)
    }

    fn rows(&self, page: Page) -> String {
        let rate = |row: &Row| match row.units {
            Some(units) => format!("{units}/{}", Duration(row.period_ms)),
            None => format!("?/{}", Duration(row.period_ms)),
        };
        let if_any = |row: &Row, text: String| row.units.map(|_| text).unwrap_or_default();
        let kept = |row: &Row| match row.holds {
            true => "kept",
            false if self.suggestion.parts[1].requests == 0 => "unknown",
            false => "missed",
        };
        let proposed = |row: &Row| match (self.suggestion.proposes(row), row.is_long_enough) {
            (_, false) => "the first part is shorter",
            (true, true) => "proposed",
            (false, true) => "",
        };
        let reach = |percent| format!("{}x", times(percent, 100));
        Table::of(&self.suggestion.rows)
            .column("RATE", rate)
            .column("DENIES", |row| if_any(row, percent(row.denied_first_ppm)))
            .column("ON THE REST", |row| {
                if_any(row, percent(row.denied_rest_ppm))
            })
            .column("TARGET", |row| if_any(row, kept(row).to_owned()))
            .column("REACH IN A MINUTE", |row| {
                if_any(row, reach(row.reach_minute_percent))
            })
            .column("IN A DAY", |row| if_any(row, reach(row.reach_day_percent)))
            .column("", |row| if_any(row, proposed(row).to_owned()))
            .draw(page)
    }
}

/// Limits as a limits file has them.
fn yaml(limits: &[Node]) -> String {
    Node::map([("limits", Node::list(limits.iter().cloned()))]).to_yaml()
}

fn notes_text(notes: &[String], page: Page) -> String {
    let one = |note: &String| format!("\n{}\n", wrapped(&format!("note: {note}"), 2, 0, page));
    notes.iter().map(one).collect()
}

/// What counts of limiters suggest.
#[derive(Debug, Serialize)]
struct CountsReport {
    limit: String,
    #[serde(flatten)]
    counts: FromCounts,
    limits: Vec<Node>,
}

impl View for CountsReport {
    fn text(&self, page: Page) -> String {
        let mut text = self.counts.text(&self.limit, page);
        if !self.limits.is_empty() {
            let _ = write!(text, "\nproposed:\n{}", yaml(&self.limits));
        }
        text.push_str(&notes_text(self.counts.notes(), page));
        text
    }

    /// The limit, as a limits file has it; none if none is proposed.
    fn names(&self) -> Vec<String> {
        match self.limits.as_slice() {
            [] => Vec::new(),
            limits => yaml(limits).lines().map(ToOwned::to_owned).collect(),
        }
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let found = &self.suggestion;
        let mut text = self.heading();
        let _ = writeln!(text, "\nrequests of a bucket\n{}", self.usage(page));
        let of = match found.of {
            Of::Requests => "requests",
            Of::Buckets => "buckets",
        };
        let _ = writeln!(
            text,
            "the smallest limits that deny at most {} of the {of}",
            percent(found.deny_ppm)
        );
        text.push_str(&self.rows(page));
        if let Some(denied) = found.proposed_denied_ppm {
            let what = if found.proposed.len() > 1 {
                "proposed together, each for half of the share"
            } else {
                "proposed"
            };
            let _ = writeln!(
                text,
                "\n{what}: {} of the {of} of the rest denied",
                percent(denied)
            );
            text.push_str(&yaml(&self.limits));
        }
        text.push_str(&notes_text(&found.notes, page));
        text
    }

    /// The limits, as a limits file has them.
    fn names(&self) -> Vec<String> {
        yaml(&self.limits).lines().map(ToOwned::to_owned).collect()
    }
}

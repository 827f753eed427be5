//! `rlctl replay`.

use std::{fmt::Write as _, path::Path};

use access_log::{Cut, Layout};
use anstyle::{AnsiColor, Style};
use clap::Args;
use policy::{Limit, Name, Policy, format_timestamp};
use serde::Serialize;
use store::{CheckError, Overrides};

use crate::{
    cli::{Global, examples},
    edit::{EditArgs, can_ask},
    error::{Error, Exit},
    input::Source,
    log::{FORMATS, LogArgs, LogReport, Needs, Reading, watched},
    printer::Printer,
    render::{Page, Table, View, bar, counted, duration},
    replay::{
        BucketLoss, Decided, LimitResult, Replay, Side, SideResult, Timeline, as_written,
        millionths, parse_percent, percent,
    },
    session::Session,
};

/// What --against takes for the limits in Redis.
const REDIS: &str = "redis";

/// Replay access logs: whom would these limits have denied?
///
/// Every request of the log is decided at the time at which it started, as a limiter with empty buckets
/// would have: with overrides, exemptions, costs and what responses cost. Nothing is charged anywhere. The
/// limits are those of -f, or those in Redis. --against compares them with others: who is denied that was
/// not, and who is not any more.
///
/// It reads Envoy's and Istio's default text, JSON lines, the combined format of NGINX and Apache, and
/// with --pattern any lines; also compressed by gzip or zstd, and several files at once, in any order.
/// Ctrl-C prints what was read so far.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl replay access.log -f limits.yaml"
    "rlctl replay /var/log/envoy/access.log* -f limits.yaml --entry user=/headers/x-user-id"
    "rlctl replay access.log.gz -f limits.yaml --against redis     # who changes sides"
    "rlctl replay access.log -f limits.yaml --enforced             # as if no limit only reported"
    "kubectl logs deploy/gateway | rlctl replay - -f limits.yaml --fail-above 0.1%"
))]
pub struct ReplayCommand {
    /// The log; - is stdin. May be given several times: logs of several proxies, or rotated ones.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<String>,

    /// A limits file; without it, the limits in Redis.
    #[arg(short, long, value_name = "FILE")]
    file: Option<String>,

    /// Compare with the limits of another file, or with those in Redis: redis.
    #[arg(long, value_name = "FILE|redis")]
    against: Option<String>,

    /// Decide as if every limit were enforced for all buckets, also those that only report.
    #[arg(long)]
    enforced: bool,

    /// Fail if more than this share of the requests would be denied, as in 0.1%; where two policies are
    /// compared, of the requests that only the new one denies.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    fail_above: Option<u64>,

    #[command(flatten)]
    log: LogArgs,
}

impl ReplayCommand {
    /// Reads, decides and reports.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        self.expect_logs()?;
        let needs_redis = self.file.is_none() || self.against.as_deref() == Some(REDIS);
        let session = if needs_redis {
            Some(Session::open(global, printer)?)
        } else {
            None
        };
        let (mut policy, label) = match &self.file {
            Some(file) => (policy_of(file).await?, file.clone()),
            None => (
                stored(session.as_ref()).await?,
                "the limits in Redis".to_owned(),
            ),
        };
        let mut against = match self.against.as_deref() {
            None => None,
            Some(REDIS) if self.file.is_none() => {
                return Err(
                    Error::usage("--against redis compares with the limits of -f")
                        .hint("without -f the limits in Redis are the ones that are replayed"),
                );
            }
            Some(REDIS) => Some((
                stored(session.as_ref()).await?,
                "the limits in Redis".to_owned(),
            )),
            Some(file) => Some((policy_of(file).await?, file.to_owned())),
        };
        if self.enforced {
            let others = against
                .iter_mut()
                .flat_map(|(policy, _)| &mut policy.limits);
            policy.limits.iter_mut().chain(others).for_each(enforce);
        }
        let question = Question {
            logs: &self.logs,
            log: &self.log,
            policy,
            label,
            against,
        };
        let mut report = question.ask(session.as_ref(), printer).await?;
        printer.data(&report)?;
        report.warn(printer)?;
        match report.above(self.fail_above) {
            None => Ok(Exit::Done),
            Some(why) => {
                printer.warn(why);
                Ok(Exit::No)
            }
        }
    }

    /// Without `-f`, the error about a limits file would be that Redis is away, or that no line is a request.
    fn expect_logs(&self) -> Result<(), Error> {
        let is_yaml = |log: &&String| {
            let extension = Path::new(log).extension();
            extension.is_some_and(|extension| extension == "yaml" || extension == "yml")
        };
        let limits = self.logs.iter().find(is_yaml);
        let Some(file) = limits.filter(|_| self.file.is_none()) else {
            return Ok(());
        };
        let error = Error::usage(format!("{file}: a log is expected, not a limits file"));
        Err(error.hint(format!("give limits with -f: rlctl replay LOG -f {file}")))
    }
}

fn enforce(limit: &mut Limit) {
    limit.enforce_percent = 100;
}

async fn policy_of(file: &str) -> Result<Policy, Error> {
    let source = Source::read(file).await?;
    let read = source.policy(|_| None);
    let (policy, _) = read.map_err(|problems| source.invalid(&problems))?;
    Ok(policy)
}

async fn stored(session: Option<&Session<'_>>) -> Result<Policy, Error> {
    match session {
        Some(session) => session.policy(Overrides::All).await,
        None => Err(Error::usage("there is no session with Redis")),
    }
}

/// Logs, and the limits that decide their requests.
pub struct Question<'q> {
    /// Paths of the logs.
    pub logs: &'q [String],
    /// Where lines have what.
    pub log: &'q LogArgs,
    /// The limits in question.
    pub policy: Policy,
    /// What they are called.
    pub label: String,
    /// What they are compared with, and what that is called.
    pub against: Option<(Policy, String)>,
}

impl Question<'_> {
    /// Decides the requests. Values are altered as the live proxies of the domain do, if there is a session.
    pub async fn ask(
        mut self,
        session: Option<&Session<'_>>,
        printer: &Printer,
    ) -> Result<ReplayReport, Error> {
        self.judge_as_written(printer);
        let against = self.against.iter().map(|(policy, _)| policy);
        let policies: Vec<&Policy> = std::iter::once(&self.policy).chain(against).collect();
        let (mut layout, priced) = self.log.layout(&policies)?;
        let needs = Needs::new(&policies, &priced, &layout);
        alter(&mut layout, session, &self.policy.domain).await;
        if self.policy.limits.is_empty() {
            printer.warn(format_args!(
                "{} has no limits: nothing can be denied",
                self.label
            ));
        }
        let side = Side::new(self.policy, &priced);
        let (against, against_label) = self.against.unzip();
        let against = against.map(|policy| Side::new(policy, &priced));
        let replay = Replay::new(side, against);
        let reading = Reading::start(self.logs, layout)?;
        let progress = std::sync::Arc::clone(&reading.progress);
        let work = move || decide(reading, replay);
        let (replay, counts, failed) = watched(printer, &progress, work).await?;
        let mut log = LogReport::new(&progress, counts);
        if log.counts.requests == 0 && !log.interrupted {
            log.warn(printer, 0);
            let unknown = log.counts.formats.is_empty() && log.counts.broken > 0;
            let error = Error::usage("there is no request in the log");
            return Err(error.maybe_hint(unknown.then_some(FORMATS)));
        }
        let decided = replay.report();
        log.note_lacking(&needs, decided.result.totals.requests, &decided.limits());
        Ok(ReplayReport {
            limits_from: self.label,
            compared_with: against_label,
            log,
            decided,
            failed: failed.map(|error| {
                let why = format!("a request cannot be decided: {error}");
                Error::new(Exit::Refused, why)
                    .hint("what is printed is about the requests before it")
            }),
        })
    }

    fn judge_as_written(&mut self, printer: &Printer) {
        judge_as_written(&mut self.policy, &self.label, printer);
        if let Some((policy, label)) = &mut self.against {
            judge_as_written(policy, label, printer);
        }
    }
}

/// Has limits judge requests as they are written, and says which of them do nothing now.
pub fn judge_as_written(policy: &mut Policy, label: &str, printer: &Printer) {
    for paused in as_written(policy, crate::now_ms()) {
        let who = paused.as_ref().map_or("every limit", Name::as_str);
        printer.warn(format_args!(
            "{label}: {who} is paused, and decides here as if it were not"
        ));
    }
}

/// Has values altered as the proxies of a domain do that report to its store.
pub async fn alter(layout: &mut Layout, session: Option<&Session<'_>>, domain: &Name) {
    let Some(session) = session else { return };
    // Without it, addresses are cut as filters do by default.
    let Ok(live) = session.live_entries().await else {
        return;
    };
    if let Some(supply) = live.supply(domain) {
        layout.prefixes = Some(supply.alterations.longest_prefixes());
        layout.hashed = supply.alterations.hashed.iter().cloned().collect();
    }
}

/// What was decided and read, and why a request could not be decided, which ends it.
type Done = (Replay, access_log::Counts, Option<CheckError>);

fn decide(mut reading: Reading, mut replay: Replay) -> Result<Done, Error> {
    // The engine is in memory, and never waits.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Error::usage(format!("cannot start: {error}")))?;
    let decided: Result<(), CheckError> = runtime.block_on(async {
        while let Some(mut requests) = reading.batch() {
            for request in &mut requests {
                replay.take(request).await?;
            }
            reading.give_back(requests);
        }
        Ok(())
    });
    Ok((replay, reading.end()?, decided.err()))
}

// --- What is reported.

/// What limits decided about logs.
#[derive(Debug, Serialize)]
pub struct ReplayReport {
    /// Where the limits come from.
    pub limits_from: String,
    /// Where those come from that they are compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<String>,
    /// What was read.
    pub log: LogReport,
    /// What was decided.
    #[serde(flatten)]
    pub decided: Decided,
    /// Why it ended before the log did.
    #[serde(skip)]
    failed: Option<Error>,
}

/// Buckets that are listed; `-o wide` and `-o json` list all that are named.
const BUCKETS_SHOWN: usize = 10;

const DENIED: Style = AnsiColor::Red.on_default();
const ADMITTED: Style = AnsiColor::Green.on_default();

impl Decided {
    /// Each limit, once.
    fn limits(&self) -> Vec<&LimitResult> {
        let limits = &self.result.limits;
        let others = self
            .against
            .iter()
            .flat_map(|against| &against.result.limits);
        let others = others.filter(|other| limits.iter().all(|limit| limit.name != other.name));
        limits.iter().chain(others).collect()
    }
}

impl ReplayReport {
    /// Warns of what makes the result less than exact.
    ///
    /// # Errors
    /// It is not about the whole log.
    fn warn(&mut self, printer: &Printer) -> Result<(), Error> {
        self.log.warn(printer, self.decided.result.totals.requests);
        if self.log.interrupted {
            return Err(printer.interrupted());
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Why --fail-above refuses; `None`: it does not.
    fn above(&self, fail_above: Option<u64>) -> Option<String> {
        let most = fail_above?;
        let requests = self.decided.result.totals.requests;
        let (denied, what) = match &self.decided.against {
            Some(against) => (against.newly_denied, "newly denied"),
            None => (self.decided.result.totals.denied, "denied"),
        };
        let (broken, late) = (self.log.counts.broken, self.log.counts.late);
        // What was not read, or was moved, may be what would be denied.
        for (count, whole, noun, what) in [
            (denied, requests, "request", &*format!("would be {what}")),
            (broken, requests + broken, "line", "could not be read"),
            (late, requests, "request", "could not be put in order"),
        ] {
            let share = millionths(count, whole);
            if share > most {
                let (share, most) = (percent(share), percent(most));
                let counted = counted(count, noun);
                return Some(format!(
                    "{counted} {what}, {share} of all: more than the {most} of --fail-above"
                ));
            }
        }
        let Cut { file, .. } = self.log.counts.cut.first()?;
        Some(format!(
            "--fail-above goes by whole logs, and {file} was read in part"
        ))
    }

    fn heading(&self) -> String {
        let Decided {
            result,
            first_ms,
            last_ms,
            ..
        } = &self.decided;
        let requests = counted(result.totals.requests, "request");
        let files = match self.log.files.as_slice() {
            [file] => file.clone(),
            files => counted(files.len(), "file"),
        };
        let time = |ms: &Option<u64>| ms.map(format_timestamp).unwrap_or_default();
        let (from, to) = (time(first_ms), time(last_ms));
        format!("{files}: {requests} from {from} to {to}\n")
    }

    fn verdict(&self) -> String {
        let totals = self.decided.result.totals;
        let share = percent(millionths(totals.denied, totals.requests));
        let label = &self.limits_from;
        let mut text = match totals.denied {
            0 => format!("{label}: none would have been denied"),
            denied => {
                format!("{label}: {denied} would have been {DENIED}denied{DENIED:#}, {share}")
            }
        };
        for (count, what) in [
            (totals.held, "held by a queue"),
            (totals.degraded, "degraded"),
            (totals.reported, "over a limit that only reports"),
            (totals.exempt, "exempt"),
        ] {
            if count > 0 {
                let _ = write!(text, "; {count} {what}");
            }
        }
        text.push('\n');
        if let Some((against, label)) = self
            .decided
            .against
            .as_ref()
            .zip(self.compared_with.as_ref())
        {
            let denied = against.result.totals.denied;
            let share = percent(millionths(denied, totals.requests));
            let (lost, won) = (against.newly_denied, against.newly_allowed);
            let _ = writeln!(
                text,
                "{label}: {denied}, {share}; so {lost} newly {DENIED}denied{DENIED:#}, {won} newly \
                 {ADMITTED}allowed{ADMITTED:#}"
            );
        }
        text
    }
}

impl View for ReplayReport {
    fn text(&self, page: Page) -> String {
        let decided = &self.decided;
        let mut text = self.heading();
        text.push_str(&self.verdict());
        text.push('\n');
        text.push_str(&limits_table(&decided.result, page));
        if let Some(against) = &decided.against {
            let title = "NEWLY DENIED BY";
            text.push_str(&buckets_table(title, &against.newly_denied_buckets, page));
            let title = "NEWLY ALLOWED BY";
            text.push_str(&buckets_table(title, &against.newly_allowed_buckets, page));
        } else {
            text.push_str(&buckets_table("MOST OVER", &decided.result.buckets, page));
        }
        text.push_str(&decided.timeline.text(page));
        text
    }

    /// The limits that were exceeded.
    fn names(&self) -> Vec<String> {
        let limits = self.decided.result.limits.iter();
        let over = limits.filter(|limit| limit.over > 0);
        over.map(|limit| limit.name.clone()).collect()
    }
}

fn limits_table(result: &SideResult, page: Page) -> String {
    Table::of(&result.limits)
        .column("LIMIT", |limit| &limit.name)
        .column("REQUESTS", |limit| limit.requests)
        .column("OVER", |limit| limit.over)
        .column("SHARE", |limit| {
            percent(millionths(limit.over, limit.requests))
        })
        .column("BUCKETS", |limit| {
            format!("{} of {}", limit.buckets_over, limit.buckets)
        })
        .column("FIRST", |limit| {
            limit.first_ms.map(format_timestamp).unwrap_or_default()
        })
        .column("THEN", |limit| &limit.action)
        .draw(page)
}

fn buckets_table(title: &'static str, buckets: &[BucketLoss], page: Page) -> String {
    if buckets.is_empty() {
        return String::new();
    }
    let shown = buckets.get(..BUCKETS_SHOWN).filter(|_| !page.wide);
    let table = Table::of(shown.unwrap_or(buckets))
        .column(title, |bucket| &bucket.limit)
        .column("BUCKET", |bucket| &bucket.text)
        .column("REQUESTS", |bucket| bucket.requests);
    format!("\n{}", table.draw(page))
}

impl Timeline {
    /// A bar for each slot: what was denied of what came.
    fn text(&self, page: Page) -> String {
        let mut text = format!("\nrequests in each {}\n", duration(self.slot_ms));
        let highest = self
            .slots
            .iter()
            .map(|slot| slot.requests)
            .max()
            .unwrap_or(0);
        for (n, slot) in (0_u64..).zip(&self.slots) {
            let at = self.start_ms.saturating_add(n.saturating_mul(self.slot_ms));
            let (came, denied) = (slot.requests, slot.denied);
            let bar = if highest == 0 {
                String::new()
            } else {
                bar(came, highest, page)
            };
            let at = format_timestamp(at);
            let _ = match denied {
                0 => writeln!(text, "{at}  {bar}  {came}"),
                _ => writeln!(
                    text,
                    "{at}  {bar}  {came}, {DENIED}{denied} denied{DENIED:#}"
                ),
            };
        }
        text
    }
}

// --- `--replay` of commands that edit: what the edit would do to yesterday's requests, before it is made.

/// What edits of limits take.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Replay options")]
pub struct BeforeEdit {
    /// Replay this access log first: whom would the edit deny that is not denied now? May be given
    /// several times.
    #[arg(long = "replay", value_name = "LOG")]
    logs: Vec<String>,

    /// Refuse the edit if more than this share of the requests would be newly denied, as in 0.1%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, requires = "logs")]
    fail_above: Option<u64>,

    #[command(flatten)]
    log: LogArgs,
}

impl BeforeEdit {
    /// Whether there is a log to replay.
    pub fn any(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Whether a log comes from stdin, which can be replayed once.
    pub fn reads_stdin(&self) -> bool {
        self.logs.iter().any(|log| log == "-")
    }

    /// Shows what the limits after an edit would do to the log, compared with those in force; and asks at a
    /// terminal whether to go on if it denies anyone more. `after` makes the limits of those in force, with
    /// their overrides.
    ///
    /// # Errors
    /// More is newly denied than --fail-above allows, or the user does not go on.
    pub async fn show(
        &self,
        session: &Session<'_>,
        domain: &Name,
        edit: &EditArgs,
        after: impl FnOnce(&Policy) -> Policy,
    ) -> Result<(), Error> {
        if !self.any() {
            return Ok(());
        }
        let stored = session.read(domain, Overrides::All).await?;
        let before = stored.policy().cloned();
        let before = before.unwrap_or_else(|| Policy::empty(domain.clone()));
        let question = Question {
            logs: &self.logs,
            log: &self.log,
            policy: after(&before),
            label: "after the edit".to_owned(),
            against: Some((before, "now".to_owned())),
        };
        let printer = session.printer;
        let mut report = question.ask(Some(session), printer).await?;
        printer.note(report.text(printer.page()).trim_end());
        report.warn(printer)?;
        if let Some(why) = report.above(self.fail_above) {
            return Err(Error::new(Exit::No, why).hint("nothing was written"));
        }
        let denies = report
            .decided
            .against
            .map_or(0, |against| against.newly_denied);
        if denies > 0 && can_ask() {
            let requests = counted(denies, "request");
            let question = format!("make the edit, which would have denied {requests} more");
            edit.confirm(question).await?;
        }
        Ok(())
    }
}

/// Limits as an edit leaves them: one that lists no overrides keeps those that it has, if its `per` stays.
pub fn with_overrides(mut after: Policy, before: &Policy) -> Policy {
    let by_name = before.by_name();
    for limit in &mut after.limits {
        if let Some(old) = by_name.get(limit.name.as_str())
            && limit.overrides.is_empty()
            && old.per == limit.per
        {
            limit.overrides.clone_from(&old.overrides);
        }
    }
    after
}

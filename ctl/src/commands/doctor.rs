//! `rlctl doctor`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    str::FromStr,
    time::Duration,
};

use clap::Args;
use insight::{
    Finding, Severity,
    findings::{self, limits, server},
};
use policy::{Compiled, Limit, Name, Policy};
use serde::Serialize;
use store::{
    Cursor, Fleet, Head, HeadState, LimitKey, LimitKeyKind, LimiterStatus, Overrides, StoreError,
    Stored,
};
use tokio::time::{Instant, sleep};

use crate::{
    bucket::parse_whole_number,
    cli::{Format, Global, examples},
    edit::{POLL_INTERVAL, SILENT_AFTER_MS, limiter_name},
    error::{self, Error, Exit},
    printer::{ERROR, HINT, Printer, WARNING},
    render::{Page, View, counted, duration, truncated_list, wrapped},
    session::{LiveEntries, Session},
};

/// Find problems of the server and the limits, and the command that fixes each.
///
/// The exit code is 1 if there is a problem; findings of severity info do not count. With -q they are
/// not shown, and nothing is printed if there is no problem. Doctor changes nothing.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl doctor"
    "rlctl doctor -o json | jq -r '.findings[] | select(.severity == \"error\") | .mend'"
    "rlctl doctor -q || page-somebody          # for cron: prints problems, or nothing"
    "rlctl doctor --ignore persistence,paused=shop/per-user"
))]
pub struct Doctor {
    /// How many keys are scanned for leftovers of deleted limits; 0 scans all.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    keys: u64,

    /// Findings to leave out: a check, which is in brackets before each finding, or a check at one
    /// place, as `-o name` prints them [env: RLCTL_DOCTOR_IGNORE].
    #[arg(
        long,
        value_name = "CHECK[=PLACE]",
        value_delimiter = ',',
        env = "RLCTL_DOCTOR_IGNORE",
        hide_env = true
    )]
    ignore: Vec<Ignored>,
}

impl Doctor {
    /// Runs all checks, whatever each finds.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let health = session.call(session.store.health()).await;
        let health = health.map_err(|error| match error.exit() {
            Exit::Unreachable => error.hint(UNREACHABLE),
            _ => error,
        })?;
        let store = session.store.address();
        let mut findings = server::clocks(&health, crate::now_ms());
        for node in &health {
            findings.extend(server::look(node, &store, session.key_prefix()));
        }
        let (alive, silent) = fleet(&session).await;
        let mut found = as_permitted(domains(&session, alive.as_ref()).await, &mut findings)?;
        findings.append(&mut found.findings);
        let readable = found.readable.iter();
        let known = Known {
            policies: readable
                .map(|policy| (&policy.domain, policy.by_name()))
                .collect(),
            unreadable: &found.unreadable,
            clients: { health.iter() }
                .map(|node| server::client(node, &store))
                .collect(),
            is_cluster: store.contains("-cluster://"),
        };
        let looked = look(&session, &known, self.keys);
        let looked = session.with_progress(looked).await;
        let (orphans, looked) = as_permitted(looked, &mut findings)?;
        findings.extend(orphans);
        let behind = as_permitted(behind(&session, alive.as_ref()).await, &mut findings)?;
        let silent_ones = silent.iter().map(findings::silent);
        findings.extend(behind.into_iter().chain(silent_ones));
        if let Some(fleet) = &alive {
            findings.extend(of_fleet(&session, fleet, &found, !silent.is_empty()));
        }
        findings.sort_by_key(|finding| finding.severity);
        let found = findings.len();
        findings.retain(|finding| !self.ignore.iter().any(|known| known.is(finding)));
        let ignored = found - findings.len();
        if printer.is_quiet() {
            findings.retain(|finding| finding.severity != Severity::Info);
        }
        let report = Report {
            ignored,
            healthy: findings.iter().all(|f| f.severity == Severity::Info),
            servers: health.into_iter().map(|node| node.address).collect(),
            limiters: { alive.iter().flat_map(|fleet| &fleet.limiters) }
                .map(Alive::of)
                .collect(),
            findings,
            keys: looked,
        };
        let for_people = matches!(printer.format(), Format::Table | Format::Wide);
        if !(report.healthy && for_people && printer.is_quiet()) {
            printer.data(&report)?;
        }
        Ok(if report.healthy { Exit::Done } else { Exit::No })
    }
}

/// What a check found. One that the user lacks a permission for ends no other: that is a finding, unless one about
/// all that the user lacks is there already.
fn as_permitted<T: Default>(
    found: Result<T, Error>,
    findings: &mut Vec<Finding>,
) -> Result<T, Error> {
    let error = match found {
        Err(error) if error.plain().contains("refused: NOPERM") => error,
        found => return found,
    };
    let known = |one: &Finding| one.check == "rights" && one.severity == Severity::Error;
    if !findings.iter().any(known) {
        let why =
            "what it is needed for was not checked; docs/rlctl.md lists the permissions of rlctl";
        let finding = Finding::new(Severity::Error, "rights", "user", error.plain(), why);
        findings.push(finding);
    }
    Ok(T::default())
}

/// What those that report say.
fn of_fleet(session: &Session<'_>, fleet: &Fleet, found: &Domains, silent: bool) -> Vec<Finding> {
    let mut findings: Vec<_> = findings::refused_streams(fleet, session.named_domain()).collect();
    for policy in &found.readable {
        findings.extend(findings::partly_supplied(fleet, policy));
    }
    if fleet.limiters.is_empty() {
        findings.push(findings::nobody(found.has_limits, silent));
    }
    findings
}

/// What an unreachable store means for requests.
const UNREACHABLE: &str = "if limiters cannot reach it either, proxies decide by each limit's \
                           `on_failure`: `curl http://LIMITER:8091/readyz` shows what a limiter sees";

/// The domains, and their findings.
#[derive(Default)]
struct Domains {
    findings: Vec<Finding>,
    /// The limits of all domains that can be read.
    readable: Vec<Policy>,
    unreadable: Vec<Name>,
    /// Whether a domain that was asked for has limits.
    has_limits: bool,
    live: LiveEntries,
}

/// The findings of the named domain, or else of all domains.
async fn domains(session: &Session<'_>, fleet: Option<&Fleet>) -> Result<Domains, Error> {
    let heads = session.call(session.store.heads()).await?;
    let named = session.named_domain();
    let mut found = Domains {
        live: fleet.map(LiveEntries::from_fleet).unwrap_or_default(),
        ..Domains::default()
    };
    let flushed = fleet.map(|fleet| limits::flushed(fleet, &heads, named));
    let flushed = flushed.unwrap_or_default();
    if heads.is_empty() && flushed.is_empty() {
        found.findings.push(limits::no_domain());
    }
    found.findings.extend(flushed);
    for head in heads {
        let wanted = named.is_none_or(|named| *named == head.domain);
        let before = found.readable.len();
        let findings = found.look(session, &head).await?;
        if wanted {
            let read = { found.readable.iter().skip(before) };
            found.has_limits |= read.into_iter().any(|policy| !policy.limits.is_empty());
            found.findings.extend(findings);
        }
    }
    Ok(found)
}

/// A limiter reports once a second: one that is later than this may have ended.
const LATE_MS: u64 = 1500;
/// The longest wait for reports that are late; without a report, they are silent by then.
const LATE_WAIT: Duration = Duration::from_secs(2);

/// The fleet, without the limiters that report no more, and those. One whose report is late is
/// waited for, so that none is taken for alive that ended before.
async fn fleet(session: &Session<'_>) -> (Option<Fleet>, Vec<LimiterStatus>) {
    let started = Instant::now();
    loop {
        // Another check reports a missing permission.
        let Ok(mut fleet) = session.store.fleet().await else {
            return (None, Vec::new());
        };
        let late =
            |limiter: &LimiterStatus| limiter.ago_ms > LATE_MS && limiter.ago_ms <= SILENT_AFTER_MS;
        if fleet.limiters.iter().any(late) && started.elapsed() < LATE_WAIT {
            sleep(POLL_INTERVAL).await;
            continue;
        }
        let silent = |limiter: &mut LimiterStatus| limiter.ago_ms > SILENT_AFTER_MS;
        let silent = fleet.limiters.extract_if(.., silent).collect();
        return (Some(fleet), silent);
    }
}

/// Live limiters and proxies that lack the current revision.
async fn behind(session: &Session<'_>, fleet: Option<&Fleet>) -> Result<Vec<Finding>, Error> {
    let store = &session.store;
    let (Some(fleet), Ok(heads)) = (fleet, store.heads().await) else {
        return Ok(Vec::new()); // Another check reports the missing permission.
    };
    let mut findings = Vec::new();
    let now_ms = session.now_ms().await?;
    for head in heads {
        let HeadState::Live(revision) = head.state else {
            continue;
        };
        let last = store.history(&head.domain, 1).await;
        let last = last.map_err(|error| session.failed(&error))?;
        let age_ms = last.first().map(|edit| now_ms.saturating_sub(edit.at_ms));
        findings.extend(findings::behind(fleet, &head.domain, &revision, age_ms));
    }
    Ok(findings)
}

/// Overrides that do not fit their limit.
async fn invalid_overrides(session: &Session<'_>, policy: &Policy) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for limit in &policy.limits {
        let invalid = session.invalid_overrides(&policy.domain, limit).await?;
        findings.extend(limits::invalid_overrides(policy, limit, &invalid));
    }
    Ok(findings)
}

/// Adaptive limits with one bucket that are at their minimum and still too slow. What cannot be read is another
/// check's finding.
async fn too_slow(session: &Session<'_>, policy: &Policy) -> Vec<Finding> {
    let adaptive =
        |limit: &&Limit| limit.per.is_empty() && limit.quota.parameters().adaptive.is_some();
    let compiled = Compiled::new(policy.clone());
    let mut findings = Vec::new();
    for limit in policy.limits.iter().filter(adaptive) {
        let found = session.store.inspect(&compiled, &limit.name, &[], 1).await;
        let state = found.ok().and_then(|found| found.answer.verdict.adaptive);
        findings.extend(state.and_then(|state| limits::too_slow(&policy.domain, limit, &state)));
    }
    findings
}

impl Domains {
    async fn look(&mut self, session: &Session<'_>, head: &Head) -> Result<Vec<Finding>, Error> {
        let domain = &head.domain;
        let finding = match &head.state {
            HeadState::Missing => limits::lost(domain),
            HeadState::Unreadable(why) => limits::unreadable(domain, why),
            HeadState::Deleted(_) => return Ok(Vec::new()),
            HeadState::Live(_) => match session.store.read(domain, Overrides::None).await {
                Ok(Stored::Live(record)) => {
                    let mut findings = limits::look(&record.policy, &self.live, crate::now_ms());
                    findings.extend(invalid_overrides(session, &record.policy).await?);
                    findings.extend(too_slow(session, &record.policy).await);
                    self.readable.push(record.policy);
                    return Ok(findings);
                }
                Ok(_) => return Ok(Vec::new()),
                Err(StoreError::Corrupt(why)) => limits::unreadable(domain, &why),
                Err(error) => return Err(session.failed(&error)),
            },
        };
        self.unreadable.push(domain.clone());
        Ok(vec![finding])
    }
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    /// Findings that were left out.
    ignored: usize,
    servers: Vec<String>,
    /// Those that report.
    limiters: Vec<Alive>,
    findings: Vec<Finding>,
    /// How many keys were scanned for orphans.
    keys: Looked,
}

/// A limiter that reports.
#[derive(Serialize)]
struct Alive {
    name: String,
    id: String,
    heard_ms_ago: u64,
}

impl Alive {
    fn of(limiter: &LimiterStatus) -> Self {
        Self {
            name: limiter_name(&limiter.id).to_owned(),
            id: limiter.id.clone(),
            heard_ms_ago: limiter.ago_ms,
        }
    }
}

/// The most limiters that the text names.
const NAMED_MAX: usize = 5;

impl View for Report {
    fn text(&self, page: Page) -> String {
        let findings = self.findings.iter().map(|f| text(f, page));
        let text: String = findings.collect();
        let wrong = self
            .findings
            .iter()
            .filter(|f| f.severity != Severity::Info);
        let verdict = match wrong.count() {
            0 => "no problems".to_owned(),
            count => counted(count, "problem"),
        };
        let verdict = match self.ignored {
            0 => verdict,
            ignored => format!("{verdict}, {ignored} ignored"),
        };
        let servers = self.servers.join(", ");
        let more = if self.keys.all {
            String::new()
        } else {
            let at = self.keys.at;
            format!("(about {at} keys were scanned for leftovers; --keys 0 scans all)")
        };
        let limiters = { self.limiters.iter() }
            .map(|limiter| format!("{} ({} ago)", limiter.name, duration(limiter.heard_ms_ago)))
            .collect::<Vec<_>>();
        let limiters = match limiters.as_slice() {
            [] => String::new(),
            some => format!(
                "limiters that report: {}\n",
                truncated_list(some, NAMED_MAX)
            ),
        };
        format!("{text}{limiters}{servers}: {verdict}{more}\n")
    }

    /// The checks that found something wrong, as --ignore takes them.
    fn names(&self) -> Vec<String> {
        let wrong = self
            .findings
            .iter()
            .filter(|f| f.severity != Severity::Info);
        wrong
            .map(|finding| format!("{}={}", finding.check, finding.place))
            .collect()
    }
}

// --- Orphans: keys of deleted limits, which nothing reads unless a limit of that name is created.

/// Limits whose orphans are listed one by one.
const LIMITS_MAX: usize = 10;
/// Orphans of one limit whose TTL is read.
const ASKED_MAX: usize = 20;

/// How much was scanned.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Looked {
    /// The number of keys, approximately.
    at: u64,
    /// Whether all keys were scanned.
    all: bool,
}

/// The orphans of one limit.
#[derive(Default)]
struct Left {
    buckets: usize,
    /// Some of them.
    keys: Vec<String>,
    overrides: Option<String>,
    /// The limit exists, and its `per` has changed.
    split_otherwise: bool,
}

/// The domains there are, and the client commands that delete orphans.
struct Known<'a> {
    /// The limits of all domains that can be read, by name.
    policies: HashMap<&'a Name, HashMap<&'a str, &'a Limit>>,
    /// Domains that cannot be read; their keys are not reported.
    unreadable: &'a [Name],
    /// The command line of Redis's own client for each server.
    clients: Vec<String>,
    is_cluster: bool,
}

impl Known<'_> {
    /// A client that finds the node of a key.
    fn client(&self) -> String {
        let client = self.clients.first().map_or("", String::as_str);
        let follows = if self.is_cluster { " -c" } else { "" };
        format!("{client}{follows}")
    }

    /// The command that deletes all buckets of a limit. Values in keys may have spaces and quotes. Without
    /// values there is only the bare one.
    fn unlink_all(&self, bare: &str) -> String {
        let scans = { self.clients.iter() }
            .map(|client| format!("{client} --scan --pattern '{bare}:*'"))
            .collect::<Vec<_>>()
            .join("; ");
        let client = self.client();
        if self.is_cluster {
            // Each node lists its own keys, and a command may name those of one slot only.
            return format!(
                "(echo {bare}; {scans}) | tr '\\n' '\\0' | xargs -0 -n 1 {client} unlink"
            );
        }
        format!("{scans} | tr '\\n' '\\0' | xargs -0 {client} unlink {bare}")
    }
}

/// Scans `max` keys (0: all) for keys that belong to no limit.
async fn look(
    session: &Session<'_>,
    known: &Known<'_>,
    max: u64,
) -> Result<(Vec<Finding>, Looked), Error> {
    let mut left: BTreeMap<(Name, Name), Left> = BTreeMap::new();
    let (mut looked, mut cursor) = (Looked::default(), Some(Cursor::default()));
    while let Some(from) = cursor
        && (max == 0 || looked.at < max)
    {
        let page = match session.store.scan_keys(from).await {
            Err(StoreError::Refused(refusal)) if refusal.code == "NOPERM" => {
                return Ok((vec![not_permitted(session)], looked));
            }
            page => page.map_err(|error| session.failed(&error))?,
        };
        looked.at += page.scanned;
        cursor = page.next;
        for held in page.keys {
            let (domain, limit) = held.of();
            if !known.unreadable.contains(domain) {
                let key = (domain.clone(), limit.clone());
                let of_limit = { known.policies.get(domain) }
                    .and_then(|limits| limits.get(limit.as_str()).copied());
                note(of_limit, held, || left.entry(key).or_default());
            }
        }
    }
    looked.all = cursor.is_none();
    let mut findings = Vec::new();
    for ((domain, limit), left) in left.into_iter().take(LIMITS_MAX) {
        findings.extend(left.findings(session, known, (&domain, &limit)).await?);
    }
    Ok((findings, looked))
}

fn not_permitted(session: &Session<'_>) -> Finding {
    Finding::new(
        Severity::Info,
        "orphans",
        session.store.address(),
        "this user may not list keys (SCAN)",
        "so leftovers of deleted limits were not searched for",
    )
}

/// Notes a key of a limit that does not exist, or that splits its buckets otherwise now.
fn note<'l>(known: Option<&Limit>, held: LimitKey, left: impl FnOnce() -> &'l mut Left) {
    match (held.what, known) {
        (LimitKeyKind::Overrides { .. }, None) => left().overrides = Some(held.key),
        (LimitKeyKind::Overrides { .. }, Some(_)) => {}
        (LimitKeyKind::Bucket(bucket), known) => {
            let fits = known.map(|limit| bucket.arrange(&limit.per, &limit.partition).is_some());
            if fits != Some(true) {
                let left = left();
                left.split_otherwise = fits.is_some();
                left.buckets += 1;
                if left.keys.len() < ASKED_MAX {
                    left.keys.push(held.key);
                }
            }
        }
    }
}

impl Left {
    async fn findings(
        self,
        session: &Session<'_>,
        known: &Known<'_>,
        (domain, limit): (&Name, &Name),
    ) -> Result<Vec<Finding>, Error> {
        let place = format!("{domain}/{limit}");
        let mut findings = Vec::new();
        if let Some(key) = &self.overrides {
            let finding = Finding::new(
                Severity::Warning,
                "orphans",
                &place,
                "there is no such limit, but overrides of it are stored",
                "a limit created with this name would have them at once",
            );
            findings.push(finding.mend(format!("{} unlink '{key}'", known.client())));
        }
        if self.buckets > 0 {
            let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
            let ttls = session.call(session.store.ttls_ms(&keys)).await?;
            let stay = ttls.iter().any(Option::is_none);
            let bare = session.keys().bare_bucket(domain, limit);
            let unlink = stay.then(|| known.unlink_all(&bare));
            findings.push(self.buckets_of((domain, limit), unlink));
        }
        Ok(findings)
    }

    /// `unlink`: the command that deletes them, if they do not expire.
    fn buckets_of(&self, (domain, limit): (&Name, &Name), unlink: Option<String>) -> Finding {
        let place = format!("{domain}/{limit}");
        let buckets = counted(self.buckets, "bucket");
        let what = if self.split_otherwise {
            format!("{buckets} of another `per` or `partition`")
        } else {
            format!("{buckets} of a limit that does not exist")
        };
        let Some(unlink) = unlink else {
            let why = "nothing reads them; they expire when they would have been unused";
            return Finding::new(Severity::Info, "orphans", place, what, why);
        };
        let why = "nothing reads them, and not all of them expire: another program wrote or persisted them";
        let finding = Finding::new(Severity::Warning, "orphans", place, what, why);
        if self.split_otherwise {
            let domain = findings::shell_word(domain.as_str());
            return finding.mend(format!(
                "rlctl list-keys --domain {domain} --limit {limit} -o wide    # then unlink them"
            ));
        }
        finding.mend(unlink)
    }
}

// --- A finding as text.

fn text(finding: &Finding, page: Page) -> String {
    let (style, word) = match finding.severity {
        Severity::Error => (ERROR, "error"),
        Severity::Warning => (WARNING, "warning"),
        Severity::Info => (HINT, "info"),
    };
    let head = format!("{}: {}", finding.place, finding.what);
    let check = finding.check;
    let mut text = format!(
        "{style}{word}{style:#}[{check}]: {}\n",
        wrapped(&head, 2, word.len() + check.len() + 4, page)
    );
    let _ = writeln!(text, "  {}", wrapped(&finding.why, 2, 2, page));
    if let Some(mend) = &finding.mend {
        // People copy the command, so it stays on one line.
        let _ = writeln!(text, "  fix: {mend}");
    }
    text
}

// --- Findings that `--ignore` leaves out.

/// The names of all checks; a test checks that there are no others.
const CHECKS: [&str; 21] = [
    "adaptive",
    "clock",
    "domains",
    "eviction",
    "evicted",
    "fleet",
    "info",
    "memory",
    "missing",
    "orphans",
    "paused",
    "persistence",
    "records",
    "replicas",
    "rights",
    "role",
    "saving",
    "scripts",
    "unmeant",
    "version",
    "stream",
];

/// The findings of a check, or of a check at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ignored {
    check: String,
    place: Option<String>,
}

impl FromStr for Ignored {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (check, place) = match text.split_once('=') {
            Some((check, place)) => (check, Some(place.to_owned())),
            None => (text, None),
        };
        // An empty variable counts as unset.
        if CHECKS.contains(&check) || text.is_empty() {
            return Ok(Self {
                check: check.to_owned(),
                place,
            });
        }
        Err(match error::closest(check, CHECKS) {
            Some(meant) => format!("there is no check `{check}`; did you mean `{meant}`?"),
            None => format!(
                "there is no check `{check}`; there are: {}",
                CHECKS.join(", ")
            ),
        })
    }
}

impl Ignored {
    /// Whether this finding is to be ignored.
    fn is(&self, finding: &Finding) -> bool {
        let place = self.place.as_ref();
        self.check == finding.check && place.is_none_or(|place| *place == finding.place)
    }
}

#[cfg(test)]
mod tests {
    use insight::Severity;

    use super::*;

    #[test]
    fn a_check_is_ignored_everywhere_or_at_one_place() {
        let finding = |place: &str| Finding::new(Severity::Warning, "paused", place, "", "");
        let all: Ignored = "paused".parse().unwrap();
        let one: Ignored = "paused=shop/a".parse().unwrap();
        assert!(all.is(&finding("shop/a")) && all.is(&finding("shop/b")));
        assert!(one.is(&finding("shop/a")) && !one.is(&finding("shop/b")));
        let error = "pused".parse::<Ignored>().unwrap_err();
        assert!(error.ends_with("did you mean `paused`?"), "{error}");
    }

    #[test]
    fn every_check_can_be_ignored_and_no_other() {
        let own = include_str!("doctor.rs");
        let sources = [
            own.split_once("#[cfg(test)]").unwrap().0,
            include_str!("../../../crates/insight/src/findings.rs"),
            include_str!("../../../crates/insight/src/findings/limits.rs"),
            include_str!("../../../crates/insight/src/findings/server.rs"),
        ];
        // In the source, a check's name is on the line after its severity.
        let lines: Vec<&str> = sources.iter().flat_map(|text| text.lines()).collect();
        let named = lines.windows(2).filter_map(|pair| {
            let [severity, name] = pair else { return None };
            let severity = severity.trim();
            let is_one = severity.starts_with("Severity::") && severity.ends_with(',')
                || severity == "severity,";
            let name = name.trim().strip_prefix('"')?.strip_suffix("\",")?;
            is_one.then_some(name)
        });
        let mut named: Vec<&str> = named.collect();
        let inline = lines.iter().filter_map(|line| {
            let (_, rest) = line.split_once("(Severity::")?;
            rest.split('"').nth(1)
        });
        named.extend(inline);
        named.sort_unstable();
        named.dedup();
        let mut all = CHECKS;
        all.sort_unstable();
        assert_eq!(named, all);
    }
}

//! `rlctl doctor`.

mod finding;
mod ignore;
mod orphans;

use clap::Args;
use insight::{
    Finding, Severity,
    findings::{fleet, limits, server},
};
use policy::{Name, Policy};
use serde::Serialize;
use store::{Fleet, Head, HeadState, Overrides, StoreError, Stored};

use crate::{
    args::{Format, Global, examples},
    bucket::parse_whole_number,
    clock,
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, View, counted},
    session::{LiveEntries, Session},
};

use ignore::Ignored;
use orphans::{Known, Looked};

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
        let health = session.store.health().await;
        let health = health.map_err(|error| session.failed(&error))?;
        let store = session.store.address();
        let mut findings = server::clocks(&health, clock::now_ms());
        for node in &health {
            findings.extend(server::look(node, &store, session.key_prefix()));
        }
        // Another check reports a missing permission.
        let alive = session.store.fleet().await.ok();
        let mut found = domains(&session, alive.as_ref()).await?;
        findings.append(&mut found.findings);
        let known = Known {
            policies: &found.readable,
            unreadable: &found.unreadable,
            client: health
                .first()
                .map(|node| server::client(node, &store))
                .unwrap_or_default(),
        };
        let looked = orphans::look(&session, &known, self.keys);
        let (orphans, looked) = session.with_progress(looked).await?;
        findings.extend(orphans);
        findings.extend(behind(&session, alive.as_ref(), found.has_limits).await?);
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
    let heads = session.store.heads().await;
    let heads = heads.map_err(|error| session.failed(&error))?;
    let named = session.named_domain();
    let mut found = Domains {
        live: fleet.map(LiveEntries::of).unwrap_or_default(),
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

/// Live limiters and proxies that lack the current revision.
async fn behind(
    session: &Session<'_>,
    fleet: Option<&Fleet>,
    has_limits: bool,
) -> Result<Vec<Finding>, Error> {
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
        findings.extend(fleet::behind(fleet, &head.domain, &revision, age_ms));
    }
    if fleet.limiters.is_empty() {
        findings.push(fleet::nobody(has_limits));
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

impl Domains {
    async fn look(&mut self, session: &Session<'_>, head: &Head) -> Result<Vec<Finding>, Error> {
        let domain = &head.domain;
        let finding = match &head.state {
            HeadState::Missing => limits::lost(domain),
            HeadState::Unreadable(why) => limits::unreadable(domain, why),
            HeadState::Deleted(_) => return Ok(Vec::new()),
            HeadState::Live(_) => match session.store.read(domain, Overrides::None).await {
                Ok(Stored::Live(record)) => {
                    let mut findings = limits::look(&record.policy, &self.live, clock::now_ms());
                    findings.extend(invalid_overrides(session, &record.policy).await?);
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
    findings: Vec<Finding>,
    /// How many keys were scanned for orphans.
    keys: Looked,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let findings = self.findings.iter().map(|f| finding::text(f, page));
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
        format!("{text}{servers}: {verdict}{more}\n")
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

//! `rlctl list-proxies`.

use std::collections::BTreeMap;

use clap::Args;
use policy::{Name, Revision};
use serde::Serialize;
use store::{Fleet, HeadState};
use tokio::time::{Instant, sleep};

use crate::{
    cli::{Global, Wait, examples},
    edit::{POLL_INTERVAL, SILENT_AFTER_MS, is_current, limiter_name, proxy_name},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, age, duration, truncated_list},
    session::Session,
};

/// The states of a limiter and of a proxy that stopped reporting.
const SILENT: &str = "silent";
const CUT_OFF: &str = "cut_off";
/// The most names in one message.
const NAMED_MAX: usize = 5;

/// List the live limiters and proxies, and the revision that each of them has.
///
/// A limiter that has not reported for 3 s is silent: it stopped, or lost Redis. A proxy that polls no
/// limiter is cut off: it stopped, or enforces its limits without one, as `on_failure` says.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl list-proxies"
    "rlctl list-proxies --domain shop -o wide"
    "rlctl list-proxies -o json | jq '.[] | select(.state != \"current\")'"
    "rlctl list-proxies -o json | jq '.[] | {name, entries}'    # what each supplies"
    "rlctl list-proxies --wait=1m               # until a proxy has the limits"
), mut_arg("wait", |arg| arg.help(
    "Wait until a proxy that is running has the limits, and no limiter or proxy is behind, this long at most [default: 5s]"
)))]
pub struct ListProxies {
    #[command(flatten)]
    wait: Wait,
}

impl ListProxies {
    /// Lists the limiters and proxies that reported in the last 10 s.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let started = Instant::now();
        let elapsed_ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        loop {
            let (fleet, rows) = read(&session).await?;
            let in_force = self.wait.ms.is_none() || are_in_force(&rows, elapsed_ms());
            if !in_force && self.wait.ms.is_some_and(|wait_ms| elapsed_ms() < wait_ms) {
                sleep(POLL_INTERVAL).await;
                continue;
            }
            say_if_none(&session, &fleet, &rows);
            say_silent(&session, &rows);
            let report = Report(rows);
            printer.data(&report)?;
            return match self.wait.ms {
                Some(wait_ms) if !in_force => Err(not_in_force(&report.0, wait_ms)),
                _ => Ok(Exit::Done),
            };
        }
    }
}

/// The fleet, and its rows of the domain that was named, or of all.
async fn read(session: &Session<'_>) -> Result<(Fleet, Vec<Row>), Error> {
    let fleet = session.call(session.store.fleet()).await?;
    let heads = session.call(session.store.heads()).await?;
    let in_force = heads.into_iter().filter_map(|head| match head.state {
        HeadState::Live(revision) => Some((head.domain, revision)),
        _ => None,
    });
    let mut rows = rows(&fleet, &in_force.collect());
    if let Some(domain) = session.named_domain() {
        rows.retain(|row| row.domain == domain.as_str());
    }
    Ok((fleet, rows))
}

/// Whether a proxy that was seen in the last `since_ms` has the limits, and nobody is behind. One that
/// ended shortly before is still listed, so it must have polled since the command began.
fn are_in_force(rows: &[Row], since_ms: u64) -> bool {
    let has_them = |row: &Row| {
        row.kind == Kind::Proxy && row.state == "current" && row.heard_ms_ago < since_ms
    };
    !rows.iter().any(Row::is_behind) && rows.iter().any(has_them)
}

fn not_in_force(rows: &[Row], wait_ms: u64) -> Error {
    let behind: Vec<_> = { rows.iter() }
        .filter(|row| row.is_behind())
        .map(|row| &row.name)
        .collect();
    let after = duration(wait_ms);
    if !behind.is_empty() {
        let behind = truncated_list(&behind, NAMED_MAX);
        let message = format!("after {after} these do not have the limits: {behind}");
        return Error::new(Exit::Behind, message);
    }
    Error::new(
        Exit::Behind,
        format!("after {after} no proxy has the limits"),
    )
    .hint("a proxy polls the domain of its filter's configuration; does Envoy run with it?")
}

fn say_if_none(session: &Session<'_>, fleet: &Fleet, rows: &[Row]) {
    let printer = session.printer;
    if fleet.limiters.is_empty() {
        printer.note(
            "no limiter has reported in the last 10 s; proxies are known by limiters alone, and enforce \
             their limits without one meanwhile",
        );
        printer
            .hint("a limiter reports once a second; does one use this Redis and this key prefix?");
    } else if !rows.iter().any(|row| row.kind == Kind::Proxy) {
        printer.note("no proxy has polled in the last 10 s");
    }
}

/// Says what a state means that is most likely a failure.
fn say_silent(session: &Session<'_>, rows: &[Row]) {
    let named = |state: &str| {
        let rows = rows.iter().filter(|row| row.state == state);
        let mut names: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
        names.dedup();
        (!names.is_empty()).then(|| truncated_list(names, NAMED_MAX))
    };
    if let Some(names) = named(SILENT) {
        session.printer.warn(format_args!(
            "limiters that report no more: {names}; they stopped, or cannot reach Redis"
        ));
    }
    if let Some(names) = named(CUT_OFF) {
        session.printer.warn(format_args!(
            "proxies that poll no limiter: {names}; they stopped, or enforce their limits without one"
        ));
    }
}

fn rows(fleet: &Fleet, in_force: &BTreeMap<Name, Revision>) -> Vec<Row> {
    let mut rows = Vec::new();
    for limiter in &fleet.limiters {
        // A limiter that lacks a domain is behind as well.
        for domain in in_force.keys() {
            let has = limiter.revisions.get(domain);
            rows.push(Row {
                domain: domain.to_string(),
                kind: Kind::Limiter,
                name: limiter_name(&limiter.id).to_owned(),
                id: limiter.id.clone(),
                heard_ms_ago: limiter.ago_ms,
                ..Row::from_revisions(has, in_force.get(domain))
                    .unless_heard(limiter.ago_ms, SILENT)
            });
        }
    }
    for (domain, proxies) in &fleet.proxies {
        for proxy in proxies {
            rows.push(Row {
                domain: domain.to_string(),
                kind: Kind::Proxy,
                name: proxy_name(proxy),
                id: proxy.id.clone(),
                filter: Some(if proxy.is_module { "module" } else { "wasm" }),
                entries: { proxy.supplies.as_ref() }
                    .map(|entries| entries.iter().map(Name::to_string).collect()),
                heard_ms_ago: proxy.ago_ms,
                ..Row::from_revisions(proxy.revision.as_ref(), in_force.get(domain))
                    .unless_heard(proxy.ago_ms, CUT_OFF)
            });
        }
    }
    rows.sort_by(|a, b| (&a.domain, a.kind, &a.name).cmp(&(&b.domain, b.kind, &b.name)));
    rows
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Row>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Limiter,
    Proxy,
}

#[derive(Serialize)]
struct Row {
    domain: String,
    kind: Kind,
    name: String,
    id: String,
    /// What a proxy's filter is.
    filter: Option<&'static str>,
    /// What a proxy supplies beside the built-in entries.
    entries: Option<Vec<String>>,
    revision: Option<u64>,
    digest: Option<String>,
    state: &'static str,
    heard_ms_ago: u64,
}

impl Row {
    fn is_behind(&self) -> bool {
        self.heard_ms_ago <= SILENT_AFTER_MS && ["starting", "behind"].contains(&self.state)
    }

    fn from_revisions(has: Option<&Revision>, in_force: Option<&Revision>) -> Self {
        Self {
            domain: String::new(),
            kind: Kind::Proxy,
            name: String::new(),
            id: String::new(),
            filter: None,
            entries: None,
            revision: has.map(|revision| revision.number),
            digest: has.map(|revision| format!("{:016x}", revision.digest)),
            state: match (has, in_force) {
                (_, None) => "no_limits",
                (None, Some(_)) => "starting",
                (Some(_), _) if is_current(has, in_force) => "current",
                (Some(_), Some(_)) => "behind",
            },
            heard_ms_ago: 0,
        }
    }

    /// The state of one that should report or poll every second, and has not for a while.
    fn unless_heard(mut self, ago_ms: u64, state: &'static str) -> Self {
        if ago_ms > SILENT_AFTER_MS {
            self.state = state;
        }
        self
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let kind = |row: &Row| match row.kind {
            Kind::Limiter => "limiter",
            Kind::Proxy => "proxy",
        };
        let revision = |row: &Row| row.revision.map_or("none".to_owned(), |n| n.to_string());
        Table::of(&self.0)
            .column("DOMAIN", |row| &row.domain)
            .column("KIND", kind)
            .column("NAME", |row| &row.name)
            .column("REVISION", revision)
            .column("STATE", |row| row.state.replace('_', " "))
            .column("LAST SEEN", |row| age(row.heard_ms_ago))
            .wide(page, "FILTER", |row| row.filter.unwrap_or_default())
            .wide(page, "DIGEST", |row| {
                row.digest.as_deref().unwrap_or_default()
            })
            .wide(page, "ID", |row| &row.id)
            .draw(page)
    }

    /// The proxies.
    fn names(&self) -> Vec<String> {
        let proxies = self.0.iter().filter(|row| row.kind == Kind::Proxy);
        proxies.map(|row| row.name.clone()).collect()
    }
}

//! Findings, by the part that has the problem.

pub mod limits;
pub mod server;

use policy::{CHECK_STREAM_REFUSED, Name, Revision};
use serde::Serialize;
use store::{Fleet, LimiterStatus};

use crate::{duration, limiter_name, proxy_name};

// --- A finding: a problem, or information.

/// How bad it is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Limits do not hold, or cannot be edited.
    Error,
    /// Limits may soon not hold, or not for every request.
    Warning,
    /// Information only.
    Info,
}

/// A problem or a fact, with its reason and fix.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the check, for programs.
    pub check: &'static str,
    /// Where: a server's address, a domain, or a domain and a limit.
    pub place: String,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// The command that fixes it, if there is one.
    pub mend: Option<String>,
}

impl Finding {
    /// A finding without a command that fixes it.
    pub fn new(
        severity: Severity,
        check: &'static str,
        place: impl Into<String>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            check,
            place: place.into(),
            what: what.into(),
            why: why.into(),
            mend: None,
        }
    }

    /// Adds the command that fixes it.
    #[must_use]
    pub fn mend(self, command: impl Into<String>) -> Self {
        Self {
            mend: Some(command.into()),
            ..self
        }
    }
}

// --- Limiters and proxies with stale revisions.

/// An edit younger than this may still be spreading, in milliseconds.
const ON_ITS_WAY_MS: u64 = 3000;

/// Live limiters and proxies that lack the current revision of a domain. `edited_ms_ago`: the age of its
/// last edit in milliseconds, if the history names one.
pub fn behind(
    fleet: &Fleet,
    domain: &Name,
    current: &Revision,
    edited_ms_ago: Option<u64>,
) -> Vec<Finding> {
    if edited_ms_ago.is_some_and(|ms| ms <= ON_ITS_WAY_MS) {
        return Vec::new();
    }
    late(fleet, domain, current)
}

fn late(fleet: &Fleet, domain: &Name, revision: &Revision) -> Vec<Finding> {
    let limiters = fleet.limiters.iter().map(|limiter| {
        let has = limiter.revisions.get(domain);
        ("limiter", limiter_name(&limiter.id).to_owned(), has)
    });
    let proxies = fleet.proxies.get(domain).into_iter().flatten();
    let proxies = proxies.map(|proxy| ("proxy", proxy_name(proxy), proxy.revision.as_ref()));
    let late = limiters
        .chain(proxies)
        .filter(|(_, _, has)| !is_current(*has, Some(revision)));
    late.map(|(kind, name, has)| {
        let has = has.map_or("no limits".to_owned(), |has| {
            format!("revision {}", has.number)
        });
        let finding = Finding::new(
            Severity::Error,
            "fleet",
            format!("{kind} {name}"),
            format!(
                "it has {has} of domain {domain}; the current revision is {}",
                revision.number
            ),
            "it decides by stale limits",
        );
        finding.mend(match kind {
            "limiter" => "curl http://LIMITER:8091/readyz    # shows why",
            _ => "rlctl list-proxies    # a proxy polls its limiter; is that limiter current?",
        })
    })
    .collect()
}

/// Proxies whose check streams are refused, by domain. They decide as well by callouts, so nobody
/// would miss the streams that the configuration asks for.
pub fn refused_streams(fleet: &Fleet, only: Option<&Name>) -> impl Iterator<Item = Finding> {
    let domains = fleet.entries.iter();
    let refused = domains.filter(move |(domain, entries)| {
        only.is_none_or(|only| only == *domain) && entries.contains(CHECK_STREAM_REFUSED)
    });
    refused.map(|(domain, _)| {
        Finding::new(
            Severity::Warning,
            "stream",
            format!("proxies of domain {domain}"),
            "since an Envoy started, the limiter's cluster refused its check stream",
            "`\"stream\": true` needs HTTP/2; over HTTP/1.1 each batch is a callout. Set \
             `explicit_http_config: {http2_protocol_options: {}}` for the cluster and restart Envoy",
        )
    })
}

/// A limiter that reports no more, although it reported no end.
pub fn silent(limiter: &LimiterStatus) -> Finding {
    Finding::new(
        Severity::Warning,
        "fleet",
        format!("limiter {}", limiter_name(&limiter.id)),
        format!("its last report is {} old", duration(limiter.ago_ms)),
        "it was killed, hangs, or cannot reach this server; after 10 s it is no longer listed",
    )
    .mend("curl http://LIMITER:8091/readyz    # shows why, if it runs")
}

/// No limiter reports; some did in the last 10 s: `silent`. Where there are limits, proxies then
/// enforce them on their own.
pub fn nobody(has_limits: bool, silent: bool) -> Finding {
    let (severity, why) = if has_limits {
        let why = "none runs, or none uses this server with this key prefix; proxies follow each \
                   limit's `on_failure`, and no edit reaches them";
        (Severity::Error, why)
    } else {
        let why = "none runs, or none uses this server with this key prefix";
        (Severity::Info, why)
    };
    Finding::new(
        severity,
        "fleet",
        "limiters",
        if silent {
            "none has reported in the last 3 s"
        } else {
            "none has reported in the last 10 s"
        },
        why,
    )
    .mend("rlctl list-proxies")
}

/// Whether a limiter or proxy has the current revision.
pub fn is_current(has: Option<&Revision>, in_force: Option<&Revision>) -> bool {
    has.is_some() && has == in_force
}

//! Findings, by the part that has the problem.

pub mod limits;
pub mod server;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use policy::{BUILT_IN, CHECK_STREAM_REFUSED, Name, Policy, Revision};
use serde::Serialize;
use store::{Fleet, LimiterStatus};

use crate::{duration, limiter_name, proxy_name, truncated_list};

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

/// One word of a command to copy: whoever can write a report can name a domain in it.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

// --- Limiters and proxies with stale revisions.

/// The most names in a finding.
const NAMED_MAX: usize = 5;
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

/// Live proxies that do not supply an entry of a domain's limits that others supply. In a rollout they pass what the limits
/// would deny; where only others have such requests, they need not.
pub fn partly_supplied(fleet: &Fleet, policy: &Policy) -> Vec<Finding> {
    let proxies = { fleet.proxies.get(&policy.domain).into_iter() }.flatten();
    let known = proxies.filter_map(|proxy| Some((proxy, proxy.supplies.as_deref()?)));
    let mut users: BTreeMap<&Name, Vec<&Name>> = BTreeMap::new();
    for limit in &policy.limits {
        for entry in limit.keys().collect::<BTreeSet<_>>() {
            users.entry(entry).or_default().push(&limit.name);
        }
    }
    let found = users.into_iter().filter_map(|(entry, limits)| {
        let (with, without): (Vec<_>, Vec<_>) =
            known.clone().partition(|(_, supplies)| supplies.contains(entry));
        if with.is_empty() || without.is_empty() || BUILT_IN.contains(&entry.as_str()) {
            return None;
        }
        let names = without.iter().map(|(proxy, _)| proxy_name(proxy));
        Some(Finding::new(
            Severity::Info,
            "fleet",
            format!("domain {}", policy.domain),
            format!(
                "{} of {} proxies do not supply `{entry}`: {}",
                without.len(),
                without.len() + with.len(),
                truncated_list(names, NAMED_MAX)
            ),
            format!(
                "there, limits that need it apply to no request, or to all alike: {}; add it to `descriptors` in \
                 their filter's configuration, unless only other proxies have such requests",
                truncated_list(limits, NAMED_MAX)
            ),
        ))
    });
    found.collect()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::ProxyStatus;

    use super::*;

    #[test]
    fn an_entry_that_only_some_proxies_supply_is_named_with_those_without() {
        let proxy = |node: &str, entries: Option<&[&str]>| ProxyStatus {
            id: node.to_owned(),
            node: Some(node.to_owned()),
            is_module: false,
            revision: None,
            supplies: entries
                .map(|names| Arc::new(names.iter().map(|name| name.parse().unwrap()).collect())),
            ago_ms: 0,
        };
        let text = "{domain: shop, limits: [{name: a, per: [user, path], rate: 1/s}, \
                    {name: b, match: {user: x}, rate: 1/s}, {name: c, per: [other], rate: 1/s}]}";
        let policy = limits_file::read("test", text.as_bytes()).unwrap();
        let look = |proxies: Vec<ProxyStatus>| {
            let mut fleet = Fleet::default();
            fleet.proxies.insert(policy.domain.clone(), proxies);
            partly_supplied(&fleet, &policy)
        };
        let (with, unknown) = (proxy("p1", Some(&["user"])), proxy("p3", None));
        let found = look(vec![with.clone(), proxy("p2", Some(&[])), unknown.clone()]);
        let [found] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(found.what, "1 of 2 proxies do not supply `user`: p2");
        assert!(found.why.contains("a, b;"), "{}", found.why);
        // What nobody supplies is another finding.
        assert!(look(vec![proxy("p2", Some(&[])), unknown.clone()]).is_empty());
        assert!(look(vec![with.clone(), with, unknown]).is_empty());
    }
}

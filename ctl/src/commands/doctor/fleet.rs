//! Limiters and proxies that are behind.

use policy::{Name, Revision};
use store::{Fleet, HeadState};

use super::finding::{Finding, Severity};
use crate::{
    error::Error,
    fleet::{is_current, limiter_name, proxy_name},
    session::Session,
};

/// An edit this young may still be on its way, in milliseconds.
const ON_ITS_WAY_MS: u64 = 3000;

/// Limiters and proxies that are alive and have not picked up what is in force.
pub async fn look(session: &Session<'_>, fleet: Option<&Fleet>) -> Result<Vec<Finding>, Error> {
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
        if age_ms.is_none_or(|ms| ms > ON_ITS_WAY_MS) {
            findings.extend(behind(fleet, &head.domain, &revision));
        }
    }
    if fleet.limiters.is_empty() {
        findings.push(nobody());
    }
    Ok(findings)
}

fn behind(fleet: &Fleet, domain: &Name, revision: &Revision) -> Vec<Finding> {
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

fn nobody() -> Finding {
    Finding::new(
        Severity::Info,
        "fleet",
        "limiters",
        "none has reported in the last 10 s",
        "none runs, or none uses this server with this key prefix",
    )
    .mend("rlctl list-proxies")
}

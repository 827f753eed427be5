//! Problems of the limits of a domain.

use std::collections::BTreeMap;

use algorithms::AdaptiveState;
use limits_file::Surroundings;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use policy::{
    BUILT_IN, Duration, IfMissing, Limit, Matcher, Name, Pattern, Policy, Problem, ShareText,
};
use store::{Fleet, Head};

use crate::{
    Finding, LiveEntries, Severity, bucket::slow_at_minimum, findings::shell_word, pause_state,
    truncated_list,
};

/// The most limits that one finding names.
const NAMED_MAX: usize = 10;

/// The store has no domain.
pub fn no_domain() -> Finding {
    Finding::new(
        Severity::Info,
        "domains",
        "limits",
        "there is no domain",
        "without limits every request passes",
    )
    .mend("rlctl apply -f limits.yaml")
}

/// Domains that limiters have in force and the store has lost; `only` restricts them to one domain.
pub fn flushed(fleet: &Fleet, heads: &[Head], only: Option<&Name>) -> Vec<Finding> {
    let mut followed: BTreeMap<&Name, (usize, u64)> = BTreeMap::new();
    for (domain, revision) in fleet.limiters.iter().flat_map(|limiter| &limiter.revisions) {
        let wanted = only.is_none_or(|only| only == domain);
        if wanted && !heads.iter().any(|head| head.domain == *domain) {
            let (limiters, newest) = followed.entry(domain).or_default();
            *limiters += 1;
            *newest = revision.number.max(*newest);
        }
    }
    let finding = |(domain, (limiters, newest)): (&Name, (usize, u64))| {
        flushed_domain(domain, limiters, newest)
    };
    followed.into_iter().map(finding).collect()
}

fn flushed_domain(domain: &Name, limiters: usize, revision: u64) -> Finding {
    let who = if limiters == 1 {
        "1 limiter has".to_owned()
    } else {
        format!("{limiters} limiters have")
    };
    Finding::new(
        Severity::Error,
        "records",
        format!("domain {domain}"),
        format!("{who} its limits in force (revision {revision}), and the store has none"),
        "the store was flushed, or this is another server; running limiters keep the last \
         limits they loaded, a new one has none",
    )
    .mend(restore(domain))
}

/// The command that writes lost limits again.
pub fn restore(domain: &Name) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');
    let domain = utf8_percent_encode(domain.as_str(), ENCODED);
    format!(
        "curl -s 'http://LIMITER:8090/v1/policy?domain={domain}' | rlctl apply -f -    # or your \
         limits file; overrides come back from the file only"
    )
}

/// The domain is listed, but its record is missing.
pub fn lost(domain: &Name) -> Finding {
    Finding::new(
        Severity::Error,
        "records",
        format!("domain {domain}"),
        "the domain is listed, but its limits are missing",
        "they were evicted or deleted by hand; running limiters keep the last limits they \
         loaded, a new one has none",
    )
    .mend(restore(domain))
}

/// The record cannot be read.
pub fn unreadable(domain: &Name, why: &str) -> Finding {
    Finding::new(
        Severity::Error,
        "records",
        format!("domain {domain}"),
        format!("its limits cannot be read: {why}"),
        "running limiters keep the last limits they loaded, a new one has none; a newer version \
         may have written them",
    )
    .mend("rlctl --version    # is it as new as what wrote the limits?")
}

/// The findings of a readable domain, at a time in milliseconds since the epoch.
pub fn look(policy: &Policy, live: &LiveEntries, now_ms: u64) -> Vec<Finding> {
    let mut findings: Vec<Finding> = paused_domain(policy, now_ms).into_iter().collect();
    for limit in &policy.limits {
        findings.extend(paused(policy, limit, now_ms));
        findings.extend(escapes(policy, limit));
    }
    findings.extend(shared(policy));
    let around = Surroundings {
        now_ms: Some(now_ms),
        supply: live.supply(&policy.domain),
        ..Surroundings::default()
    };
    let meant = limits_file::warnings(policy, &around);
    findings.extend(meant.into_iter().map(|problem| unmeant(policy, problem)));
    findings
}

/// A limit that is valid but probably a mistake.
fn unmeant(policy: &Policy, problem: Problem) -> Finding {
    let limit = problem.limit.unwrap_or_default();
    let (_, field) = problem.path.split_once("].").unwrap_or_default();
    let domain = shell_word(policy.domain.as_str());
    Finding::new(
        Severity::Warning,
        "unmeant",
        format!("{}/{limit}", policy.domain),
        format!("{field}: {}", problem.message),
        problem
            .hint
            .unwrap_or_else(|| "check whether that is intended".to_owned()),
    )
    .mend(format!(
        "rlctl get-limit {limit} --domain {domain}    # then `set-limit`"
    ))
}

/// An adaptive limit that cannot fall any more while its service is too slow. `limit` has one bucket.
pub fn too_slow(domain: &Name, limit: &Limit, state: &AdaptiveState) -> Option<Finding> {
    let rule = limit.quota.parameters().adaptive?;
    let slow = slow_at_minimum(&rule, state)?;
    let (name, min, share) = (&limit.name, rule.min, ShareText(rule.share));
    Some(
        Finding::new(
            Severity::Warning,
            "adaptive",
            format!("{domain}/{name}"),
            format!(
                "the limit is at its minimum, {min}, and {} of the answers take longer than {}",
                ShareText(slow),
                Duration(rule.latency_ms)
            ),
            format!(
                "{share} are to be quicker; so few requests at once cannot overload it, so it is slow for \
                 another reason, or `latency` is too short for it"
            ),
        )
        .mend(format!(
            "rlctl inspect {name} --domain {}",
            shell_word(domain.as_str())
        )),
    )
}

/// Invalid overrides: with one of them, no limiter reads the domain.
pub fn invalid_overrides(policy: &Policy, limit: &Limit, invalid: &[String]) -> Option<Finding> {
    if invalid.is_empty() {
        return None;
    }
    let finding = Finding::new(
        Severity::Error,
        "records",
        place(policy, limit),
        format!("it has invalid overrides: {}", invalid.join("; ")),
        "running limiters keep the last limits they loaded, a new one has none",
    );
    let (domain, name) = (shell_word(policy.domain.as_str()), &limit.name);
    Some(finding.mend(format!(
        "rlctl delete-limit {name} --domain {domain} --for KEY=VALUE    # the bucket of each"
    )))
}

fn place(policy: &Policy, limit: &Limit) -> String {
    format!("{}/{}", policy.domain, limit.name)
}

fn paused_domain(policy: &Policy, now_ms: u64) -> Option<Finding> {
    let paused = pause_state(policy.paused, now_ms)?;
    let domain = &policy.domain;
    Some(
        Finding::new(
            Severity::Warning,
            "paused",
            format!("domain {domain}"),
            format!("it is {paused}"),
            "none of its limits is in force",
        )
        .mend(format!(
            "rlctl resume --domain {}",
            shell_word(domain.as_str())
        )),
    )
}

fn paused(policy: &Policy, limit: &Limit, now_ms: u64) -> Option<Finding> {
    let paused = pause_state(limit.paused, now_ms)?;
    let (domain, name) = (shell_word(policy.domain.as_str()), &limit.name);
    Some(
        Finding::new(
            Severity::Warning,
            "paused",
            place(policy, limit),
            format!("it is {paused}"),
            "it applies to no request",
        )
        .mend(format!("rlctl resume --domain {domain} --limit {name}")),
    )
}

/// Whether a request may lack the entry.
fn may_lack(key: &Name) -> bool {
    !BUILT_IN.contains(&key.as_str())
}

/// A limit that clients escape by leaving an entry out.
fn escapes(policy: &Policy, limit: &Limit) -> Option<Finding> {
    let by_per = limit.per.iter().filter(|key| may_lack(key));
    let key = match limit.if_missing {
        IfMissing::Skip => by_per.into_iter().next(),
        IfMissing::Share | IfMissing::Deny => None,
    };
    let key = key.or_else(|| needed(limit).map(|matcher| &matcher.key))?;
    if limit.enforce_percent == 0 || caught_elsewhere(policy, limit, key) {
        return None;
    }
    let (domain, name) = (shell_word(policy.domain.as_str()), &limit.name);
    let finding = Finding::new(
        Severity::Warning,
        "missing",
        place(policy, limit),
        format!("neither this limit nor one like it applies to a request without `{key}`"),
        "if the entry comes from a header that clients set, they can bypass the limit by leaving it out",
    );
    Some(match limit.if_missing {
        IfMissing::Skip => finding.mend(format!(
            "rlctl set-limit {name} --domain {domain} --if-missing share    # or deny"
        )),
        _ => finding,
    })
}

/// A matcher that holds only for requests that have the entry.
fn needed(limit: &Limit) -> Option<&Matcher> {
    let mut matchers = limit.matchers.iter();
    matchers.find(|matcher| {
        let positive = |pattern: &Pattern| !pattern.is_negated();
        may_lack(&matcher.key) && matcher.patterns.iter().any(positive)
    })
}

/// Whether another limit applies to the same requests if they lack the entry.
fn caught_elsewhere(policy: &Policy, limit: &Limit, key: &Name) -> bool {
    let rest = |other: &Limit| {
        let mut matchers = other.matchers.iter();
        matchers.all(|matcher| {
            // `plan: "!**"` is of the very requests that lack the entry.
            if matcher.key == *key {
                matcher.holds(None)
            } else {
                limit.matchers.contains(matcher)
            }
        })
    };
    policy.limits.iter().any(|other| {
        let skips = other.if_missing == IfMissing::Skip && other.per.iter().any(may_lack);
        other.name != limit.name && other.enforce_percent > 0 && !skips && rest(other)
    })
}

/// Requests without an entry of `per` share one bucket.
fn shared(policy: &Policy) -> Option<Finding> {
    let shares = |limit: &&Limit| {
        limit.if_missing == IfMissing::Share
            && limit.enforce_percent > 0
            // A call of the rate limit service without the descriptor is not of the limit.
            && limit.descriptor.is_none()
            && limit.per.iter().any(may_lack)
    };
    let names: Vec<&str> = policy
        .limits
        .iter()
        .filter(shares)
        .map(|limit| limit.name.as_str())
        .collect();
    let first = names.first()?;
    let domain = shell_word(policy.domain.as_str());
    let finding = Finding::new(
        Severity::Info,
        "missing",
        format!("domain {}", policy.domain),
        format!(
            "requests that lack an entry of `per` share one bucket in {}",
            truncated_list(&names, NAMED_MAX)
        ),
        "that is fine where few lack it; where many do, they use up one quota together",
    );
    Some(finding.mend(format!(
        "rlctl list-keys --domain {domain} --limit {first}    # then inspect --without: how full is it?"
    )))
}

#[cfg(test)]
mod tests;

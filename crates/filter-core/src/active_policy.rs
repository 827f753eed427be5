//! The domain's limits in this proxy: which are in force, and how edits reach it.
//!
//! One worker of the process polls the limiter (`poll`) and stores the snapshot in shared data, from which
//! the others load it.

mod poll;

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use algorithms::{Algorithm, Edges, Parameters, Rate};
use filter_config::{Config, Source};
use policy::{Compiled, Limit, Name, OnFailure};
use poll::PolicyPoller;
use protocol::ALL_LIMITS;

use crate::{
    cache::{BucketStatus, DebtSpan},
    call::MAX_PROXIES,
    host::{Now, Random},
    local_bucket::{Share, precheck},
    request::{Extracted, Plan},
};

/// Characters of an operator's name for a proxy. In Istio it has the Pod's name and namespace, after an address.
const MAX_NODE: usize = 384;

/// One worker's copy of the domain's limits.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) state: PolicyState,
    pub(crate) poller: PolicyPoller,
    node: String,
    /// Whether the filter is a dynamic module.
    pub(crate) is_module: bool,
    warned_lost: bool,
}

impl Policy {
    /// Starts with the limits in the configuration, if it has any.
    pub(crate) fn new(config: &mut Config, random: &mut Random) -> Self {
        let state = match config.limits.take() {
            Some(compiled) => {
                let active = ActivePolicy::new(compiled, &config.sources, None);
                PolicyState::Limits(Arc::new(active))
            }
            None => PolicyState::Unknown,
        };
        let worker_id = random.next_u64();
        let random = Random::new(random.next_u64());
        Self {
            state,
            poller: PolicyPoller::new(config.domain.as_str(), worker_id, random),
            node: String::new(),
            is_module: false,
            warned_lost: false,
        }
    }

    /// Sets the operator's name for this proxy. Characters that a query cannot hold become `_`.
    pub(crate) fn set_node(&mut self, node: &str) {
        self.node.clear();
        for c in node.chars().take(MAX_NODE) {
            let plain = matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '_' | '~' | ':' | '/' | '@');
            self.node.push(if plain { c } else { '_' });
        }
    }
}

// --- The policy in force, with data derived from it once.

/// The domain's limits in this worker.
#[derive(Clone, Debug, Default)]
pub(crate) enum PolicyState {
    /// No snapshot has been loaded: the limiter decides every request.
    #[default]
    Unknown,
    /// The limiter has no such domain: there are no limits.
    NoLimits,
    /// These limits.
    Limits(Arc<ActivePolicy>),
}

/// A compiled policy, with the number of proxies that share each limit.
#[derive(Debug)]
pub(crate) struct ActivePolicy {
    pub(crate) compiled: Compiled,
    pub(crate) plan: Arc<Plan>,
    /// Whether anything is or was paused, so that a request's limits depend on the time.
    pub(crate) has_pauses: bool,
    /// Entries whose absence satisfies a condition of a limit.
    pub(crate) satisfied_by_absence: Vec<Name>,
    /// In the order of the policy.
    limits: Vec<Arc<ActiveLimit>>,
    /// Proxies of the domain, for limits without a report of their own.
    all_proxies: Arc<AtomicU64>,
}

/// A limit, with data derived from it once. A request holds the limits that it matched: a later revision
/// may have others.
#[derive(Debug)]
pub(crate) struct ActiveLimit {
    limit: Arc<Limit>,
    /// The precheck of a global limit, if it has one.
    pub(crate) precheck: Option<Algorithm>,
    /// Proxies that use it, by the limiters' last answers; 0: never reported.
    proxies: AtomicU64,
    all_proxies: Arc<AtomicU64>,
}

impl Deref for ActiveLimit {
    type Target = Limit;

    fn deref(&self) -> &Limit {
        &self.limit
    }
}

impl ActivePolicy {
    /// Takes from the policy `before` what stays, and the numbers of proxies.
    pub(crate) fn new(
        compiled: Compiled,
        sources: &[(Name, Source)],
        before: Option<&Self>,
    ) -> Self {
        let all_proxies = before.map_or_else(
            || Arc::new(AtomicU64::new(1)),
            |before| Arc::clone(&before.all_proxies),
        );
        let active = |(at, limit): (usize, &Arc<Limit>)| {
            let there = before.and_then(|before| before.limit(at));
            if let Some(same) = there.filter(|there| Arc::ptr_eq(&there.limit, limit)) {
                return Arc::clone(same);
            }
            let known = before.and_then(|before| before.named(&limit.name));
            let proxies = known.map_or(0, |known| known.proxies.load(Relaxed));
            let percent = limit.precheck_percent;
            Arc::new(ActiveLimit {
                precheck: percent.and_then(|percent| precheck(&limit.quota, percent)),
                limit: Arc::clone(limit),
                proxies: AtomicU64::new(proxies),
                all_proxies: Arc::clone(&all_proxies),
            })
        };
        let keys = compiled.needed_keys();
        let mut satisfied_by_absence: Vec<Name> = Vec::new();
        let mut has_pauses = compiled.paused().is_some();
        for limit in compiled.limits() {
            has_pauses |= limit.paused.is_some();
            for matcher in &limit.matchers {
                if matcher.holds(None) && !satisfied_by_absence.contains(&matcher.entry) {
                    satisfied_by_absence.push(matcher.entry.clone());
                }
            }
        }
        let plan = before.map(|before| &before.plan);
        Self {
            plan: match plan.filter(|plan| plan.is_for(keys)) {
                Some(plan) => Arc::clone(plan),
                None => Arc::new(Plan::new(keys, sources)),
            },
            limits: compiled.limits().iter().enumerate().map(active).collect(),
            satisfied_by_absence,
            all_proxies,
            has_pauses,
            compiled,
        }
    }

    fn named(&self, name: &Name) -> Option<&Arc<ActiveLimit>> {
        self.limit(self.compiled.position(name.as_str())?)
    }

    /// The limit at a position.
    pub(crate) fn limit(&self, at: usize) -> Option<&Arc<ActiveLimit>> {
        self.limits.get(at)
    }

    /// Stores the number of proxies that use a limit, from a limiter's answer.
    pub(crate) fn set_proxies(&self, limit: &str, count: u64) {
        let count = count.min(MAX_PROXIES);
        if limit == ALL_LIMITS {
            return self.all_proxies.store(count, Relaxed);
        }
        let at = self.compiled.position(limit);
        if let Some(limit) = at.and_then(|at| self.limits.get(at)) {
            limit.proxies.store(count, Relaxed);
        }
    }

    /// The strictest `on_failure` among the limits that may match and that only the limiter can
    /// evaluate; `None` if there is none.
    pub(crate) fn opaque(&self, entries: &Extracted) -> Option<OnFailure> {
        let mut strictest = None;
        for limit in self.compiled.opaque() {
            if limit.may_match(entries) {
                let closed = limit.on_failure == Some(OnFailure::Deny);
                if closed || strictest.is_none() {
                    strictest = limit.on_failure.or(Some(OnFailure::Local));
                }
            }
        }
        strictest
    }
}

impl ActiveLimit {
    /// The proxies that share the limit during an outage: `fleet_size`, or as reported.
    pub(crate) fn proxies(&self) -> u64 {
        let reported = Some(self.proxies.load(Relaxed)).filter(|count| *count > 0);
        self.fleet_size
            .or(reported)
            .unwrap_or_else(|| self.all_proxies.load(Relaxed))
            .max(1)
    }

    /// The bucket that replaces a global one while no limiter answers.
    pub(crate) fn fallback_bucket(
        &self,
        status: Option<BucketStatus>,
        cost: u64,
        now: Now,
    ) -> FallbackBucket {
        let limit = &*self.limit;
        let parameters = match status {
            Some(BucketStatus { limit: None, .. }) => return FallbackBucket::Unlimited,
            Some(BucketStatus { limit: Some(0), .. }) => return FallbackBucket::Impossible,
            Some(status) => resolved(limit, status),
            None => *limit.quota.parameters(),
        };
        let share = Share {
            proxies: self.proxies(),
            cost,
        };
        let edges = edges(limit, status, now);
        // If no algorithm accepts the reported parameters, the limit's own are used.
        let own = || share.of(limit.quota.parameters(), edges.as_ref());
        let algorithm = share.of(&parameters, edges.as_ref()).or_else(own);
        let Some(algorithm) = algorithm else {
            return FallbackBucket::Impossible;
        };
        let span = match edges {
            Some(edges) => {
                let own = &limit.quota;
                let span = DebtSpan::from_algorithm(&own.with_edges(edges), now);
                // If only the end of a window was reported, its label is unknown.
                if own.edges() == Some(&edges) {
                    span
                } else {
                    span.labelled(None)
                }
            }
            None => DebtSpan::from_algorithm(&algorithm, now),
        };
        FallbackBucket::Bucket(algorithm, span)
    }
}

/// Edges that differ by more than this do not come from two time zones.
const ZONES_APART_MAX_MS: u64 = 26 * 3_600_000;

/// Edges that differ by less are of the same time zone; clocks and answers differ a little.
const ZONES_APART_MIN_MS: u64 = 10 * 60_000;

/// The edges of a bucket's calendar windows. An override may have another time zone, which the reported
/// end of the window reveals: then the edges are the limit's, shifted by the difference.
fn edges(limit: &Limit, status: Option<BucketStatus>, now: Now) -> Option<Edges> {
    let algorithm = &limit.quota;
    let edges = *algorithm.edges()?;
    let reported = status.filter(|status| {
        status.reset_after_ms > 0 && status.is_of_unit(&algorithm.parameters().rate)
    });
    let Some(status) = reported else {
        return Some(edges);
    };
    let at_ms = now.wall_of(status.at_us);
    let ends_ms = at_ms.saturating_add(status.reset_after_ms);
    let window = algorithm.calendar_window(at_ms)?;
    let apart = ZONES_APART_MIN_MS..=ZONES_APART_MAX_MS;
    if !apart.contains(&ends_ms.abs_diff(window.end_ms)) {
        return Some(edges);
    }
    Some(edges.moved(window.end_ms, ends_ms))
}

/// The parameters of a fallback bucket.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are buckets, and a box of each would be an allocation for each request"
)]
pub(crate) enum FallbackBucket {
    /// A bucket with these parameters; the units it admits are a debt for this span.
    Bucket(Algorithm, DebtSpan),
    /// The bucket is not limited.
    Unlimited,
    /// The parameters cannot be exact, or the quota is 0: everything is denied.
    Impossible,
}

/// The parameters of a bucket by the limiter's last answer, which includes overrides; snapshots do not.
fn resolved(limit: &Limit, status: BucketStatus) -> Parameters {
    let algorithm = &limit.quota;
    let written = *algorithm.parameters();
    match status.limit {
        Some(units) if units > 0 && status.window_ms > 0 && status.differs_from(algorithm) => {
            let calendar = status.is_of_unit(&written.rate);
            Parameters {
                rate: if calendar {
                    Rate {
                        units,
                        ..written.rate
                    }
                } else {
                    Rate::new(units, status.window_ms)
                },
                burst: written.burst.map(|_| units),
                time_zone: written.time_zone.filter(|_| calendar),
                week_start: written.week_start.filter(|_| calendar),
                ..written
            }
        }
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_makes_a_proxys_share_smaller_than_of_the_most_proxies() {
        let text = b"domain: shop\nlimits:\n  - {name: per-user, rate: 10/s}\n";
        let compiled = Compiled::new(limits_file::read("limits.yaml", text).unwrap());
        for of in [ALL_LIMITS, "per-user"] {
            let policy = ActivePolicy::new(compiled.clone(), &[], None);
            policy.set_proxies(of, u64::MAX);
            assert_eq!(policy.limit(0).unwrap().proxies(), MAX_PROXIES, "{of}");
        }
    }
}

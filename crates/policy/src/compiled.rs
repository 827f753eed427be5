//! A policy compiled for matching: one pass over its limits per revision, and microseconds per
//! request.

mod catch_up;
mod exempt;
mod index;
mod matching;
mod mode;
mod overrides;
mod walk;

use documents::Name;
use std::sync::Arc;

use crate::{Limit, Opaque, Override, Pause, Policy, Quota, Revision, digest, hash::Positions};

use exempt::Exempt;
use index::{Conditions, Index};
pub use matching::Match;
pub use mode::Mode;
use overrides::Overrides;
use walk::Walk;

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Its limits are in `limits`.
    policy: Policy,
    /// Shared with what outlasts a revision: a proxy's requests keep the limits that they matched.
    limits: Vec<Arc<Limit>>,
    shape: Arc<Shape>,
    overrides: Vec<Overrides>,
    opaque: Vec<Opaque>,
}

/// What does not depend on numbers, overrides or generations.
#[derive(Debug)]
struct Shape {
    /// The limits' positions, by the digest of their names.
    by_name: Positions,
    /// Every descriptor entry that some limit names.
    keys: Vec<Name>,
    rules: Vec<Rule>,
    index: Index,
    exempt: Option<Exempt>,
    service: Service,
    /// Whether any limit replaces others.
    has_replaces: bool,
}

/// What only limits of the rate limit service need.
#[derive(Debug, Default)]
struct Service {
    walk: Option<Walk>,
    /// The template of a limit that a descriptor brings itself: all but its numbers.
    request_limit: Option<Limit>,
}

/// A limit with its names resolved to positions.
#[derive(Clone, Debug, Default)]
struct Rule {
    /// Positions in `keys`, in the order of the limit's matchers.
    matchers: Vec<usize>,
    /// Positions in `keys`, in the order of the limit's `per`.
    per: Vec<usize>,
    /// Positions of the limits that this one replaces.
    replaces: Vec<usize>,
}

/// The numbers of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The bucket has this quota.
    Quota(Quota),
    /// The bucket is not limited.
    Unlimited,
}

impl Rule {
    fn new(limit: &Limit, keys: &[Name], limit_named: impl Fn(&str) -> Option<usize>) -> Self {
        let mut rule = Self::default();
        for matcher in &limit.matchers {
            rule.matchers.extend(find(keys, &matcher.entry));
        }
        for key in &limit.per {
            rule.per.extend(find(keys, key));
        }
        for name in &limit.replaces {
            rule.replaces.extend(limit_named(name.as_str()));
        }
        rule
    }

    fn conditions<'l>(&'l self, limit: &'l Limit) -> Conditions<'l> {
        Conditions {
            matchers: &limit.matchers,
            keys: &self.matchers,
            never: limit.descriptor.is_some(),
        }
    }
}

/// The position of a key among sorted ones, or where to insert it.
fn find(keys: &[Name], key: &Name) -> Result<usize, usize> {
    keys.binary_search(key)
}

impl Compiled {
    /// Compiles a policy.
    pub fn new(policy: Policy) -> Self {
        Self::with_service(policy, |limits| Service {
            walk: Walk::new(limits),
            request_limit: walk::request_limit(),
        })
    }

    /// As [`Compiled::new`], without limits of the rate limit service, of which filters need no code.
    pub(crate) fn of_filter(policy: Policy) -> Self {
        Self::with_service(policy, |_| Service::default())
    }

    fn with_service(mut policy: Policy, service: fn(&[Arc<Limit>]) -> Service) -> Self {
        let overrides = policy
            .limits
            .iter_mut()
            .map(|limit| Overrides::new(&limit.name, std::mem::take(&mut limit.overrides)))
            .collect();
        let limits = shared(&mut policy);
        let mut keys: Vec<Name> = Vec::new();
        let of_limits = limits.iter().flat_map(|limit| limit.keys());
        let exempting = policy.exempt.iter().flat_map(|found| &found.matchers);
        for key in of_limits.chain(exempting.map(|matcher| &matcher.entry)) {
            if let Err(at) = find(&keys, key) {
                keys.insert(at, key.clone());
            }
        }
        let mut by_name = Positions::default();
        for (at, limit) in limits.iter().enumerate() {
            by_name.add(digest(limit.name.as_str().as_bytes()), at);
        }
        let rule =
            |limit: &Arc<Limit>| Rule::new(limit, &keys, |name| named(&limits, &by_name, name));
        let rules: Vec<Rule> = limits.iter().map(rule).collect();
        let conditions = limits.iter().zip(&rules);
        let conditions: Vec<_> = conditions
            .map(|(limit, rule)| rule.conditions(limit))
            .collect();
        let index = Index::new(&conditions, keys.len());
        let exempt = Exempt::new(&policy.exempt, &keys);
        let shape = Shape {
            by_name,
            keys,
            rules,
            index,
            exempt,
            service: service(&limits),
            has_replaces: limits.iter().any(|limit| !limit.replaces.is_empty()),
        };
        Self {
            policy,
            limits,
            shape: Arc::new(shape),
            overrides,
            opaque: Vec::new(),
        }
    }

    /// Adds what only snapshots have: entries that other limits need, limits that cannot be read,
    /// and which limits have overrides at the limiter.
    pub(crate) fn with_snapshot(
        mut self,
        keys: impl IntoIterator<Item = Name>,
        opaque: Vec<Opaque>,
        elsewhere: &[bool],
    ) -> Self {
        // The shape is not shared yet.
        if let Some(shape) = Arc::get_mut(&mut self.shape) {
            for key in keys {
                if !shape.keys.contains(&key) {
                    shape.keys.push(key);
                }
            }
        }
        self.opaque = opaque;
        for (overrides, elsewhere) in self.overrides.iter_mut().zip(elsewhere) {
            overrides.set_elsewhere(*elsewhere);
        }
        self
    }

    /// The domain.
    pub fn domain(&self) -> &Name {
        &self.policy.domain
    }

    /// The revision of the domain's limits.
    pub fn revision(&self) -> &Revision {
        &self.policy.revision
    }

    /// The kill switch of the whole domain.
    pub fn paused(&self) -> Option<Pause> {
        self.policy.paused
    }

    /// The pause of the limit at a position, its own or its domain's, if it holds at a time in
    /// milliseconds since the epoch.
    pub fn pause_of(&self, index: usize, now_ms: u64) -> Option<Pause> {
        let own = self.limits.get(index)?.paused;
        Pause::later(own, self.policy.paused).filter(|pause| pause.holds(now_ms))
    }

    /// Whether any limit is paused at a time in milliseconds since the epoch.
    pub fn any_paused(&self, now_ms: u64) -> bool {
        let own = self.limits.iter().map(|limit| limit.paused);
        own.chain([self.policy.paused])
            .flatten()
            .any(|pause| pause.holds(now_ms))
    }

    /// The limits, without their overrides, in the order of the policy.
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// The limit at a position.
    pub fn limit(&self, index: usize) -> Option<&Limit> {
        self.limits.get(index).map(Arc::as_ref)
    }

    /// The position of the limit of that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        named(&self.limits, &self.shape.by_name, name)
    }

    /// Every descriptor entry that decides anything: what a proxy has to extract.
    pub fn needed_keys(&self) -> &[Name] {
        &self.shape.keys
    }

    /// The template of a limit that a descriptor brings itself, without its numbers. Its buckets
    /// are split by the descriptor and the length of the window.
    pub fn request_limit(&self) -> Option<&Limit> {
        self.shape.service.request_limit.as_ref()
    }

    /// The numbers of one bucket of the limit at a position, at a time in milliseconds since
    /// the epoch: those of an override in force, else the limit's own.
    pub fn quota_for<V: AsRef<[u8]>>(
        &self,
        index: usize,
        values: &[Option<V>],
        now_ms: u64,
    ) -> Option<Resolved> {
        let limit = self.limits.get(index)?;
        if limit.is_unlimited() {
            return Some(Resolved::Unlimited);
        }
        let found = self.override_for(index, values);
        let in_force = found.filter(|found| found.until_ms.is_none_or(|until| now_ms < until));
        Some(match in_force.map(|found| found.quota.of(&limit.quota)) {
            None => Resolved::Quota(limit.quota),
            Some(None) => Resolved::Unlimited,
            Some(Some(quota)) => Resolved::Quota(quota),
        })
    }

    /// The override of one bucket, expired or not.
    pub fn override_for<V: AsRef<[u8]>>(
        &self,
        index: usize,
        values: &[Option<V>],
    ) -> Option<&Override> {
        let name = &self.limits.get(index)?.name;
        self.overrides.get(index)?.get(name, values)
    }

    /// The overrides of the limit at a position, in no particular order.
    pub fn overrides(&self, index: usize) -> impl Iterator<Item = &Override> {
        self.overrides
            .get(index)
            .into_iter()
            .flat_map(Overrides::iter)
    }

    /// Whether the limit at a position has overrides, here or (after a snapshot) at the limiter.
    pub fn has_overrides(&self, index: usize) -> bool {
        self.overrides.get(index).is_some_and(Overrides::any)
    }

    /// The limits of a snapshot that this version cannot interpret. If one of them [may
    /// match](Opaque::may_match) a request, the limiter has to decide all of the request.
    pub fn opaque(&self) -> &[Opaque] {
        &self.opaque
    }
}

fn named(limits: &[Arc<Limit>], by_name: &Positions, name: &str) -> Option<usize> {
    let mut positions = by_name.of(digest(name.as_bytes()));
    positions.find(|at| {
        limits
            .get(*at)
            .is_some_and(|limit| limit.name.as_str() == name)
    })
}

/// Takes the limits out of a policy.
fn shared(policy: &mut Policy) -> Vec<Arc<Limit>> {
    let limits = std::mem::take(&mut policy.limits);
    limits.into_iter().map(Arc::new).collect()
}

#[cfg(test)]
mod tests;

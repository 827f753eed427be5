//! A policy made ready to test requests: one pass over its limits per
//! revision, and microseconds per request.

mod catch_up;
mod index;
mod mode;
mod overrides;
#[cfg(feature = "service")]
mod walk;

use documents::Name;
use std::sync::Arc;

use crate::{
    Entries, IfMissing, Limit, Opaque, Override, OverrideQuota, Pause, Policy, Quota, Revision,
    digest, hash::Positions,
};

use index::Index;
pub use mode::Mode;
use overrides::Overrides;

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    policy: Policy,
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
    /// The limits of the rate limit service.
    #[cfg(feature = "service")]
    walk: Option<walk::Walk>,
    /// What a limit is that a descriptor brings itself, but for its numbers.
    #[cfg(feature = "service")]
    request_limit: Option<Limit>,
    /// Whether any limit replaces others.
    #[cfg(feature = "service")]
    has_replaces: bool,
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

/// A limit that applies to a request, and the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'c, 'e> {
    /// The limit's position in the policy.
    pub index: usize,
    /// The limit; its overrides are in [`Compiled::quota_for`].
    pub limit: &'c Limit,
    /// The bucket: the values of the limit's `per` entries, `None` where the request has none.
    pub values: Vec<Option<&'e [u8]>>,
    /// The bucket of a limit of the rate limit service, where that is not the text of the
    /// descriptor itself: several values share it.
    pub shared: Option<Vec<u8>>,
    /// Whether this bucket is enforced, or only reported (`enforce`).
    pub enforced: bool,
    /// The entry that the request lacks, where the limit denies such requests
    /// (`if_missing: deny`). No bucket is charged then.
    pub missing: Option<&'c Name>,
}

/// The numbers of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It is limited so.
    Quota(Quota),
    /// It is not limited.
    Unlimited,
}

impl Match<'_, '_> {
    /// The values of the bucket, its own.
    pub fn into_values(self) -> Vec<Option<Vec<u8>>> {
        match self.shared {
            Some(bucket) => vec![Some(bucket)],
            None => self
                .values
                .into_iter()
                .map(|v| v.map(<[u8]>::to_vec))
                .collect(),
        }
    }
}

impl Rule {
    fn new(limit: &Limit, keys: &[Name], limit_named: impl Fn(&str) -> Option<usize>) -> Self {
        let mut rule = Self::default();
        for matcher in &limit.matchers {
            rule.matchers.extend(find(keys, &matcher.key));
        }
        for key in &limit.per {
            rule.per.extend(find(keys, key));
        }
        for name in &limit.replaces {
            rule.replaces.extend(limit_named(name.as_str()));
        }
        rule
    }
}

/// Where a key is among sorted ones, or belongs.
#[inline(never)]
fn find(keys: &[Name], key: &Name) -> Result<usize, usize> {
    keys.binary_search(key)
}

impl Compiled {
    /// Compiles a policy.
    pub fn new(mut policy: Policy) -> Self {
        let mut keys: Vec<Name> = Vec::new();
        for key in policy.limits.iter().flat_map(Limit::keys) {
            if let Err(at) = find(&keys, key) {
                keys.insert(at, key.clone());
            }
        }
        let mut by_name = Positions::default();
        for (at, limit) in policy.limits.iter().enumerate() {
            by_name.add(digest(limit.name.as_str().as_bytes()), at);
        }
        let rule = |limit| Rule::new(limit, &keys, |name| named(&policy.limits, &by_name, name));
        let rules: Vec<Rule> = policy.limits.iter().map(rule).collect();
        let index = Index::new(&policy.limits, &rules, keys.len());
        let overrides = policy
            .limits
            .iter_mut()
            .map(|limit| Overrides::new(&limit.name, std::mem::take(&mut limit.overrides)))
            .collect();
        let shape = Shape {
            by_name,
            keys,
            rules,
            index,
            #[cfg(feature = "service")]
            walk: walk::Walk::new(&policy.limits),
            #[cfg(feature = "service")]
            request_limit: walk::request_limit(),
            #[cfg(feature = "service")]
            has_replaces: policy.limits.iter().any(|limit| !limit.replaces.is_empty()),
        };
        Self {
            policy,
            shape: Arc::new(shape),
            overrides,
            opaque: Vec::new(),
        }
    }

    /// Adds what only snapshots have: entries that others need, limits that cannot be read, and
    /// which limits have overrides elsewhere.
    pub(crate) fn with_snapshot(
        mut self,
        keys: impl IntoIterator<Item = Name>,
        opaque: Vec<Opaque>,
        elsewhere: &[bool],
    ) -> Self {
        // Nobody shares it yet.
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

    /// The edit of the domain's limits that this is.
    pub fn revision(&self) -> &Revision {
        &self.policy.revision
    }

    /// The kill switch of the whole domain.
    pub fn paused(&self) -> Option<Pause> {
        self.policy.paused
    }

    /// The pause of the limit at a position that holds at a time in milliseconds since the epoch,
    /// be it the limit's own or its domain's.
    pub fn pause_of(&self, index: usize, now_ms: u64) -> Option<Pause> {
        let own = self.policy.limits.get(index)?.paused;
        Pause::later(own, self.policy.paused).filter(|pause| pause.holds(now_ms))
    }

    /// Whether any limit is paused at a time in milliseconds since the epoch.
    pub fn any_paused(&self, now_ms: u64) -> bool {
        let own = self.policy.limits.iter().map(|limit| limit.paused);
        own.chain([self.policy.paused])
            .flatten()
            .any(|pause| pause.holds(now_ms))
    }

    /// The limits, without their overrides, in the order of the policy.
    pub fn limits(&self) -> &[Limit] {
        &self.policy.limits
    }

    /// The limit at a position.
    pub fn limit(&self, index: usize) -> Option<&Limit> {
        self.policy.limits.get(index)
    }

    /// The position of the limit of that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        named(&self.policy.limits, &self.shape.by_name, name)
    }

    /// Every descriptor entry that decides anything: what a proxy has to extract.
    pub fn needed_keys(&self) -> &[Name] {
        &self.shape.keys
    }

    /// The limits that apply to a request at a time in milliseconds since the epoch, in the order
    /// of the policy, `replaces` settled. Those that are paused then are as absent.
    ///
    /// Every needed entry is looked up once.
    pub fn matching<'e>(
        &self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        let values: Vec<Option<&[u8]>> = self
            .shape
            .keys
            .iter()
            .map(|key| entries.get(key.as_str()))
            .collect();
        let matches = self.matching_values(&values, now_ms);
        #[cfg(feature = "service")]
        let matches = self.with_descriptor_limit(matches, entries, now_ms);
        matches
    }

    /// Adds the limit of the rate limit service that applies.
    #[cfg(feature = "service")]
    fn with_descriptor_limit<'c, 'e>(
        &'c self,
        mut matches: Vec<Match<'c, 'e>>,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'c, 'e>> {
        if let Some(found) = self.descriptor_limit(entries, now_ms) {
            let at = matches.partition_point(|other| other.index < found.index);
            matches.insert(at, found);
            self.suppress_replaced(&mut matches);
        }
        matches
    }

    /// What a limit is that a descriptor brings itself, but for its numbers: its buckets are split
    /// by the descriptor and the length of the window.
    #[cfg(feature = "service")]
    pub fn request_limit(&self) -> Option<&Limit> {
        self.shape.request_limit.as_ref()
    }

    #[cfg(feature = "service")]
    fn descriptor_limit<'c, 'e>(
        &'c self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Option<Match<'c, 'e>> {
        let walk = self.shape.walk.as_ref()?;
        let text = entries.get(crate::DESCRIPTOR)?;
        let descriptor = crate::SentDescriptor::read(text)?;
        let index = walk.find(&descriptor)?;
        let limit = self.policy.limits.get(index)?;
        if self.pause_of(index, now_ms).is_some() {
            return None;
        }
        let shared = walk::bucket_of(limit, &descriptor, text);
        let bucket = shared.as_deref().unwrap_or(text);
        Some(Match {
            index,
            limit,
            enforced: limit.enforces(&[Some(bucket)]),
            values: vec![Some(text)],
            shared,
            missing: None,
        })
    }

    /// As [`Compiled::matching`], for callers that hold the values in the order of
    /// [`Compiled::needed_keys`].
    pub fn matching_values<'e>(
        &self,
        values: &[Option<&'e [u8]>],
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        if self.policy.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return Vec::new();
        }
        let mut matches: Vec<Match<'_, 'e>> = Vec::new();
        for at in self.shape.index.candidates(values).iter() {
            matches.extend(self.test(at, values, now_ms));
        }
        self.suppress_replaced(&mut matches);
        matches
    }

    fn test<'e>(
        &self,
        index: usize,
        values: &[Option<&'e [u8]>],
        now_ms: u64,
    ) -> Option<Match<'_, 'e>> {
        let limit = self.policy.limits.get(index)?;
        if limit.descriptor.is_some() || limit.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return None;
        }
        let rule = self.shape.rules.get(index)?;
        let value = |key: &usize| values.get(*key).copied().flatten();
        let mut matchers = limit.matchers.iter().zip(&rule.matchers);
        if !matchers.all(|(matcher, key)| matcher.holds(value(key))) {
            return None;
        }
        let values: Vec<Option<&[u8]>> = rule.per.iter().map(value).collect();
        let absent = values.iter().position(Option::is_none);
        let missing = match (absent, limit.if_missing) {
            (Some(_), IfMissing::Skip) => return None,
            (Some(at), IfMissing::Deny) => limit.per.get(at),
            (Some(_), IfMissing::Share) | (None, _) => None,
        };
        Some(Match {
            index,
            limit,
            enforced: limit.enforces(&values),
            values,
            shared: None,
            missing,
        })
    }

    /// A limit that matches suppresses those it replaces, unless it is only reported. A limit of
    /// the rate limit service does so in any case, as there.
    fn suppress_replaced(&self, matches: &mut Vec<Match<'_, '_>>) {
        let replaced = self.replaced_by(matches);
        if !replaced.is_empty() {
            matches.retain(|found| !replaced.contains(&found.index));
        }
    }

    /// The positions of the limits that these suppress.
    pub fn replaced_by(&self, matches: &[Match<'_, '_>]) -> Vec<usize> {
        let mut replaced: Vec<usize> = Vec::new();
        let service = |found: &Match<'_, '_>| found.limit.descriptor.is_some();
        for found in matches
            .iter()
            .filter(|found| found.enforced || service(found))
        {
            if let Some(rule) = self.shape.rules.get(found.index) {
                replaced.extend_from_slice(&rule.replaces);
            }
        }
        replaced
    }

    /// The numbers of one bucket of the limit at a position, at a time in milliseconds since
    /// the epoch: those of an override in force, else the limit's own.
    pub fn quota_for<V: AsRef<[u8]>>(
        &self,
        index: usize,
        values: &[Option<V>],
        now_ms: u64,
    ) -> Option<Resolved> {
        let limit = self.policy.limits.get(index)?;
        if limit.is_unlimited() {
            return Some(Resolved::Unlimited);
        }
        let found = self.override_for(index, values);
        let in_force = found.filter(|found| found.until_ms.is_none_or(|until| now_ms < until));
        Some(match in_force.map(|found| found.quota) {
            None => Resolved::Quota(limit.quota),
            Some(OverrideQuota::Unlimited) => Resolved::Unlimited,
            Some(OverrideQuota::Quota { quota, .. }) => Resolved::Quota(quota),
        })
    }

    /// The override of one bucket, expired or not.
    pub fn override_for<V: AsRef<[u8]>>(
        &self,
        index: usize,
        values: &[Option<V>],
    ) -> Option<&Override> {
        let name = &self.policy.limits.get(index)?.name;
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

    /// The limits of a snapshot that this version cannot interpret. A request that one of them
    /// [may match](Opaque::may_match) is the limiter's to decide, whole.
    pub fn opaque(&self) -> &[Opaque] {
        &self.opaque
    }
}

fn named(limits: &[Limit], by_name: &Positions, name: &str) -> Option<usize> {
    let mut positions = by_name.of(digest(name.as_bytes()));
    positions.find(|at| {
        limits
            .get(*at)
            .is_some_and(|limit| limit.name.as_str() == name)
    })
}

#[cfg(test)]
mod tests;

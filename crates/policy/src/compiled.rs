//! A policy compiled for matching: one pass over its limits per revision, and microseconds per
//! request.

mod change;
mod edits;
mod index;
mod overrides;
mod walk;

use std::sync::Arc;

use documents::Name;

use crate::{
    Algorithm, Entries, Exemption, IfMissing, Limit, Matcher, Opaque, OverLimit, Override, Pause,
    Policy, Revision, digest, hash::Positions,
};
pub(crate) use change::{Change, Changed, check_of};
pub use edits::{Edits, OverrideChange};
use index::{Conditions, Index};
use overrides::Overrides;
use walk::Walk;

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    domain: Name,
    revision: Revision,
    paused: Option<Pause>,
    /// Shared with what outlasts a revision: a proxy's requests keep the limits that they matched.
    limits: Vec<Arc<Limit>>,
    shape: Arc<Shape>,
    overrides: Vec<Overrides>,
    opaque: Vec<Opaque>,
    /// The hashes of the limits' bytes in a snapshot, where they come from one.
    hashes: Vec<u64>,
    /// A digest of the exemptions there.
    exemptions_digest: u64,
}

/// What does not depend on numbers, overrides or generations. A clone shares all that is large.
#[derive(Clone, Debug)]
struct Shape {
    /// The limits' positions, by the digest of their names.
    by_name: Positions,
    /// Every descriptor entry that some limit names.
    keys: Vec<Name>,
    rules: Vec<Arc<Rule>>,
    /// Where each limit is in the order of the policy. Empty: where it is in `limits`.
    ranks: Vec<usize>,
    index: Index,
    exempt: Option<Arc<Exempt>>,
    service: Arc<Service>,
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
    /// The bucket of a limit of the rate limit service, if several values share it, so that it is
    /// not the text of the descriptor.
    pub shared: Option<Vec<u8>>,
    /// Whether this bucket is enforced, or only reported (`enforce`).
    pub enforced: bool,
    /// Whether it suppresses the limits that it replaces: not if it is only reported, nor if it may not be meant
    /// ([`Matcher::is_certain`]), so that no client gets a looser limit by doubt. A limit of the rate limit service
    /// always does, as in that service.
    pub suppresses: bool,
    /// The entry that the request lacks, where the limit denies such requests
    /// (`if_missing: deny`). No bucket is charged then.
    pub missing: Option<&'c Name>,
}

/// What happens to a request over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is denied.
    #[default]
    Enforce,
    /// It goes on, and is only reported.
    Shadow,
    /// It goes on, marked as degraded.
    Degrade,
}

/// The exemptions of a domain that has any, found by the same lookups as limits.
#[derive(Debug)]
struct Exempt {
    list: Vec<Exemption>,
    /// For each matcher of each exemption, the position of its entry in the compiled keys.
    keys: Vec<Vec<usize>>,
    index: Index,
}

impl Match<'_, '_> {
    /// The owned values of the bucket.
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

    /// What happens to the request if it is over the limit.
    pub fn mode(&self) -> Mode {
        match (self.enforced, self.limit.over_limit) {
            (false, _) => Mode::Shadow,
            (true, OverLimit::Degrade) => Mode::Degrade,
            (true, OverLimit::Reject | OverLimit::Queue) => Mode::Enforce,
        }
    }
}

impl Service {
    fn new(limits: &[Arc<Limit>]) -> Self {
        Self {
            walk: Walk::new(limits),
            request_limit: walk::request_limit(),
        }
    }
}

impl Rule {
    fn new(limit: &Limit, position: impl Fn(&Name) -> Option<usize>) -> Self {
        let matchers = limit.matchers.iter();
        Self {
            matchers: matchers.filter_map(|of| position(&of.entry)).collect(),
            per: limit.per.iter().filter_map(position).collect(),
        }
    }

    fn conditions<'l>(&'l self, limit: &'l Limit) -> Conditions<'l> {
        Conditions {
            matchers: &limit.matchers,
            keys: &self.matchers,
            never: limit.descriptor.is_some(),
        }
    }
}

impl Shape {
    fn new(limits: &[Arc<Limit>], exemptions: Vec<Exemption>) -> Self {
        let mut keys: Vec<Name> = Vec::new();
        let of_limits = limits.iter().flat_map(|limit| limit.keys());
        let exempting = exemptions.iter().flat_map(|found| &found.matchers);
        for key in of_limits.chain(exempting.map(|matcher| &matcher.entry)) {
            if let Err(at) = find(&keys, key) {
                keys.insert(at, key.clone());
            }
        }
        let mut by_name = Positions::default();
        for (at, limit) in limits.iter().enumerate() {
            by_name.add(digest(limit.name.as_str().as_bytes()), at);
        }
        let rule = |limit: &Arc<Limit>| Arc::new(Rule::new(limit, |key| find(&keys, key).ok()));
        let rules: Vec<Arc<Rule>> = limits.iter().map(rule).collect();
        let conditions = limits.iter().zip(&rules);
        let conditions: Vec<_> = conditions
            .map(|(limit, rule)| rule.conditions(limit))
            .collect();
        let index = Index::new(&conditions, keys.len());
        let exempt = Exempt::new(exemptions, &keys);
        Self {
            by_name,
            keys,
            rules,
            ranks: Vec::new(),
            index,
            exempt,
            service: Arc::new(Service::new(limits)),
            has_replaces: limits.iter().any(|limit| !limit.replaces.is_empty()),
        }
    }
}

/// The position of a key among sorted ones, or where to insert it.
fn find(keys: &[Name], key: &Name) -> Result<usize, usize> {
    keys.binary_search(key)
}

impl Compiled {
    /// Compiles a policy.
    pub fn new(mut policy: Policy) -> Self {
        let overrides = policy
            .limits
            .iter_mut()
            .map(|limit| Overrides::new(&limit.name, std::mem::take(&mut limit.overrides)))
            .collect();
        let limits = shared(&mut policy);
        Self::of_limits(policy, limits, overrides, None)
    }

    /// `policy` has no limits of its own. `shape`: that of these limits, where it is known.
    fn of_limits(
        policy: Policy,
        limits: Vec<Arc<Limit>>,
        overrides: Vec<Overrides>,
        shape: Option<Arc<Shape>>,
    ) -> Self {
        Self {
            domain: policy.domain,
            revision: policy.revision,
            paused: policy.paused,
            shape: shape.unwrap_or_else(|| Arc::new(Shape::new(&limits, policy.exempt))),
            limits,
            overrides,
            opaque: Vec::new(),
            hashes: Vec::new(),
            exemptions_digest: 0,
        }
    }

    /// The domain.
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    /// The revision of the domain's limits.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// The kill switch of the whole domain.
    pub fn paused(&self) -> Option<Pause> {
        self.paused
    }

    /// The pause of the limit at a position, its own or its domain's, if it holds at a time in
    /// milliseconds since the epoch.
    pub fn pause_of(&self, index: usize, now_ms: u64) -> Option<Pause> {
        let own = self.limits.get(index)?.paused;
        Pause::later(own, self.paused).filter(|pause| pause.holds(now_ms))
    }

    /// Whether any limit is paused at a time in milliseconds since the epoch.
    pub fn any_paused(&self, now_ms: u64) -> bool {
        let own = self.limits.iter().map(|limit| limit.paused);
        own.chain([self.paused])
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

    /// The limit of that name.
    pub fn named(&self, name: &Name) -> Option<&Limit> {
        self.limit(self.position(name.as_str())?)
    }

    /// The position of the limit of that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.position_in(&self.shape, name)
    }

    fn position_in(&self, shape: &Shape, name: &str) -> Option<usize> {
        let mut positions = shape.by_name.of(digest(name.as_bytes()));
        positions.find(|at| {
            let limit = self.limits.get(*at);
            limit.is_some_and(|limit| limit.name.as_str() == name)
        })
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
    ) -> Option<Algorithm> {
        let limit = self.limits.get(index)?;
        if limit.is_unlimited() {
            return None;
        }
        let found = self.override_for(index, values);
        let in_force = found.filter(|found| found.until_ms.is_none_or(|until| now_ms < until));
        in_force.map_or(Some(limit.quota), |found| found.quota.of(&limit.quota))
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

/// Takes the limits out of a policy.
fn shared(policy: &mut Policy) -> Vec<Arc<Limit>> {
    let limits = std::mem::take(&mut policy.limits);
    let mut limits: Vec<_> = limits.into_iter().map(Arc::new).collect();
    // They are in the place that the limits had, 57 times as large.
    limits.shrink_to_fit();
    limits
}

impl Compiled {
    /// The limits that apply to a request at a time in milliseconds since the epoch, in the order
    /// of the policy, after `replaces`. Limits that are paused then count as absent. None applies
    /// to a request that is exempt.
    ///
    /// Every needed entry is looked up once.
    pub fn matching<'e>(
        &self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        let mut matches = self.matching_all(entries, now_ms);
        self.suppress_replaced(&mut matches);
        matches
    }

    /// As [`Compiled::matching`], before `replaces`.
    pub fn matching_all<'e>(
        &self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        let keys = self.shape.keys.iter();
        let values: Vec<Option<&[u8]>> = keys.map(|key| entries.get(key.as_str())).collect();
        let value = &|key: usize| values.get(key).copied().flatten();
        if self.exemption_of_values(value).is_some() {
            return Vec::new();
        }
        let mut matches = self.limits_matching(value, now_ms);
        if let Some(found) = self.descriptor_limit(entries, now_ms) {
            let at = matches.partition_point(|other| other.index < found.index);
            matches.insert(at, found);
        }
        matches
    }

    fn descriptor_limit<'c, 'e>(
        &'c self,
        entries: &'e (impl Entries + ?Sized),
        now_ms: u64,
    ) -> Option<Match<'c, 'e>> {
        let walk = self.shape.service.walk.as_ref()?;
        let text = entries.get(crate::DESCRIPTOR)?;
        let descriptor = crate::SentDescriptor::read(text)?;
        let index = walk.find(&descriptor)?;
        let limit = self.limits.get(index)?;
        if self.pause_of(index, now_ms).is_some() {
            return None;
        }
        let shared = walk::bucket_of(limit, &descriptor, text);
        let bucket = shared.as_deref().unwrap_or(text);
        Some(Match {
            index,
            limit,
            enforced: limit.enforces(&[Some(bucket)]),
            suppresses: true,
            values: vec![Some(text)],
            shared,
            missing: None,
        })
    }

    /// As [`Compiled::matching`], for callers that find values by their keys' positions in
    /// [`Compiled::needed_keys`].
    ///
    /// # Errors
    /// The first exemption that holds, whatever is paused.
    pub fn matching_values<'e>(
        &self,
        value: &dyn Fn(usize) -> Option<&'e [u8]>,
        now_ms: u64,
    ) -> Result<Vec<Match<'_, 'e>>, &Exemption> {
        if let Some(exemption) = self.exemption_of_values(value) {
            return Err(exemption);
        }
        let mut matches = self.limits_matching(value, now_ms);
        self.suppress_replaced(&mut matches);
        Ok(matches)
    }

    fn limits_matching<'e>(
        &self,
        value: &dyn Fn(usize) -> Option<&'e [u8]>,
        now_ms: u64,
    ) -> Vec<Match<'_, 'e>> {
        if self.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return Vec::new();
        }
        let mut matches: Vec<Match<'_, 'e>> = Vec::new();
        for at in self.shape.index.candidates(value).iter() {
            if let Some(found) = self.test(at, value, now_ms) {
                let rank = self.rank(at);
                let before = matches.partition_point(|other| self.rank(other.index) < rank);
                matches.insert(before, found);
            }
        }
        matches
    }

    /// Where the limit at a position is in the order of the policy.
    fn rank(&self, at: usize) -> usize {
        self.shape.ranks.get(at).copied().unwrap_or(at)
    }

    fn test<'e>(
        &self,
        index: usize,
        value: &dyn Fn(usize) -> Option<&'e [u8]>,
        now_ms: u64,
    ) -> Option<Match<'_, 'e>> {
        let limit = self.limits.get(index)?;
        if limit.descriptor.is_some() || limit.paused.is_some_and(|pause| pause.holds(now_ms)) {
            return None;
        }
        let rule = self.shape.rules.get(index)?;
        let mut matchers = limit.matchers.iter().zip(&rule.matchers);
        let mut all = matchers.clone();
        if !all.all(|(matcher, key)| matcher.holds(value(*key))) {
            return None;
        }
        let values: Vec<Option<&[u8]>> = rule.per.iter().map(|key| value(*key)).collect();
        let absent = values.iter().position(Option::is_none);
        let missing = match (absent, limit.if_missing) {
            (Some(_), IfMissing::Skip) => return None,
            (Some(at), IfMissing::Deny) => limit.per.get(at),
            (Some(_), IfMissing::Share) | (None, _) => None,
        };
        let enforced = limit.enforces(&values);
        Some(Match {
            index,
            limit,
            enforced,
            suppresses: enforced
                && !limit.replaces.is_empty()
                && matchers.all(|(matcher, key)| matcher.is_certain(value(*key))),
            values,
            shared: None,
            missing,
        })
    }

    fn suppress_replaced(&self, matches: &mut Vec<Match<'_, '_>>) {
        let replaced = self.replaced_by(matches);
        if !replaced.is_empty() {
            matches.retain(|found| !replaced.contains(&found.index));
        }
    }

    /// The positions of the limits that these suppress, of all that [match](Compiled::matching_all): one that is
    /// suppressed itself does so all the same.
    pub fn replaced_by(&self, matches: &[Match<'_, '_>]) -> Vec<usize> {
        let suppress = matches.iter().filter(|found| found.suppresses);
        // By name, because the others come and go while this one stays.
        let names = suppress.flat_map(|found| &found.limit.replaces);
        names
            .filter_map(|name| self.position(name.as_str()))
            .collect()
    }
}

impl Exempt {
    fn new(exemptions: Vec<Exemption>, keys: &[Name]) -> Option<Arc<Self>> {
        if exemptions.is_empty() {
            return None;
        }
        let position = |matcher: &Matcher| keys.iter().position(|key| *key == matcher.entry);
        let matchers = exemptions.iter().map(|found| found.matchers.iter());
        let positions: Vec<Vec<usize>> = matchers
            .map(|matchers| matchers.filter_map(position).collect())
            .collect();
        let conditions = exemptions.iter().zip(&positions);
        let conditions: Vec<Conditions<'_>> = conditions
            .map(|(exemption, keys)| Conditions {
                matchers: &exemption.matchers,
                keys,
                never: false,
            })
            .collect();
        Some(Arc::new(Self {
            index: Index::new(&conditions, keys.len()),
            keys: positions,
            list: exemptions,
        }))
    }

    /// The first exemption that certainly holds.
    fn find<'e>(&self, value: &dyn Fn(usize) -> Option<&'e [u8]>) -> Option<&Exemption> {
        let candidates = self.index.candidates(value);
        candidates.iter().find_map(|at| {
            let exemption = self.list.get(at)?;
            let mut matchers = exemption.matchers.iter().zip(self.keys.get(at)?);
            let holds = matchers.all(|(matcher, key)| matcher.holds_surely(value(*key)));
            holds.then_some(exemption)
        })
    }
}

impl Compiled {
    /// The first exemption that applies to a request, whatever is paused.
    pub fn exemption(&self, entries: &(impl Entries + ?Sized)) -> Option<&Exemption> {
        self.shape.exempt.as_ref()?;
        let keys = self.shape.keys.iter();
        let values: Vec<Option<&[u8]>> = keys.map(|key| entries.get(key.as_str())).collect();
        self.exemption_of_values(&|key| values.get(key).copied().flatten())
    }

    /// As [`Compiled::exemption`], for values by their keys' positions in [`Compiled::needed_keys`].
    fn exemption_of_values<'e>(
        &self,
        value: &dyn Fn(usize) -> Option<&'e [u8]>,
    ) -> Option<&Exemption> {
        self.shape.exempt.as_ref()?.find(value)
    }

    /// The exemptions, in the order of the policy.
    pub fn exemptions(&self) -> &[Exemption] {
        let exempt = self.shape.exempt.as_ref();
        exempt.map_or(&[], |exempt| &exempt.list)
    }
}

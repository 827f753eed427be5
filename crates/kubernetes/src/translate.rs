//! All objects of a cluster, turned into one limits file for each domain.
//!
//! The reader of limits files decides whether limits are valid, for each object alone, so that a mistake in one holds
//! up no other. An object whose newest version is not accepted keeps its last one, which its status has.

use std::collections::{BTreeMap, BTreeSet};

use limits_file::{MATCHERS_MAX, PATTERNS_MAX, ToNode as _};
use policy::{BUILT_IN, Limit, Matcher, Name, Node, OVERRIDES_MAX, Pattern, Policy, Problems};
use serde::Serialize;

use crate::{
    AncestorRef, Gateway, GatewayClass, InForce, Key, Namespace, RateLimit, RateLimitDomain,
    RateLimitDomainSpec, RateLimitSpec, Route, Service, TargetRef,
    targets::{Condition, Domain, GATEWAY_API, GATEWAY_ENTRY, Placement, Requests, World},
};

/// The most targets of an object.
pub(crate) const TARGETS_MAX: usize = 16;
/// Bound: limits of one Kubernetes object. Beyond it, the API server refuses the object.
///
/// The cost of the rules in its definition grows with it.
pub(crate) const OBJECT_LIMITS_MAX: usize = 128;
/// The longest message of a condition, in bytes: a list of 128 wrong limits helps nobody.
const MESSAGE_MAX: usize = 1024;
/// Bound: bytes of a Kubernetes object's spec, as JSON. Beyond it, the version is refused.
///
/// etcd takes 1.5 MiB for an object, which has the spec that is in force in its status as well, and the names of its fields in
/// `managedFields`. A status that does not fit could never be written. With what 1000 patterns of its targets add, each limit
/// also stays within the megabyte that the store takes.
const SPEC_BYTES_MAX: usize = 512 << 10;
/// The reason of limits that do not fit.
const CAP_EXCEEDED: &str = "CapExceeded";
/// What a stored limit may take beside its fields: its generation and a comma.
const RECORD_EXTRA: usize = 40;

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Every [`RateLimit`].
    pub rate_limits: Vec<RateLimit>,
    /// Every [`RateLimitDomain`].
    pub domains: Vec<RateLimitDomain>,
    /// Every Gateway.
    pub gateways: Vec<Gateway>,
    /// Their classes. Without them, limits match the route names of every implementation.
    pub classes: Vec<GatewayClass>,
    /// Every route.
    pub routes: Vec<Route>,
    /// Every Service.
    pub services: Vec<Service>,
    /// Every namespace, for domains that select some.
    pub namespaces: Vec<Namespace>,
    /// The entries that the live proxies of a domain supply. A domain without live proxies is absent, and its limits
    /// are not checked against it.
    pub supply: BTreeMap<Name, BTreeSet<Name>>,
    /// The domains of which every live proxy supplies [`RULE_ENTRY`](crate::RULE_ENTRY).
    pub by_rule_name: BTreeSet<Name>,
    /// The cluster's DNS domain; empty: `cluster.local`.
    pub cluster_domain: String,
}

/// What the objects mean.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// Every domain that an accepted [`RateLimitDomain`] has, also without limits.
    pub domains: BTreeMap<Name, DomainResult>,
    /// Every [`RateLimit`] whose deletion nobody has asked for.
    pub objects: BTreeMap<Key, ObjectResult>,
    /// Every [`RateLimitDomain`], by its name.
    pub domain_objects: BTreeMap<String, DomainObjectResult>,
    /// The domain of each Gateway.
    pub gateways: BTreeMap<Key, Name>,
}

impl Translation {
    /// Whether an object waits for room that another one may have made in the same translation, by its newest version.
    pub fn waits_for_room(&self) -> bool {
        let mut found = self.objects.values().flat_map(|one| &one.ancestors);
        found.any(|one| one.accepted.reason == CAP_EXCEEDED)
    }
}

/// The limits of one domain.
#[derive(Clone, Debug)]
pub struct DomainResult {
    /// The limits file.
    pub policy: Policy,
    /// The object that each limit is of.
    pub owners: BTreeMap<Name, Key>,
    /// The Gateways whose proxies request it.
    pub gateways: Vec<Key>,
    /// Whether proxies of a mesh do.
    pub mesh: bool,
}

/// What became of a [`RateLimit`].
#[derive(Clone, Debug, Default)]
pub struct ObjectResult {
    /// The version that is in force: the newest, or the last that was accepted.
    pub in_force: Option<InForce<RateLimitSpec>>,
    /// One entry for each Gateway, in their order.
    pub ancestors: Vec<AncestorResult>,
}

/// What became of it at one Gateway.
#[derive(Clone, Debug)]
pub struct AncestorResult {
    /// The Gateway; the target itself, if it is a Service of a mesh or was not found.
    pub ancestor: AncestorRef,
    /// The domain; `None` if the Gateway is in none.
    pub domain: Option<Name>,
    /// Whether the newest version is accepted.
    pub accepted: Finding,
    /// The names in the store of the limits that the object has in force there.
    pub limits: Vec<Name>,
    /// The entries that these need of each proxy, beside the built-in ones.
    pub entries: BTreeSet<Name>,
    /// Whether all of these deny nothing.
    pub shadow: bool,
}

/// What became of a [`RateLimitDomain`].
#[derive(Clone, Debug)]
pub struct DomainObjectResult {
    /// Whether the newest version is accepted.
    pub accepted: Finding,
    /// The version that is in force.
    pub in_force: Option<InForce<RateLimitDomainSpec>>,
    /// Its domain; `None` if an older object has that.
    pub domain: Option<Name>,
}

/// A condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is `True`.
    pub ok: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

impl Finding {
    pub(crate) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > MESSAGE_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_MAX));
            message.push('…');
        }
        Self {
            ok: false,
            reason,
            message,
        }
    }

    /// Of a version in whose place an earlier one stays in force.
    fn staying(&self, generation: i64) -> Self {
        Self {
            message: format!("{}; generation {generation} stays in force", self.message),
            ..self.clone()
        }
    }

    fn accepted(message: impl Into<String>) -> Self {
        Self {
            ok: true,
            reason: "Accepted",
            message: message.into(),
        }
    }
}

/// Hexadecimal digits of a name in the store: 80 bits, so that nobody finds two objects with the same.
const STORE_NAME_HASH: usize = 20;
/// Where a name that is too long is cut.
const STORE_NAME_CUT: usize = Name::MAX_LEN - 1 - STORE_NAME_HASH;

/// The name in the store of an object's limit: `NAMESPACE.NAME.LIMIT`. The namespace and the limit have no dot, so
/// that two limits never have the same. A longer one than a name may be is cut, and followed by a hash of the whole
/// behind a character that none of the three can have.
pub fn store_name(namespace: &str, object: &str, limit: &str) -> Option<Name> {
    let mut whole = format!("{namespace}.{object}.{limit}");
    if whole.len() > Name::MAX_LEN {
        let hash = policy::hashed(whole.as_bytes());
        whole.truncate(whole.floor_char_boundary(STORE_NAME_CUT));
        whole.push('_');
        whole.extend(String::from_utf8_lossy(&hash).chars().take(STORE_NAME_HASH));
    }
    whole.parse().ok()
}

/// Translates all objects. Their order does not matter.
pub fn translate(objects: &Objects) -> Translation {
    let (domains, domain_objects) = domains(&objects.domains);
    let world = World::new(objects, domains);
    let mut budgets: BTreeMap<Name, Budget> = world.domains.iter().map(Budget::new).collect();
    let mut alive: Vec<&RateLimit> = { objects.rate_limits.iter() }
        .filter(|object| object.metadata.deletion_timestamp.is_none())
        .collect();
    alive.sort_by_key(|object| age(&object.metadata));
    // What replaces others comes first, so that nothing is replaced by limits that are not accepted themselves.
    let replaces = |object: &&RateLimit| {
        let in_force = object.status.in_force.as_ref();
        !object.spec.overriding().is_empty()
            || in_force.is_some_and(|found| !found.spec.overriding().is_empty())
    };
    let (first, second): (Vec<_>, Vec<_>) = alive.into_iter().partition(replaces);
    let mut placing = Placing {
        world: &world,
        overriders: BTreeMap::new(),
        budgets: &mut budgets,
        reserved: BTreeMap::new(),
    };
    // What is in force has its place first: no new limits, not even an older object's, take it away.
    for object in first.iter().chain(&second) {
        placing.reserve(object);
    }
    placing.overriders.clear();
    let mut translated = BTreeMap::new();
    for object in first.into_iter().chain(second) {
        translated.insert(object.metadata.key(), placing.object(object));
    }
    let gateways = world.domain_of.clone();
    let domains = { world.domains.iter().zip(budgets.into_values()) }
        .map(|((name, domain), budget)| (name.clone(), budget.finish(domain, &mut translated)))
        .collect();
    Translation {
        domains,
        objects: translated,
        domain_objects,
        gateways,
    }
}

/// Older first, then by namespace and name.
fn age(metadata: &crate::Metadata) -> (String, Key) {
    (metadata.creation_timestamp.clone(), metadata.key())
}

// --- Domains.

fn domains(objects: &[RateLimitDomain]) -> (Vec<Domain>, BTreeMap<String, DomainObjectResult>) {
    let mut alive: Vec<&RateLimitDomain> = { objects.iter() }
        .filter(|object| object.metadata.deletion_timestamp.is_none())
        .collect();
    alive.sort_by_key(|object| age(&object.metadata));
    let (mut found, mut results) = (Vec::new(), BTreeMap::new());
    let mut taken = Taken::default();
    for object in alive {
        let (version, accepted) = version_of(object, &taken);
        let (name, in_force) = version.unzip();
        let domain = name.filter(|name| !taken.domains.contains_key(name));
        if let Some((name, in_force)) = domain.clone().zip(in_force.as_ref()) {
            found.push(taken.domain(name, &in_force.spec, &object.metadata.name));
        }
        results.insert(
            object.metadata.name.clone(),
            DomainObjectResult {
                accepted,
                in_force,
                domain,
            },
        );
    }
    (found, results)
}

/// What older objects have, each with the object's name.
#[derive(Default)]
struct Taken<'o> {
    domains: BTreeMap<Name, &'o str>,
    gateways: BTreeMap<Key, &'o str>,
}

impl<'o> Taken<'o> {
    /// Why a version of another object cannot have all that it wants.
    fn conflict(&self, name: &Name, spec: &RateLimitDomainSpec) -> Option<String> {
        if let Some(other) = self.domains.get(name) {
            let message = format!("domain {name} is RateLimitDomain {other}'s, which is older");
            return Some(message);
        }
        spec.gateways.iter().find_map(|gateway| {
            let key = Key::new(&gateway.namespace, &gateway.name);
            let other = self.gateways.get(&key)?;
            let message = format!("Gateway {key} is in RateLimitDomain {other}, which is older");
            Some(message)
        })
    }

    /// The domain of an object, with those of its Gateways that no older one has.
    fn domain(&mut self, name: Name, spec: &RateLimitDomainSpec, object: &'o str) -> Domain {
        self.domains.insert(name.clone(), object);
        let gateways = { spec.gateways.iter() }
            .map(|gateway| Key::new(&gateway.namespace, &gateway.name))
            .filter(|key| {
                let is_free = !self.gateways.contains_key(key);
                if is_free {
                    self.gateways.insert(key.clone(), object);
                }
                is_free
            });
        Domain {
            gateways: gateways.collect(),
            name,
            spec: spec.clone(),
        }
    }
}

/// The version of a domain object that is in force, with its domain, and whether that is the newest. What an older
/// object has taken of the one that was in force before goes from it; a new version that wants such a thing is refused.
fn version_of(
    object: &RateLimitDomain,
    taken: &Taken<'_>,
) -> (Option<(Name, InForce<RateLimitDomainSpec>)>, Finding) {
    let newest = InForce {
        generation: object.metadata.generation,
        spec: object.spec.clone(),
    };
    let refused = match domain_name(&newest.spec) {
        Err(wrong) => Finding::failed("Invalid", wrong),
        Ok(name) => match taken.conflict(&name, &newest.spec) {
            None => return (Some((name, newest)), Finding::accepted("")),
            Some(conflict) => Finding::failed("Conflicted", conflict),
        },
    };
    let last = object.status.in_force.clone();
    let last = last.and_then(|last| Some((domain_name(&last.spec).ok()?, last)));
    match last {
        Some(last) if last.1 != newest => {
            let refused = refused.staying(last.1.generation);
            (Some(last), refused)
        }
        last => (last, refused),
    }
}

/// The domain of a spec that is valid.
fn domain_name(spec: &RateLimitDomainSpec) -> Result<Name, String> {
    let name: Name = { spec.domain.parse() }.map_err(|error| format!("domain: {error}"))?;
    frame(&name, spec).map_err(|problems| text(&problems))?;
    check_size(spec)?;
    Ok(name)
}

/// The domain without limits.
fn frame(name: &Name, spec: &RateLimitDomainSpec) -> Result<Policy, Problems> {
    let mut node = Node::map([
        ("domain", Node::text(name.as_str())),
        ("exempt", Node::list(spec.exempt.iter().cloned())),
        ("limits", Node::list([])),
    ]);
    if let Some(paused) = &spec.paused {
        node.set("paused", paused.clone());
    }
    limits_file::policy_from_node(&node)
}

/// Problems on one line.
fn text(problems: &Problems) -> String {
    let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
    list.join("; ")
}

// --- What fits into a domain.

/// The limits of a domain so far, and how much of its bounds is taken.
struct Budget {
    frame: Policy,
    per_namespace: Option<u32>,
    limits: Vec<(Key, Limit)>,
    count: usize,
    by_namespace: BTreeMap<String, usize>,
    /// How many objects name an entry; 1 more for an exemption's.
    entries: BTreeMap<Name, usize>,
    bytes: usize,
    overrides: usize,
}

/// How much of a domain's bounds the limits of an object take.
#[derive(Clone, Default)]
struct Share {
    count: usize,
    entries: BTreeSet<Name>,
    bytes: usize,
    overrides: usize,
}

impl Share {
    fn of(limits: &[Limit]) -> Self {
        let mut share = Self::default();
        for limit in limits {
            share.count += 1;
            share.entries.extend(limit.keys().cloned());
            share.bytes += bytes(&limits_file::node_without_overrides(limit)) + RECORD_EXTRA;
            share.overrides += limit.overrides.len();
        }
        share
    }
}

impl Budget {
    fn new((name, domain): (&Name, &Domain)) -> (Name, Self) {
        let frame = frame(name, &domain.spec).unwrap_or_else(|_| Policy::empty(name.clone()));
        let exempt = frame.exempt.iter().flat_map(|one| &one.matchers);
        let budget = Self {
            per_namespace: domain.spec.caps.and_then(|caps| caps.limits_per_namespace),
            limits: Vec::new(),
            count: 0,
            by_namespace: BTreeMap::new(),
            entries: exempt.map(|matcher| (matcher.entry.clone(), 1)).collect(),
            bytes: bytes(&frame.to_node()) + RECORD_EXTRA,
            overrides: 0,
            frame,
        };
        (name.clone(), budget)
    }

    /// Whether the limits of one more object fit.
    fn fits(&self, namespace: &str, share: &Share) -> Result<(), Finding> {
        let domain = &self.frame.domain;
        let over = |message: String| Err(Finding::failed(CAP_EXCEEDED, message));
        let own = self.by_namespace.get(namespace).copied().unwrap_or(0) + share.count;
        if let Some(most) = self.per_namespace
            && u64::try_from(own).is_ok_and(|own| own > u64::from(most))
        {
            return over(format!(
                "namespace {namespace} would have {own} limits in domain {domain}, which allows it {most}"
            ));
        }
        let most = limits_file::LIMITS_MAX;
        if self.count + share.count > most {
            return over(format!("domain {domain} has at most {most} limits"));
        }
        let added = { share.entries.iter() }.filter(|key| !self.entries.contains_key(*key));
        let added: Vec<&str> = added.map(Name::as_str).collect();
        let most = limits_file::ENTRIES_MAX;
        if self.entries.len() + added.len() > most {
            return over(format!(
                "the limits of domain {domain} name at most {most} different entries; these add {}",
                added.join(", ")
            ));
        }
        let most = limits_file::DOCUMENT_MAX;
        if self.bytes + share.bytes > most {
            return over(format!(
                "the limits of domain {domain} take at most {most} bytes"
            ));
        }
        if self.overrides + share.overrides > OVERRIDES_MAX {
            return over(format!(
                "domain {domain} has at most {OVERRIDES_MAX} overrides"
            ));
        }
        Ok(())
    }

    fn take(&mut self, namespace: &str, share: &Share) {
        *self.by_namespace.entry(namespace.to_owned()).or_default() += share.count;
        for entry in &share.entries {
            *self.entries.entry(entry.clone()).or_default() += 1;
        }
        self.count += share.count;
        self.bytes += share.bytes;
        self.overrides += share.overrides;
    }

    /// Undoes [`Self::take`].
    fn give_back(&mut self, namespace: &str, share: &Share) {
        if let Some(own) = self.by_namespace.get_mut(namespace) {
            *own -= share.count;
        }
        for entry in &share.entries {
            if let Some(uses) = self.entries.get_mut(entry) {
                *uses -= 1;
                if *uses == 0 {
                    self.entries.remove(entry);
                }
            }
        }
        self.count -= share.count;
        self.bytes -= share.bytes;
        self.overrides -= share.overrides;
    }

    /// The limits file, which the reader has accepted as a whole.
    fn finish(
        mut self,
        domain: &Domain,
        objects: &mut BTreeMap<Key, ObjectResult>,
    ) -> DomainResult {
        self.limits.sort_by(|(a, _), (b, _)| a.cmp(b));
        let policy = loop {
            let limits = self.limits.iter().map(|(_, limit)| limit.to_node());
            let mut node = self.frame.to_node();
            node.set("limits", Node::list(limits));
            match limits_file::policy_from_node(&node) {
                Ok(policy) => break policy,
                // Each limit is valid, and the bounds hold; should the reader refuse them together all the same, the
                // others must not wait for the one that it names. Each turn reads the whole domain, so whatever an
                // object may say is refused in `version`.
                Err(problems) => {
                    match problems.iter().find_map(|problem| limit_at(&problem.path)) {
                        None => break self.frame.clone(),
                        Some(at) => {
                            let Some((owner, _)) = self.limits.get(at).cloned() else {
                                break self.frame.clone();
                            };
                            self.limits.retain(|(of, _)| *of != owner);
                            drop_from(objects, &owner, &domain.name, &text(&problems));
                        }
                    }
                }
            }
        };
        let owners = self
            .limits
            .into_iter()
            .map(|(owner, limit)| (limit.name, owner));
        DomainResult {
            policy,
            owners: owners.collect(),
            gateways: domain.gateways.clone(),
            mesh: domain.spec.mesh,
        }
    }
}

fn drop_from(objects: &mut BTreeMap<Key, ObjectResult>, owner: &Key, domain: &Name, why: &str) {
    let of = objects.get_mut(owner).into_iter();
    for ancestor in of.flat_map(|object| &mut object.ancestors) {
        if ancestor.domain.as_ref() == Some(domain) {
            ancestor.limits.clear();
            ancestor.accepted = Finding::failed("Invalid", why);
        }
    }
}

/// The N of `limits[N].rate`.
fn limit_at(path: &str) -> Option<usize> {
    path.strip_prefix("limits[")?
        .split_once(']')?
        .0
        .parse()
        .ok()
}

fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |json| json.len())
}

// --- Objects.

/// What is translated so far.
struct Placing<'t, 'o> {
    world: &'t World<'o>,
    /// The object whose override of a name holds at a Gateway.
    overriders: BTreeMap<(Key, String), Key>,
    budgets: &'t mut BTreeMap<Name, Budget>,
    /// What versions in force take of the budgets until their objects' turns come.
    reserved: BTreeMap<Key, Placed>,
}

/// A version of an object, read.
struct Version {
    spec: InForce<RateLimitSpec>,
    limits: Vec<Limit>,
    /// The names of those that replace others.
    overriding: BTreeSet<Name>,
    placements: Vec<Placement>,
}

/// The limits of a version in one domain.
#[derive(Default)]
struct InDomain {
    limits: Vec<Limit>,
    share: Share,
    /// The entries that they need of the proxies of Gateways, and of those of a mesh.
    gateways: BTreeSet<Name>,
    mesh: BTreeSet<Name>,
}

/// The same, by domain.
type Placed = BTreeMap<Name, InDomain>;

impl Placing<'_, '_> {
    /// Takes what the version in force needs of the budgets.
    fn reserve(&mut self, object: &RateLimit) {
        let key = object.metadata.key();
        let last = object.status.in_force.clone();
        let version = last.map(|last| self.version(object, last, true));
        if let Some(Ok((version, placed))) = version {
            self.override_by(&key, &version);
            for (domain, there) in &placed {
                if let Some(budget) = self.budgets.get_mut(domain) {
                    budget.take(&key.namespace, &there.share);
                }
            }
            self.reserved.insert(key, placed);
        }
    }

    fn object(&mut self, object: &RateLimit) -> ObjectResult {
        let key = object.metadata.key();
        for (domain, there) in self.reserved.get(&key).into_iter().flatten() {
            if let Some(budget) = self.budgets.get_mut(domain) {
                budget.give_back(&key.namespace, &there.share);
            }
        }
        let newest = InForce {
            generation: object.metadata.generation,
            spec: object.spec.clone(),
        };
        let last = object.status.in_force.clone();
        let accepted_before = last.as_ref().is_some_and(|last| *last == newest);
        let refused = match self.version(object, newest, accepted_before) {
            Ok((version, placed)) => return self.commit(object, version, placed, None),
            Err(refused) => refused,
        };
        let last = last.filter(|_| !accepted_before);
        match last.map(|last| self.version(object, last, true)) {
            Some(Ok((version, placed))) => self.commit(object, version, placed, Some(&refused.0)),
            _ => refused.into_result(object),
        }
    }

    /// Reads a version, and finds out where its limits go; nothing is added yet.
    fn version(
        &self,
        object: &RateLimit,
        spec: InForce<RateLimitSpec>,
        accepted_before: bool,
    ) -> Result<(Version, Placed), Refused> {
        let key = object.metadata.key();
        let invalid = |why: String| Finding::failed("Invalid", why);
        let checked = check_targets(&key, &spec.spec);
        let checked = checked.and_then(|()| check_size(&spec.spec));
        checked.map_err(|why| Refused(invalid(why), Vec::new()))?;
        let placements: Vec<Placement> = { spec.spec.target_refs.iter() }
            .flat_map(|target| self.world.resolve(&key.namespace, target))
            .collect();
        let mut version = match read_limits(&spec.spec) {
            Ok((limits, overriding)) => Version {
                spec,
                limits,
                overriding,
                placements,
            },
            Err(why) => return Err(Refused(invalid(why), placements)),
        };
        let conflict = self.mark_conflicts(&key, &mut version);
        // What is in force and an older object overrides since goes from those Gateways alone.
        if let Some(conflict) = conflict.filter(|_| !accepted_before) {
            return Err(Refused(conflict, version.placements));
        }
        let placed = self.place(&key, &version, accepted_before);
        match placed {
            Ok(placed) => Ok((version, placed)),
            Err(finding) => Err(Refused(finding, version.placements)),
        }
    }

    /// Takes the object away from Gateways where an older one overrides the same; returns what its status says
    /// at the first of them.
    fn mark_conflicts(&self, key: &Key, version: &mut Version) -> Option<Finding> {
        let mut found = None;
        for placement in &mut version.placements {
            let Requests::Gateway { key: gateway, .. } = &placement.requests else {
                continue;
            };
            let mut names = version.overriding.iter();
            let conflict = names.find_map(|name| {
                let at = (gateway.clone(), name.to_string());
                let other = { self.overriders.get(&at) }.filter(|other| *other != key)?;
                Some(format!(
                    "RateLimit {other}, which is older, overrides `{name}` at Gateway {gateway}"
                ))
            });
            if let Some(message) = conflict {
                let finding = Finding::failed("Conflicted", message);
                found.get_or_insert_with(|| finding.clone());
                placement.domain = Err(finding);
            }
        }
        found
    }

    fn place(
        &self,
        key: &Key,
        version: &Version,
        accepted_before: bool,
    ) -> Result<Placed, Finding> {
        let invalid = |why: String| Finding::failed("Invalid", why);
        let mut by_domain: BTreeMap<&Name, Vec<&Placement>> = BTreeMap::new();
        for placement in &version.placements {
            if let Ok(domain) = &placement.domain {
                by_domain.entry(domain).or_default().push(placement);
            }
        }
        let mut placed = BTreeMap::new();
        for (domain, placements) in by_domain {
            if !accepted_before {
                self.check_supply(domain, &version.limits)
                    .map_err(invalid)?;
            }
            let variants = self
                .world
                .conditions(domain, &placements, !accepted_before)
                .map_err(invalid)?;
            let mut there = InDomain::default();
            for (suffix, conditions) in variants {
                let in_mesh =
                    { conditions.iter() }.any(|(entry, _)| *entry == crate::CLUSTER_ENTRY);
                let variant = Variant {
                    key,
                    suffix,
                    conditions,
                    overridden: if in_mesh {
                        BTreeMap::new()
                    } else {
                        self.overridden(key, version, &placements)
                    },
                    elsewhere: self.world.supplies(domain, GATEWAY_ENTRY) == Some(false),
                };
                let limits = variant.limits(&version.limits).map_err(invalid)?;
                let needed = { limits.iter().flat_map(Limit::keys) }
                    .filter(|entry| !BUILT_IN.contains(&entry.as_str()))
                    .cloned();
                if in_mesh {
                    there.mesh.extend(needed);
                } else {
                    there.gateways.extend(needed);
                }
                there.limits.extend(limits);
            }
            let reserved = self.reserved.get(key).and_then(|placed| placed.get(domain));
            // Most are as they were, and to measure limits takes longer than to compare them.
            let same = reserved.filter(|reserved| reserved.limits == there.limits);
            there.share = same.map_or_else(
                || Share::of(&there.limits),
                |reserved| reserved.share.clone(),
            );
            if let Some(budget) = self.budgets.get(domain) {
                budget.fits(&key.namespace, &there.share)?;
            }
            placed.insert(domain.clone(), there);
        }
        Ok(placed)
    }

    /// An entry that no request has makes a limit apply to none, or to all of them together.
    fn check_supply(&self, domain: &Name, limits: &[Limit]) -> Result<(), String> {
        for limit in limits {
            let mut missing = limit
                .keys()
                .filter(|entry| self.world.supplies(domain, entry.as_str()) == Some(false));
            if let Some(entry) = missing.next() {
                return Err(format!(
                    "limit `{}`: no live proxy of domain {domain} supplies the entry `{entry}`; add it to \
                     `descriptors` in the filter's configuration",
                    limit.name
                ));
            }
        }
        Ok(())
    }

    /// For each limit of an object on routes, the Gateways of the placements that override it; `None`: all of them.
    fn overridden(
        &self,
        key: &Key,
        version: &Version,
        placements: &[&Placement],
    ) -> BTreeMap<Name, Option<BTreeSet<Key>>> {
        let gateway = |placement: &&&Placement| match &placement.requests {
            Requests::Route(_) => Some(Key::new(
                placement.ancestor.namespace.clone()?,
                &placement.ancestor.name,
            )),
            _ => None,
        };
        let routes = || {
            placements
                .iter()
                .filter(|found| matches!(found.requests, Requests::Route(_)))
        };
        let mut overridden = BTreeMap::new();
        for limit in &version.limits {
            let overrides = |gateway: &Key| {
                let at = (gateway.clone(), limit.name.to_string());
                self.overriders.get(&at).is_some_and(|other| other != key)
            };
            let of = routes().filter(|found| found.ancestor.kind == "Gateway");
            let at: BTreeSet<Key> = of
                .filter_map(|found| gateway(&found))
                .filter(overrides)
                .collect();
            let all = routes().all(|found| {
                found.ancestor.kind == "Gateway"
                    && gateway(&found).is_some_and(|key| at.contains(&key))
            });
            if !at.is_empty() {
                overridden.insert(limit.name.clone(), (!all).then_some(at));
            }
        }
        overridden
    }

    /// Lets the limits of a version override those of the same names at its Gateways.
    fn override_by(&mut self, key: &Key, version: &Version) {
        for placement in &version.placements {
            if let (Requests::Gateway { key: gateway, .. }, Ok(_)) =
                (&placement.requests, &placement.domain)
            {
                for name in &version.overriding {
                    let at = (gateway.clone(), name.to_string());
                    self.overriders.entry(at).or_insert_with(|| key.clone());
                }
            }
        }
    }

    /// Adds the limits of a version, and says what became of the object. `refused` is why it is not the newest.
    fn commit(
        &mut self,
        object: &RateLimit,
        version: Version,
        placed: Placed,
        refused: Option<&Finding>,
    ) -> ObjectResult {
        let key = object.metadata.key();
        self.override_by(&key, &version);
        let mut ancestors: BTreeMap<AncestorRef, AncestorResult> = BTreeMap::new();
        for placement in &version.placements {
            let there = { placement.domain.as_ref().ok() }.and_then(|domain| placed.get(domain));
            let limits = there.map_or(&[][..], |there| there.limits.as_slice());
            let entries = there.map(|there| match &placement.requests {
                Requests::Clusters(_) => there.mesh.clone(),
                _ => there.gateways.clone(),
            });
            let accepted = match (refused, &placement.domain) {
                (Some(refused), _) => refused.staying(version.spec.generation),
                (None, Err(finding)) => finding.clone(),
                (None, Ok(domain)) => self.accepted(domain, placement, &version, limits.len()),
            };
            let result = AncestorResult {
                ancestor: placement.ancestor.clone(),
                domain: placement.domain.clone().ok(),
                accepted,
                limits: limits.iter().map(|limit| limit.name.clone()).collect(),
                entries: entries.unwrap_or_default(),
                shadow: !limits.is_empty() && limits.iter().all(|limit| limit.enforce_percent == 0),
            };
            merge(&mut ancestors, result);
        }
        for (domain, there) in placed {
            if let Some(budget) = self.budgets.get_mut(&domain) {
                budget.take(&key.namespace, &there.share);
                let limits = there.limits.into_iter();
                budget
                    .limits
                    .extend(limits.map(|limit| (key.clone(), limit)));
            }
        }
        ObjectResult {
            in_force: Some(version.spec),
            ancestors: ancestors.into_values().collect(),
        }
    }

    fn accepted(
        &self,
        domain: &Name,
        placement: &Placement,
        version: &Version,
        count: usize,
    ) -> Finding {
        if count == 0 {
            return Finding {
                ok: true,
                reason: "Overridden",
                message: format!(
                    "overrides of Gateway {}/{} replace every limit of the object there",
                    placement.ancestor.namespace.as_deref().unwrap_or_default(),
                    placement.ancestor.name
                ),
            };
        }
        let limits = if count == 1 { "limit" } else { "limits" };
        let mut message = format!("{count} {limits} in domain {domain}");
        let of_domain = |other: &&Placement| other.domain.as_ref() == Ok(domain);
        let together: Vec<&Placement> = version.placements.iter().filter(of_domain).collect();
        let notes = [
            self.world.twins(&together),
            self.world.named_rule(&together),
        ];
        for note in notes.iter().flatten() {
            message = format!("{message}; {note}");
        }
        Finding::accepted(message)
    }
}

/// One entry for each ancestor. Of two findings the worse one is shown.
fn merge(ancestors: &mut BTreeMap<AncestorRef, AncestorResult>, result: AncestorResult) {
    match ancestors.get_mut(&result.ancestor) {
        None => drop(ancestors.insert(result.ancestor.clone(), result)),
        Some(known) => {
            if known.accepted.ok && !result.accepted.ok {
                known.accepted = result.accepted;
            }
            for limit in result.limits {
                if !known.limits.contains(&limit) {
                    known.limits.push(limit);
                }
            }
            known.entries.extend(result.entries);
            known.shadow &= result.shadow;
            known.domain = known.domain.take().or(result.domain);
        }
    }
}

/// Why a version is not accepted, and where it would have been.
struct Refused(Finding, Vec<Placement>);

impl Refused {
    /// Nothing of the object is in force.
    fn into_result(self, object: &RateLimit) -> ObjectResult {
        let Self(finding, placements) = self;
        let mut ancestors = BTreeMap::new();
        let result = |ancestor: AncestorRef, domain: Option<Name>| AncestorResult {
            ancestor,
            domain,
            accepted: finding.clone(),
            limits: Vec::new(),
            entries: BTreeSet::new(),
            shadow: false,
        };
        for placement in placements {
            merge(
                &mut ancestors,
                result(placement.ancestor, placement.domain.ok()),
            );
        }
        if ancestors.is_empty() {
            // A status needs an ancestor for its condition; the first target has the closest.
            let target = object.spec.target_refs.first().cloned().unwrap_or_default();
            let ancestor = AncestorRef {
                group: target.group,
                kind: target.kind,
                namespace: Some(object.metadata.namespace.clone()),
                name: target.name,
                section_name: target.section_name,
            };
            merge(&mut ancestors, result(ancestor, None));
        }
        ObjectResult {
            in_force: None,
            ancestors: ancestors.into_values().collect(),
        }
    }
}

// --- Reading one object.

/// Whether a name is one that the API server admits: nothing in it has a meaning in a pattern.
fn is_plain(name: &str, dots: bool) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || dots && byte == b'.'
    };
    !name.is_empty() && name.len() <= 253 && name.bytes().all(fits)
}

/// Whether a limit's name is a DNS label. A dot in it could make two limits one.
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_plain(name, false) && !name.starts_with('-') && !name.ends_with('-')
}

/// Whether a spec fits into the status as well.
fn check_size(spec: &impl Serialize) -> Result<(), String> {
    let bytes = bytes(spec);
    if bytes > SPEC_BYTES_MAX {
        return Err(format!(
            "the spec takes {bytes} bytes as JSON, more than {SPEC_BYTES_MAX}: write several objects"
        ));
    }
    Ok(())
}

fn check_targets(key: &Key, spec: &RateLimitSpec) -> Result<(), String> {
    if !is_label(&key.namespace) || !is_plain(&key.name, true) {
        return Err(format!("{key} is not the name of an object"));
    }
    let targets = &spec.target_refs;
    if targets.is_empty() || targets.len() > TARGETS_MAX {
        return Err(format!("targetRefs: 1 to {TARGETS_MAX} targets"));
    }
    let is_gateway = |target: &TargetRef| target.kind == "Gateway";
    for target in targets {
        let group = match target.kind.as_str() {
            "Gateway" | "HTTPRoute" | "GRPCRoute" => GATEWAY_API,
            "Service" => "",
            _ => return Err("targetRefs: a Gateway, HTTPRoute, GRPCRoute or Service".to_owned()),
        };
        if target.group != group {
            return Err(format!(
                "targetRefs: the group of a {} is \"{group}\"",
                target.kind
            ));
        }
        let section = target.section_name.as_deref();
        if !is_plain(&target.name, true) || section.is_some_and(|name| !is_plain(name, true)) {
            return Err(format!("targetRefs: {:?} is not a name", target.name));
        }
        if target.kind == "Service" && section.is_some() {
            return Err("targetRefs: a Service has no sections".to_owned());
        }
    }
    if targets.iter().any(is_gateway) && !targets.iter().all(is_gateway) {
        return Err("targetRefs: Gateways and others cannot be in one object".to_owned());
    }
    if !spec.overriding().is_empty() {
        let whole = |target: &TargetRef| is_gateway(target) && target.section_name.is_none();
        if !targets.iter().all(whole) {
            return Err("overrides: only whole Gateways override".to_owned());
        }
    }
    let count = spec.limits.len() + spec.overriding().len();
    if count == 0 || count > OBJECT_LIMITS_MAX {
        return Err(format!("1 to {OBJECT_LIMITS_MAX} limits"));
    }
    Ok(())
}

/// The limits by their own names, and which of them override.
fn read_limits(spec: &RateLimitSpec) -> Result<(Vec<Limit>, BTreeSet<Name>), String> {
    let all = spec.limits.iter().chain(spec.overriding());
    let node = Node::map([
        ("domain", Node::text("objects")),
        ("limits", Node::list(all.cloned())),
    ]);
    let policy = limits_file::policy_from_node(&node).map_err(|problems| text(&problems))?;
    for limit in &policy.limits {
        let name = &limit.name;
        if !is_label(name.as_str()) {
            return Err(format!(
                "limit `{name}`: the name of a limit in an object is a DNS label, without dots"
            ));
        }
        if limit.descriptor.is_some() {
            return Err(format!(
                "limit `{name}`: `descriptor` is for Envoy's rate limit service, whose requests have no target"
            ));
        }
    }
    let overriding = policy.limits.iter().skip(spec.limits.len());
    let overriding = overriding.map(|limit| limit.name.clone()).collect();
    Ok((policy.limits, overriding))
}

/// One form of an object's limits in one domain.
struct Variant<'v> {
    key: &'v Key,
    suffix: &'static str,
    conditions: Vec<Condition>,
    overridden: BTreeMap<Name, Option<BTreeSet<Key>>>,
    /// Whether no proxy says of which Gateway it is.
    elsewhere: bool,
}

impl Variant<'_> {
    fn limits(&self, limits: &[Limit]) -> Result<Vec<Limit>, String> {
        let kept = |name: &Name| !matches!(self.overridden.get(name), Some(None));
        let conditions = self.conditions.iter();
        let conditions = conditions.map(|(entry, patterns)| matcher(entry, patterns));
        let conditions: Vec<Matcher> = conditions.collect::<Result<_, _>>()?;
        let mut found = Vec::with_capacity(limits.len());
        for limit in limits.iter().filter(|limit| kept(&limit.name)) {
            let mut added = conditions.clone();
            if let Some(Some(gateways)) = self.overridden.get(&limit.name)
                && !self.elsewhere
            {
                let others = gateways.iter().map(|gateway| format!("!{gateway}"));
                added.push(matcher(GATEWAY_ENTRY, &others.collect::<Vec<_>>())?);
            }
            let mut limit = limit.clone();
            for matcher in added {
                let (name, entry) = (&limit.name, &matcher.key);
                if limit.matchers.iter().any(|own| own.key == *entry) {
                    return Err(format!("limit `{name}`: match.{entry}: targetRefs say it"));
                }
                // The reader bounds what an object says, but not with what its targets add.
                if matcher.patterns.len() > PATTERNS_MAX {
                    return Err(format!(
                        "targetRefs: more than {PATTERNS_MAX} patterns of `{entry}`"
                    ));
                }
                if limit.matchers.len() >= MATCHERS_MAX {
                    return Err(format!(
                        "limit `{name}`: match: more than {MATCHERS_MAX} entries with those of targetRefs"
                    ));
                }
                limit.matchers.push(matcher);
            }
            limit.name = self.name(&limit.name)?;
            let replaced = limit.replaces.iter().filter(|name| kept(name));
            limit.replaces = replaced
                .map(|name| self.name(name))
                .collect::<Result<_, _>>()?;
            found.push(limit);
        }
        Ok(found)
    }

    fn name(&self, limit: &Name) -> Result<Name, String> {
        let Key { namespace, name } = self.key;
        store_name(namespace, name, &format!("{limit}{}", self.suffix))
            .ok_or_else(|| format!("limit `{limit}`: no name for the store"))
    }
}

fn matcher(entry: &str, patterns: &[String]) -> Result<Matcher, String> {
    let name: Name = entry.parse().map_err(|error| format!("{entry}: {error}"))?;
    let parsed = patterns
        .iter()
        .map(|pattern| Pattern::parse(pattern).map_err(|error| format!("{pattern}: {error}")));
    Ok(Matcher::new(name, parsed.collect::<Result<_, _>>()?))
}

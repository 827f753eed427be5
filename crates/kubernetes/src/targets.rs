//! What a `targetRef` is in Envoy: at which Gateways its requests are seen, in which domain, and which entries of a
//! request say that it is one of them.
//!
//! A target is always in its object's namespace, and every pattern below begins with that namespace, which has no
//! dot and no slash. So no object matches requests of another namespace's route.

use std::collections::{BTreeMap, BTreeSet};

use policy::{BUILT_IN, Name};
use serde_json::{Value, json};

use crate::{
    AncestorRef, BackendRef, Finding, Gateway, Key, Objects, ParentRef, RateLimitDomainSpec, Route,
    RouteKind, TargetRef,
};

/// The entry whose value is the Gateway, as `NAMESPACE/NAME`: a constant in the configuration of its filter.
pub const GATEWAY_ENTRY: &str = "gateway";
/// The entry whose value is the name of the route's rule, where the route's metadata has it.
pub const RULE_ENTRY: &str = "route_rule";
/// The entry whose value is the upstream cluster of a sidecar's request.
pub const CLUSTER_ENTRY: &str = "cluster";

/// Envoy's name of the route.
pub(crate) const ROUTE_ENTRY: &str = "route";
/// The host of the request.
pub(crate) const HOST_ENTRY: &str = "host";

pub(crate) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// The `descriptors` that a Gateway's filter needs in its configuration, beside the user's own. Only Envoy Gateway's
/// routes have metadata.
pub fn filter_descriptors(gateway: &Key, envoy_gateway: bool) -> Value {
    let mut descriptors = vec![json!({"key": GATEWAY_ENTRY, "value": gateway.to_string()})];
    if envoy_gateway {
        let path = "xds route_metadata filter_metadata envoy-gateway resources 0 sectionName";
        let path: Vec<&str> = path.split(' ').collect();
        descriptors.push(json!({"key": RULE_ENTRY, "property": path}));
    }
    Value::Array(descriptors)
}

/// How routes are named in the proxies of a Gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialect {
    /// `httproute/NAMESPACE/NAME/rule/I/match/J/HOST`.
    EnvoyGateway,
    /// `NAMESPACE.NAME.I`.
    Istio,
    /// The class of the Gateway is not known: either.
    Unknown,
}

impl Dialect {
    /// That of Gateways whose class has this controller.
    pub(crate) fn of(controller: &str) -> Self {
        match controller.split_once('/') {
            Some(("gateway.envoyproxy.io", _)) => Self::EnvoyGateway,
            Some(("istio.io", _)) => Self::Istio,
            _ => Self::Unknown,
        }
    }
}

/// A domain and what it has of the cluster.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) name: Name,
    pub(crate) spec: RateLimitDomainSpec,
    /// Those of the spec that no older domain has.
    pub(crate) gateways: Vec<Key>,
}

impl Domain {
    /// Whether requests of other proxies than this Gateway's are in the domain.
    fn has_others(&self) -> bool {
        self.gateways.len() > 1 || self.spec.mesh
    }
}

/// The objects, found by what refers to them.
pub(crate) struct World<'o> {
    pub(crate) domains: BTreeMap<Name, Domain>,
    pub(crate) domain_of: BTreeMap<Key, Name>,
    /// The domains of meshes, older ones first.
    meshes: Vec<Name>,
    gateways: BTreeMap<Key, &'o Gateway>,
    dialects: BTreeMap<&'o str, Dialect>,
    routes: BTreeMap<(RouteKind, Key), &'o Route>,
    /// The rules that lead to a Service of their own namespace.
    backends: BTreeMap<Key, Vec<(&'o Route, Vec<usize>)>>,
    services: BTreeSet<Key>,
    labels: BTreeMap<&'o str, &'o BTreeMap<String, String>>,
    supply: &'o BTreeMap<Name, BTreeSet<Name>>,
    by_rule_name: &'o BTreeSet<Name>,
    cluster_domain: &'o str,
}

/// Where the requests of a target are seen.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) ancestor: AncestorRef,
    /// The domain; or why there is none.
    pub(crate) domain: Result<Name, Finding>,
    pub(crate) requests: Requests,
}

/// Which requests are a target's.
#[derive(Clone, Debug)]
pub(crate) enum Requests {
    /// All of a Gateway, or those with one of these hosts.
    Gateway { key: Key, hosts: Vec<String> },
    /// Those of a route, or of some of its rules.
    Route(RoutePart),
    /// Those to a Service of a mesh, by the patterns of its clusters.
    Clusters([String; 2]),
    /// None: the target was not found.
    None,
}

/// A route, or some rules of it, in the proxies of one Gateway.
#[derive(Clone, Debug)]
pub(crate) struct RoutePart {
    kind: RouteKind,
    key: Key,
    /// The rules by their position; `None`: all.
    rules: Option<Vec<usize>>,
    /// The name of the rule, if it was named.
    name: Option<String>,
    /// How many rules the route has.
    count: usize,
    dialect: Dialect,
}

/// A condition that a target adds to each limit: an entry and its patterns.
pub(crate) type Condition = (&'static str, Vec<String>);

/// What distinguishes the limits for gateways and for a mesh in one domain. No DNS label has this character.
pub(crate) const MESH_SUFFIX: &str = "_mesh";

impl<'o> World<'o> {
    pub(crate) fn new(objects: &'o Objects, domains: Vec<Domain>) -> Self {
        let mut domain_of = BTreeMap::new();
        for domain in &domains {
            let of = |key: &Key| (key.clone(), domain.name.clone());
            domain_of.extend(domain.gateways.iter().map(of));
        }
        let dialects = objects.classes.iter().map(|class| {
            let dialect = Dialect::of(&class.spec.controller_name);
            (class.metadata.name.as_str(), dialect)
        });
        let of_kind = |route: &'o Route| ((route.kind, route.object.metadata.key()), route);
        let routes: BTreeMap<_, _> = objects.routes.iter().map(of_kind).collect();
        let mut backends: BTreeMap<Key, Vec<(&Route, Vec<usize>)>> = BTreeMap::new();
        for route in routes.values() {
            let mut rules: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
            for (at, rule) in route.object.spec.rules.iter().enumerate() {
                let namespace = &route.object.metadata.namespace;
                let own = { rule.backend_refs.iter() }.filter(|to| is_service(to, namespace));
                let names: BTreeSet<&str> = own.map(|to| to.name.as_str()).collect();
                for name in names {
                    rules.entry(Key::new(namespace, name)).or_default().push(at);
                }
            }
            for (service, rules) in rules {
                backends.entry(service).or_default().push((route, rules));
            }
        }
        let meshes = domains.iter().filter(|domain| domain.spec.mesh);
        Self {
            meshes: meshes.map(|domain| domain.name.clone()).collect(),
            domains: { domains.into_iter() }
                .map(|domain| (domain.name.clone(), domain))
                .collect(),
            domain_of,
            gateways: { objects.gateways.iter() }
                .map(|gateway| (gateway.metadata.key(), gateway))
                .collect(),
            dialects: dialects.collect(),
            routes,
            backends,
            services: { objects.services.iter() }
                .map(|service| service.metadata.key())
                .collect(),
            labels: { objects.namespaces.iter() }
                .map(|found| (found.metadata.name.as_str(), &found.metadata.labels))
                .collect(),
            supply: &objects.supply,
            by_rule_name: &objects.by_rule_name,
            cluster_domain: match objects.cluster_domain.as_str() {
                "" => "cluster.local",
                other => other,
            },
        }
    }

    /// Whether live proxies of the domain supply an entry; `None`: there are none.
    pub(crate) fn supplies(&self, domain: &Name, entry: &str) -> Option<bool> {
        let listed = self.supply.get(domain)?;
        Some(BUILT_IN.contains(&entry) || listed.iter().any(|name| name.as_str() == entry))
    }

    /// Where the requests of a target are seen; at least one, if only to say that it was not found.
    pub(crate) fn resolve(&self, namespace: &str, target: &TargetRef) -> Vec<Placement> {
        let found = match target.kind.as_str() {
            "Gateway" => self.gateway(namespace, target).map(|found| vec![found]),
            "HTTPRoute" => self.route(RouteKind::Http, namespace, target),
            "GRPCRoute" => self.route(RouteKind::Grpc, namespace, target),
            _ => self.service(namespace, target),
        };
        found.unwrap_or_else(|finding| {
            vec![Placement {
                ancestor: AncestorRef {
                    group: target.group.clone(),
                    kind: target.kind.clone(),
                    namespace: Some(namespace.to_owned()),
                    name: target.name.clone(),
                    section_name: target.section_name.clone(),
                },
                domain: Err(finding),
                requests: Requests::None,
            }]
        })
    }

    // --- Gateways.

    fn gateway(&self, namespace: &str, target: &TargetRef) -> Result<Placement, Finding> {
        let key = Key::new(namespace, &target.name);
        let Some(gateway) = self.gateways.get(&key) else {
            return Err(not_found(format!("there is no Gateway {key}")));
        };
        let hosts = match &target.section_name {
            Some(section) => listener_hosts(gateway, &key, section)?,
            None => Vec::new(),
        };
        Ok(Placement {
            ancestor: gateway_ref(&key),
            domain: self.domain_of(&key, namespace),
            requests: Requests::Gateway { key, hosts },
        })
    }

    /// The domain of a Gateway, if objects of a namespace count there.
    fn domain_of(&self, gateway: &Key, namespace: &str) -> Result<Name, Finding> {
        let none = |message| Finding::failed("NoDomain", message);
        let domain = { self.domain_of.get(gateway) }.and_then(|name| self.domains.get(name));
        let domain = domain.ok_or_else(|| {
            none(format!(
                "no RateLimitDomain has Gateway {gateway} in its `gateways`"
            ))
        })?;
        if self.admits(domain, namespace) {
            return Ok(domain.name.clone());
        }
        Err(none(format!(
            "domain {} of Gateway {gateway} does not select namespace {namespace}",
            domain.name
        )))
    }

    fn admits(&self, domain: &Domain, namespace: &str) -> bool {
        let Some(selector) = &domain.spec.namespaces else {
            return true;
        };
        if let Some(labels) = self.labels.get(namespace) {
            return selector.selects(labels);
        }
        // Every namespace has this label; the object may have been read before its namespace.
        let name = (
            "kubernetes.io/metadata.name".to_owned(),
            namespace.to_owned(),
        );
        selector.selects(&BTreeMap::from([name]))
    }

    // --- Routes.

    fn route(
        &self,
        kind: RouteKind,
        namespace: &str,
        target: &TargetRef,
    ) -> Result<Vec<Placement>, Finding> {
        let key = Key::new(namespace, &target.name);
        let name = kind.name();
        let Some(route) = self.routes.get(&(kind, key.clone())) else {
            return Err(not_found(format!("there is no {name} {key}")));
        };
        let rules = match &target.section_name {
            None => None,
            Some(section) => {
                let rules = route.object.spec.rules.iter();
                let at = { rules }.position(|rule| rule.name.as_ref() == Some(section));
                let at = at.ok_or_else(|| {
                    not_found(format!("{name} {key} has no rule of the name `{section}`"))
                })?;
                Some(vec![at])
            }
        };
        let found = self.placed(route, rules.as_deref(), target.section_name.as_deref());
        if found.is_empty() {
            return Err(not_found(format!("no Gateway has taken {name} {key}")));
        }
        Ok(found)
    }

    /// The Gateways that have taken a route, and the Services of a mesh that it is for.
    fn placed(&self, route: &Route, rules: Option<&[usize]>, name: Option<&str>) -> Vec<Placement> {
        let metadata = &route.object.metadata;
        let namespace = &metadata.namespace;
        let part = |dialect| {
            Requests::Route(RoutePart {
                kind: route.kind,
                key: metadata.key(),
                rules: rules.map(<[usize]>::to_vec),
                name: name.map(str::to_owned),
                count: route.object.spec.rules.len(),
                dialect,
            })
        };
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for parent in &route.object.spec.parent_refs {
            let key = Key::new(parent.namespace.as_ref().unwrap_or(namespace), &parent.name);
            let kind = parent.kind.as_deref().unwrap_or("Gateway");
            if refused(route, parent) || !seen.insert((kind, key.clone())) {
                continue;
            }
            match kind {
                "Gateway" => found.push(Placement {
                    ancestor: gateway_ref(&key),
                    domain: if self.gateways.contains_key(&key) {
                        self.domain_of(&key, namespace)
                    } else {
                        Err(not_found(format!("there is no Gateway {key}")))
                    },
                    requests: part(self.dialect(&key)),
                }),
                // Only Istio takes routes of a mesh, and names them as those of its gateways.
                "Service" if key.namespace == *namespace => {
                    found.extend(self.in_mesh(&key, part(Dialect::Istio)));
                }
                _ => {}
            }
        }
        found
    }

    fn dialect(&self, gateway: &Key) -> Dialect {
        let class = self.gateways.get(gateway);
        let class = class.map(|gateway| gateway.spec.gateway_class_name.as_str());
        let known = class.and_then(|class| self.dialects.get(class)).copied();
        known.unwrap_or(Dialect::Unknown)
    }

    // --- Services.

    fn service(&self, namespace: &str, target: &TargetRef) -> Result<Vec<Placement>, Finding> {
        let key = Key::new(namespace, &target.name);
        if !self.services.contains(&key) {
            return Err(not_found(format!("there is no Service {key}")));
        }
        let mut found = Vec::new();
        for (route, rules) in self.backends.get(&key).into_iter().flatten() {
            found.extend(self.placed(route, Some(rules), None));
        }
        let host = format!("{}.{namespace}.svc.{}", target.name, self.cluster_domain);
        // `outbound|PORT|SUBSET|HOST` in sidecars, where `SUBSET` is one of a DestinationRule or empty;
        // `inbound-vip|PORT|http/SUBSET|HOST`, or `http` alone, in waypoints.
        let clusters = [
            format!("outbound|*|*|{host}"),
            format!("inbound-vip|*|**|{host}"),
        ];
        found.extend(self.in_mesh(&key, Requests::Clusters(clusters)));
        if found.is_empty() {
            return Err(not_found(format!(
                "no route of its namespace that a Gateway has taken leads to Service {key}, and no domain \
                 with `mesh: true` selects the namespace"
            )));
        }
        Ok(found)
    }

    /// A Service in the mesh: the domain of its namespace's sidecars, of several that select it the oldest.
    fn in_mesh(&self, service: &Key, requests: Requests) -> Option<Placement> {
        let meshes = self.meshes.iter().filter_map(|name| self.domains.get(name));
        let domain = { meshes }.find(|domain| self.admits(domain, &service.namespace))?;
        Some(Placement {
            ancestor: AncestorRef {
                kind: "Service".to_owned(),
                namespace: Some(service.namespace.clone()),
                name: service.name.clone(),
                ..AncestorRef::default()
            },
            domain: Ok(domain.name.clone()),
            requests,
        })
    }

    // --- What the targets of one object in one domain add to its limits.

    /// The conditions of each variant of the limits, by the suffix of its names. `strict`: live proxies must supply
    /// the entries of conditions.
    ///
    /// # Errors
    /// Why no condition says it.
    pub(crate) fn conditions(
        &self,
        domain: &Name,
        placements: &[&Placement],
        strict: bool,
    ) -> Result<Vec<(&'static str, Vec<Condition>)>, String> {
        let (mut gateways, mut parts, mut clusters) = (Vec::new(), Vec::new(), BTreeSet::new());
        for placement in placements {
            match &placement.requests {
                Requests::Gateway { key, hosts } => gateways.push((key, hosts)),
                Requests::Route(part) => parts.push(part),
                Requests::Clusters(patterns) => clusters.extend(patterns.iter().cloned()),
                Requests::None => {}
            }
        }
        let mut variants = Vec::new();
        if !gateways.is_empty() {
            variants.push(("", self.of_gateways(domain, &gateways, strict)?));
        }
        if !parts.is_empty() {
            variants.push(("", self.of_routes(domain, &parts)));
        }
        if !clusters.is_empty() {
            let suffix = if variants.is_empty() { "" } else { MESH_SUFFIX };
            if strict {
                self.needs(domain, CLUSTER_ENTRY, "a Service of a mesh is found by it")?;
            }
            let conditions = vec![(CLUSTER_ENTRY, clusters.into_iter().collect())];
            variants.push((suffix, conditions));
        }
        Ok(variants)
    }

    /// An entry that proxies supply if their filter is configured so.
    fn needs(&self, domain: &Name, entry: &str, why: &str) -> Result<(), String> {
        match self.supplies(domain, entry) {
            Some(false) => Err(format!(
                "no live proxy of domain {domain} supplies the entry `{entry}`: {why}; add it to \
                 `descriptors` in the filter's configuration"
            )),
            _ => Ok(()),
        }
    }

    fn of_gateways(
        &self,
        domain: &Name,
        gateways: &[(&Key, &Vec<String>)],
        strict: bool,
    ) -> Result<Vec<Condition>, String> {
        let mut conditions = Vec::new();
        let keys: BTreeSet<&Key> = gateways.iter().map(|(key, _)| *key).collect();
        if self.domains.get(domain).is_some_and(Domain::has_others) {
            if strict {
                let why =
                    "several proxies share the domain, and a Gateway is told from the others by it";
                self.needs(domain, GATEWAY_ENTRY, why)?;
            }
            let keys = keys.iter().map(ToString::to_string);
            conditions.push((GATEWAY_ENTRY, keys.collect()));
        }
        // Listeners of one Gateway add up; of several, each with its own hosts, no two entries say.
        let hosts: BTreeSet<Option<BTreeSet<&String>>> = { keys.into_iter() }
            .map(|key| {
                let own = gateways.iter().filter(|(of, _)| *of == key);
                hosts_of_all(own.map(|(_, hosts)| hosts.as_slice()))
            })
            .collect();
        match hosts.into_iter().collect::<Option<Vec<_>>>().as_deref() {
            Some([hosts]) => {
                let hosts: Vec<String> = hosts.iter().map(|host| (*host).clone()).collect();
                conditions.extend(Some((HOST_ENTRY, hosts)).filter(|(_, hosts)| !hosts.is_empty()));
                Ok(conditions)
            }
            _ => Err(
                "these listeners cannot be in one object: write one for each of them".to_owned(),
            ),
        }
    }

    fn of_routes(&self, domain: &Name, parts: &[&RoutePart]) -> Vec<Condition> {
        // At a proxy without the entry no request would match, such as at one that a rollout has not reached; and who
        // supplies it says nothing of another Gateway's proxies that are still to come.
        let is_shared = self.domains.get(domain).is_some_and(Domain::has_others);
        if !is_shared
            && self.by_rule_name.contains(domain)
            && let Some(conditions) = by_metadata(parts)
        {
            return conditions;
        }
        let patterns: BTreeSet<String> = parts.iter().flat_map(|part| part.patterns()).collect();
        vec![(ROUTE_ENTRY, patterns.into_iter().collect())]
    }

    /// A rule with a name, which newer versions of Istio give to Envoy's route without saying whose it is. A pattern of
    /// it would match other namespaces' routes.
    pub(crate) fn named_rule(&self, placements: &[&Placement]) -> Option<String> {
        let mut parts = placements
            .iter()
            .filter_map(|placement| match &placement.requests {
                Requests::Route(part) if part.dialect != Dialect::EnvoyGateway => Some(part),
                _ => None,
            });
        parts.find_map(|part| {
            let route = self.routes.get(&(part.kind, part.key.clone()))?;
            let is_part = |at| part.rules.as_ref().is_none_or(|rules| rules.contains(&at));
            let mut rules = { route.object.spec.rules.iter().enumerate() }
                .filter_map(|(at, rule)| rule.name.as_ref().filter(|_| is_part(at)));
            let name = rules.next()?;
            Some(format!(
                "newer versions of Istio call the route of rule `{name}` of {} {} `{name}` alone, and the limits do \
                 not apply to it there: leave out the rule's name",
                part.kind.name(),
                part.key
            ))
        })
    }

    /// Routes that proxies of Istio cannot tell apart: they name both kinds alike.
    pub(crate) fn twins(&self, placements: &[&Placement]) -> Option<String> {
        let twin = placements
            .iter()
            .find_map(|placement| match &placement.requests {
                Requests::Route(part) if part.dialect != Dialect::EnvoyGateway => {
                    let other = match part.kind {
                        RouteKind::Http => RouteKind::Grpc,
                        RouteKind::Grpc => RouteKind::Http,
                    };
                    let there = self.routes.contains_key(&(other, part.key.clone()));
                    there.then_some((part.kind, other, &part.key))
                }
                _ => None,
            });
        twin.map(|(kind, other, key)| {
            format!(
                "Istio names the routes of {} {key} like those of the {} of that name, which is limited as well",
                kind.name(),
                other.name()
            )
        })
    }
}

/// The hosts of several listeners of one Gateway, or none for all hosts; `None`: no list of patterns says it, since a
/// negated one would take requests from the others.
fn hosts_of_all<'h>(listeners: impl Iterator<Item = &'h [String]>) -> Option<BTreeSet<&'h String>> {
    let lists: BTreeSet<&[String]> = listeners.collect();
    if lists.iter().any(|hosts| hosts.is_empty()) {
        return Some(BTreeSet::new());
    }
    let several = lists.len() > 1;
    let hosts: BTreeSet<&String> = lists.into_iter().flatten().collect();
    let negated = hosts.iter().any(|host| host.starts_with('!'));
    (!(several && negated)).then_some(hosts)
}

/// By the names of rules in the routes' metadata, which stay when rules are reordered; `None`: a part is not named, or
/// has no metadata, or the two conditions would match more than these rules.
fn by_metadata(parts: &[&RoutePart]) -> Option<Vec<Condition>> {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for part in parts {
        let name = part
            .name
            .clone()
            .filter(|_| part.dialect == Dialect::EnvoyGateway)?;
        named.entry(part.whole()).or_default().insert(name);
    }
    let mut sets = named.values();
    let rules = sets.next()?.clone();
    sets.all(|other| *other == rules).then(|| {
        vec![
            (ROUTE_ENTRY, named.into_keys().collect()),
            (RULE_ENTRY, rules.into_iter().collect()),
        ]
    })
}

impl RoutePart {
    /// The pattern of the whole route in Envoy Gateway's proxies.
    fn whole(&self) -> String {
        let Key { namespace, name } = &self.key;
        let kind = self.kind.name().to_ascii_lowercase();
        format!("{kind}/{namespace}/{name}/**")
    }

    /// The patterns of Envoy's route names. Each is found by a look-up, however many there are.
    fn patterns(&self) -> Vec<String> {
        let Key { namespace, name } = &self.key;
        let kind = self.kind.name().to_ascii_lowercase();
        let mut patterns = Vec::new();
        if self.dialect != Dialect::Istio {
            match &self.rules {
                None => patterns.push(self.whole()),
                Some(rules) => patterns.extend(
                    { rules.iter() }.map(|at| format!("{kind}/{namespace}/{name}/rule/{at}/**")),
                ),
            }
        }
        if self.dialect != Dialect::EnvoyGateway {
            // One by one: `NAME.*` would also match the routes of NAME.x.
            let all = || (0..self.count).collect();
            let rules = self.rules.clone().unwrap_or_else(all);
            patterns.extend(rules.iter().map(|at| format!("{namespace}.{name}.{at}")));
        }
        patterns
    }
}

/// The hosts of a listener's requests: its own, without those that another listener has more exactly.
fn listener_hosts(gateway: &Gateway, key: &Key, section: &str) -> Result<Vec<String>, Finding> {
    let listeners = &gateway.spec.listeners;
    let Some(listener) = listeners.iter().find(|one| one.name == section) else {
        return Err(not_found(format!(
            "Gateway {key} has no listener of the name `{section}`"
        )));
    };
    let host =
        |listener: &'_ crate::Listener| listener.hostname.clone().filter(|host| !host.is_empty());
    let own = host(listener);
    let others = listeners.iter().filter(|other| other.name != section);
    let mut hosts: Vec<String> = own.iter().cloned().collect();
    for other in others {
        let other_host = host(other);
        if other_host == own {
            return Err(Finding::failed(
                "Invalid",
                format!(
                    "listeners `{section}` and `{}` of Gateway {key} have the same hostname, by which alone \
                     their requests could be told apart",
                    other.name
                ),
            ));
        }
        let within = match (&own, &other_host) {
            (None, Some(other)) => Some(other),
            (Some(own), Some(other)) => {
                let suffix = own.strip_prefix('*');
                { suffix }
                    .filter(|suffix| other.ends_with(*suffix))
                    .map(|_| other)
            }
            (_, None) => None,
        };
        hosts.extend(within.map(|other| format!("!{other}")));
    }
    Ok(hosts)
}

fn gateway_ref(key: &Key) -> AncestorRef {
    AncestorRef {
        group: GATEWAY_API.to_owned(),
        kind: "Gateway".to_owned(),
        namespace: Some(key.namespace.clone()),
        name: key.name.clone(),
        section_name: None,
    }
}

fn not_found(message: String) -> Finding {
    Finding::failed("TargetNotFound", message)
}

/// Whether a backend is a Service of the route's own namespace. What leads elsewhere is another tenant's.
fn is_service(to: &BackendRef, namespace: &str) -> bool {
    let core = to.group.as_deref().unwrap_or_default().is_empty();
    let service = to.kind.as_deref().unwrap_or("Service") == "Service";
    core && service && to.namespace.as_deref().unwrap_or(namespace) == namespace
}

/// Whether the Gateway's controller has refused the route: its proxies do not have it.
fn refused(route: &Route, parent: &ParentRef) -> bool {
    let namespace = &route.object.metadata.namespace;
    let of = |parent: &ParentRef| {
        let kind = parent.kind.clone().unwrap_or_else(|| "Gateway".to_owned());
        let namespace = parent.namespace.as_ref().unwrap_or(namespace);
        (kind, Key::new(namespace, &parent.name))
    };
    let said = route.object.status.parents.iter();
    let mut said = said
        .filter(|said| of(&said.parent_ref) == of(parent))
        .peekable();
    let no = |said: &crate::RouteParentStatus| {
        let accepted = { said.conditions.iter() }.find(|found| found.kind == "Accepted");
        accepted.is_some_and(|found| found.status == "False")
    };
    // A parentRef for each of several listeners: one that is taken is enough.
    said.peek().is_some() && said.all(no)
}

//! For any objects: no two share a bucket, none matches a foreign namespace's route, and each that is accepted on a
//! route matches it.

use std::collections::{BTreeMap, BTreeSet};

use kubernetes::{
    BackendRef, Gateway, Key, Listener, Metadata, Objects, ParentRef, RateLimit, RateLimitDomain,
    RateLimitSpec, Route, RouteKind, RouteRule, Service, TargetRef, store_name, translate,
};
use policy::{Compiled, Descriptor, Name, Node};
use proptest::prelude::*;

const NAMESPACES: [&str; 4] = ["a", "a-b", "b", "0"];
/// Names that a careless pattern takes for each other.
const NAMES: [&str; 7] = ["a", "b", "a.0", "a.b", "0", "rule", "a-0"];
const RULES: [&str; 2] = ["pay", "list"];
const GATEWAYS: [&str; 2] = ["a", "b"];

fn metadata(namespace: &str, name: &str, generation: i64) -> Metadata {
    Metadata {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        generation,
        ..Metadata::default()
    }
}

fn names() -> impl Strategy<Value = (&'static str, &'static str)> {
    (
        prop::sample::select(&NAMESPACES[..]),
        prop::sample::select(&NAMES[..]),
    )
}

fn kinds() -> impl Strategy<Value = RouteKind> {
    prop_oneof![Just(RouteKind::Http), Just(RouteKind::Grpc)]
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let rule = (
        prop::option::of(prop::sample::select(&RULES[..])),
        prop::option::of(names()),
    );
    let rules = prop::collection::vec(rule, 1..3);
    let route = (kinds(), names(), rules, prop::sample::select(&GATEWAYS[..]));
    prop::collection::vec(route, 1..8).prop_map(|routes| {
        let mut taken = BTreeSet::new();
        let routes = routes
            .into_iter()
            .filter_map(|(kind, (namespace, name), rules, gateway)| {
                let mut route = Route::default();
                route.kind = kind;
                route.object.metadata = metadata(namespace, name, 1);
                route.object.spec.parent_refs.push(ParentRef {
                    namespace: Some("a".to_owned()),
                    name: gateway.to_owned(),
                    ..ParentRef::default()
                });
                let mut named = BTreeSet::new();
                for (rule, backend) in rules {
                    route.object.spec.rules.push(RouteRule {
                        name: rule.filter(|name| named.insert(*name)).map(str::to_owned),
                        backend_refs: { backend.into_iter() }
                            .map(|(namespace, name)| BackendRef {
                                namespace: Some(namespace.to_owned()),
                                name: name.to_owned(),
                                ..BackendRef::default()
                            })
                            .collect(),
                    });
                }
                taken.insert((kind, namespace, name)).then_some(route)
            });
        routes.collect()
    })
}

fn rate_limits() -> impl Strategy<Value = Vec<RateLimit>> {
    let kind = prop::sample::select(&["HTTPRoute", "GRPCRoute", "Service", "Gateway"][..]);
    let section = prop::option::of(prop::sample::select(&RULES[..]));
    let target = (kind, prop::sample::select(&NAMES[..]), section);
    let targets = prop::collection::vec(target, 1..3);
    let object = (names(), targets, any::<bool>());
    prop::collection::vec(object, 1..10).prop_map(|objects| {
        let mut taken = BTreeSet::new();
        let objects = objects
            .into_iter()
            .filter_map(|((namespace, name), targets, two)| {
                let targets = targets.into_iter().map(|(kind, name, section)| TargetRef {
                    group: if kind == "Service" {
                        ""
                    } else {
                        "gateway.networking.k8s.io"
                    }
                    .to_owned(),
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                    section_name: section
                        .filter(|_| kind.ends_with("Route"))
                        .map(str::to_owned),
                });
                let limit = |name: &str| {
                    Node::map([("name", Node::text(name)), ("rate", Node::text("1/s"))])
                };
                let mut object = RateLimit::default();
                object.metadata = metadata(namespace, name, 1);
                object.spec = RateLimitSpec {
                    target_refs: targets.collect(),
                    limits: if two {
                        vec![limit("a"), limit("b")]
                    } else {
                        vec![limit("a")]
                    },
                    overrides: None,
                };
                taken.insert((namespace, name)).then_some(object)
            });
        objects.collect()
    })
}

/// How a Gateway's proxies are told apart, and how they name routes.
fn surroundings() -> impl Strategy<Value = (Option<&'static str>, bool)> {
    const CONTROLLERS: [&str; 2] = [
        "gateway.envoyproxy.io/gatewayclass-controller",
        "istio.io/gateway-controller",
    ];
    (
        prop::option::of(prop::sample::select(&CONTROLLERS[..])),
        any::<bool>(),
    )
}

fn world(
    rate_limits: Vec<RateLimit>,
    routes: Vec<Route>,
    (controller, metadata_is_read): (Option<&str>, bool),
) -> Objects {
    let mut domain = RateLimitDomain::default();
    domain.metadata = metadata("", "shop", 1);
    domain.spec.domain = "shop".to_owned();
    let gateways = GATEWAYS.map(|name| {
        domain.spec.gateways.push(kubernetes::GatewayRef {
            namespace: "a".to_owned(),
            name: name.to_owned(),
        });
        let mut gateway = Gateway::default();
        gateway.metadata = metadata("a", name, 1);
        gateway.spec.gateway_class_name = "class".to_owned();
        gateway.spec.listeners.push(Listener::default());
        gateway
    });
    let class = controller.map(|controller| {
        let mut class = kubernetes::GatewayClass::default();
        class.metadata = metadata("", "class", 1);
        class.spec.controller_name = controller.to_owned();
        class
    });
    let all = NAMESPACES
        .iter()
        .flat_map(|namespace| NAMES.iter().map(move |name| (namespace, name)));
    let services = all.map(|(namespace, name)| Service {
        metadata: metadata(namespace, name, 1),
        ..Service::default()
    });
    let mut entries = BTreeSet::from(["gateway".parse().unwrap()]);
    let shop: Name = "shop".parse().unwrap();
    let mut by_rule_name = BTreeSet::new();
    if metadata_is_read {
        entries.insert("route_rule".parse().unwrap());
        by_rule_name.insert(shop.clone());
    }
    Objects {
        rate_limits,
        domains: vec![domain],
        gateways: gateways.to_vec(),
        classes: class.into_iter().collect(),
        routes,
        services: services.collect(),
        supply: BTreeMap::from([(shop, entries)]),
        by_rule_name,
        cluster_domain: "cluster.local".to_owned(),
        ..Objects::default()
    }
}

/// What a proxy says of a request of a rule: in the words of Envoy Gateway, and of Istio.
fn descriptors(route: &Route, at: usize, controller: Option<&str>) -> Vec<Descriptor> {
    let Key { namespace, name } = route.object.metadata.key();
    let gateway = format!("a/{}", route.object.spec.parent_refs[0].name);
    let kind = route.kind.name().to_lowercase();
    let envoy_gateway = [
        format!("{kind}/{namespace}/{name}/rule/{at}/match/0"),
        format!("{kind}/{namespace}/{name}/rule/{at}/match/3/www_example_com"),
    ];
    let istio = format!("{namespace}.{name}.{at}");
    let rule = route.object.spec.rules[at].name.clone();
    let mut found = Vec::new();
    let mut add = |route: &str, rule: Option<&str>| {
        let mut descriptor = Descriptor::new();
        descriptor.insert("route".parse().unwrap(), route);
        descriptor.insert("gateway".parse().unwrap(), gateway.as_str());
        if let Some(rule) = rule {
            descriptor.insert("route_rule".parse().unwrap(), rule);
        }
        found.push(descriptor);
    };
    if controller.is_none_or(|name| name.starts_with("gateway.envoyproxy.io/")) {
        for name in &envoy_gateway {
            add(name, rule.as_deref());
        }
    }
    if controller.is_none_or(|name| name.starts_with("istio.io/")) {
        add(&istio, None);
    }
    found
}

/// Whether a target is this rule of this route.
fn means(target: &TargetRef, namespace: &str, route: &Route, at: usize) -> bool {
    let metadata = &route.object.metadata;
    let rule = &route.object.spec.rules[at];
    let own = metadata.namespace == namespace;
    if target.kind == "Service" {
        let leads =
            |to: &BackendRef| to.namespace.as_deref() == Some(namespace) && to.name == target.name;
        return own && rule.backend_refs.iter().any(leads);
    }
    own && target.kind == route.kind.name()
        && target.name == metadata.name
        && (target.section_name.is_none() || target.section_name == rule.name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_limit_matches_what_its_object_names_and_no_other_tenant(
        rate_limits in rate_limits(),
        routes in routes(),
        surroundings in surroundings(),
    ) {
        let objects = world(rate_limits, routes, surroundings);
        let found = translate(&objects);
        let domain = &found.domains["shop"];
        let count: usize = objects.rate_limits.iter().map(|object| object.spec.limits.len()).sum();
        prop_assert!(domain.owners.len() <= count);
        prop_assert_eq!(domain.owners.len(), domain.policy.limits.len(), "two share a bucket");
        let compiled = Compiled::new(domain.policy.clone());
        for route in &objects.routes {
            for at in 0..route.object.spec.rules.len() {
                for descriptor in descriptors(route, at, surroundings.0) {
                    let matched = compiled.matching(&descriptor, 0);
                    let matched: BTreeSet<&Key> = matched.iter().map(|one| &domain.owners[&one.limit.name]).collect();
                    let is_istio = descriptor.get("route").is_some_and(|name| !name.contains(&b'/'));
                    for object in &objects.rate_limits {
                        let key = object.metadata.key();
                        let targets = &object.spec.target_refs;
                        let gateway = |target: &TargetRef| {
                            target.kind == "Gateway"
                                && key.namespace == "a"
                                && target.name == route.object.spec.parent_refs[0].name
                        };
                        let meant = targets.iter().any(|target| {
                            gateway(target) || means(target, &key.namespace, route, at)
                        });
                        let accepted = found.objects[&key].in_force.is_some();
                        if matched.contains(&key) {
                            // Istio names the routes of both kinds alike, and objects say so.
                            let mut twin = route.clone();
                            twin.kind = if route.kind == RouteKind::Http { RouteKind::Grpc } else { RouteKind::Http };
                            let is_twin = is_istio && targets.iter().any(|target| {
                                target.kind == twin.kind.name()
                                    && target.name == route.object.metadata.name
                                    && key.namespace == route.object.metadata.namespace
                            });
                            let by_service = is_istio && targets.iter().any(|target| target.kind == "Service")
                                && key.namespace == route.object.metadata.namespace;
                            prop_assert!(meant || is_twin || by_service, "{key} limits {descriptor:?}");
                        } else {
                            prop_assert!(!(meant && accepted), "{key} does not limit {descriptor:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        rate_limits in rate_limits(),
        routes in routes(),
        surroundings in surroundings(),
    ) {
        let objects = world(rate_limits, routes, surroundings);
        let mut turned = objects.clone();
        turned.rate_limits.reverse();
        turned.routes.reverse();
        turned.gateways.reverse();
        let (found, turned) = (translate(&objects), translate(&turned));
        prop_assert_eq!(&found.domains["shop"].policy, &turned.domains["shop"].policy);
        prop_assert_eq!(format!("{:?}", found.objects), format!("{:?}", turned.objects));
    }

    #[test]
    fn names_in_the_store_are_as_different_as_their_parts(
        parts in prop::collection::vec(("[a-z0-9]{1,3}|[a-z]{40,63}", "[a-z0-9][a-z0-9.-]{0,3}|[a-z.]{60,120}", "[a-z0-9]{1,3}|[a-z]{63}"), 2),
    ) {
        let [a, b] = parts.as_slice() else { panic!() };
        let name = |(namespace, name, limit): &(String, String, String)| store_name(namespace, name, limit).unwrap();
        prop_assert_eq!(a == b, name(a) == name(b));
    }
}

/// A thousand objects and routes: `cargo test --release -p kubernetes -- --ignored --nocapture thousand`.
#[test]
#[ignore = "a measurement"]
fn a_thousand_objects() {
    let mut yaml = super::SHOP.to_owned();
    for n in 0..1000 {
        let (namespace, name) = (format!("n{}", n % 50), format!("r{n}"));
        yaml += &super::route(&namespace, &name, "null,null");
        let limits = "{name: per-user, match: {path: ['/api/**']}, per: [user], rate: 10/s}, {name: all, rate: 100/s}";
        yaml += &super::on_route(&namespace, &name, &name, limits);
    }
    let mut objects = super::objects(&yaml);
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let found = translate(&objects);
        println!(
            "{} limits in {:?}",
            found.domains["shop"].policy.limits.len(),
            start.elapsed()
        );
        // From the second time on, as a controller has them.
        for object in &mut objects.rate_limits {
            object.status.in_force = found.objects[&object.metadata.key()].in_force.clone();
        }
    }
}

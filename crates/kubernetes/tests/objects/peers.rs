//! What other projects got wrong with such objects, as far as a translation shows it.

use std::collections::BTreeSet;

use kubernetes::{Translation, translate};
use policy::Name;

use super::{
    SHOP, ancestors, matching, objects, on_gateway, on_route, policy, rate_limit, reason, route,
    translated,
};

const TEN: &str = "{name: per-user, per: [user], rate: 10/s}";

/// Envoy's names of a route's first rule: Envoy Gateway's for a host, and Istio's.
fn names(namespace: &str, name: &str, host: &str) -> [String; 2] {
    [
        format!("httproute/{namespace}/{name}/rule/0/match/0/{host}"),
        format!("{namespace}.{name}.0"),
    ]
}

/// envoyproxy/gateway#8707, #3086: only the first listener was limited, or the last.
#[test]
fn a_policy_on_a_gateway_limits_all_of_its_listeners() {
    let found = translated(&format!(
        "{SHOP}{}",
        on_gateway("all", &format!("limits: [{TEN}]"))
    ));
    for host in [
        "a.example.com",
        "b.example.com",
        "x.example.com",
        "other.org",
    ] {
        let limits = matching(policy(&found, "shop"), &[("host", host), ("user", "u")]);
        assert_eq!(limits, ["infra.all.per-user"], "{host}");
    }
}

/// The same with one object for each listener: each limits its own listener alone.
#[test]
fn a_policy_on_a_listener_limits_that_listener() {
    let on = |section: &str| {
        let target = format!(
            "{{group: gateway.networking.k8s.io, kind: Gateway, name: public, sectionName: {section}}}"
        );
        rate_limit("infra", section, &target, &format!("limits: [{TEN}]"))
    };
    let found = translated(&format!(
        "{SHOP}{}{}{}{}",
        on("a"),
        on("b"),
        on("c"),
        on("d")
    ));
    for (host, limit) in [
        ("a.example.com", "infra.a.per-user"),
        ("b.example.com", "infra.b.per-user"),
        ("x.example.com", "infra.c.per-user"),
        ("other.org", "infra.d.per-user"),
    ] {
        assert_eq!(
            matching(policy(&found, "shop"), &[("host", host)]),
            [limit],
            "{host}"
        );
    }
}

/// envoyproxy/gateway#3079: one of the two hostnames of a route was limited.
#[test]
fn both_hostnames_of_a_route_are_limited() {
    let limit = on_route("shop", "checkout", "checkout", TEN);
    let found = translated(&format!(
        "{SHOP}{}{limit}",
        route("shop", "checkout", "null")
    ));
    for host in ["a_example_com", "b_example_com", "*"] {
        for name in names("shop", "checkout", host) {
            let limits = matching(policy(&found, "shop"), &[("route", &name)]);
            assert_eq!(limits, ["shop.checkout.per-user"], "{name}");
        }
    }
}

/// envoyproxy/gateway#7957: one bad pattern took every route down.
#[test]
fn one_bad_pattern_takes_no_other_route_down() {
    let bad = "{name: bad, match: {path: ['re:(']}, rate: 1/s}, {name: good, rate: 1/s}";
    let found = translated(&format!(
        "{SHOP}{}{}{}{}",
        route("shop", "checkout", "null"),
        route("shop", "search", "null"),
        on_route("shop", "checkout", "checkout", bad),
        on_route("shop", "search", "search", TEN),
    ));
    assert_eq!(reason(&found, "shop", "checkout"), "Invalid");
    let message = &ancestors(&found, "shop", "checkout")[0].accepted.message;
    assert!(message.contains("limit `bad`: match.path[0]"), "{message}");
    assert_eq!(reason(&found, "shop", "search"), "Accepted");
    let [_, name] = names("shop", "search", "");
    assert_eq!(
        matching(policy(&found, "shop"), &[("route", &name)]),
        ["shop.search.per-user"]
    );
}

/// kuadrant-operator#653: enforced, without a configuration of the filter.
#[test]
fn a_gateway_that_is_in_no_domain_accepts_nothing() {
    let target = "{group: gateway.networking.k8s.io, kind: Gateway, name: other}";
    let other = "kind: Gateway
apiVersion: gateway.networking.k8s.io/v1
metadata: {name: other, namespace: infra}
---
";
    let limit = rate_limit("infra", "all", target, &format!("limits: [{TEN}]"));
    let found = translated(&format!("{SHOP}{other}{limit}"));
    assert_eq!(reason(&found, "infra", "all"), "NoDomain");
    assert!(ancestors(&found, "infra", "all")[0].limits.is_empty());
}

/// kuadrant-operator#406: "ratelimited", by a route of which no rule is meant.
#[test]
fn a_route_that_no_rule_matches_is_not_limited() {
    let target =
        "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: checkout, sectionName: pay}";
    let limit = rate_limit("shop", "checkout", target, &format!("limits: [{TEN}]"));
    let of = |rules| {
        translated(&format!(
            "{SHOP}{}{limit}",
            route("shop", "checkout", rules)
        ))
    };
    assert_eq!(reason(&of("list,pay"), "shop", "checkout"), "Accepted");
    let found = of("list,null");
    assert_eq!(reason(&found, "shop", "checkout"), "TargetNotFound");
    assert!(policy(&found, "shop").limits.is_empty());
    // A route that its Gateway's controller has refused is in no proxy either.
    let refused = route("shop", "checkout", "pay").replace(
        "---\n",
        "status: {parents: [{parentRef: {namespace: infra, name: public}, conditions: [{type: Accepted, \
         status: 'False'}]}]}\n---\n",
    );
    assert_eq!(
        reason(
            &translated(&format!("{SHOP}{refused}{limit}")),
            "shop",
            "checkout"
        ),
        "TargetNotFound"
    );
}

/// kuadrant-operator#603: a Gateway's policy kept its status when the route's was deleted.
#[test]
fn a_deleted_policy_leaves_no_trace_in_anothers_status() {
    let over = on_gateway("floor", &format!("overrides: {{limits: [{TEN}]}}"));
    let limit = on_route("shop", "checkout", "checkout", TEN);
    let route = route("shop", "checkout", "null");
    let with = translated(&format!("{SHOP}{route}{over}{limit}"));
    assert_eq!(reason(&with, "shop", "checkout"), "Overridden");
    let text = |found: &Translation| format!("{:?}", ancestors(found, "infra", "floor"));
    let without = translated(&format!("{SHOP}{route}{over}"));
    assert_eq!(text(&with), text(&without));
    let alone = translated(&format!("{SHOP}{route}{limit}"));
    assert_eq!(reason(&alone, "shop", "checkout"), "Accepted");
    // Its deletion was asked for, and something else still holds it.
    let held = over.replace(
        "generation: 1",
        "generation: 2, deletionTimestamp: '2026-11-26T00:00:00Z'",
    );
    let held = translated(&format!("{SHOP}{route}{held}{limit}"));
    assert_eq!(reason(&held, "shop", "checkout"), "Accepted");
    assert_eq!(policy(&held, "shop"), policy(&alone, "shop"));
}

/// kuadrant-operator#547, #574, nginx-gateway-fabric#5333: of two routes with the same hostname one lost its limits, or
/// they refused each other, also where the other was in a foreign namespace.
#[test]
fn two_routes_with_the_same_hostname_keep_their_limits() {
    let mut yaml = SHOP.to_owned();
    let routes = [
        ("shop", "checkout"),
        ("shop", "search"),
        ("blog", "checkout"),
    ];
    for (namespace, name) in routes {
        yaml += &route(namespace, name, "null");
        yaml += &on_route(namespace, name, name, TEN);
    }
    let found = translated(&yaml);
    for (namespace, name) in routes {
        assert_eq!(reason(&found, namespace, name), "Accepted");
        for route in names(namespace, name, "a_example_com") {
            let limits = matching(
                policy(&found, "shop"),
                &[("route", &route), ("host", "a.example.com")],
            );
            assert_eq!(limits, [format!("{namespace}.{name}.per-user")], "{route}");
        }
    }
}

/// kgateway#3674: policies of equal names shared a bucket.
#[test]
fn equal_names_do_not_share_a_bucket() {
    let mut yaml = SHOP.to_owned();
    // `a.b` + `c` and `a` + `b.c` are two, and so are two names that differ beyond what fits.
    let long = "n".repeat(60);
    let objects = [
        ("a", "b", "c"),
        ("a", "b.c", "c"),
        ("b", "b", "c"),
        ("a", &format!("{long}-1"), "c"),
        ("a", &format!("{long}-2"), "c"),
    ];
    for (namespace, name, limit) in objects {
        yaml += &route(namespace, name, "null");
        yaml += &on_route(
            namespace,
            name,
            name,
            &format!("{{name: {limit}, rate: 1/s}}"),
        );
    }
    let found = translated(&yaml);
    let owners = &found.domains["shop"].owners;
    assert_eq!(owners.len(), objects.len(), "{owners:?}");
    for name in owners.keys() {
        assert!(name.as_str().len() <= 63 && name.as_str().parse::<Name>().is_ok());
    }
}

/// limitador#388: a limit whose number was changed stopped limiting.
#[test]
fn a_changed_number_keeps_limiting_the_same_requests() {
    let of = |rate: &str| {
        let limit = format!("{{name: per-user, per: [user], rate: {rate}}}");
        let limit = on_route("shop", "checkout", "checkout", &limit);
        translated(&format!(
            "{SHOP}{}{limit}",
            route("shop", "checkout", "null")
        ))
    };
    let (before, after) = (of("10/s"), of("7/1m"));
    let (before, after) = (
        &policy(&before, "shop").limits[0],
        &policy(&after, "shop").limits[0],
    );
    assert_ne!(before.quota, after.quota);
    assert_eq!((&before.name, &before.per), (&after.name, &after.per));
    assert_eq!(before.matchers, after.matchers);
}

/// limitador#411: names that begin with a digit could not be read.
#[test]
fn names_may_begin_with_a_digit() {
    let limit = on_route("1st", "2nd", "3rd", "{name: 4th, rate: 5/s}");
    let found = translated(&format!("{SHOP}{}{limit}", route("1st", "3rd", "null")));
    assert_eq!(reason(&found, "1st", "2nd"), "Accepted");
    let limits = matching(policy(&found, "shop"), &[("route", "1st.3rd.0")]);
    assert_eq!(limits, ["1st.2nd.4th"]);
}

/// The namespace goes before what is in it.
#[test]
fn a_namespace_that_is_deleted_first_leaves_others_alone() {
    let selected = SHOP.replace(
        "spec: {domain: shop,",
        "spec: {domain: shop, namespaces: {matchLabels: {limits: 'yes'}},",
    );
    let namespace = |name: &str| {
        format!(
            "kind: Namespace\napiVersion: v1\nmetadata: {{name: {name}, labels: {{limits: 'yes'}}}}\n---\n"
        )
    };
    let both = format!(
        "{selected}{}{}{}{}{}",
        namespace("blog"),
        route("shop", "checkout", "null"),
        route("blog", "posts", "null"),
        on_route("shop", "checkout", "checkout", TEN),
        on_route("blog", "posts", "posts", TEN),
    );
    let before = translated(&format!("{both}{}", namespace("shop")));
    assert_eq!(before.domains["shop"].owners.len(), 2);
    let after = translated(&both);
    assert_eq!(reason(&after, "shop", "checkout"), "NoDomain");
    let owners: Vec<String> = after.domains["shop"]
        .owners
        .values()
        .map(ToString::to_string)
        .collect();
    assert_eq!(owners, ["blog/posts"]);
}

/// A rollout of the filter's configuration that drops an entry must not delete limits that are in force.
#[test]
fn limits_stay_when_no_proxy_supplies_the_entry_of_their_target_any_more() {
    for (yaml, domain) in [
        (include_str!("../golden/services.yaml"), "shop"),
        (include_str!("../golden/listeners.yaml"), "blog"),
    ] {
        let mut objects = objects(yaml);
        let before = translate(&objects);
        for object in &mut objects.rate_limits {
            let found = &before.objects[&object.metadata.key()];
            object.status.in_force = found.in_force.clone();
        }
        objects
            .supply
            .insert(domain.parse().unwrap(), BTreeSet::new());
        let after = translate(&objects);
        assert_eq!(policy(&after, domain), policy(&before, domain));
        // What was never accepted is refused.
        for object in &mut objects.rate_limits {
            object.status.in_force = None;
        }
        let new = translate(&objects);
        assert_ne!(policy(&new, domain), policy(&before, domain));
    }
}

/// One of several Gateways supplies `route_rule`: at the proxies of the others no request would have it.
#[test]
fn rules_are_found_by_position_where_gateways_share_a_domain() {
    let alone = include_str!("../golden/rule-names.yaml");
    let one = "gateways: [{namespace: infra, name: one}]";
    let shared = alone.replace(
        one,
        "gateways: [{namespace: infra, name: one}, {namespace: infra, name: three}]",
    );
    assert_ne!(alone, shared);
    let by_name = |yaml: &str| {
        let found = translated(yaml);
        let limits = policy(&found, "shop").limits.iter();
        let mut matchers = limits.flat_map(|limit| limit.matchers.clone());
        matchers.any(|matcher| matcher.entry.as_str() == "route_rule")
    };
    assert!(by_name(alone) && !by_name(&shared));
}

/// In a rollout some proxies read `route_rule`, and at the others no request has it.
#[test]
fn rules_are_found_by_position_until_every_proxy_reads_their_names() {
    let mut objects = objects(include_str!("../golden/rule-names.yaml"));
    objects.by_rule_name.clear();
    let found = translate(&objects);
    let limits = policy(&found, "shop").limits.iter();
    let mut entries = limits.flat_map(|limit| limit.keys().map(Name::as_str));
    assert!(entries.all(|entry| entry != "route_rule"));
}

/// A proxy that does not supply one of them does not enforce the limits there.
#[test]
fn an_object_needs_the_entries_of_its_limits_and_targets_of_each_proxy_that_enforces_it() {
    let found = translated(include_str!("../golden/rule-names.yaml"));
    let of = |found: &Translation, kind: &str| {
        let ancestors = found.objects.values().flat_map(|one| &one.ancestors);
        let ancestors = ancestors.filter(|one| one.ancestor.kind == kind && !one.limits.is_empty());
        let entries: BTreeSet<_> = ancestors.flat_map(|one| one.entries.clone()).collect();
        entries.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(of(&found, "Gateway"), ["route_rule", "user"]);
    // Of a Service, callers in the mesh need its cluster, and Gateways do not.
    let found = translated(include_str!("../golden/services.yaml"));
    assert_eq!(of(&found, "Service"), ["cluster"]);
    assert_eq!(of(&found, "Gateway"), [""; 0]);
}

/// What the reader accepts alone and refuses with the conditions of its target, or no status has room for, is refused for
/// its object alone, whose last accepted version stays in force.
#[test]
fn what_is_too_large_with_its_targets_conditions_holds_up_no_other() {
    let entries = (0..32).map(|n| format!("e{n}: [a]"));
    let many = format!(
        "{{name: per-user, rate: 1/s, match: {{{}}}}}",
        entries.collect::<Vec<_>>().join(", ")
    );
    let patterns = (0..1000).map(|n| format!("a{n:0999}"));
    let patterns = patterns.collect::<Vec<_>>().join(", ");
    let large =
        format!("{{name: per-user, rate: 1/s, match: {{path: [{patterns}], host: [{patterns}]}}}}");
    let surroundings = format!(
        "{SHOP}{}{}",
        route("shop", "checkout", "null"),
        on_gateway("all", &format!("limits: [{TEN}]"))
    );
    let good = on_route("shop", "checkout", "checkout", TEN);
    let before = translated(&format!("{surroundings}{good}"));
    for (limit, why) in [
        (many, "more than 32 entries"),
        (large, "bytes as JSON, more than 524288"),
    ] {
        let newest = on_route("shop", "checkout", "checkout", &limit);
        let newest = newest.replace("generation: 1", "generation: 2");
        let mut objects = objects(&format!("{surroundings}{newest}"));
        let object = objects.rate_limits.iter_mut();
        let object = { object }.find(|object| object.metadata.name == "checkout");
        let key = kubernetes::Key::new("shop", "checkout");
        object.unwrap().status.in_force = before.objects[&key].in_force.clone();
        let after = translate(&objects);
        let message = &ancestors(&after, "shop", "checkout")[0].accepted.message;
        assert!(message.contains(why), "{message}");
        assert_eq!(policy(&after, "shop"), policy(&before, "shop"), "{why}");
    }
    let rules = vec!["null"; 1001].join(",");
    let all = on_gateway("all", &format!("limits: [{TEN}]"));
    let route = route("shop", "checkout", &rules);
    let after = translated(&format!("{SHOP}{route}{all}{good}"));
    let message = &ancestors(&after, "shop", "checkout")[0].accepted.message;
    assert!(message.contains("more than 1000 patterns"), "{message}");
    assert_eq!(policy(&after, "shop").limits.len(), 1);
}

/// An older object that grows, or a new one that is older by its name, takes nothing from one that is in force.
#[test]
fn what_is_in_force_keeps_its_place_in_the_domain() {
    let capped = SHOP.replace(
        "{domain: shop,",
        "{domain: shop, caps: {limitsPerNamespace: 3},",
    );
    let limits = |names: &str| {
        let one = |name: char| format!("{{name: {name}, rate: 1/s}}");
        names.chars().map(one).collect::<Vec<_>>().join(", ")
    };
    let world = |older: &str, younger: &str| {
        format!(
            "{capped}{}{}{}",
            route("shop", "r", "null"),
            on_route("shop", "older", "r", &limits(older)),
            on_route("shop", "younger", "r", &limits(younger)),
        )
    };
    let before = translated(&world("a", "bc"));
    let after = |older: &str, younger: &str| {
        let mut objects = objects(&world(older, younger));
        let mut found = before.clone();
        for _ in 0..2 {
            for object in &mut objects.rate_limits {
                object.metadata.generation = 2;
                object.status.in_force = found.objects[&object.metadata.key()].in_force.clone();
            }
            found = translate(&objects);
            if !found.waits_for_room() {
                break;
            }
        }
        let names: Vec<String> = { policy(&found, "shop").limits.iter() }
            .map(|limit| limit.name.as_str().replace("shop.", ""))
            .collect();
        let reasons = ["older", "younger"].map(|name| reason(&found, "shop", name));
        (names.join(" "), reasons)
    };
    let in_force = "older.a younger.b younger.c".to_owned();
    assert_eq!(
        after("ad", "bc"),
        (in_force.clone(), ["CapExceeded", "Accepted"])
    );
    assert_eq!(after("a", "bcd"), (in_force, ["Accepted", "CapExceeded"]));
    // One makes room for the other.
    let moved = "older.a older.d younger.b".to_owned();
    assert_eq!(after("ad", "b"), (moved, ["Accepted", "Accepted"]));
    assert_eq!(after("d", "bc").0, "older.d younger.b younger.c");
}

/// The names that Istio gives the clusters of a Service: in a sidecar also those of subsets, in a waypoint
/// those of a virtual address.
#[test]
fn a_service_of_a_mesh_is_limited_in_subsets_and_at_waypoints() {
    let found = translated(include_str!("../golden/services.yaml"));
    let of = |cluster: &str| matching(policy(&found, "shop"), &[("cluster", cluster)]);
    for start in [
        "outbound|80||",
        "outbound|8080|v1|",
        "inbound-vip|80|http|",
        "inbound-vip|80|http/v1|",
    ] {
        let own = of(&format!("{start}stock.shop.svc.cluster.local"));
        assert_eq!(own, ["shop.stock.all_mesh"], "{start}");
        for other in ["stock.back", "overstock.shop", "x.stock.shop"] {
            let others = of(&format!("{start}{other}.svc.cluster.local"));
            assert!(others.is_empty(), "{start}{other}");
        }
    }
    // Where it arrives it was counted already.
    assert!(of("inbound|8080||").is_empty());
}

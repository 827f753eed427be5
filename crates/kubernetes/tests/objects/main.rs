//! Objects as manifests, and what they mean: whole files with what becomes of them, what other projects got wrong, and
//! tenants who may not touch each other.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop"
)]

mod definitions;
mod golden;
mod moving;
mod peers;
#[expect(
    clippy::assigning_clones,
    clippy::field_reassign_with_default,
    reason = "field by field, an object reads like its manifest"
)]
mod tenants;

use std::collections::BTreeSet;

use documents::{Node, Report};
use kubernetes::{AncestorResult, Key, Objects, Translation, translate};
use policy::{Compiled, Descriptor, Name, Policy};

/// The documents of a YAML stream.
fn documents(yaml: &str) -> Vec<Node> {
    let mut report = Report::default();
    let nodes = limits_file::yaml::load_all(yaml, &mut report);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    nodes
}

fn read(documents: &[Node]) -> Objects {
    let mut objects = Objects::default();
    for document in documents {
        objects
            .read(document)
            .unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    objects.add_implied();
    objects
}

/// Objects from manifests. A document without a kind says what proxies supply: `supply: {DOMAIN: [ENTRY]}`.
fn objects(yaml: &str) -> Objects {
    let documents = documents(yaml);
    let mut objects = read(&documents);
    for supply in documents
        .iter()
        .filter_map(|document| document.get("supply"))
    {
        let documents::Value::Map(domains) = &supply.value else {
            panic!("supply is a map")
        };
        for domain in domains {
            let entries = domain.value.items().iter().filter_map(Node::as_text);
            let entries: BTreeSet<_> = entries.map(|entry| entry.parse().unwrap()).collect();
            let name: Name = domain.key.parse().unwrap();
            if entries.contains(kubernetes::RULE_ENTRY) {
                objects.by_rule_name.insert(name.clone());
            }
            objects.supply.insert(name, entries);
        }
    }
    objects
}

fn translated(yaml: &str) -> Translation {
    translate(&objects(yaml))
}

fn policy<'t>(translation: &'t Translation, domain: &str) -> &'t Policy {
    &translation.domains[domain].policy
}

/// The limits that apply to a request.
fn matching(policy: &Policy, entries: &[(&str, &str)]) -> Vec<String> {
    let compiled = Compiled::new(policy.clone());
    let entries = entries.iter();
    let entries = entries.map(|(key, value)| (key.parse().unwrap(), value.as_bytes().to_vec()));
    let descriptor: Descriptor = entries.collect();
    let found = compiled.matching(&descriptor, 0);
    found
        .iter()
        .map(|found| found.limit.name.to_string())
        .collect()
}

fn ancestors<'t>(
    translation: &'t Translation,
    namespace: &str,
    name: &str,
) -> &'t [AncestorResult] {
    &translation.objects[&Key::new(namespace, name)].ancestors
}

/// The reason of the object's only ancestor.
fn reason(translation: &Translation, namespace: &str, name: &str) -> &'static str {
    let [ancestor] = ancestors(translation, namespace, name) else {
        panic!("{:?}", ancestors(translation, namespace, name))
    };
    ancestor.accepted.reason
}

/// A domain with Gateway `infra/public`, and its listeners.
const SHOP: &str = "
kind: RateLimitDomain
apiVersion: rl.example.com/v1alpha1
metadata: {name: shop}
spec: {domain: shop, gateways: [{namespace: infra, name: public}]}
---
kind: Gateway
apiVersion: gateway.networking.k8s.io/v1
metadata: {name: public, namespace: infra}
spec:
  gatewayClassName: any
  listeners:
    - {name: a, hostname: a.example.com}
    - {name: b, hostname: b.example.com}
    - {name: c, hostname: '*.example.com'}
    - {name: d}
---
";

/// An `HTTPRoute` with these rules (a name each, or `null`) at the Gateway.
fn route(namespace: &str, name: &str, rules: &str) -> String {
    let rules = rules.split(',').map(|name| format!("{{name: {name}}}"));
    let rules: Vec<String> = rules.collect();
    format!(
        "kind: HTTPRoute
apiVersion: gateway.networking.k8s.io/v1
metadata: {{name: '{name}', namespace: '{namespace}'}}
spec: {{parentRefs: [{{namespace: infra, name: public}}], rules: [{}]}}
---
",
        rules.join(", ")
    )
}

/// A `RateLimit` on an `HTTPRoute`.
fn on_route(namespace: &str, name: &str, target: &str, limits: &str) -> String {
    let target = format!("{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: '{target}'}}");
    rate_limit(namespace, name, &target, &format!("limits: [{limits}]"))
}

/// A `RateLimit` on the Gateway.
fn on_gateway(name: &str, spec: &str) -> String {
    let target = "{group: gateway.networking.k8s.io, kind: Gateway, name: public}";
    rate_limit("infra", name, target, spec)
}

fn rate_limit(namespace: &str, name: &str, target: &str, spec: &str) -> String {
    format!(
        "kind: RateLimit
apiVersion: rl.example.com/v1alpha1
metadata: {{name: '{name}', namespace: '{namespace}', generation: 1}}
spec: {{targetRefs: [{target}], {spec}}}
---
"
    )
}

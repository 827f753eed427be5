//! `deploy/kubernetes`: the base against the real limiter.

use serde_json::{Value, json};

use crate::kustomize::resource;

pub fn container() -> Value {
    let deployment = resource("Deployment", "limiter");
    deployment["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The Deployment's arguments, with files and ports of this machine.
pub fn arguments(tokens: &str) -> Vec<String> {
    let container = container();
    let arguments = container["args"].as_array().unwrap();
    let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
    arguments
        .filter(|argument| !argument.starts_with("--listen=") && !argument.starts_with("--admin="))
        .map(|argument| argument.replace("/etc/rl/tokens/tokens", tokens))
        .collect()
}

#[test]
fn selectors_find_the_limiters() {
    let deployment = resource("Deployment", "limiter");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for (kind, name, pointer) in [
        ("Service", "limiter", "/spec/selector"),
        ("Service", "limiter-replicas", "/spec/selector"),
        ("Deployment", "limiter", "/spec/selector/matchLabels"),
        (
            "PodDisruptionBudget",
            "limiter",
            "/spec/selector/matchLabels",
        ),
        ("NetworkPolicy", "limiter", "/spec/podSelector/matchLabels"),
        ("PodMonitor", "limiter", "/spec/selector/matchLabels"),
    ] {
        let found = resource(kind, name);
        let selected = found.pointer(pointer).unwrap().as_object().unwrap();
        assert!(!selected.is_empty());
        for (label, value) in selected {
            assert_eq!(&labels[label], value, "{kind} {name}");
        }
    }
    let replicas = resource("Service", "limiter-replicas");
    assert_eq!(replicas["spec"]["clusterIP"], "None");
}

/// Only pods that have a URL of the store may reach it.
#[test]
fn limiters_and_rlctl_may_reach_the_store() {
    let valkey = resource("NetworkPolicy", "valkey");
    let from = &valkey["spec"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0];
    let key = from["key"].as_str().unwrap();
    let allowed = from["values"].as_array().unwrap();
    for name in ["limiter", "limits"] {
        let template = resource("Deployment", name)["spec"]["template"].clone();
        assert!(
            template["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"].is_object()
        );
        assert!(
            allowed.contains(&template["metadata"]["labels"][key]),
            "{name}"
        );
    }
}

/// A limiter may reach every store that its URL may name, on default ports.
#[test]
fn a_limiter_may_reach_a_store_and_its_sentinels() {
    let policy = resource("NetworkPolicy", "limiter");
    let store = &policy["spec"]["egress"][0];
    assert_eq!(store["ports"], json!([{"port": 6379}, {"port": 26379}]));
    let pods = &store["to"][0]["podSelector"]["matchExpressions"][0]["values"];
    let valkey = resource("StatefulSet", "valkey");
    let label = &valkey["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"];
    assert!(pods.as_array().unwrap().contains(label), "{pods}");
}

#[test]
fn a_pod_outlives_its_drain() {
    let deployment = resource("Deployment", "limiter");
    let grace = &deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    let drain = arguments("").into_iter().find_map(|argument| {
        let seconds = argument.strip_prefix("--drain=")?.strip_suffix('s')?;
        seconds.parse::<u64>().ok()
    });
    assert!(drain.unwrap() < grace.as_u64().unwrap());
}

/// The proxies of Envoy Gateway run in its own namespace.
#[test]
fn envoy_gateways_proxies_may_call_the_limiters() {
    let policy = resource("NetworkPolicy", "limiter");
    let namespaces = &policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"];
    let values = namespaces["matchExpressions"][0]["values"]
        .as_array()
        .unwrap();
    let named: Vec<&str> = values.iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(named, ["istio-ingress", "shop", "envoy-gateway-system"]);
}

//! `filter: managed`: the objects that load the filter.

use serde_json::{Value, json};

use crate::stage::{Stage, eventually};

const SETTINGS: &str = "deploy/kubernetes/components/controller-filter/filter.yaml";

fn get(stage: &Stage, kind: &str, name: &str) -> Option<Value> {
    let found = stage
        .api
        .kubectl(&["get", kind, "-n", "infra", name, "-o", "json"], "");
    serde_json::from_str(&found.ok()?).ok()
}

fn set(stage: &Stage, filter: &str) {
    let patch = json!({"spec": {"filter": filter}}).to_string();
    let arguments = [
        "patch",
        "ratelimitdomain",
        "shop",
        "--type=merge",
        "-p",
        &patch,
    ];
    stage.api.kubectl(&arguments, "").unwrap();
}

/// Somebody has an object of the name that the controller's would have.
fn make_theirs(stage: &Stage) {
    let image =
        json!({"code": {"type": "Image", "image": {"url": "registry.example.com/theirs:1"}}});
    stage.apply(&json!({
        "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyExtensionPolicy",
        "metadata": {"name": "rl-internal", "namespace": "infra"},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "internal"}],
            "wasm": [image],
        },
    }));
}

fn keys(config: &Value) -> Vec<&str> {
    let descriptors = config["descriptors"].as_array().unwrap().iter();
    { descriptors }
        .map(|one| one["key"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn the_controller_loads_the_filter_where_the_domain_leaves_it_to_it() {
    let mut stage = Stage::start().await;
    set(&stage, "managed");
    stage.domain_has("FilterApplied", "NotConfigured").await;
    make_theirs(&stage);
    stage.kill_controller().await;
    let settings = stage.programs.root.join(SETTINGS);
    stage.controller_arguments = vec!["--filter".to_owned(), settings.display().to_string()];
    stage.start_controller().await;
    let said = stage.domain_has("FilterApplied", "NotApplied").await;
    assert!(
        said.contains(
            "EnvoyExtensionPolicy infra/rl-internal is there, and is not the controller's"
        ),
        "{said}"
    );
    let theirs = get(&stage, "envoyextensionpolicy", "rl-internal").unwrap();
    let url = theirs.pointer("/spec/wasm/0/code/image/url");
    assert_eq!(url, Some(&json!("registry.example.com/theirs:1")));
    // The other Gateway has its own meanwhile.
    let istio = get(&stage, "trafficextension", "rl-public").unwrap();
    assert_eq!(istio["spec"]["targetRefs"][0]["name"], "public");
    let config = &istio["spec"]["wasm"]["pluginConfig"];
    assert_eq!(config["domain"], "shop");
    assert_eq!(keys(config), ["user", "gateway"]);
    assert_eq!(config["descriptors"][1]["value"], "infra/public");
    stage
        .api
        .kubectl(
            &[
                "delete",
                "envoyextensionpolicy",
                "-n",
                "infra",
                "rl-internal",
            ],
            "",
        )
        .unwrap();
    stage.domain_has("FilterApplied", "Applied").await;
    let own = get(&stage, "envoyextensionpolicy", "rl-internal").unwrap();
    let wasm = &own["spec"]["wasm"][0];
    assert_eq!(keys(&wasm["config"]), ["user", "gateway", "route_rule"]);
    assert_eq!(wasm["env"]["hostKeys"], json!(["RL_TOKEN"]));
    assert_eq!(
        own["metadata"]["ownerReferences"][0]["kind"],
        "RateLimitDomain"
    );
    assert!(get(&stage, "wasmplugin", "rl-public").is_none());
    set(&stage, "none");
    eventually("both are gone", async || {
        let gone = get(&stage, "trafficextension", "rl-public").is_none()
            && get(&stage, "envoyextensionpolicy", "rl-internal").is_none();
        gone.then_some(())
    })
    .await;
}

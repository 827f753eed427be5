//! `filter: managed`: the objects that load the filter.

use serde_json::{Value, json};

use crate::stage::{Gateway, Stage, eventually, with_limits};

const SETTINGS: &str = "deploy/kubernetes/components/controller-filter/filter.yaml";

/// Starts the controller again with the shipped settings; the filter waits longer for the limiter, since the machine is busy.
async fn start_with_settings(stage: &mut Stage) {
    let settings = std::fs::read_to_string(stage.programs.root.join(SETTINGS)).unwrap();
    let patient = settings.replace("timeout: 20ms", "timeout: 1s");
    assert_ne!(settings, patient);
    let file = stage.path().join("filter.yaml");
    std::fs::write(&file, patient).unwrap();
    stage.kill_controller().await;
    stage.controller_arguments = vec!["--filter".to_owned(), file.display().to_string()];
    stage.start_controller().await;
}

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

/// What cannot be loaded is a failure also in the turns between two attempts.
async fn fails_until_it_is_tried_again(stage: &Stage) {
    let failures = "rl_controller_failures_total{cause=\"api_server\"} ";
    let before = stage.metric(failures).await;
    eventually("it is tried again", async || {
        let url = format!("http://127.0.0.1:{}/readyz", stage.controller_port);
        assert_eq!(stage.http.get(&url).send().await.unwrap().status, 503);
        (stage.metric(failures).await != before).then_some(())
    })
    .await;
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
    set(&stage, "none");
    start_with_settings(&mut stage).await;
    make_theirs(&stage);
    set(&stage, "managed");
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
    fails_until_it_is_tried_again(&stage).await;
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

/// An Envoy with this configuration of its filter, whose Gateway lets three requests pass.
async fn limits_its_gateway(stage: &mut Stage, gateway: Gateway, config: &Value) {
    let name = gateway.name();
    stage
        .add_envoy_configured(gateway, &format!("{name}-a"), true, |filter| {
            filter.clone_from(config);
        })
        .await;
    let limits = json!([{"name": "all", "rate": "3/1h"}]);
    let object = with_limits("infra", name, "Gateway", name, &limits);
    let generation = stage.write(&object).await.unwrap();
    stage.enforced("infra", name, generation).await;
    let (_, _, envoy) = stage.envoys.last().unwrap();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let reply = envoy.get("/").header("x-user-id", "alice").send().await;
        statuses.push(reply.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429], "{name}: {config}");
}

/// In the domain of both, each knows its own requests by the entry that the controller adds.
#[tokio::test]
async fn an_envoy_with_the_configuration_of_each_object_limits_its_gateway() {
    let mut stage = Stage::start().await;
    set(&stage, "managed");
    start_with_settings(&mut stage).await;
    stage.domain_has("FilterApplied", "Applied").await;
    let istio = get(&stage, "trafficextension", "rl-public").unwrap();
    let config = &istio["spec"]["wasm"]["pluginConfig"];
    limits_its_gateway(&mut stage, Gateway::Public, config).await;
    let envoy_gateway = get(&stage, "envoyextensionpolicy", "rl-internal").unwrap();
    let config = &envoy_gateway["spec"]["wasm"][0]["config"];
    limits_its_gateway(&mut stage, Gateway::Internal, config).await;
}

/// Istio before 1.30.
#[tokio::test]
async fn where_the_cluster_has_no_traffic_extensions_a_wasm_plugin_loads_the_filter() {
    let mut stage = Stage::start().await;
    let kind = "trafficextensions.extensions.istio.io";
    stage.api.kubectl(&["delete", "crd", kind], "").unwrap();
    set(&stage, "managed");
    start_with_settings(&mut stage).await;
    stage.domain_has("FilterApplied", "Applied").await;
    let plugin = get(&stage, "wasmplugin", "rl-public").unwrap();
    let spec = &plugin["spec"];
    assert_eq!(spec["targetRefs"][0]["name"], "public");
    assert_eq!(spec["vmConfig"]["env"][0]["name"], "RL_TOKEN");
    assert_eq!(keys(&spec["pluginConfig"]), ["user", "gateway"]);
    limits_its_gateway(&mut stage, Gateway::Public, &spec["pluginConfig"]).await;
    set(&stage, "none");
    eventually("it is gone", async || {
        get(&stage, "wasmplugin", "rl-public")
            .is_none()
            .then_some(())
    })
    .await;
}

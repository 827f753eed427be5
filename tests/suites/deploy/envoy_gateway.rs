//! The component `envoy-gateway`: its bootstrap and its plugin in real Envoy, as Envoy Gateway merges and
//! configures them.

use std::time::Duration;

use filter_core::Config;
use harness::{EnvoyConfig, until};
use serde_json::{Value, json};

use crate::checks::{documents, file, named, passes, python};
use crate::kustomize::{all_fit, find, rendered, resource};
use crate::running::{At, Running, statuses};

const PATIENCE: Duration = Duration::from_secs(20);
const LIMITERS: &str = "limiter-replicas.ratelimit.svc.cluster.local:8090";

const AT: At<'_> = At {
    client: "0.0.0.0:8080",
    admin: "127.0.0.1:9901",
    limiters: &[LIMITERS],
    service: "service:8080",
    others: &[],
};

fn plugin() -> Value {
    resource("EnvoyExtensionPolicy", "ratelimit")["spec"]["wasm"][0].clone()
}

/// The bootstrap that Envoy Gateway merges into the proxies' own.
fn bootstrap() -> Value {
    let proxy = resource("EnvoyProxy", "ratelimit");
    let bootstrap = &proxy["spec"]["bootstrap"];
    assert_eq!(bootstrap["type"], "Merge");
    serde_saphyr::from_str(bootstrap["value"].as_str().unwrap()).unwrap()
}

#[test]
fn the_plugins_configuration_is_one_of_the_filters() {
    let plugin = plugin();
    let config = Config::from_json(plugin["config"].to_string().as_bytes());
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let cluster = &bootstrap()["static_resources"]["clusters"][0];
    assert_eq!(cluster["name"], config.limiter.cluster.as_str());
    let token = config.limiter.token_env.as_deref().unwrap();
    assert_eq!(plugin["env"]["hostKeys"], json!([token]));
    let proxy = resource("EnvoyProxy", "ratelimit");
    let container = &proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"]["container"];
    assert_eq!(container["env"][0]["name"], token);
    let gateway = resource("Gateway", "edge");
    let parameters = &gateway["spec"]["infrastructure"]["parametersRef"];
    assert_eq!(parameters["name"], proxy["metadata"]["name"]);
    assert_eq!(
        gateway["metadata"]["namespace"],
        proxy["metadata"]["namespace"]
    );
}

/// The route for degraded requests belongs to the Gateway, and matches the filter's mark.
#[test]
fn the_degraded_route_is_one_of_the_gateway() {
    let route = documents("deploy/kubernetes/components/envoy-gateway/degraded-route.yaml");
    all_fit(&route);
    let gateway = resource("Gateway", "edge");
    let [parent, of] = [&route[0]["spec"]["parentRefs"][0], &gateway["metadata"]];
    assert_eq!(parent["name"], of["name"]);
    assert_eq!(route[0]["metadata"]["namespace"], of["namespace"]);
    let matched = &route[0]["spec"]["rules"][0]["matches"][0]["headers"][0]["name"];
    assert_eq!(*matched, filter_core::DEGRADED);
}

/// The component that loads the module in place of wasm changes nothing else.
#[test]
fn the_module_is_configured_as_the_plugin_is() {
    let all = rendered(&["envoy-gateway", "envoy-gateway/module"]);
    all_fit(&all);
    let policy = find(&all, "EnvoyExtensionPolicy", "ratelimit");
    assert_eq!(policy["spec"].get("wasm"), None);
    let module = &policy["spec"]["dynamicModule"][0];
    assert_eq!(module["config"], plugin()["config"]);
    let proxy = find(&all, "EnvoyProxy", "ratelimit");
    assert_eq!(proxy["spec"]["dynamicModules"][0]["name"], module["name"]);
    // Envoy looks for lib{libraryName}.so there, which is the only file of the image.
    let deployment = &proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"];
    let container = &deployment["container"];
    let variables = container["env"].as_array().unwrap();
    let named = |name: &str| variables.iter().find(|one| one["name"] == name).unwrap();
    assert!(named("RL_TOKEN")["valueFrom"].is_object());
    let mount = &container["volumeMounts"][0];
    assert_eq!(
        named("ENVOY_DYNAMIC_MODULES_SEARCH_PATH")["value"],
        mount["mountPath"]
    );
    assert_eq!(deployment["pod"]["volumes"][0]["name"], mount["name"]);
}

/// A merged list has the entries of both.
#[tokio::test]
async fn the_gateways_plugin_limits_and_its_metrics_have_labels() {
    let mut own = plugin()["config"].clone();
    own["limiter"]["timeout"] = json!("2s");
    let service = resource("Service", "limiter-replicas");
    let name = service["metadata"]["name"].as_str().unwrap();
    assert!(LIMITERS.starts_with(&format!("{name}.ratelimit.")));
    let merged = bootstrap();
    let config = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let config = config.filter_config(|config| *config = own).unwrap();
    let config = config.edit(|tree| {
        tree["stats_config"] = merged["stats_config"].clone();
        let clusters = tree["static_resources"]["clusters"].as_array_mut().unwrap();
        clusters.retain(|cluster| cluster["name"] != "limiter");
        let more = merged["static_resources"]["clusters"].as_array().unwrap();
        clusters.extend(more.clone());
    });
    let running = Running::start(config, AT, &[]).await;
    let alice = running.get("alice");
    assert_eq!(statuses(&alice, 6).await, [200, 200, 200, 200, 200, 429]);
    let labelled = |line: &str| line.starts_with("rl_decisions{") && line.contains("per-user");
    // Workers publish their counts on their next tick.
    until("decisions are counted by limit", PATIENCE, async || {
        let page = running.envoy.admin("/stats/prometheus").await.ok()?;
        page.lines().any(labelled).then_some(())
    })
    .await
    .unwrap();
}

/// The limiter replaces Envoy Gateway's rate limit service, as suite `rate_limit_service` runs it.
#[test]
fn the_values_of_the_chart_name_the_limiters_image() {
    let values = documents("deploy/envoy-gateway/values.yaml").remove(0);
    let config = &values["config"]["envoyGateway"];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let schema = "tests/suites/deploy/envoy-gateway-config.schema.json";
    passes(
        python("check_jsonschema")
            .arg("--schemafile")
            .arg(file(schema))
            .arg(path),
    );
    let deployment = &config["provider"]["kubernetes"]["rateLimitDeployment"];
    let base = ["deploy/kubernetes/base/limiter.yaml".to_owned()];
    let limiter = named(&base, "Deployment", "limiter");
    let image = &limiter["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(deployment["container"]["image"], *image);
    let manual = std::fs::read_to_string(file("docs/limiter.md")).unwrap();
    for variable in deployment["container"]["env"].as_array().unwrap() {
        let flag = variable["name"]
            .as_str()
            .unwrap()
            .strip_prefix("RL_")
            .unwrap();
        let flag = format!("`--{}`", flag.to_lowercase().replace('_', "-"));
        assert!(manual.contains(&flag), "{flag}");
    }
}

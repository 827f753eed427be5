//! The components `istio` and `istio-mtls`: the filter's own parser reads them, and real Envoy runs
//! each plugin's configuration as Istio passes it on.

use std::collections::BTreeSet;

use filter_core::{Config, Direction};
use harness::EnvoyConfig;
use serde_json::{Value, json};

use crate::checks::{documents, file, files, named, text};
use crate::kustomize::{all_fit, resource};
use crate::running::{At, Running, statuses};

const FOLDER: &str = "deploy/kubernetes/components/istio";
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

fn manifests() -> Vec<String> {
    let mut manifests = files(FOLDER, ".yaml");
    manifests.retain(|path| !path.ends_with("/kustomization.yaml"));
    manifests.push("deploy/kubernetes/components/istio-mtls/limiter-access.yaml".to_owned());
    manifests
}

fn plugins() -> Vec<Value> {
    let all = manifests().into_iter().flat_map(|path| documents(&path));
    let plugins: Vec<Value> = all.filter(|doc| doc["kind"] == "WasmPlugin").collect();
    assert_eq!(plugins.len(), 2);
    plugins
}

/// The `TrafficExtension`s, as the plugins that say the same.
fn extensions(file: &str) -> Vec<Value> {
    let mut extensions = documents(&format!("{FOLDER}/{file}.yaml"));
    extensions.retain(|doc| doc["kind"] == "TrafficExtension");
    for extension in &mut extensions {
        let spec = extension["spec"].as_object_mut().unwrap();
        let wasm = spec.remove("wasm").unwrap();
        spec.extend(wasm.as_object().unwrap().clone());
        extension["kind"] = json!("WasmPlugin");
    }
    extensions
}

#[test]
fn traffic_extensions_say_what_wasm_plugins_say() {
    let by_namespace = |mut all: Vec<Value>| {
        all.sort_by_key(|doc| doc["metadata"]["namespace"].to_string());
        all
    };
    assert_eq!(
        by_namespace(extensions("traffic-extension")),
        by_namespace(plugins())
    );
}

/// The waypoint that the extension targets is there, and the secret's token reaches its proxies.
#[test]
fn the_waypoint_has_the_filter_and_the_token() {
    let file = [format!("{FOLDER}/waypoint.yaml")];
    let gateway = named(&file, "Gateway", "waypoint");
    let filter = extensions("waypoint").remove(0);
    assert_eq!(
        filter["metadata"]["namespace"],
        gateway["metadata"]["namespace"]
    );
    let target = &filter["spec"]["targetRefs"][0];
    assert_eq!(target["kind"], gateway["kind"]);
    assert_eq!(target["name"], gateway["metadata"]["name"]);
    let settings = &gateway["spec"]["infrastructure"]["parametersRef"];
    let settings = named(&file, "ConfigMap", settings["name"].as_str().unwrap());
    let merged = settings["data"]["deployment"].as_str().unwrap();
    let merged: Value = serde_saphyr::from_str(merged).unwrap();
    let proxy = &merged["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(proxy["name"], "istio-proxy");
    let variable = &filter["spec"]["vmConfig"]["env"][0]["name"];
    assert_eq!(proxy["env"][0]["name"], *variable);
    let config = &filter["spec"]["pluginConfig"];
    assert_eq!(config["limiter"]["token_env"], *variable);
}

/// Includes resources that a kustomization only names.
#[test]
fn every_resource_is_one_of_istios() {
    let all = manifests().into_iter().flat_map(|path| documents(&path));
    all_fit(&all.collect::<Vec<Value>>());
}

#[test]
fn every_plugins_configuration_is_one_of_the_filters() {
    for plugin in plugins().into_iter().chain(extensions("waypoint")) {
        let config = Config::from_json(plugin["spec"]["pluginConfig"].to_string().as_bytes());
        let config = config.unwrap_or_else(|problems| panic!("{problems}"));
        let limiter = &config.limiter;
        assert_eq!(
            limiter.cluster,
            "outbound|8090||limiter.ratelimit.svc.cluster.local"
        );
        assert_eq!(limiter.authority, "limiter.ratelimit.svc.cluster.local");
        let token = limiter.token_env.as_deref().unwrap();
        assert_eq!(
            plugin["spec"]["vmConfig"]["env"],
            json!([{"name": token, "valueFrom": "HOST"}]),
            "the token's variable reaches the VM"
        );
    }
}

/// A Sidecar resource restricts egress: applying a plugin must not apply one, and none may cover a
/// whole namespace.
#[test]
fn each_sidecar_resource_has_its_own_file_and_a_selector() {
    for path in manifests() {
        let documents = documents(&path);
        let narrows = |document: &Value| document["kind"] == "Sidecar";
        let Some(narrowing) = documents.iter().find(|&document| narrows(document)) else {
            continue;
        };
        assert_eq!(documents.len(), 1, "{path}");
        assert!(
            narrowing["spec"]["workloadSelector"]["labels"].is_object(),
            "{path}"
        );
    }
}

#[test]
fn plugins_call_the_service_that_kubernetes_has() {
    let service = resource("Service", "limiter");
    assert_eq!(service["metadata"]["namespace"], "ratelimit");
    assert_eq!(service["spec"]["ports"][0]["port"], 8090);
    assert_eq!(
        service["spec"]["ports"][0]["appProtocol"],
        "kubernetes.io/h2c"
    );
}

/// Without `/v1/report`, `rlctl stats` would lack the proxies' decisions.
#[test]
fn callers_may_use_every_path_of_a_limiter() {
    let manual = ["docs/http-api.md", "docs/metrics.md"].map(text).concat();
    let called = manual.split('`').filter_map(|code| {
        let path = code.strip_prefix("POST ").or(code.strip_prefix("GET "))?;
        path.split('?')
            .next()
            .filter(|path| path.starts_with("/v1/") || path.starts_with("/ratelimiter.v1."))
    });
    let called: BTreeSet<&str> = called.collect();
    assert!(called.contains("/v1/check"), "{called:?}");
    let policy = named(&manifests(), "AuthorizationPolicy", "limiter");
    let paths = &policy["spec"]["rules"][0]["to"][0]["operation"]["paths"];
    assert_eq!(*paths, json!(called), "in alphabetical order");
}

/// A plugin as Istio configures Envoy for it: the filter in every listener of the workload, its
/// configuration as JSON, and clusters under Istio's names.
fn as_istio_does(plugin: &Value, node: &str, direction: &str) -> EnvoyConfig {
    let spec = &plugin["spec"];
    let cluster = spec["pluginConfig"]["limiter"]["cluster"].clone();
    let mut own = spec["pluginConfig"].clone();
    own["limiter"]["timeout"] = json!("2s");
    let config = EnvoyConfig::read(&file("envoy.yaml")).unwrap();
    let config = config.filter_config(|config| *config = own).unwrap();
    config.edit(|tree| {
        tree["node"] = json!({"id": node, "cluster": "orders.shop"});
        let limiter = &mut tree["static_resources"]["clusters"][0];
        limiter["name"] = cluster.clone();
        limiter["load_assignment"]["cluster_name"] = cluster;
        patch(limiter);
        tree["static_resources"]["listeners"][0]["traffic_direction"] = json!(direction);
        let filters = tree.pointer_mut(MANAGER).unwrap()["http_filters"].as_array_mut();
        filters.unwrap().insert(0, claims());
    })
}

/// Applies the `EnvoyFilter` to the limiters' cluster, which is then HTTP/2, as appProtocol says.
fn patch(limiter: &mut Value) {
    let filter = named(&manifests(), "EnvoyFilter", "limiter-replicas");
    let patch = &filter["spec"]["configPatches"][0];
    assert_eq!(patch["match"]["cluster"]["name"], limiter["name"]);
    for (field, value) in patch["patch"]["value"].as_object().unwrap() {
        match value.as_object() {
            Some(value) if limiter[field].is_object() && field == "outlier_detection" => {
                limiter[field]
                    .as_object_mut()
                    .unwrap()
                    .extend(value.clone());
            }
            _ => limiter[field] = value.clone(),
        }
    }
}

/// Stands in for a verified token: a header sets the claim `sub`.
fn claims() -> Value {
    let code = "function envoy_on_request(handle)
      local claims = {sub = handle:headers():get('x-user-id')}
      handle:streamInfo():dynamicMetadata():set('envoy.filters.http.jwt_authn', 'payload', claims)
    end";
    json!({
        "name": "claims",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": code}
        }
    })
}

const AT: At<'_> = At {
    client: "127.0.0.1:10000",
    admin: "127.0.0.1:9901",
    limiters: &["127.0.0.1:8090", "127.0.0.1:8092"],
    service: "127.0.0.1:8080",
    others: &[],
};
const ROUTER: &str = "router~10.0.0.1~gateway-1.istio-ingress~istio-ingress.svc.cluster.local";
const SIDECAR: &str = "sidecar~10.0.0.2~orders-1.shop~shop.svc.cluster.local";

const WAYPOINT: &str = "waypoint~10.0.0.3~waypoint-1.shop~shop.svc.cluster.local";

async fn answers(plugin: &str, node: &str, direction: &str) -> Vec<u16> {
    let plugin = documents(&format!("{FOLDER}/{plugin}.yaml")).remove(0);
    answers_of(&plugin, node, direction).await
}

async fn answers_of(plugin: &Value, node: &str, direction: &str) -> Vec<u16> {
    let running = Running::start(as_istio_does(plugin, node, direction), AT, &[]).await;
    statuses(&running.get("alice"), 6).await
}

const LIMITED: [u16; 6] = [200, 200, 200, 200, 200, 429];

#[tokio::test]
async fn the_gateways_plugin_limits_by_claims() {
    // Istio's gateways mark their listeners as outbound.
    assert_eq!(answers("gateway", ROUTER, "OUTBOUND").await, LIMITED);
}

#[tokio::test]
async fn the_sidecars_plugin_limits_what_comes_in() {
    assert_eq!(answers("sidecar", SIDECAR, "INBOUND").await, LIMITED);
}

#[tokio::test]
async fn the_sidecars_plugin_lets_out_what_goes_out() {
    assert_eq!(answers("sidecar", SIDECAR, "OUTBOUND").await, [200; 6]);
}

#[tokio::test]
async fn the_waypoints_extension_limits_what_comes_in() {
    let filter = extensions("waypoint").remove(0);
    assert_eq!(answers_of(&filter, WAYPOINT, "INBOUND").await, LIMITED);
}

#[test]
fn the_sidecars_plugin_sets_its_direction_itself() {
    let plugin = documents(&format!("{FOLDER}/sidecar.yaml")).remove(0);
    let config = plugin["spec"]["pluginConfig"].to_string();
    let config = Config::from_json(config.as_bytes()).unwrap();
    assert_eq!(config.direction, Direction::Inbound);
    assert!(plugin["spec"]["match"].is_null());
}

/// `dist` runs it in Envoy, with the module of a release.
#[test]
fn the_modules_configuration_is_the_plugins_but_for_claims() {
    let filter = named(&manifests(), "EnvoyFilter", "ratelimit-module");
    let module = &filter["spec"]["configPatches"][0]["patch"]["value"]["typed_config"];
    let mut own = module["filter_config"]["value"].clone();
    Config::from_json(own.to_string().as_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
    let gateway = documents(&format!("{FOLDER}/gateway.yaml")).remove(0);
    let mut plugin = gateway["spec"]["pluginConfig"].clone();
    for config in [&mut own, &mut plugin] {
        for descriptor in config["descriptors"].as_array_mut().unwrap() {
            *descriptor = descriptor["key"].take();
        }
    }
    assert_eq!(own, plugin);
}

/// The gateway with Envoy's own rate limit filter, as Istio patches it, and with other limits.
#[tokio::test]
async fn the_gateways_own_rate_limit_filter_limits() {
    let filter = named(&manifests(), "EnvoyFilter", "rate-limit-service");
    let patches = filter["spec"]["configPatches"].as_array().unwrap();
    let value = |kind: &str| {
        let mut of_kind = patches.iter().filter(|patch| patch["applyTo"] == kind);
        of_kind.next().unwrap()["patch"]["value"].clone()
    };
    let mut own = value("HTTP_FILTER");
    let config = &mut own["typed_config"];
    config["timeout"] = json!("5s");
    let cluster =
        config["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"].clone();
    let gateway = documents(&format!("{FOLDER}/gateway.yaml")).remove(0);
    let envoy = as_istio_does(&gateway, ROUTER, "OUTBOUND").edit(|tree| {
        assert_eq!(tree["static_resources"]["clusters"][0]["name"], cluster);
        let manager = tree.pointer_mut(MANAGER).unwrap();
        let filters = manager["http_filters"].as_array_mut().unwrap();
        filters.retain(|filter| filter["name"] == "envoy.filters.http.router");
        assert_eq!(filters.len(), 1);
        filters.insert(0, own);
        let hosts = manager["route_config"]["virtual_hosts"]
            .as_array_mut()
            .unwrap();
        for host in hosts {
            let more = value("VIRTUAL_HOST");
            host.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
        }
    });
    let limits = "domain: shop
limits:
  - {name: per-user, descriptor: [user], algorithm: fixed_window, rate: 5/365d}
";
    let running = Running::under(limits, envoy, AT, &[]).await;
    assert_eq!(statuses(&running.get("alice"), 6).await, LIMITED);
}

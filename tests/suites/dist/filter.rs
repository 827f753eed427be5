//! The filter and the module from their images, in Envoy.

use std::path::{Path, PathBuf};

use harness::{Envoy, EnvoyConfig, LimiterPlan, Ports, Programs, Upstream, until};
use std::time::Duration;

use serde_json::{Value, json};

use crate::artifacts::{file, folder, json, programs, unpack};
use crate::images::{architecture, blob, layout};

/// The filters of the shipped configuration.
const FILTERS: &str =
    "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";

const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, per: [user], if_missing: skip, rate: 3/1h}
";

/// The module as Istio's agent finds it: `plugin.wasm` in the last layer.
fn module(dir: &Path) -> PathBuf {
    let (image, _) = layout("rl-filter", dir);
    let index = json(&image.join("index.json"));
    let manifest = json(&blob(&image, &index["manifests"][0]));
    let layer = manifest["layers"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    unpack(&blob(&image, &layer), &dir.join("layer"));
    dir.join("layer/plugin.wasm")
}

/// The dynamic module as a volume of this processor's image has it.
fn dynamic_module(dir: &Path) -> PathBuf {
    let (image, _) = layout("rl-module", dir);
    let index = json(&blob(
        &image,
        &json(&image.join("index.json"))["manifests"][0],
    ));
    let manifests = index["manifests"].as_array().unwrap();
    let own = manifests
        .iter()
        .find(|manifest| manifest["platform"]["architecture"] == architecture());
    let manifest = json(&blob(&image, own.unwrap()));
    unpack(&blob(&image, &manifest["layers"][0]), &dir.join("module"));
    dir.join("module/librl_filter.so")
}

#[tokio::test]
async fn the_filter_in_the_image_denies_a_request_in_envoy() {
    let dir = tempfile::tempdir().unwrap();
    let module = module(dir.path());
    let alone = std::fs::read(folder().join("filter.wasm")).unwrap();
    assert_eq!(std::fs::read(&module).unwrap(), alone);
    denies_in_envoy(dir.path(), "x-user-id", |config| {
        config.filter_code(&module)
    })
    .await;
}

#[tokio::test]
async fn the_module_in_the_image_denies_a_request_in_envoy() {
    let dir = tempfile::tempdir().unwrap();
    let module = dynamic_module(dir.path());
    denies_in_envoy(dir.path(), "x-user-id", |config| config.module(&module)).await;
}

/// With the filter that Istio inserts, except for the paths and names of the cluster.
#[tokio::test]
async fn the_module_denies_a_request_as_istio_configures_it() {
    let dir = tempfile::tempdir().unwrap();
    let module = dynamic_module(dir.path());
    let manifest = file("deploy/kubernetes/components/istio/module.yaml");
    let manifest: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    let mut own = manifest["spec"]["configPatches"][0]["patch"]["value"].clone();
    own["typed_config"]["dynamic_module_config"]["module"]["local"]["filename"] = json!(module);
    let limiter = &mut own["typed_config"]["filter_config"]["value"]["limiter"];
    limiter["cluster"] = json!("limiter");
    limiter["timeout"] = json!("2s");
    let load = |config: EnvoyConfig| {
        Ok(config.edit(|tree| {
            let filters = tree.pointer_mut(FILTERS).unwrap();
            let wasm = &mut filters[0];
            assert!(wasm["typed_config"]["config"]["vm_config"].is_object());
            *wasm = own;
        }))
    };
    denies_in_envoy(dir.path(), "x-jwt-sub", load).await;
}

/// Runs the released limiter and Envoy with the shipped configuration, but for what loads the filter, and
/// sends requests of a user whom a header names.
async fn denies_in_envoy(
    dir: &Path,
    user: &'static str,
    load: impl FnOnce(EnvoyConfig) -> anyhow::Result<EnvoyConfig>,
) {
    let home = programs(&dir.join("programs"));
    let programs = Programs {
        limiter: home.join("limiter"),
        rlctl: home.join("rlctl"),
        ..Programs::from_env().unwrap()
    };
    let upstream = Upstream::start(0).await.unwrap();
    let mut ports = Ports {
        upstream: upstream.port(),
        ..Ports::free().unwrap()
    };
    let mut plan = LimiterPlan::under(LIMITS, "memory", dir, &[]).unwrap();
    plan.program.clone_from(&programs.limiter);
    ports.limiters[0] = plan.port;
    let _limiter = plan.start().await.unwrap();
    let config = EnvoyConfig::shipped(&programs.root).unwrap();
    let config = config
        .filter_config(|config| config["limiter"]["timeout"] = "2s".into())
        .unwrap();
    let envoy = Envoy::start(&programs, load(config).unwrap(), ports, 1, dir)
        .await
        .unwrap();
    let get = envoy.get("/api/x").header(user, "alice");
    let denied = until("a denial", Duration::from_secs(20), async || {
        let reply = get.send().await.ok()?;
        (reply.status == 429).then_some(reply)
    });
    let denied = denied.await.unwrap();
    assert!(denied.headers.contains_key("retry-after"));
}

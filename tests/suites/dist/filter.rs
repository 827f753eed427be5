//! The filter from its image, in Envoy.

use std::path::{Path, PathBuf};

use harness::{Envoy, EnvoyConfig, LimiterPlan, Ports, Programs, Upstream, until};
use std::time::Duration;

use crate::artifacts::{folder, json, programs, unpack};
use crate::images::{blob, layout};

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

#[tokio::test]
async fn the_filter_in_the_image_denies_a_request_in_envoy() {
    let dir = tempfile::tempdir().unwrap();
    let module = module(dir.path());
    let alone = std::fs::read(folder().join("filter.wasm")).unwrap();
    assert_eq!(std::fs::read(&module).unwrap(), alone);
    let home = programs(&dir.path().join("programs"));
    let programs = Programs {
        limiter: home.join("limiter"),
        rlctl: home.join("rlctl"),
        filter: module.clone(),
        ..Programs::from_env().unwrap()
    };
    let upstream = Upstream::start(0).await.unwrap();
    let ports = Ports {
        upstream: upstream.port(),
        ..Ports::free().unwrap()
    };
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let mut plan = LimiterPlan::new(
        &programs,
        "memory",
        [ports.limiters[0], harness::free_port().unwrap()],
        dir.path(),
    );
    plan.arguments = vec!["--limits".to_owned(), limits.to_str().unwrap().to_owned()];
    let _limiter = plan.start().await.unwrap();
    let config = EnvoyConfig::shipped(&programs.root).unwrap();
    let config = config.filter_code(&module).unwrap();
    let config = config
        .filter_config(|config| config["limiter"]["timeout"] = "2s".into())
        .unwrap();
    let envoy = Envoy::start(&programs, config, ports, 1, dir.path())
        .await
        .unwrap();
    let get = envoy.get("/api/x").header("x-user-id", "alice");
    let denied = until("a denial", Duration::from_secs(20), async || {
        let reply = get.send().await.ok()?;
        (reply.status == 429).then_some(reply)
    });
    let denied = denied.await.unwrap();
    assert!(denied.headers.contains_key("retry-after"));
}

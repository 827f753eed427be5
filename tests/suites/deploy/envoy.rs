//! `deploy/envoy`, in real Envoy.

use std::process::Command;
use std::time::Duration;

use harness::{EnvoyConfig, Programs, until};
use serde_json::Value;

use crate::checks::{file, files, passes};
use crate::running::{At, GATEWAY, Running, statuses};

const SIDECAR: At<'_> = At {
    client: "0.0.0.0:9080",
    service: "127.0.0.1:8080",
    others: &["127.0.0.1:9081", "backend:8080"],
    ..GATEWAY
};

/// A shipped file, changed only in what a busy machine needs.
fn shipped(name: &str) -> EnvoyConfig {
    let config = EnvoyConfig::read(&file(&format!("deploy/envoy/{name}"))).unwrap();
    config.limiter_timeout("2s").unwrap()
}

#[test]
fn envoy_accepts_every_file_as_it_is() {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for path in files("deploy/envoy", ".yaml") {
        // Only the path of the filter differs.
        let config = EnvoyConfig::read(&file(&path)).unwrap();
        let copy = dir.path().join("envoy.json");
        let config = config.filter_code_everywhere(&programs.filter);
        config.write(&copy).unwrap();
        let mut envoy = Command::new(&programs.envoy);
        envoy
            .args(["--mode", "validate", "--config-path"])
            .arg(&copy);
        let said = passes(envoy.env("RL_TOKEN", "secret"));
        assert!(!said.contains("Deprecated"), "{path}: {said}");
    }
}

#[tokio::test]
async fn the_gateway_limits_and_says_so_in_its_log_and_metrics() {
    let running = Running::start(shipped("gateway.yaml"), GATEWAY, &[]).await;
    let alice = running.get("alice");

    assert_eq!(statuses(&alice, 6).await, [200, 200, 200, 200, 200, 429]);
    assert_eq!(running.upstream.requests(), 5);

    let log = until(
        "the access log names the limit",
        Duration::from_secs(10),
        async || {
            let log = running.envoy.process().log();
            let line = log.lines().find(|line| line.contains("rl_denied"))?;
            Some(line.to_owned())
        },
    );
    let line: Value = serde_json::from_str(&log.await.unwrap()).unwrap();
    assert_eq!(line["status"], 429);
    assert_eq!(line["path"], "/api/x");
    assert_eq!(line["denied"], "rl_denied:per-user:limiter");
    assert_eq!(line["details"], "rl_denied:per-user:limiter");
    let labelled = r#"rl_decisions{decision="denied",source="limiter",limit="per-user"} 1"#;
    until("metrics have labels", Duration::from_secs(10), async || {
        let page = running.envoy.admin("/stats/prometheus").await.ok()?;
        same_labels(&page, labelled).then_some(())
    })
    .await
    .unwrap();
}

/// Whether a page has this sample, its labels in any order.
fn same_labels(page: &str, sample: &str) -> bool {
    let parts = |line: &str| {
        let mut parts: Vec<String> = line.split(['{', '}', ',']).map(str::to_owned).collect();
        parts.sort();
        parts
    };
    page.lines().any(|line| parts(line) == parts(sample))
}

/// Limits with `per` apply to descriptors of Envoy's own filter, too.
#[tokio::test]
async fn envoys_own_filter_limits_by_the_rate_limit_service() {
    let config = EnvoyConfig::read(&file("deploy/envoy/rate-limit-service.yaml")).unwrap();
    let config = config.edit(|tree| {
        let timeout = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/timeout";
        *tree.pointer_mut(timeout).unwrap() = "2s".into();
    });
    let running = Running::start(config, GATEWAY, &[]).await;
    let answers = statuses(&running.get("alice"), 6).await;
    assert_eq!(answers, [200, 200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn the_gateway_shows_its_token() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "a-token-of-some-length\n").unwrap();
    let arguments = ["--token-file", tokens.path().to_str().unwrap()];
    // A VM's variables may also be given in the file.
    let config = shipped("gateway.yaml").edit(|tree| {
        let vm = tree
            .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config/vm_config")
            .unwrap();
        assert_eq!(vm["environment_variables"]["host_env_keys"][0], "RL_TOKEN");
        vm["environment_variables"] =
            serde_json::json!({"key_values": {"RL_TOKEN": "a-token-of-some-length"}});
    });
    let running = Running::start(config, GATEWAY, &arguments).await;

    let answers = statuses(&running.get("alice"), 6).await;

    assert_eq!(answers, [200, 200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn the_sidecar_limits_what_comes_in_and_nothing_else() {
    let running = Running::start(shipped("sidecar.yaml"), SIDECAR, &[]).await;

    let answers = statuses(&running.get("alice"), 6).await;

    assert_eq!(answers, [200, 200, 200, 200, 200, 429]);
}

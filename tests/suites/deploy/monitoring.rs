//! `deploy/monitoring`: its rules fire when they should, and every metric it uses exists.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use harness::{Client, EnvoyConfig, until};
use serde_json::{Value, json};

use crate::checks::{documents, file, passes, text, variable};
use crate::running::{GATEWAY, LIMITS, OTHER_LIMITS, Running, WatchedFiles, statuses};

const PATIENCE: Duration = Duration::from_secs(20);

fn promtool(arguments: &[&str]) -> Command {
    let mut promtool = Command::new(variable("RL_TEST_PROMTOOL"));
    promtool
        .args(arguments)
        .current_dir(file("deploy/monitoring"));
    promtool
}

#[test]
fn prometheus_accepts_its_configuration() {
    // Debian's promtool lacks Kubernetes discovery; it can check the rest.
    let pods = "kubernetes_sd_configs: [{role: pod}]";
    let shipped = text("deploy/monitoring/prometheus.yaml");
    assert!(shipped.contains(pods));
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("prometheus.yaml");
    std::fs::write(&copy, shipped.replace(pods, "static_configs: []")).unwrap();
    let rules = file("deploy/monitoring/rules.yaml");
    std::fs::copy(rules, dir.path().join("rules.yaml")).unwrap();
    passes(promtool(&["check", "config", "--lint-fatal"]).arg(copy));
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    passes(&mut promtool(&["test", "rules", "rules_test.yaml"]));
}

#[test]
fn every_alert_is_tested() {
    let tested = text("deploy/monitoring/rules_test.yaml");
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(tested.contains(&format!("alertname: {name}")), "{name}");
    }
}

pub fn alerts() -> Vec<Value> {
    let rules = documents("deploy/monitoring/rules.yaml").remove(0);
    let groups = rules["groups"].as_array().unwrap().clone();
    let alerts = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone());
    alerts.collect()
}

/// Every query of the dashboard.
pub fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("deploy/monitoring/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

/// Whether an alert is about the controller or the dynamic module, which this suite does not run: the suites `kubernetes` and
/// `envoy` show that their metrics exist.
pub fn is_of_what_runs_elsewhere(alert: &Value) -> bool {
    let expression = alert["expr"].as_str().unwrap();
    ["rl_controller_", "rl_panics"]
        .iter()
        .any(|metric| expression.contains(metric))
}

/// Every expression of the dashboard, and of the rules about what this suite runs.
fn expressions() -> Vec<String> {
    let drawn = queries().into_iter();
    let alerts = alerts();
    let fired = { alerts.iter() }
        .filter(|alert| !is_of_what_runs_elsewhere(alert))
        .map(|alert| alert["expr"].as_str().unwrap().to_owned());
    drawn.chain(fired).collect()
}

/// The rl_ metrics in an expression.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("rl_"))
        .map(str::to_owned)
        .collect()
}

/// The metrics that a page in Prometheus's format declares.
fn declared(page: &str) -> BTreeSet<String> {
    let mut declared = BTreeSet::new();
    for line in page.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
        {
            declared.insert(name.to_owned());
            // OpenMetrics appends a suffix to the name of a counter's samples.
            if kind == "counter" {
                declared.insert(format!("{name}_total"));
            }
            if kind == "histogram" {
                declared.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
            }
        }
    }
    declared
}

/// Envoy creates a metric when it is first counted, so this test produces every metric of the rules and
/// the dashboard.
#[tokio::test]
async fn every_metric_in_use_exists() {
    let config = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let limits = format!("{LIMITS}{OTHER_LIMITS}");
    let running = Running::under(&limits, config, GATEWAY, &[]).await;
    statuses(&running.get("alice"), 7).await;
    let nonsense = format!("{}/v1/check", running.limiter.url());
    Client::new().post(&nonsense, "?").send().await.unwrap();
    let page = Client::new()
        .get(&format!("{}/metrics", running.limiter.admin_url()))
        .send()
        .await
        .unwrap()
        .text();
    let mut limiter = declared(&page);
    let files = WatchedFiles::start().await;
    let page = Client::new().get(&format!("http://127.0.0.1:{}/metrics", files.port));
    limiter.extend(declared(&page.send().await.unwrap().text()));
    let wanted: BTreeSet<String> = expressions().iter().flat_map(|e| metrics_in(e)).collect();
    assert!(wanted.len() >= 15, "{wanted:?}");
    // Calls to a paused limiter fail; an Envoy started without one lets requests pass unlimited.
    running.limiter.process().pause().unwrap();
    let stranded = Running::start(unreachable(), GATEWAY, &[]).await;
    statuses(&stranded.get("alice"), 1).await;
    until("every metric is there", PATIENCE, async || {
        running.get("bob").send().await.ok()?;
        let mut there = limiter.clone();
        for envoy in [&running.envoy, &stranded.envoy] {
            there.extend(declared(&envoy.admin("/stats/prometheus").await.ok()?));
        }
        let missing: Vec<&String> = wanted.difference(&there).collect();
        if missing.is_empty() {
            return Some(());
        }
        println!("not yet: {missing:?}");
        None
    })
    .await
    .unwrap();
}

/// The gateway with a limiter cluster that does not exist.
pub fn unreachable() -> EnvoyConfig {
    let config = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let wrong = |filter: &mut Value| filter["limiter"]["cluster"] = json!("no-such-cluster");
    config.filter_config(wrong).unwrap()
}

/// The counters of VM restarts are named after the plugin.
#[tokio::test]
async fn a_vm_restart_raises_an_alert() {
    let config = EnvoyConfig::read(&file("deploy/envoy/gateway.yaml")).unwrap();
    let running = Running::start(config, GATEWAY, &[]).await;
    let page = running.envoy.admin("/stats/prometheus").await.unwrap();
    assert!(
        declared(&page).contains("envoy_wasm_ratelimit_vm_reload_success"),
        "{page}"
    );
    let alerts = alerts();
    let alert = alerts
        .iter()
        .find(|alert| alert["alert"] == "RateLimitFilterReloads");
    let expression = alert.unwrap()["expr"].as_str().unwrap();
    assert!(expression.contains("envoy_wasm_.+_vm_reload_success"));
}

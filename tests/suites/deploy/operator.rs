//! The component `monitoring`: its copies of `deploy/monitoring` are up to date.

use serde_json::{Value, json};

use crate::checks::{documents, file, text};
use crate::kustomize::{find, rendered, resource};

const RULES: &str = "deploy/kubernetes/components/monitoring/rules.yaml";

/// The Prometheus operator takes rules only within a resource. `UPDATE_RULES=1` updates it.
#[test]
fn the_operators_rules_are_those_of_prometheus() {
    let rules = text("deploy/monitoring/rules.yaml");
    if std::env::var_os("UPDATE_RULES").is_some() {
        let own = text(RULES);
        let head = own.split_inclusive("spec:\n").next().unwrap().to_owned();
        let groups = &rules[rules.find("groups:").unwrap()..];
        let indented = groups.split_inclusive('\n').map(|line| match line {
            "\n" => line.to_owned(),
            line => format!("  {line}"),
        });
        std::fs::write(file(RULES), head + &indented.collect::<String>()).unwrap();
    }
    let own = documents(RULES).remove(0);
    let rules = documents("deploy/monitoring/rules.yaml").remove(0);
    assert_eq!(
        own["spec"]["groups"], rules["groups"],
        "UPDATE_RULES=1 cargo xtask test --only deploy -- the_operators_rules copies them"
    );
}

#[test]
fn istios_metrics_are_split_into_labels_as_prometheus_does() {
    let configuration = documents("deploy/monitoring/prometheus.yaml").remove(0);
    let jobs = configuration["scrape_configs"].as_array().unwrap().iter();
    let istio = { jobs }.find(|job| job["job_name"] == "istio").unwrap();
    let expected = istio["metric_relabel_configs"].as_array().unwrap();
    let expected: Vec<Value> = expected
        .iter()
        .map(|rule| {
            json!({
                "sourceLabels": rule["source_labels"], "regex": rule["regex"],
                "targetLabel": rule["target_label"], "replacement": rule["replacement"],
            })
        })
        .collect();
    let monitor = resource("PodMonitor", "istio-proxies");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let rules = endpoint["metricRelabelings"].as_array().unwrap();
    assert_eq!(rules[0]["action"], "keep");
    assert_eq!(rules[1..], expected);
}

/// A Prometheus that finds limiters by annotations and by a monitor counts each decision twice.
#[test]
fn pods_with_a_monitor_have_no_annotations_for_scraping() {
    let marks = |components: &[&str]| {
        let all = rendered(components);
        let pods = all.iter().filter(|object| object["kind"] == "Deployment");
        let annotations = pods.map(|object| &object["spec"]["template"]["metadata"]["annotations"]);
        { annotations }
            .filter(|found| found["prometheus.io/scrape"] == "true")
            .count()
    };
    assert_eq!(marks(&["gitops", "controller"]), 1);
    assert_eq!(marks(&["gitops", "controller", "monitoring"]), 0);
}

/// Prometheus selects a pod's port by its name.
#[test]
fn monitors_name_ports_that_there_are() {
    let all = rendered(&["gitops", "controller", "monitoring"]);
    for (monitor, deployment) in [
        ("limiter", "limiter"),
        ("rlctl", "limits"),
        ("rl-controller", "controller"),
    ] {
        let monitor = find(&all, "PodMonitor", monitor);
        let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
        let deployment = find(&all, "Deployment", deployment);
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let ports = container["ports"].as_array().unwrap();
        assert!(ports.iter().any(|found| found["name"] == *port), "{port}");
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let selected = monitor["spec"]["selector"]["matchLabels"]
            .as_object()
            .unwrap();
        assert!(
            selected
                .iter()
                .all(|(label, value)| labels[label] == *value)
        );
    }
}

#[test]
fn grafana_finds_the_dashboard() {
    let map = find(&rendered(&["monitoring"]), "ConfigMap", "rl-dashboard");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard = map["data"]["dashboard.json"].as_str().unwrap();
    assert_eq!(dashboard, text("deploy/monitoring/dashboard.json"));
}

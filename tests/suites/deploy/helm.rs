//! `deploy/helm`: the chart renders what the Kustomize base and its components render, and each value
//! does what it says.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::checks::{documents, file, text, variable};
use crate::kustomize::{all_fit, find, rendered};

/// The chart with some values, by Helm's library. `None` on processors that it is not built for.
fn helm(values: &Value) -> Option<Output> {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: Helm's library is built for x86_64");
        return None;
    }
    let mut helm = Command::new("python3");
    helm.arg(file("tests/suites/deploy/render_chart.py"))
        .arg(file("deploy/helm"))
        .arg("ratelimit")
        .env("PYTHONPATH", variable("RL_TEST_HELM"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut helm = helm.spawn().unwrap();
    let mut input = helm.stdin.take().unwrap();
    input.write_all(values.to_string().as_bytes()).unwrap();
    drop(input);
    Some(helm.wait_with_output().unwrap())
}

fn objects(values: &Value) -> Option<Vec<Value>> {
    let output = helm(values)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {said}");
    let yaml = std::str::from_utf8(&output.stdout).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    Some(all.into_iter().filter(|object| !object.is_null()).collect())
}

/// In one order, without the namespace, which `helm install --create-namespace` makes, and without what keeps
/// definitions when a release goes.
fn comparable(mut objects: Vec<Value>) -> Vec<Value> {
    objects.retain(|object| object["kind"] != "Namespace");
    for object in &mut objects {
        if object["kind"] == "CustomResourceDefinition" {
            let annotations = object["metadata"]["annotations"].as_object_mut();
            drop(annotations.and_then(|all| all.remove("helm.sh/resource-policy")));
            // Asking for what is absent has made it null.
            if [json!({}), json!(null)].contains(&object["metadata"]["annotations"]) {
                drop(
                    object["metadata"]
                        .as_object_mut()
                        .unwrap()
                        .remove("annotations"),
                );
            }
        }
        // Kustomize has a hash in the name of this ConfigMap, where the chart has one in an annotation of the pod.
        if object["kind"] == "ConfigMap" {
            without_hash(&mut object["metadata"]["name"]);
        }
        if object["kind"] == "Deployment" && object["metadata"]["name"] == "controller" {
            let pod = &mut object["spec"]["template"];
            without_hash(&mut pod["spec"]["volumes"][0]["configMap"]["name"]);
            pod["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
        }
    }
    objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    objects
}

fn without_hash(name: &mut Value) {
    if let Some(text) = name.as_str()
        && text.starts_with("controller-filter-")
    {
        *name = "controller-filter".into();
    }
}

/// Everything that the chart can render.
fn everything() -> Value {
    let limits = text("deploy/kubernetes/components/gitops/limits.yaml");
    json!({
        "valkey": {"enabled": true},
        "limits": {"enabled": true, "files": {"limits.yaml": limits}},
        "controller": {"enabled": true, "filter": {"enabled": true}},
        "monitoring": {
            "podMonitors": {"enabled": true},
            "rules": {"enabled": true},
            "dashboard": {"enabled": true},
        },
    })
}

#[test]
fn the_chart_renders_what_kustomize_renders() {
    for (values, components) in [
        (json!({}), &[][..]),
        (
            everything(),
            &[
                "redis",
                "gitops",
                "controller",
                "controller-filter",
                "monitoring",
            ],
        ),
    ] {
        let Some(chart) = objects(&values) else {
            return;
        };
        let (chart, kustomize) = (comparable(chart), comparable(rendered(components)));
        assert!(kustomize.len() >= 8, "{}", kustomize.len());
        assert_eq!(chart, kustomize);
    }
}

/// Values, an object, a place in it, and what is there then.
const EFFECTS: [(&str, &str, &str, &str); 31] = [
    (
        r#"{"image": {"repository": "r.example/rl", "tag": "2"}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/image",
        r#""r.example/rl:2""#,
    ),
    (
        r#"{"image": {"digest": "sha256:DIGEST"}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/image",
        r#""registry.example.com/rl/limiter@sha256:DIGEST""#,
    ),
    (
        r#"{"image": {"pullSecrets": ["registry"]}}"#,
        "Deployment limiter",
        "/spec/template/spec/imagePullSecrets",
        r#"[{"name": "registry"}]"#,
    ),
    (
        r#"{"limiter": {"replicas": 3}}"#,
        "Deployment limiter",
        "/spec/replicas",
        "3",
    ),
    (
        r#"{"limiter": {"autoscaling": {"max": 40}}}"#,
        "HorizontalPodAutoscaler limiter",
        "/spec/maxReplicas",
        "40",
    ),
    (
        r#"{"limiter": {"resources": {"limits": {"memory": "1Gi"}}}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/resources/limits/memory",
        r#""1Gi""#,
    ),
    (
        r#"{"store": {"secret": "s", "key": "k"}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/env/0/valueFrom/secretKeyRef",
        r#"{"name": "s", "key": "k"}"#,
    ),
    (
        r#"{"tokens": {"secret": "t"}}"#,
        "Deployment limiter",
        "/spec/template/spec/volumes/0/secret/secretName",
        r#""t""#,
    ),
    (
        r#"{"tokens": {"secret": ""}}"#,
        "Deployment limiter",
        "/spec/template/spec/volumes",
        "[]",
    ),
    (
        r#"{"limiter": {"args": ["--max-body=1MiB"]}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/args/5",
        r#""--max-body=1MiB""#,
    ),
    (
        r#"{"limits": {"enabled": true, "configMap": "mine"}}"#,
        "Deployment limits",
        "/spec/template/spec/volumes/0/configMap/name",
        r#""mine""#,
    ),
    (
        r#"{"limits": {"enabled": true, "configMap": "mine", "prune": false}}"#,
        "Deployment limits",
        "/spec/template/spec/containers/0/args/2",
        r#""--file=/etc/rl/limits""#,
    ),
    (
        r#"{"controller": {"enabled": true, "filter": {"enabled": true, "configMap": "mine"}}}"#,
        "Deployment controller",
        "/spec/template/spec/volumes/0/configMap/name",
        r#""mine""#,
    ),
    (
        r#"{"networkPolicy": {"proxies": ["edge"]}}"#,
        "NetworkPolicy limiter",
        "/spec/ingress/0/from/0/namespaceSelector/matchExpressions/0/values",
        r#"["edge"]"#,
    ),
    (
        r#"{"networkPolicy": {"store": [{"ipBlock": {"cidr": "10.0.0.5/32"}}]}}"#,
        "NetworkPolicy rlctl",
        "/spec/egress/0/to",
        r#"[{"ipBlock": {"cidr": "10.0.0.5/32"}}]"#,
    ),
    (
        r#"{"networkPolicy": {"storePorts": [6380]}}"#,
        "NetworkPolicy limiter",
        "/spec/egress/0/ports",
        r#"[{"port": 6380}]"#,
    ),
    (
        r#"{"networkPolicy": {"storePorts": [6380]}, "controller": {"enabled": true}}"#,
        "NetworkPolicy rl-controller",
        "/spec/egress/1/ports",
        r#"[{"port": 6380}]"#,
    ),
    (
        r#"{"monitoring": {"podMonitors": {"enabled": true, "istio": ["edge"]}}}"#,
        "PodMonitor istio-proxies",
        "/spec/namespaceSelector/matchNames",
        r#"["edge"]"#,
    ),
    (
        r#"{"monitoring": {"rules": {"enabled": true}, "labels": {"release": "p"}}}"#,
        "PrometheusRule rl",
        "/metadata/labels/release",
        r#""p""#,
    ),
    (
        r#"{"limiter": {"args": ["--drain=30s", "--log-format=text"]}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/args",
        r#"["--listen=0.0.0.0:8090", "--admin=0.0.0.0:8091", "--token-file=/etc/rl/tokens/tokens", "--drain=30s", "--log-format=text"]"#,
    ),
    (
        r#"{"limiter": {"args": ["--drain=30s"]}}"#,
        "Deployment limiter",
        "/spec/template/spec/terminationGracePeriodSeconds",
        "40",
    ),
    (
        r#"{"limiter": {"args": ["--drain", "2m"]}}"#,
        "Deployment limiter",
        "/spec/template/spec/terminationGracePeriodSeconds",
        "130",
    ),
    (
        r#"{"limiter": {"env": [{"name": "RL_DRAIN", "value": "500ms"}]}}"#,
        "Deployment limiter",
        "/spec/template/spec/terminationGracePeriodSeconds",
        "20",
    ),
    (
        r#"{"limiter": {"env": [{"name": "RL_LOG_FORMAT", "value": "text"}]}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/args/3",
        r#""--drain=10s""#,
    ),
    (
        r#"{"limiter": {"volumes": [{"name": "ca", "configMap": {"name": "ca"}}]}}"#,
        "Deployment limiter",
        "/spec/template/spec/volumes/1/name",
        r#""ca""#,
    ),
    (
        r#"{"limiter": {"volumeMounts": [{"name": "tokens", "mountPath": "/ca"}]}}"#,
        "Deployment limiter",
        "/spec/template/spec/containers/0/volumeMounts/1/mountPath",
        r#""/ca""#,
    ),
    (
        r#"{"networkPolicy": {"egress": [{"ports": [{"port": 4318}]}]}, "limiter": {"args": ["--xds-server=http://x:18001"]}}"#,
        "NetworkPolicy limiter",
        "/spec/egress/3",
        r#"{"ports": [{"port": 4318}]}"#,
    ),
    (
        r#"{"networkPolicy": {"apiServerPorts": [16443]}, "controller": {"enabled": true}}"#,
        "NetworkPolicy rl-controller",
        "/spec/egress/0/ports",
        r#"[{"port": 16443}]"#,
    ),
    (
        r#"{"image": {"pullSecrets": ["registry"]}, "valkey": {"enabled": true}}"#,
        "StatefulSet valkey",
        "/spec/template/spec/imagePullSecrets",
        r#"[{"name": "registry"}]"#,
    ),
    (
        r#"{"monitoring": {"podMonitors": {"enabled": true}, "labels": {"app.kubernetes.io/part-of": "p"}}}"#,
        "PodMonitor limiter",
        "/metadata/labels/app.kubernetes.io~1part-of",
        r#""p""#,
    ),
    (
        r#"{"monitoring": {"dashboard": {"enabled": true}, "labels": {"grafana_dashboard": "yes"}}}"#,
        "ConfigMap rl-dashboard",
        "/metadata/labels/grafana_dashboard",
        r#""yes""#,
    ),
];

#[test]
fn each_value_does_what_it_says() {
    let digest = "0".repeat(64);
    let read =
        |text: &str| -> Value { serde_json::from_str(&text.replace("DIGEST", &digest)).unwrap() };
    let mut changed = Vec::new();
    for (values, object, pointer, expected) in EFFECTS {
        let Some(all) = objects(&read(values)) else {
            return;
        };
        let (kind, name) = object.split_once(' ').unwrap();
        let found = find(&all, kind, name);
        assert_eq!(found.pointer(pointer), Some(&read(expected)), "{values}");
        changed.push(found);
    }
    all_fit(&changed);
}

/// What is set replaces what the chart has, and what is not stays; the controller reads it.
#[test]
fn what_the_controller_loads_into_gateways_is_set_field_by_field() {
    let user = json!([{"key": "user", "header": "x-user"}]);
    let settings = json!({"image": "r.example/filter:2", "istio": {"descriptors": user}});
    let filter = json!({"enabled": true, "settings": settings});
    let Some(all) = objects(&json!({"controller": {"enabled": true, "filter": filter}})) else {
        return;
    };
    all_fit(&all);
    let controller = find(&all, "Deployment", "controller");
    let pod = &controller["spec"]["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["args"][2],
        "--filter=/etc/rl/filter.yaml"
    );
    assert_eq!(
        pod["containers"][0]["volumeMounts"][0]["mountPath"],
        "/etc/rl"
    );
    let name = pod["volumes"][0]["configMap"]["name"].as_str().unwrap();
    let file = find(&all, "ConfigMap", name)["data"]["filter.yaml"].clone();
    let read: Value = serde_saphyr::from_str(file.as_str().unwrap()).unwrap();
    let settings: kubernetes::FilterSettings = serde_json::from_value(read).unwrap();
    assert_eq!(settings.image, "r.example/filter:2");
    let gateway = kubernetes::Key::new("infra", "public");
    let config = |loader| settings.config(loader, &gateway, "shop").unwrap();
    let istio = config(kubernetes::Loader::TrafficExtension);
    assert_eq!(istio["descriptors"][0], user[0]);
    let cluster = "outbound|8090||limiter.ratelimit.svc.cluster.local";
    assert_eq!(istio["limiter"]["cluster"], cluster);
    let envoy_gateway = config(kubernetes::Loader::EnvoyExtensionPolicy);
    assert_eq!(envoy_gateway["descriptors"][0]["header"], "x-user-id");
    // Its role comes with it, and not without.
    find(&all, "ClusterRole", "rl-controller-filter");
    let without = objects(&json!({"controller": {"enabled": true}})).unwrap();
    assert!(
        without
            .iter()
            .all(|one| one["metadata"]["name"] != "rl-controller-filter")
    );
}

/// The files that the flags name are in the volume.
#[test]
fn tls_mounts_what_its_flags_name() {
    let Some(all) = objects(&json!({"tls": {"secret": "limiter-tls", "clientCA": true}})) else {
        return;
    };
    all_fit(&all);
    let pod = &find(&all, "Deployment", "limiter")["spec"]["template"]["spec"];
    let limiter = &pod["containers"][0];
    let mount = &limiter["volumeMounts"][1];
    let folder = mount["mountPath"].as_str().unwrap();
    for (flag, file) in [
        ("tls-cert", "tls.crt"),
        ("tls-key", "tls.key"),
        ("client-ca", "ca.crt"),
    ] {
        let argument = json!(format!("--{flag}={folder}/{file}"));
        assert!(
            limiter["args"].as_array().unwrap().contains(&argument),
            "{argument}"
        );
        assert!(text("docs/limiter.md").contains(&format!("`--{flag}`")));
    }
    assert_eq!(pod["volumes"][1]["name"], mount["name"]);
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "limiter-tls");
}

#[test]
fn what_is_switched_off_is_not_there() {
    let values = json!({"limiter": {"replicas": 2}, "networkPolicy": {"enabled": false}});
    let Some(all) = objects(&values) else {
        return;
    };
    let kinds: Vec<&str> = all
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert!(!kinds.contains(&"HorizontalPodAutoscaler"), "{kinds:?}");
    assert!(!kinds.contains(&"NetworkPolicy"), "{kinds:?}");
    assert!(kinds.contains(&"PodDisruptionBudget"), "{kinds:?}");
}

#[test]
fn proxies_that_nobody_names_have_no_monitor() {
    let monitors = json!({"enabled": true, "istio": []});
    let Some(all) = objects(&json!({"monitoring": {"podMonitors": monitors}})) else {
        return;
    };
    let has = |name: &str| all.iter().any(|one| one["metadata"]["name"] == name);
    assert!(!has("istio-proxies") && has("envoy-gateway-proxies"));
}

#[test]
fn a_collector_in_the_same_pod_needs_no_permission() {
    let collector =
        r#"[{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://localhost:4318"}]"#;
    let collector: Value = serde_json::from_str(collector).unwrap();
    objects(&json!({"limiter": {"env": collector}}));
}

/// A setting that would be dropped, or that another one keeps from working, is an error and no surprise.
#[test]
fn a_misspelt_or_contradictory_value_is_refused() {
    let files = json!({"limits.yaml": "domain: shop"});
    let collector = |value: &str| json!({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": value});
    let filter = |filter: Value| json!({"controller": {"enabled": true, "filter": filter}});
    let settings = json!({"image": "r.example/filter:2"});
    for (values, named) in [
        (json!({"limiter": {"replica": 2}}), "replica"),
        (json!({"limits": {"enabled": true}}), "limits.files"),
        (json!({"limits": {"files": files}}), "limits.enabled"),
        (json!({"limits": {"configMap": "mine"}}), "limits.enabled"),
        (
            json!({"limits": {"enabled": true, "files": files, "configMap": "mine"}}),
            "limits.configMap",
        ),
        (json!({"tls": {"clientCA": true}}), "tls.secret"),
        (
            json!({"controller": {"filter": {"enabled": true}}}),
            "controller.enabled",
        ),
        (
            filter(json!({"settings": settings})),
            "controller.filter.enabled",
        ),
        (
            filter(json!({"enabled": true, "settings": settings, "configMap": "mine"})),
            "controller.filter.configMap",
        ),
        (
            json!({"limiter": {"autoscaling": {"min": 20}}}),
            "autoscaling",
        ),
        (json!({"networkPolicy": {"proxies": []}}), "proxies"),
        (
            json!({"valkey": {"enabled": true}, "networkPolicy": {"storePorts": [6380]}}),
            "networkPolicy.storePorts",
        ),
        (
            json!({"limiter": {"args": ["--compare-with=grpc://old:8081"]}}),
            "networkPolicy.egress",
        ),
        (
            json!({"limiter": {"env": [{"name": "RL_XDS_SERVER", "value": "http://x:18001"}]}}),
            "networkPolicy.egress",
        ),
        (
            json!({"limiter": {"env": [collector("http://collector:4318")]}}),
            "networkPolicy.egress",
        ),
    ] {
        let Some(output) = helm(&values) else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(named),
            "{values}: {said}"
        );
    }
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = documents("deploy/helm/Chart.yaml").remove(0);
    let manifest = text("Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("version"));
    let version = line.unwrap().split('"').nth(1).unwrap();
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
}

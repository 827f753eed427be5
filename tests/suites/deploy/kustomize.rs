//! `deploy/kubernetes` as `kubectl apply -k` renders it, with every resource checked by its schema.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checks::{documents, fails, file, passes, python, text, variable};

/// The Kubernetes API version of the schemas.
const KUBERNETES: &str = "1.37";

/// Every component, as a kustomization names it.
pub const COMPONENTS: [&str; 8] = [
    "redis",
    "gitops",
    "controller",
    "controller-filter",
    "istio",
    "istio-mtls",
    "envoy-gateway",
    "monitoring",
];

/// The schema of Envoy Gateway's resources, which are in no package registry.
const ENVOY_GATEWAY: &str = "tests/suites/deploy/envoy-gateway.schema.json";

/// The schema of Istio's `TrafficExtension`, which the packages of its other resources lack.
const TRAFFIC_EXTENSION: &str = "tests/suites/deploy/istio-traffic-extension.schema.json";

/// Renders a folder with a kustomization.
fn kustomize(folder: &Path) -> Output {
    let mut kubectl = Command::new(variable("RL_TEST_KUBECTL"));
    kubectl.arg("kustomize").arg(folder).output().unwrap()
}

fn parsed(rendered: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&rendered.stderr);
    assert!(rendered.status.success(), "{said}");
    assert_eq!(said, "", "a warning");
    let yaml = std::str::from_utf8(&rendered.stdout).unwrap();
    serde_saphyr::from_multiple(yaml).unwrap()
}

/// The base with some components, included by a kustomization in another folder.
pub fn rendered(components: &[&str]) -> Vec<Value> {
    let dir = TempDir::new().unwrap();
    let here = dir.path().canonicalize().unwrap();
    let kubernetes = file("deploy/kubernetes").canonicalize().unwrap();
    // Kustomize accepts only relative paths.
    let up = "../".repeat(here.components().count() - 1);
    let at = |part: &str| {
        format!(
            "{up}{}",
            kubernetes.join(part).strip_prefix("/").unwrap().display()
        )
    };
    let components: Vec<String> = components
        .iter()
        .map(|name| at(&format!("components/{name}")))
        .collect();
    let kustomization = json!({"resources": [at("base")], "components": components});
    std::fs::write(here.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    parsed(&kustomize(&here))
}

/// The only resource of this kind and name.
pub fn find(resources: &[Value], kind: &str, name: &str) -> Value {
    let is = |doc: &&Value| doc["kind"] == kind && doc["metadata"]["name"] == name;
    let found: Vec<&Value> = resources.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0].clone()
}

/// The resource of this kind and name, with every component.
pub fn resource(kind: &str, name: &str) -> Value {
    find(&rendered(&COMPONENTS), kind, name)
}

/// The origin of a resource's schema.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy, Debug)]
enum Schema {
    Kubernetes,
    /// Istio, the Gateway API, the Prometheus operator.
    Definitions,
    /// In a file of the checkout.
    File(&'static str),
}

fn schema_of(resource: &Value) -> Schema {
    if resource["kind"] == "TrafficExtension" {
        return Schema::File(TRAFFIC_EXTENSION);
    }
    let version = resource["apiVersion"].as_str().unwrap();
    let group = version.split('/').next().unwrap();
    match group {
        "gateway.envoyproxy.io" => Schema::File(ENVOY_GATEWAY),
        "gateway.networking.k8s.io" | "monitoring.coreos.com" => Schema::Definitions,
        group if group.ends_with(".istio.io") => Schema::Definitions,
        _ => Schema::Kubernetes,
    }
}

/// The command that checks resources against one kind of schema.
fn check(schema: Schema, resources: &[Value], dir: &Path) -> Command {
    let paths = resources.iter().enumerate().map(|(n, resource)| {
        let path = dir.join(format!("{n}.json"));
        std::fs::write(&path, resource.to_string()).unwrap();
        path
    });
    let paths: Vec<PathBuf> = paths.collect();
    let mut check = match schema {
        Schema::Kubernetes => {
            let mut check = python("kubernetes_validate");
            check.args(["--strict", "--kubernetes-version", KUBERNETES]);
            check
        }
        Schema::Definitions => {
            let mut check = Command::new(variable("RL_TEST_NODE"));
            check.arg(file("tests/suites/deploy/resources.mjs"));
            check.arg(variable("RL_TEST_DEFINITIONS"));
            check
        }
        Schema::File(schema) => {
            let mut check = python("check_jsonschema");
            check.arg("--schemafile").arg(file(schema));
            check
        }
    };
    check.args(paths);
    check
}

/// Checks each resource by its schema.
pub fn all_fit(resources: &[Value]) {
    let schemas: BTreeSet<Schema> = resources.iter().map(schema_of).collect();
    for schema in schemas {
        let own: Vec<Value> = { resources.iter() }
            .filter(|resource| schema_of(resource) == schema)
            .cloned()
            .collect();
        let dir = TempDir::new().unwrap();
        let said = passes(&mut check(schema, &own, dir.path()));
        if !matches!(schema, Schema::File(_)) {
            assert_eq!(said.matches("passed").count(), own.len(), "{said}");
        }
    }
}

#[test]
fn everything_together_is_of_its_schemas() {
    let all = rendered(&COMPONENTS);
    all_fit(&all);
    let schemas: BTreeSet<Schema> = all.iter().map(schema_of).collect();
    assert_eq!(schemas.len(), 3, "{schemas:?}");
}

#[test]
fn each_component_renders_alone() {
    let base = rendered(&[]);
    for component in COMPONENTS {
        let with = rendered(&[component]);
        assert!(with.len() > base.len(), "{component}");
    }
}

/// The resources that `kubectl apply -k deploy/kubernetes` applies.
#[test]
fn the_shipped_kustomization_has_the_limiters_and_a_store_and_names_every_component() {
    let shipped = parsed(&kustomize(&file("deploy/kubernetes")));
    assert_eq!(shipped, rendered(&["redis"]));
    let kustomization = text("deploy/kubernetes/kustomization.yaml");
    for component in COMPONENTS {
        let line = format!("- components/{component}\n");
        assert!(kustomization.contains(&line), "{component}");
    }
    let image = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let image = format!("{}:", image["images"][0]["name"].as_str().unwrap());
    let images = shipped.iter().filter_map(|doc| {
        doc.pointer("/spec/template/spec/containers/0/image")?
            .as_str()
            .map(str::to_owned)
    });
    let own = images.filter(|name| name.starts_with(&image)).count();
    assert_eq!(own, 1, "the limiter");
}

/// Kustomizations list every file beside them, or name it in a comment.
#[test]
fn no_manifest_is_forgotten() {
    let mut folders = vec!["deploy/kubernetes/base".to_owned()];
    folders.extend(COMPONENTS.map(|name| format!("deploy/kubernetes/components/{name}")));
    let dirs = std::fs::read_dir(file("deploy/kubernetes/components")).unwrap();
    assert_eq!(dirs.count(), COMPONENTS.len());
    for folder in folders {
        let kustomization = text(&format!("{folder}/kustomization.yaml"));
        for entry in std::fs::read_dir(file(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                name == "kustomization.yaml" || kustomization.contains(&name),
                "{folder}/{name}"
            );
        }
    }
}

/// Adds a field that the API server would drop to one resource of each kind of schema.
#[test]
fn a_misspelt_field_is_found() {
    let all = rendered(&COMPONENTS);
    for (kind, name, pointer, field) in [
        (
            "Deployment",
            "limiter",
            "/spec/template/spec/containers/0",
            "readynessProbe",
        ),
        ("WasmPlugin", "ratelimit", "/spec", "failStratgy"),
        (
            "DestinationRule",
            "limiter",
            "/spec/trafficPolicy/outlierDetection",
            "baseEjection",
        ),
        (
            "PodMonitor",
            "limiter",
            "/spec/podMetricsEndpoints/0",
            "intervall",
        ),
        ("Gateway", "edge", "/spec/listeners/0", "prot"),
        (
            "EnvoyExtensionPolicy",
            "ratelimit",
            "/spec/wasm/0",
            "failopen",
        ),
    ] {
        let mut wrong = find(&all, kind, name);
        let place = wrong.pointer_mut(pointer).unwrap();
        place
            .as_object_mut()
            .unwrap()
            .insert(field.to_owned(), json!({}));
        let dir = TempDir::new().unwrap();
        let said = fails(&mut check(schema_of(&wrong), &[wrong], dir.path()));
        assert!(said.contains(field), "{said}");
    }
}

#[test]
fn a_value_that_no_definition_allows_is_found() {
    let mut wrong = resource("WasmPlugin", "ratelimit");
    wrong["spec"]["failStrategy"] = json!("FAIL_SOMEHOW");
    let dir = TempDir::new().unwrap();
    fails(&mut check(Schema::Definitions, &[wrong], dir.path()));
}

/// Applying it again must not overwrite existing secrets.
#[test]
fn no_secret_is_shipped() {
    let all = rendered(&COMPONENTS);
    assert!(all.iter().all(|doc| doc["kind"] != "Secret"));
}

#[test]
fn every_workload_has_the_standard_labels() {
    for doc in rendered(&COMPONENTS) {
        let Some(template) = doc.pointer("/spec/template/metadata/labels") else {
            continue;
        };
        for labels in [&doc["metadata"]["labels"], template] {
            for label in ["name", "component", "part-of"] {
                let label = format!("app.kubernetes.io/{label}");
                assert!(labels[&label].is_string(), "{doc}: {label}");
            }
        }
    }
}

/// No container has more rights than it needs, and each has bounds.
#[test]
fn every_pod_is_restricted() {
    let mut pods = 0;
    for doc in rendered(&COMPONENTS) {
        let Some(pod) = doc.pointer("/spec/template/spec") else {
            continue;
        };
        pods += 1;
        let name = &doc["metadata"]["name"];
        // Of them all, the controller alone speaks to the API server.
        let token = pod.get("automountServiceAccountToken");
        assert_eq!(
            token != Some(&json!(false)),
            *name == "controller",
            "{name}"
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        let seccomp = &pod["securityContext"]["seccompProfile"]["type"];
        assert_eq!(seccomp, "RuntimeDefault", "{name}");
        for container in pod["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{name}"
            );
        }
    }
    assert_eq!(pods, 4, "limiter, Valkey, limits, controller");
}

/// A tool that keeps a cluster as its files say would run a Job again each time it has deleted itself.
#[test]
fn nothing_deletes_itself() {
    assert!(rendered(&COMPONENTS).iter().all(|doc| doc["kind"] != "Job"));
}

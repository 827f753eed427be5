//! `deploy/kubernetes`: by the API's schemas, and against the real limiter.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::checks::{documents, fails, file, files, named, passes, python};

/// The API that the schemas are of.
const KUBERNETES: &str = "1.37";

/// The folders for `kubectl apply -k`: the limiters, and a Valkey.
const FOLDERS: [&str; 2] = ["deploy/kubernetes", "deploy/kubernetes/valkey"];

/// The manifests of a folder, as they are written.
fn manifests_of(folder: &str) -> Vec<String> {
    let mut files = files(folder, ".yaml");
    files.retain(|path| !path.ends_with("/kustomization.yaml"));
    files
}

pub fn manifests() -> Vec<String> {
    FOLDERS
        .iter()
        .flat_map(|folder| manifests_of(folder))
        .collect()
}

fn check(path: &Path) -> Command {
    let mut check = python("kubernetes_validate");
    check
        .args(["--strict", "--kubernetes-version", KUBERNETES])
        .arg(path);
    check
}

#[test]
fn every_manifest_is_of_the_api() {
    for path in manifests() {
        let said = passes(&mut check(&file(&path)));
        assert_eq!(
            said.matches("passed for resource").count(),
            documents(&path).len(),
            "{said}"
        );
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let mut deployment = named(&manifests(), "Deployment", "limiter");
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = json!({});
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deployment.yaml");
    std::fs::write(&path, deployment.to_string()).unwrap();
    fails(&mut check(&path));
}

#[test]
fn kustomize_lists_every_file() {
    for folder in FOLDERS {
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        let resources = kustomization["resources"].as_array().unwrap().iter();
        let mut listed: Vec<String> = resources
            .map(|name| format!("{folder}/{}", name.as_str().unwrap()))
            .collect();
        listed.sort();
        assert_eq!(listed, manifests_of(folder));
    }
    let kustomization = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let image = format!("{}:", kustomization["images"][0]["name"].as_str().unwrap());
    assert!(container()["image"].as_str().unwrap().starts_with(&image));
}

/// Skipped without kubectl; the other tests check the files everywhere.
#[test]
fn kustomize_renders_what_is_of_the_api() {
    if Command::new("kubectl")
        .arg("kustomize")
        .arg("--help")
        .output()
        .is_err()
    {
        println!("skipped: no kubectl here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rendered.yaml");
    for folder in FOLDERS {
        let rendered = Command::new("kubectl")
            .arg("kustomize")
            .arg(file(folder))
            .output()
            .unwrap();
        assert!(rendered.status.success(), "{rendered:?}");
        std::fs::write(&path, rendered.stdout).unwrap();
        passes(&mut check(&path));
    }
}

/// Applying the folder again must not overwrite existing secrets.
#[test]
fn no_secret_is_shipped() {
    for path in manifests() {
        for document in documents(&path) {
            assert_ne!(document["kind"], "Secret", "{path}");
        }
    }
}

pub fn container() -> Value {
    let deployment = named(&manifests(), "Deployment", "limiter");
    deployment["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The Deployment's arguments, with files and ports of this machine.
pub fn arguments(tokens: &str) -> Vec<String> {
    let container = container();
    let arguments = container["args"].as_array().unwrap();
    let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
    arguments
        .filter(|argument| !argument.starts_with("--listen=") && !argument.starts_with("--admin="))
        .map(|argument| argument.replace("/etc/rl/tokens/tokens", tokens))
        .collect()
}

#[test]
fn the_limiter_pod_has_no_needless_privileges() {
    let deployment = named(&manifests(), "Deployment", "limiter");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn selectors_find_the_limiters() {
    let deployment = named(&manifests(), "Deployment", "limiter");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let selected = |kind: &str, pointer: &str| {
        let found = named(&manifests(), kind, "limiter");
        found.pointer(pointer).unwrap().clone()
    };
    assert_eq!(&selected("Service", "/spec/selector"), labels);
    for (kind, pointer) in [
        ("Deployment", "/spec/selector/matchLabels"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(&selected(kind, pointer), labels, "{kind}");
    }
    let valkey = named(&manifests(), "NetworkPolicy", "valkey");
    assert_eq!(
        &valkey["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        labels
    );
}

/// All that a URL of the store may name, on the ports that it names unless it says otherwise.
#[test]
fn a_limiter_may_reach_a_store_and_its_sentinels() {
    let policy = named(&manifests(), "NetworkPolicy", "limiter");
    let store = &policy["spec"]["egress"][0];
    assert_eq!(store["ports"], json!([{"port": 6379}, {"port": 26379}]));
    let pods = &store["to"][0]["podSelector"]["matchExpressions"][0]["values"];
    let valkey = named(&manifests(), "StatefulSet", "valkey");
    let label = &valkey["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"];
    assert!(pods.as_array().unwrap().contains(label), "{pods}");
}

#[test]
fn a_pod_outlives_its_drain() {
    let deployment = named(&manifests(), "Deployment", "limiter");
    let grace = &deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    let drain = arguments("").into_iter().find_map(|argument| {
        let seconds = argument.strip_prefix("--drain=")?.strip_suffix('s')?;
        seconds.parse::<u64>().ok()
    });
    assert!(drain.unwrap() < grace.as_u64().unwrap());
}

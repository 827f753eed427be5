//! `deploy/kubernetes`: by the API's schemas, and against what the limiter really is.

use harness::Programs;
use serde_json::{Value, json};

use crate::checks::{documents, fails, file, files, named, passes, python};
use crate::running::limiter_with;

/// The API that the schemas are of.
const KUBERNETES: &str = "1.37";

fn manifests() -> Vec<String> {
    let mut files = files("deploy/kubernetes", ".yaml");
    files.retain(|path| !path.ends_with("/kustomization.yaml"));
    files
}

fn check(path: &std::path::Path) -> std::process::Command {
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
fn kustomize_is_told_of_every_file() {
    let kustomization = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let mut listed: Vec<String> = kustomization["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| format!("deploy/kubernetes/{}", name.as_str().unwrap()))
        .collect();
    listed.sort();
    assert_eq!(listed, manifests());
    let container = &container();
    let image = format!("{}:", kustomization["images"][0]["name"].as_str().unwrap());
    assert!(container["image"].as_str().unwrap().starts_with(&image));
}

fn container() -> Value {
    let deployment = named(&manifests(), "Deployment", "limiter");
    deployment["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The Deployment's arguments, with files and ports of this machine.
fn arguments(tokens: &str) -> Vec<String> {
    let container = container();
    let arguments = container["args"].as_array().unwrap();
    let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
    arguments
        .filter(|argument| !argument.starts_with("--listen=") && !argument.starts_with("--admin="))
        .map(|argument| argument.replace("/etc/rl/tokens/tokens", tokens))
        .collect()
}

#[tokio::test]
async fn the_deployments_arguments_start_a_limiter_that_wants_its_tokens() {
    let secret = named(&manifests(), "Secret", "limiter-tokens");
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        tokens.path(),
        secret["stringData"]["tokens"].as_str().unwrap(),
    )
    .unwrap();
    let arguments = arguments(tokens.path().to_str().unwrap());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let limiter = limiter_with(&programs, &arguments, dir.path()).await;
    let asked = harness::Client::new().get(&format!("{}/v1/policy?domain=shop", limiter.url()));
    assert_eq!(asked.send().await.unwrap().status, 401);
    let token = secret["stringData"]["tokens"].as_str().unwrap().trim();
    let asked = asked.header("authorization", format!("Bearer {token}"));
    assert_eq!(asked.send().await.unwrap().status, 200);
}

#[tokio::test]
async fn probes_ask_for_pages_that_are_there() {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let limiter = limiter_with(&programs, &[], dir.path()).await;
    let container = container();
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], "admin", "{probe}");
        let url = format!("{}{}", limiter.admin_url(), get["path"].as_str().unwrap());
        let reply = harness::Client::new().get(&url).send().await.unwrap();
        assert_eq!(reply.status, 200, "{probe}");
    }
    let ports = container["ports"].as_array().unwrap();
    let admin = ports.iter().find(|port| port["name"] == "admin").unwrap();
    assert_eq!(admin["containerPort"], 8091);
}

#[test]
fn a_limiter_can_do_nothing_that_it_need_not() {
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

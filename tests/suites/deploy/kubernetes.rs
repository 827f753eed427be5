//! `deploy/kubernetes`: by the API's schemas, and against what the limiter really is.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{Client, LimiterPlan, Process, Programs, Redis, free_port, until};
use serde_json::{Value, json};

use crate::checks::{documents, fails, file, files, named, passes, python};
use crate::running::limiter_with;

/// The API that the schemas are of.
const KUBERNETES: &str = "1.37";

const PATIENCE: Duration = Duration::from_secs(20);

/// What `kubectl apply -k` is told to apply: the limiters, and a Valkey.
const FOLDERS: [&str; 2] = ["deploy/kubernetes", "deploy/kubernetes/valkey"];

/// The manifests of a folder, as they are written.
fn manifests_of(folder: &str) -> Vec<String> {
    let mut files = files(folder, ".yaml");
    files.retain(|path| !path.ends_with("/kustomization.yaml"));
    files
}

fn manifests() -> Vec<String> {
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
fn kustomize_is_told_of_every_file() {
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

/// A machine without kubectl cannot say; what the files hold is looked at everywhere.
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

/// Whoever applies the folder again must not write over the secrets that are there.
#[test]
fn no_secret_is_shipped() {
    for path in manifests() {
        for document in documents(&path) {
            assert_ne!(document["kind"], "Secret", "{path}");
        }
    }
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

const TOKEN: &str = "a-token-of-some-length";

#[tokio::test]
async fn the_deployments_arguments_start_a_limiter_that_wants_its_tokens() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), TOKEN).unwrap();
    let arguments = arguments(tokens.path().to_str().unwrap());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let limiter = limiter_with(&programs, &arguments, dir.path()).await;
    let asked = Client::new().get(&format!("{}/v1/policy?domain=shop", limiter.url()));
    assert_eq!(asked.send().await.unwrap().status, 401);
    let asked = asked.header("authorization", format!("Bearer {TOKEN}"));
    assert_eq!(asked.send().await.unwrap().status, 200);
}

/// What the Deployment starts, on this machine: a limiter of `store` with its arguments, its user
/// and a token file of `group`, which is how the kubelet mounts a secret.
async fn limiter_as_in_the_pod(store: &str, group: u32, dir: &Path) -> anyhow::Result<Pod> {
    let deployment = named(&manifests(), "Deployment", "limiter");
    let pod = &deployment["spec"]["template"]["spec"];
    let id = |name: &str| u32::try_from(pod["securityContext"][name].as_u64().unwrap()).unwrap();
    let mode = u32::try_from(pod["volumes"][0]["secret"]["defaultMode"].as_u64().unwrap())?;
    let tokens = dir.join("tokens");
    std::fs::write(&tokens, TOKEN)?;
    std::fs::set_permissions(&tokens, PermissionsExt::from_mode(mode))?;
    // The folders on the way there, and to where the program was built, may be anybody's.
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755))?;
    let mut programs = Programs::from_env()?;
    let program = dir.join("limiter");
    std::fs::copy(&programs.limiter, &program)?;
    programs.limiter = program;
    let ports = [free_port()?, free_port()?];
    let mut plan = LimiterPlan::new(&programs, store, ports, dir);
    plan.arguments = arguments(tokens.to_str().unwrap());
    let mut command = plan.command();
    if is_root() {
        chown(&tokens, Some(0), Some(group))?;
        command.uid(id("runAsUser")).gid(id("runAsGroup"));
    }
    let mut process = Process::start("limiter", &mut command, dir)?;
    let admin = format!("http://127.0.0.1:{}", ports[1]);
    let alive = Client::new().get(&format!("{admin}/healthz"));
    let answers = async || alive.send().await.ok().filter(|reply| reply.status == 200);
    process.ready(answers).await?;
    Ok(Pod {
        admin,
        _process: process,
    })
}

/// A limiter, and what the kubelet asks it.
struct Pod {
    admin: String,
    _process: Process,
}

impl Pod {
    /// What a probe of the Deployment gets.
    async fn probe(&self, name: &str) -> u16 {
        let get = &container()[name]["httpGet"];
        assert_eq!(get["port"], "admin", "{name}");
        let url = format!("{}{}", self.admin, get["path"].as_str().unwrap());
        Client::new()
            .get(&url)
            .send()
            .await
            .unwrap()
            .status
            .as_u16()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn the_pods_user_can_read_its_tokens_and_could_not_without_fs_group() {
    if !is_root() {
        println!("skipped: only root can give a file to another group");
        return;
    }
    let deployment = named(&manifests(), "Deployment", "limiter");
    let context = &deployment["spec"]["template"]["spec"]["securityContext"];
    // Without `fsGroup` the kubelet leaves files to root's group.
    let group = u32::try_from(context["fsGroup"].as_u64().unwrap_or(0)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    limiter_as_in_the_pod("memory", group, dir.path())
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let refused = limiter_as_in_the_pod("memory", 0, dir.path()).await.err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("cannot read the token file"), "{refused}");
}

/// The kubelet kills what fails its startup or liveness probe, and a limiter that waits for its store
/// must not be killed for that.
#[tokio::test]
async fn a_pod_that_starts_while_its_store_is_away_is_left_alone_until_it_is_there() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
    let store = format!("redis://127.0.0.1:{port}");
    let pod = limiter_as_in_the_pod(&store, 65532, dir.path())
        .await
        .unwrap();

    assert_eq!(pod.probe("readinessProbe").await, 503);
    for probe in ["startupProbe", "livenessProbe"] {
        if container()[probe].is_object() {
            assert_eq!(pod.probe(probe).await, 200, "{probe}");
        }
    }

    let programs = Programs::from_env().unwrap();
    let redis = tempfile::tempdir().unwrap();
    let _redis = Redis::start(&programs.redis, port, redis.path())
        .await
        .unwrap();
    until("it is ready", PATIENCE, async || {
        (pod.probe("readinessProbe").await == 200).then_some(())
    })
    .await
    .unwrap();
    let ports = container()["ports"].clone();
    let ports = ports.as_array().unwrap();
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

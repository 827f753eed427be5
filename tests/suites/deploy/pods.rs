//! The Deployment's limiter, run on this machine as the kubelet runs it.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use harness::{Client, LimiterPlan, Process, Programs, Redis, free_port, until};

use crate::kubernetes::{arguments, container};
use crate::kustomize::resource;
use crate::running::limiter_with;

const PATIENCE: Duration = Duration::from_secs(20);

const TOKEN: &str = "a-token-of-some-length";

#[tokio::test]
async fn the_deployments_arguments_start_a_limiter_that_requires_tokens() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), TOKEN).unwrap();
    let arguments = arguments(tokens.path().to_str().unwrap());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let dir = tempfile::tempdir().unwrap();
    let limiter = limiter_with(&arguments, dir.path()).await;
    let asked = Client::new().get(&format!("{}/v1/policy?domain=shop", limiter.url()));
    assert_eq!(asked.send().await.unwrap().status, 401);
    let asked = asked.header("authorization", format!("Bearer {TOKEN}"));
    assert_eq!(asked.send().await.unwrap().status, 200);
}

/// Starts the Deployment's limiter on this machine, with its arguments, its user, and a token file of
/// `group`, as the kubelet mounts a secret.
async fn limiter_as_in_the_pod(store: &str, group: u32, dir: &Path) -> anyhow::Result<Pod> {
    let deployment = resource("Deployment", "limiter");
    let pod = &deployment["spec"]["template"]["spec"];
    let id = |name: &str| u32::try_from(pod["securityContext"][name].as_u64().unwrap()).unwrap();
    let mode = u32::try_from(pod["volumes"][0]["secret"]["defaultMode"].as_u64().unwrap())?;
    let tokens = dir.join("tokens");
    std::fs::write(&tokens, TOKEN)?;
    std::fs::set_permissions(&tokens, PermissionsExt::from_mode(mode))?;
    // The user may lack access to the build folder and its parents.
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

/// A limiter, and the URL of its probes.
struct Pod {
    admin: String,
    _process: Process,
}

impl Pod {
    /// The status of the answer to one of the Deployment's probes.
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

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn the_pods_user_can_read_its_tokens_and_could_not_without_fs_group() {
    if !is_root() {
        println!("skipped: only root can give a file to another group");
        return;
    }
    let deployment = resource("Deployment", "limiter");
    let context = &deployment["spec"]["template"]["spec"]["securityContext"];
    // Without `fsGroup`, the kubelet gives files to root's group.
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

/// The kubelet restarts a pod that fails its startup or liveness probe. A limiter that waits for its
/// store must not fail them.
#[tokio::test]
async fn a_pod_that_starts_before_its_store_becomes_ready_later() {
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

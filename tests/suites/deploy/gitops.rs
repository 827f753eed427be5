//! The component `gitops` and the Job that loads scripts: their commands on this machine, by the pods'
//! user, against the Valkey of the component `redis` with its users.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{Client, Process, Programs, free_port, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kustomize::resource;
use crate::pods::is_root;
use crate::valkey;

const PATIENCE: Duration = Duration::from_secs(20);

fn pod(kind: &str, name: &str) -> Value {
    resource(kind, name)["spec"]["template"]["spec"].clone()
}

/// The pod's command, run from `dir` by the pod's user, who may lack access to the build folder.
fn command(programs: &Programs, pod: &Value, dir: &Path) -> Command {
    let container = &pod["containers"][0];
    assert_eq!(container["command"], json!(["/usr/local/bin/rlctl"]));
    let program = dir.join("rlctl");
    if !program.exists() {
        std::fs::copy(&programs.rlctl, &program).unwrap();
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    let arguments = container["args"].as_array().unwrap().iter();
    command.args(arguments.map(|argument| argument.as_str().unwrap()));
    command.env_clear();
    for variable in container["env"].as_array().unwrap() {
        if let Some(value) = variable["value"].as_str() {
            command.env(variable["name"].as_str().unwrap(), value);
        }
    }
    if is_root() {
        let id =
            |name: &str| u32::try_from(pod["securityContext"][name].as_u64().unwrap()).unwrap();
        command.uid(id("runAsUser")).gid(id("runAsGroup"));
    }
    command
}

/// A `ConfigMap` as the kubelet mounts it: files of root, readable by all, behind `..data`.
fn mount(dir: &Path, version: u32, limits: &str) {
    let folder = format!("..{version}");
    std::fs::create_dir(dir.join(&folder)).unwrap();
    let file = dir.join(&folder).join("limits.yaml");
    std::fs::write(&file, limits).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    for path in [dir, &dir.join(&folder)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    if is_root() {
        chown(&file, Some(0), Some(0)).unwrap();
    }
    let fresh = dir.join("..data_tmp");
    symlink(&folder, &fresh).unwrap();
    std::fs::rename(fresh, dir.join("..data")).unwrap();
    if version == 1 {
        symlink("..data/limits.yaml", dir.join("limits.yaml")).unwrap();
    }
}

#[tokio::test]
async fn the_config_maps_limits_are_in_force_and_followed() {
    let programs = Programs::from_env().unwrap();
    let (store, dir, mounted) = (
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
    );
    let port = free_port().unwrap();
    let valkey = valkey::start(&programs, port, store.path()).await;
    let map = resource("ConfigMap", "limits");
    let limits = map["data"]["limits.yaml"].as_str().unwrap();
    mount(mounted.path(), 1, limits);

    // The manifest's command, with a folder and a port of this machine.
    let mut pod = pod("Deployment", "limits");
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let arguments = pod["containers"][0]["args"].to_string();
    let mounts = &pod["containers"][0]["volumeMounts"][0]["mountPath"];
    assert_eq!(mounts, "/etc/rl/limits");
    assert!(arguments.contains("0.0.0.0:8094") && arguments.contains("=/etc/rl/limits"));
    let arguments = arguments
        .replace("0.0.0.0:8094", &listen)
        .replace("/etc/rl/limits", mounted.path().to_str().unwrap());
    pod["containers"][0]["args"] = serde_json::from_str(&arguments).unwrap();
    let store_of = |user: &str| format!("redis://{user}@127.0.0.1:{port}");
    let mut watch = command(&programs, &pod, dir.path());
    watch.env("RLCTL_REDIS", store_of("rlctl:two"));
    let mut watch = Process::start("limits", &mut watch, store.path()).unwrap();
    let probe = async |name: &str| {
        let path = pod["containers"][0][name]["httpGet"]["path"]
            .as_str()
            .unwrap();
        let page = Client::new().get(&format!("http://{listen}{path}"));
        page.send().await.ok().filter(|page| page.status == 200)
    };
    watch
        .ready(async || probe("readinessProbe").await)
        .await
        .unwrap();
    assert!(probe("livenessProbe").await.is_some());

    let rate = || {
        let mut get = Command::new(&programs.rlctl);
        get.args(["get-limit", "per-user", "-o", "json"]);
        let output = get
            .env("RLCTL_REDIS", store_of("rlctl:two"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(rate().contains("\"10/s\""), "{}", rate());
    mount(
        mounted.path(),
        2,
        &limits.replace("rate: 10/s", "rate: 12/s"),
    );
    let followed = async || rate().contains("\"12/s\"").then_some(());
    let followed = until("the new limit is in force", PATIENCE, followed).await;
    assert!(followed.is_ok(), "{}\n{}", rate(), watch.log());
    watch.stop().await.unwrap();
    drop(valkey);
}

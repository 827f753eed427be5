//! The component `redis`: Valkey with the component's arguments and users, on this machine.

use std::path::Path;
use std::process::{Command, Output};

use harness::{Client, LimiterPlan, Programs, Redis, free_port};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::checks::{fails, file, named, text};
use crate::kustomize::resource;

const MANIFEST: &str = "deploy/kubernetes/components/redis/valkey.yaml";
const USERS: &str = "deploy/kubernetes/components/redis/users.acl";

fn pod() -> Value {
    let set = named(&[MANIFEST.to_owned()], "StatefulSet", "valkey");
    set["spec"]["template"]["spec"].clone()
}

/// The component's arguments, with files of this machine.
fn arguments(dir: &Path) -> Vec<String> {
    let users = dir.join("users.acl");
    let acl = text(USERS);
    let acl = acl
        .replace("#LIMITER_PASSWORD", ">one")
        .replace("#RLCTL_PASSWORD", ">two");
    std::fs::write(&users, acl).unwrap();
    let pod = pod();
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter();
    arguments
        .map(|argument| match argument.as_str().unwrap() {
            "/data" => dir.to_str().unwrap().to_owned(),
            "/etc/valkey/users/users.acl" => users.to_str().unwrap().to_owned(),
            other => other.to_owned(),
        })
        .collect()
}

pub async fn start(programs: &Programs, port: u16, dir: &Path) -> Redis {
    let arguments = arguments(dir);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let started = Redis::start_with(&programs.valkey, port, dir, &arguments);
    started.await.unwrap()
}

fn rlctl(programs: &Programs, port: u16, arguments: &[&str]) -> Output {
    let mut rlctl = Command::new(&programs.rlctl);
    let store = format!("redis://rlctl:two@127.0.0.1:{port}");
    let output = rlctl.args(arguments).env("RL_STORE", store).output();
    output.unwrap()
}

/// Sends text over a connection, and returns the answers.
async fn conversation(port: u16, said: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(said.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn limiters_and_operators_have_what_they_need_and_a_restart_loses_nothing() {
    let programs = Programs::from_env().unwrap();
    let (dir, port) = (TempDir::new().unwrap(), free_port().unwrap());
    let valkey = start(&programs, port, dir.path()).await;
    // Nobody loads the scripts: the limiter's user may, and a limiter does.
    let limits = file("limits.yaml");
    let apply = ["apply", "-f", limits.to_str().unwrap(), "--yes"];
    let output = rlctl(&programs, port, &apply);
    assert!(output.status.success(), "{output:?}");
    // Doctor finds no problem but that no limiter runs yet: data is persisted, and nothing is evicted.
    let doctor = rlctl(&programs, port, &["doctor", "--ignore", "fleet=limiters"]);
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");

    let store = format!("redis://limiter:one@127.0.0.1:{port}");
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let mut plan = LimiterPlan::new(&programs, &store, ports, dir.path());
    // A busy machine needs more than 10 ms.
    plan.arguments.push("--store-timeout=2s".to_owned());
    let limiter = plan.start().await.unwrap();
    let check = r#"{"domain":"shop","descriptor":{"path":"/api/x","user":"alice"}}"#;
    let url = format!("{}/v1/check", limiter.url());
    let answer = Client::new().post(&url, check).send().await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());

    let said = "AUTH limiter one\r\nHSET rl:{shop}:policy limits x\r\nSADD rl:domains x\r\n";
    let answers = conversation(port, said).await;
    let answers: Vec<&str> = answers.lines().collect();
    assert!(
        answers.len() == 3
            && answers[1..]
                .iter()
                .all(|answer| answer.starts_with("-NOPERM")),
        "a limiter edits no limits: {answers:?}"
    );

    drop(valkey.stop().await.unwrap());
    let _valkey = start(&programs, port, dir.path()).await;
    let output = rlctl(&programs, port, &["list-limits", "-o", "name"]);
    let names = String::from_utf8(output.stdout).unwrap();
    assert!(names.lines().any(|name| name == "per-user"), "{names}");
}

#[tokio::test]
async fn a_probe_may_only_ping_and_a_client_without_password_nothing() {
    let programs = Programs::from_env().unwrap();
    let (dir, port) = (TempDir::new().unwrap(), free_port().unwrap());
    let _valkey = start(&programs, port, dir.path()).await;

    let probe = pod()["containers"][0]["readinessProbe"]["exec"]["command"].to_string();
    assert!(
        probe.contains(r#""--user","probe","--pass","probe","ping""#),
        "{probe}"
    );
    let answers = conversation(port, "AUTH probe probe\r\nPING\r\nGET rl:x\r\n").await;
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers[..2], ["+OK", "+PONG"]);
    assert!(answers[2].starts_with("-NOPERM"), "{answers:?}");
    let answers = conversation(port, "PING\r\n").await;
    assert!(answers.starts_with("-NOAUTH"), "{answers}");
}

/// Valkey must not start with the published placeholders as passwords.
#[test]
fn valkey_does_not_start_with_the_shipped_placeholder_passwords() {
    let programs = Programs::from_env().unwrap();
    let dir = TempDir::new().unwrap();
    let mut valkey = Command::new(&programs.valkey);
    let port = free_port().unwrap().to_string();
    valkey
        .args(["--bind", "127.0.0.1", "--port", &port, "--dir"])
        .arg(dir.path())
        .arg("--aclfile")
        .arg(file(USERS));
    let said = fails(&mut valkey);
    assert!(said.contains("password hash"), "{said}");
}

/// The volumes of the secret and of the data belong to the pod's group.
#[test]
fn the_valkey_pods_group_can_read_its_files() {
    let context = &pod()["securityContext"];
    assert_eq!(context["fsGroup"], context["runAsGroup"]);
}

/// Each command that the manual runs in a pod may do what it does, as that pod's user of the store.
#[tokio::test]
async fn commands_in_pods_have_the_permissions_that_they_need() {
    let programs = Programs::from_env().unwrap();
    let (dir, port) = (TempDir::new().unwrap(), free_port().unwrap());
    let _valkey = start(&programs, port, dir.path()).await;
    let limits = file("limits.yaml");
    let apply = ["apply", "-f", limits.to_str().unwrap(), "--yes"];
    assert!(rlctl(&programs, port, &apply).status.success());
    let manual = text("docs/deploy.md");
    let commands = manual.lines().filter_map(|line| {
        let rest = line.strip_prefix("kubectl -n ratelimit exec deploy/")?;
        rest.split_once(" -- rlctl ")
    });
    let mut run = 0;
    for (deployment, command) in commands {
        let secret = &resource("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
            [0]["env"][0]["valueFrom"]["secretKeyRef"]["name"];
        let login = match secret.as_str().unwrap() {
            "limiter-store" => "limiter:one",
            "rlctl-store" => "rlctl:two",
            other => panic!("{other}"),
        };
        let output = Command::new(&programs.rlctl)
            .args(command.split(' '))
            .env("RLCTL_REDIS", format!("redis://{login}@127.0.0.1:{port}"))
            .output()
            .unwrap();
        // `doctor` may find that no limiter runs here.
        let done =
            output.status.success() || (command, output.status.code()) == ("doctor", Some(1));
        assert!(done, "{deployment}: {command}: {output:?}");
        run += 1;
    }
    assert!(run >= 6, "{run}");
}

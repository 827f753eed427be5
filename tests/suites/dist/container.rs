//! Runs the limiter from its image, in an OCI runtime, with a real Redis.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{Client, Engine, Process, Redis, Signal, free_port, until};
use serde_json::{Value, json};

use crate::artifacts::{json, output, variable, version};
use crate::images::{layout, skopeo};

const PATIENCE: Duration = Duration::from_secs(20);
const USER: u64 = 65532;
const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, per: [user], rate: 3/1h}
";

/// The image as umoci unpacks it: `rootfs`, and a runtime's `config.json`.
fn bundle(dir: &Path) -> PathBuf {
    let (_, reference) = layout("rl-limiter", dir);
    // umoci reads images of one processor.
    let own = dir.join("own");
    let to = format!("oci:{}:{}", own.display(), version());
    output(skopeo().args(["copy", &reference, &to]));
    let bundle = dir.join("bundle");
    let mut umoci = Command::new(variable("RL_TEST_UMOCI"));
    umoci.arg("unpack");
    if !is_root() {
        umoci.arg("--rootless");
    }
    let image = format!("{}:{}", own.display(), version());
    output(umoci.args(["--image", &image]).arg(&bundle));
    bundle
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// A container; dropping it ends the container.
struct Container {
    name: String,
    bundle: PathBuf,
    state: PathBuf,
    process: Process,
}

impl Container {
    /// Runs a program of the image in this machine's network, as Kubernetes would: with a read-only
    /// root.
    fn run(bundle: &Path, arguments: &[&str], environment: &[String]) -> Self {
        let mut config = json(&bundle.join("config.json"));
        config["root"]["readonly"] = json!(true);
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(arguments);
        let variables = config["process"]["env"].as_array_mut().unwrap();
        variables.extend(environment.iter().map(|variable| json!(variable)));
        if !is_root() {
            // Without root, only this user is available, and the container calls it root.
            config["process"]["user"] = json!({"uid": 0, "gid": 0});
        }
        let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        std::fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let name = format!("rl-test-{}-{}", std::process::id(), free_port().unwrap());
        let state = bundle.with_file_name("state");
        let mut run = runc(&state);
        run.arg("run").arg("--bundle").arg(bundle).arg(&name);
        Self {
            process: Process::start("container", &mut run, bundle).unwrap(),
            bundle: bundle.to_path_buf(),
            state,
            name,
        }
    }

    /// The user that the program runs as, according to the kernel.
    fn user(&self) -> u64 {
        let state = output(runc(&self.state).arg("state").arg(&self.name));
        let state: Value = serde_json::from_str(&state).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", state["pid"])).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let delete = runc(&self.state)
            .args(["delete", "--force", &self.name])
            .output();
        if !delete.is_ok_and(|output| output.status.success()) {
            eprintln!(
                "runc cannot remove {} of {}",
                self.name,
                self.bundle.display()
            );
        }
    }
}

fn runc(state: &Path) -> Command {
    let mut runc = Command::new(variable("RL_TEST_RUNC"));
    runc.arg("--root").arg(state);
    runc
}

/// Every file below a folder.
fn files(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(root, &path, found);
        } else {
            found.insert(path.strip_prefix(root).unwrap().display().to_string());
        }
    }
}

#[tokio::test]
async fn the_limiter_runs_from_its_image_as_an_unprivileged_user() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Engine::Redis.program().unwrap();
    let redis = Redis::start(&redis, free_port().unwrap(), dir.path())
        .await
        .unwrap();
    let bundle = bundle(dir.path());
    let config = json(&bundle.join("config.json"));
    assert_eq!(config["process"]["user"]["uid"], USER);
    assert_eq!(config["process"]["user"]["gid"], USER);
    assert_eq!(config["process"]["args"], json!(["/usr/local/bin/limiter"]));
    // The path that Envoy Gateway starts.
    let ratelimit = std::fs::read_link(bundle.join("rootfs/bin/ratelimit")).unwrap();
    assert_eq!(ratelimit.to_str(), Some("/usr/local/bin/limiter"));
    std::fs::write(bundle.join("rootfs/limits.yaml"), LIMITS).unwrap();
    let [port, admin] = [free_port().unwrap(), free_port().unwrap()];
    let arguments = [
        "/usr/local/bin/limiter",
        "--limits",
        "/limits.yaml",
        "--store-timeout",
        "2s",
    ];
    let environment = [
        format!("RL_LISTEN=127.0.0.1:{port}"),
        format!("RL_ADMIN=127.0.0.1:{admin}"),
        format!("RL_STORE={}", redis.url()),
    ];
    let mut container = Container::run(&bundle, &arguments, &environment);
    let ready = Client::new().get(&format!("http://127.0.0.1:{admin}/readyz"));
    let answers = async || ready.send().await.ok().filter(|reply| reply.status == 200);
    container.process.ready(answers).await.unwrap();
    let user = if is_root() {
        USER
    } else {
        u64::from(rustix::process::getuid().as_raw())
    };
    assert_eq!(container.user(), user);
    let check = json!({"domain": "shop", "descriptor": {"user": "alice"}}).to_string();
    let url = format!("http://127.0.0.1:{port}/v1/check");
    let check = Client::new().post(&url, check);
    let denied = until("a denial", PATIENCE, async || {
        let reply = check.send().await.ok()?;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        text.contains("\"allowed\":false").then_some(text)
    });
    denied.await.unwrap();
    let keys = redis.command(&["KEYS", "rl:*"]).await.unwrap();
    assert!(keys.contains("alice"), "the buckets are in Redis: {keys}");
    container.process.signal(Signal::TERM).unwrap();
    let status = container.process.ended().await.unwrap();
    assert!(status.success(), "it stops in order: {status}");
}

#[test]
fn the_image_has_the_programs_and_nothing_to_break_in_with() {
    let dir = tempfile::tempdir().unwrap();
    let rootfs = bundle(dir.path()).join("rootfs");
    let mut found = BTreeSet::new();
    files(&rootfs, &rootfs, &mut found);
    let wanted = [
        "etc/group",
        "etc/passwd",
        "etc/ssl/certs/ca-certificates.crt",
        "bin/ratelimit",
        "usr/local/bin/limiter",
        "usr/local/bin/rlctl",
        "usr/share/doc/rl/LICENSE",
        "usr/share/doc/rl/LICENSES-OF-LIBRARIES.txt",
        "usr/share/doc/rl/LICENSES-OF-RUST.html",
    ];
    assert_eq!(found, wanted.map(str::to_owned).into());
    let certificates = std::fs::read_to_string(rootfs.join("etc/ssl/certs/ca-certificates.crt"));
    let certificates = certificates.unwrap();
    assert!(certificates.matches("-----BEGIN CERTIFICATE-----").count() > 100);
}

//! The images in a real registry: pushed as docs/install.md says, and fetched by digest as Istio's
//! agent does.

use std::path::Path;
use std::process::Command;

use harness::{Client, Process, free_port};
use serde_json::Value;

use crate::artifacts::{artifact, digest, file, folder, output, variable, version};
use crate::images::skopeo;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A registry that keeps its files in `dir`.
async fn registry(dir: &Path) -> (Process, String) {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let config = format!(
        "version: 0.1\nlog: {{accesslog: {{disabled: true}}, level: warn}}\n\
         storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
        dir.join("registry").display()
    );
    let path = dir.join("registry.yml");
    std::fs::write(&path, config).unwrap();
    let mut serve = Command::new(variable("RL_TEST_REGISTRY"));
    serve.arg("serve").arg(path);
    let mut process = Process::start("registry", &mut serve, dir).unwrap();
    let root = Client::new().get(&format!("http://{address}/v2/"));
    let answers = async || root.send().await.ok().filter(|reply| reply.status == 200);
    process.ready(answers).await.unwrap();
    (process, address)
}

/// The push commands of docs/install.md, with this registry instead of the example's.
fn pushes(address: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(file("docs/install.md")).unwrap();
    let lines = page.lines().filter(|line| line.contains(" docker://"));
    let lines = lines.map(|line| line.replace("registry.example.com", address));
    let words = |line: String| line.split(' ').skip(1).map(str::to_owned).collect();
    lines.map(words).collect()
}

#[tokio::test]
async fn images_are_pushed_as_documented_and_pulled_by_digest() {
    let dir = tempfile::tempdir().unwrap();
    let (_registry, address) = registry(dir.path()).await;
    let pushes = pushes(&address);
    assert_eq!(pushes.len(), 3);
    for push in pushes {
        let mut skopeo = skopeo();
        skopeo.current_dir(folder()).args(&push);
        output(skopeo.arg("--dest-tls-verify=false"));
    }
    let limiter = format!("docker://{address}/rl/limiter:{}", version());
    let mut inspect = skopeo();
    inspect.args(["inspect", "--tls-verify=false", &limiter]);
    let shown: Value = serde_json::from_str(&output(&mut inspect)).unwrap();
    assert_eq!(shown["Digest"], digest("rl-limiter:"));
    let filter = format!("http://{address}/v2/rl/filter");
    let manifest = format!("{filter}/manifests/{}", digest("rl-filter:"));
    let manifest = Client::new().get(&manifest).header("accept", MANIFEST);
    let manifest = manifest.send().await.unwrap();
    assert_eq!(manifest.status, 200);
    let manifest: Value = serde_json::from_slice(&manifest.body).unwrap();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let layer = Client::new().get(&format!("{filter}/blobs/{layer}"));
    let archive = dir.path().join("layer.tar.gz");
    std::fs::write(&archive, layer.send().await.unwrap().body).unwrap();
    crate::artifacts::unpack(&archive, dir.path());
    let pulled = std::fs::read(dir.path().join("plugin.wasm")).unwrap();
    assert_eq!(pulled, std::fs::read(artifact("filter", ".wasm")).unwrap());
}

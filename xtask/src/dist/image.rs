//! The content of the two images.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::archive::Archive;
use super::layout::{Contents, Image};
use super::programs::{Arch, Programs};
use super::release::Release;

/// No shell and no other account. Most clusters require a user by number.
const PASSWD: &str =
    "root:x:0:0:root:/:/sbin/nologin\nlimiter:x:65532:65532:limiter:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nlimiter:x:65532:\n";
const USER: &str = "65532:65532";

/// The limiter and `rlctl`, for each processor.
pub fn limiter(
    release: &Release,
    built: &BTreeMap<Arch, Programs>,
    certificates: &[u8],
    legal: &BTreeMap<String, Vec<u8>>,
) -> Result<Image> {
    let mut image = Image::new("rl-limiter", release);
    let labels = labels(release, "rl-limiter", "The limiter and rlctl")?;
    let mut base = Archive::default();
    base.file("etc/passwd", 0o644, PASSWD.into());
    base.file("etc/group", 0o644, GROUP.into());
    let bundle = "etc/ssl/certs/ca-certificates.crt";
    base.file(bundle, 0o644, certificates.to_vec());
    for (name, text) in legal {
        base.file(&format!("usr/share/doc/rl/{name}"), 0o644, text.clone());
    }
    let base = image.layer(&base, release)?;
    let mut manifests = Vec::new();
    for (arch, programs) in built {
        let mut layer = Archive::default();
        for (name, program) in [("limiter", &programs.limiter), ("rlctl", &programs.rlctl)] {
            layer.file(&format!("usr/local/bin/{name}"), 0o755, program.clone());
        }
        // The path at which Envoy Gateway starts its rate limit service.
        layer.link("bin/ratelimit", "/usr/local/bin/limiter");
        let programs = image.layer(&layer, release)?;
        let contents = Contents {
            architecture: arch.in_images(),
            layers: &[&base, &programs],
            settings: json!({
                "User": USER,
                // In a container, clients cannot reach localhost.
                "Env": [
                    "PATH=/usr/local/bin",
                    "RL_LISTEN=0.0.0.0:8090",
                    "RL_ADMIN=0.0.0.0:8091",
                    "RL_LOG_FORMAT=json",
                ],
                "ExposedPorts": {"8090/tcp": {}, "8091/tcp": {}},
                "Entrypoint": ["/usr/local/bin/limiter"],
                "WorkingDir": "/",
                "Labels": labels,
            }),
            annotations: labels.clone(),
        };
        manifests.push(image.manifest(&contents, release)?);
    }
    image.of_each(&manifests, &labels);
    Ok(image)
}

/// The filter in the form that Istio and Envoy Gateway pull: one compressed layer with one file,
/// `plugin.wasm`. It runs on every processor, but the standard tools expect one to be named.
pub fn filter(release: &Release, module: &[u8]) -> Result<Image> {
    let mut image = Image::new("rl-filter", release);
    let labels = labels(release, "rl-filter", "The filter that Envoy loads")?;
    let mut layer = Archive::default();
    layer.file("plugin.wasm", 0o644, module.to_vec());
    let layer = image.layer(&layer, release)?;
    let mut annotations = labels.clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert("module.wasm.image/variant".to_owned(), json!("compat"));
    }
    let contents = Contents {
        architecture: Arch::X86_64.in_images(),
        layers: &[&layer],
        settings: json!({"Labels": labels}),
        annotations,
    };
    let manifest = image.manifest(&contents, release)?;
    image.of_one(manifest);
    Ok(image)
}

/// The standard labels of an image.
fn labels(release: &Release, title: &str, description: &str) -> Result<Value> {
    let known = [
        ("title", Some(title.to_owned())),
        (
            "description",
            Some(format!(
                "{description} of a distributed rate limiter for Envoy and Istio"
            )),
        ),
        ("version", Some(release.version.to_owned())),
        ("created", Some(release.time()?)),
        ("licenses", Some(env!("CARGO_PKG_LICENSE").to_owned())),
        ("revision", release.revision.clone()),
        ("source", release.source.clone()),
    ];
    let mut labels = Map::new();
    for (name, value) in known {
        if let Some(value) = value {
            labels.insert(format!("org.opencontainers.image.{name}"), json!(value));
        }
    }
    Ok(Value::Object(labels))
}

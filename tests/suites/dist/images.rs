//! The images as the standard tools read them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::artifacts::{artifact, digest, json, output, unpack, variable, version};

/// skopeo, which works without any configuration on this machine.
pub fn skopeo() -> Command {
    let mut skopeo = Command::new(variable("RL_TEST_SKOPEO"));
    skopeo.arg("--insecure-policy");
    skopeo
}

/// Unpacks an image's layout; returns its folder and its reference.
pub fn layout(name: &str, dir: &Path) -> (PathBuf, String) {
    let folder = dir.join(name);
    unpack(&artifact(&format!("{name}-"), ".oci.tar"), &folder);
    let reference = format!("oci:{}:{}", folder.display(), version());
    (folder, reference)
}

/// The blob that a descriptor names.
pub fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    layout.join("blobs").join(digest.replace(':', "/"))
}

/// The name of this machine's processor in images.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

fn inspect(reference: &str) -> Value {
    let shown = output(skopeo().args(["inspect", reference]));
    serde_json::from_str(&shown).unwrap()
}

#[test]
fn skopeo_reads_the_limiters_image() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, reference) = layout("rl-limiter", dir.path());
    let shown = inspect(&reference);
    assert_eq!(shown["Architecture"], architecture());
    assert_eq!(shown["Os"], "linux");
    let labels = &shown["Labels"];
    let label = |name: &str| labels[format!("org.opencontainers.image.{name}")].clone();
    assert_eq!(label("version"), version());
    assert_eq!(label("title"), "rl-limiter");
    assert_eq!(label("licenses"), "Apache-2.0");
    assert_eq!(label("created"), shown["Created"]);
    let index = json(&folder.join("index.json"));
    let top = &index["manifests"][0];
    assert_eq!(top["digest"], digest("rl-limiter:"));
    assert_eq!(top["mediaType"], "application/vnd.oci.image.index.v1+json");
    let platforms = json(&blob(&folder, top))["manifests"].clone();
    let platforms = platforms.as_array().unwrap().iter();
    let platforms: Vec<Value> = platforms.map(|one| one["platform"].clone()).collect();
    assert!(platforms.contains(&json!({"os": "linux", "architecture": architecture()})));
}

/// As a push to a registry does: copies all images, and compares the digests with `digests.txt`.
#[test]
fn copies_have_the_same_digest() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["rl-limiter", "rl-filter", "rl-module"] {
        let from = artifact(&format!("{name}-"), ".oci.tar");
        let from = format!("oci-archive:{}", from.display());
        let to = dir.path().join(format!("copy-of-{name}"));
        let reference = format!("oci:{}:copy", to.display());
        output(skopeo().args(["copy", "--all", &from, &reference]));
        let index = json(&to.join("index.json"));
        assert_eq!(index["manifests"][0]["digest"], digest(&format!("{name}:")));
    }
}

/// Istio's agent and Envoy Gateway look for the annotation, and for a last layer that is a
/// compressed archive with `plugin.wasm`.
#[test]
fn the_filters_image_is_of_the_form_that_istio_pulls() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, reference) = layout("rl-filter", dir.path());
    assert_eq!(inspect(&reference)["Digest"], digest("rl-filter:"));
    let index = json(&folder.join("index.json"));
    let manifest = json(&blob(&folder, &index["manifests"][0]));
    assert_eq!(
        manifest["annotations"]["module.wasm.image/variant"],
        "compat"
    );
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1);
    assert_eq!(
        layers[0]["mediaType"],
        "application/vnd.oci.image.layer.v1.tar+gzip"
    );
    assert_eq!(
        crate::artifacts::names(&blob(&folder, &layers[0])),
        ["plugin.wasm"]
    );
}

//! OCI image layouts: blobs by their digest, and an index of them.

use anyhow::Result;
use serde_json::{Value, json};

use super::archive::{Archive, gzip};
use super::release::Release;
use super::sums::hex;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image, or one for each of several processors.
pub struct Image {
    /// Its name, without registry and tag.
    pub name: &'static str,
    tag: &'static str,
    files: Archive,
    top: Value,
}

/// A layer that has been added to the layout.
#[derive(Clone)]
pub struct Layer {
    descriptor: Value,
    /// The digest of the archive before its compression.
    diff: String,
}

/// One processor's image.
pub struct Contents<'a> {
    /// `amd64`, as images call it.
    pub architecture: &'a str,
    /// From the lowest layer up.
    pub layers: &'a [&'a Layer],
    /// User, environment, entry point.
    pub settings: Value,
    /// The annotations of the manifest.
    pub annotations: Value,
}

impl Image {
    /// An empty layout.
    pub fn new(name: &'static str, release: &Release) -> Self {
        Self {
            name,
            tag: release.version,
            files: Archive::default(),
            top: Value::Null,
        }
    }

    /// Adds a layer.
    pub fn layer(&mut self, archive: &Archive, release: &Release) -> Result<Layer> {
        let tar = archive.tar(release.epoch)?;
        Ok(Layer {
            diff: format!("sha256:{}", hex(&tar)),
            descriptor: self.blob(LAYER, gzip(&tar)?),
        })
    }

    /// Adds one processor's manifest and returns its descriptor.
    pub fn manifest(&mut self, contents: &Contents<'_>, release: &Release) -> Result<Value> {
        let time = release.time()?;
        let layers = contents.layers.iter();
        let diffs: Vec<&str> = layers.clone().map(|layer| layer.diff.as_str()).collect();
        let layers: Vec<&Value> = layers.map(|layer| &layer.descriptor).collect();
        let history: Vec<Value> = layers
            .iter()
            .map(|_| json!({"created": time, "created_by": "cargo xtask dist"}))
            .collect();
        let config = json!({
            "created": time,
            "architecture": contents.architecture,
            "os": "linux",
            "config": contents.settings,
            "rootfs": {"type": "layers", "diff_ids": diffs},
            "history": history,
        });
        let config = self.json(CONFIG, &config);
        let mut descriptor = self.json(
            MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config,
                "layers": layers,
                "annotations": contents.annotations,
            }),
        );
        set(
            &mut descriptor,
            "platform",
            json!({"architecture": contents.architecture, "os": "linux"}),
        );
        Ok(descriptor)
    }

    /// Makes it an image of several processors.
    pub fn of_each(&mut self, manifests: &[Value], annotations: &Value) {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": annotations,
        });
        self.top = self.json(INDEX, &index);
    }

    /// Makes it the image of one manifest.
    pub fn of_one(&mut self, manifest: Value) {
        self.top = manifest;
    }

    /// The digest to pull it by.
    pub fn digest(&self) -> &str {
        let digest = self.top.get("digest").and_then(Value::as_str);
        digest.unwrap_or_default()
    }

    /// The whole layout as one archive.
    pub fn tar(mut self, epoch: u64) -> Result<Vec<u8>> {
        let mut top = self.top;
        set(
            &mut top,
            "annotations",
            json!({
                "org.opencontainers.image.ref.name": self.tag,
                // The name that `docker load` gives it.
                "io.containerd.image.name": format!("docker.io/library/{}:{}", self.name, self.tag),
            }),
        );
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]});
        let version = json!({"imageLayoutVersion": "1.0.0"});
        for (name, value) in [("index.json", index), ("oci-layout", version)] {
            self.files.file(name, 0o644, value.to_string().into_bytes());
        }
        self.files.tar(epoch)
    }

    fn json(&mut self, media_type: &str, value: &Value) -> Value {
        self.blob(media_type, value.to_string().into_bytes())
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = hex(&bytes);
        let size = bytes.len();
        self.files
            .file(&format!("blobs/sha256/{digest}"), 0o644, bytes);
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
    }
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), value);
    }
}

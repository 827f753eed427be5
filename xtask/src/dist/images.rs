//! The two images, as OCI image layouts: blobs by their digest, and an index of them; and archives whose
//! bytes depend only on their content.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::{Files, PROCESSORS, Programs, Release};

/// No shell and no other account. Most clusters require a user by number.
const PASSWD: &str =
    "root:x:0:0:root:/:/sbin/nologin\nlimiter:x:65532:65532:limiter:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nlimiter:x:65532:\n";
const USER: &str = "65532:65532";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The limiter and `rlctl`, for each processor.
pub fn limiter<'a>(
    release: &'a Release,
    built: &[Programs],
    certificates: Vec<u8>,
    legal: &Files,
) -> Result<Image<'a>> {
    let mut image = Image::new("rl-limiter", "The limiter and rlctl", release);
    let mut base = Archive::default();
    base.file("etc/passwd", 0o644, PASSWD.into());
    base.file("etc/group", 0o644, GROUP.into());
    base.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates);
    for (name, text) in legal {
        base.file(&format!("usr/share/doc/rl/{name}"), 0o644, text.clone());
    }
    let base = image.layer(&base)?;
    let mut manifests = Vec::new();
    for Programs { arch, files, .. } in built {
        let mut layer = Archive::default();
        for (name, program) in files {
            layer.file(&format!("usr/local/bin/{name}"), 0o755, program.clone());
        }
        // The path at which Envoy Gateway starts its rate limit service.
        layer.link("bin/ratelimit", "/usr/local/bin/limiter");
        let layer = image.layer(&layer)?;
        let settings = json!({
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
            "Labels": image.labels,
        });
        let annotations = image.labels.clone();
        manifests.push(image.manifest(arch, &[&base, &layer], &settings, &annotations));
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": manifests,
        "annotations": image.labels,
    });
    image.top = image.json(INDEX, &index);
    Ok(image)
}

/// The filter in the form that Istio and Envoy Gateway pull: one compressed layer with one file,
/// `plugin.wasm`. It runs on every processor, but the standard tools expect one to be named.
pub fn filter<'a>(release: &'a Release, module: &[u8]) -> Result<Image<'a>> {
    let mut image = Image::new("rl-filter", "The filter that Envoy loads", release);
    let mut layer = Archive::default();
    layer.file("plugin.wasm", 0o644, module.to_vec());
    let layer = image.layer(&layer)?;
    let mut annotations = image.labels.clone();
    annotations.insert("module.wasm.image/variant".to_owned(), json!("compat"));
    let settings = json!({"Labels": image.labels});
    image.top = image.manifest("x86_64", &[&layer], &settings, &annotations);
    Ok(image)
}

/// An image, or one for each of several processors.
pub struct Image<'a> {
    /// Its name, without registry and tag.
    pub name: &'static str,
    pub release: &'a Release,
    /// The standard labels.
    labels: Map<String, Value>,
    files: Archive,
    top: Value,
}

/// A layer that has been added to the layout.
struct Layer {
    descriptor: Value,
    /// The digest of the archive before its compression.
    diff: String,
}

impl<'a> Image<'a> {
    fn new(name: &'static str, what: &str, release: &'a Release) -> Self {
        let description = format!("{what} of a distributed rate limiter for Envoy and Istio");
        let known = [
            ("title", Some(name)),
            ("description", Some(&*description)),
            ("version", Some(release.version)),
            ("created", Some(&*release.time)),
            ("licenses", Some(env!("CARGO_PKG_LICENSE"))),
            ("revision", release.revision.as_deref()),
            ("source", release.source.as_deref()),
        ];
        let labels = known.into_iter().filter_map(|(label, value)| {
            Some((format!("org.opencontainers.image.{label}"), json!(value?)))
        });
        Self {
            name,
            release,
            labels: labels.collect(),
            files: Archive::default(),
            top: Value::Null,
        }
    }

    fn layer(&mut self, archive: &Archive) -> Result<Layer> {
        let tar = archive.tar(self.release.epoch)?;
        Ok(Layer {
            diff: format!("sha256:{}", sha256(&tar)),
            descriptor: self.blob(LAYER, gzip(&tar)?),
        })
    }

    /// Adds one processor's manifest, with layers from the lowest up, and returns its descriptor.
    fn manifest(
        &mut self,
        arch: &str,
        layers: &[&Layer],
        settings: &Value,
        annotations: &Map<String, Value>,
    ) -> Value {
        let time = &self.release.time;
        let processor = PROCESSORS.iter().find(|(name, _)| *name == arch);
        let processor = processor.map(|(_, name)| name);
        let by = json!({"created": time, "created_by": "cargo xtask dist"});
        let config = json!({
            "created": time,
            "architecture": processor,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|l| &l.diff).collect::<Vec<_>>()},
            "history": vec![by; layers.len()],
        });
        let config = self.json(CONFIG, &config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers.iter().map(|layer| &layer.descriptor).collect::<Vec<_>>(),
            "annotations": annotations,
        });
        let mut descriptor = self.json(MANIFEST, &manifest);
        let platform = json!({"architecture": processor, "os": "linux"});
        set(&mut descriptor, "platform", platform);
        descriptor
    }

    /// The digest to pull it by.
    pub fn digest(&self) -> &str {
        let digest = self.top.get("digest").and_then(Value::as_str);
        digest.unwrap_or_default()
    }

    /// The whole layout as one archive.
    pub fn tar(mut self) -> Result<Vec<u8>> {
        let tag = self.release.version;
        let annotations = json!({
            "org.opencontainers.image.ref.name": tag,
            // The name that `docker load` gives it.
            "io.containerd.image.name": format!("docker.io/library/{}:{tag}", self.name),
        });
        set(&mut self.top, "annotations", annotations);
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [self.top]});
        let version = json!({"imageLayoutVersion": "1.0.0"});
        for (name, value) in [("index.json", index), ("oci-layout", version)] {
            self.files.file(name, 0o644, value.to_string().into_bytes());
        }
        self.files.tar(self.release.epoch)
    }

    fn json(&mut self, media_type: &str, value: &Value) -> Value {
        self.blob(media_type, value.to_string().into_bytes())
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let (digest, size) = (sha256(&bytes), bytes.len());
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

/// Files by path, in the order of their names; parent folders are added.
#[derive(Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

/// A file, folder or symbolic link, with its mode, and the content or the path that it links to.
struct Entry(EntryType, u32, Vec<u8>);

impl Archive {
    /// Adds a file and its parent folders.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, Entry(EntryType::Regular, mode, bytes));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.add(path, Entry(EntryType::Symlink, 0o777, target.into()));
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            let (folder, _) = path.split_at(at);
            let parent = Entry(EntryType::Directory, 0o755, Vec::new());
            self.entries.insert(format!("{folder}/"), parent);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// The tar archive: every entry is owned by root and has the same time.
    pub fn tar(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, Entry(kind, mode, bytes)) in &self.entries {
            let mut header = Header::new_ustar();
            header.set_mtime(epoch);
            header.set_uid(0);
            header.set_gid(0);
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            let mut content = bytes.as_slice();
            if *kind == EntryType::Symlink {
                header.set_link_name(str::from_utf8(content)?)?;
                content = &[];
            }
            header.set_size(u64::try_from(content.len())?);
            tar.append_data(&mut header, path, content)
                .with_context(|| format!("cannot archive {path}"))?;
        }
        Ok(tar.into_inner()?)
    }
}

/// Gzip without a name or a time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// The SHA-256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

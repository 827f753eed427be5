//! `cargo xtask dist`: everything that a release consists of, in `target/artifacts`.
//!
//! The same sources give the same bytes on any machine and in any folder: paths are mapped away,
//! archives carry the commit's time, and downloads are pinned by checksum.

mod packages;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, GzBuilder};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools};
use crate::ui::{Ui, help};
use crate::{module, wasm};

use packages::Graph;

/// The processors that programs are built for, by Rust's names and by those of images.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Processors to build for, 64-bit Intel and AMD or 64-bit ARM; all by default
    #[arg(long, value_delimiter = ',', value_parser = PROCESSORS.map(|(arch, _)| arch))]
    arch: Vec<String>,
    /// The folder of the artefacts, which is emptied first [default: target/artifacts]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The repository's address, for the images' labels
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// Compile in a fraction of the time, to try the artefacts; releases are compiled without it
    #[arg(long)]
    quick: bool,
    /// Build once more, from a copy of the sources in another folder, and compare
    #[arg(long)]
    verify: bool,
}

/// `cargo xtask dist`.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let out = match &args.out {
        Some(out) => std::path::absolute(out)?,
        None => workspace.target.join("artifacts"),
    };
    // The quick one compiles in a fraction of the time.
    let profile = if args.quick { "dist-quick" } else { "dist" };
    let mut arch = args.arch.clone();
    if arch.is_empty() {
        arch = PROCESSORS.map(|(arch, _)| arch.to_owned()).into();
    }
    let mut release = Release::new(workspace, arch, profile)?;
    release.source.clone_from(&args.source);
    make(workspace, ui, &release, &out)?;
    if args.verify {
        verify(workspace, ui, &release, &out)?;
    }
    Ok(())
}

/// The folder of artefacts for tests: the value of `RL_TEST_ARTIFACTS`, or else built for this machine's
/// processor, as the tests are: their build scripts and macros exist already, and nothing is optimised.
pub fn for_tests(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("RL_TEST_ARTIFACTS") {
        return Ok(std::path::absolute(named)?);
    }
    let out = workspace.target.join("artifacts-for-tests");
    let release = Release::new(workspace, vec![this_machine()?.to_owned()], "dev")?;
    make(workspace, ui, &release, &out)?;
    Ok(out)
}

/// This machine's processor.
fn this_machine() -> Result<&'static str> {
    let own = std::env::consts::ARCH;
    let known = PROCESSORS.iter().any(|(arch, _)| *arch == own);
    ensure!(
        known && cfg!(target_os = "linux"),
        help(
            "artefacts are built on Linux, on x86_64 or aarch64",
            &["run this in a container or virtual machine of one of them"]
        )
    );
    Ok(own)
}

/// Rust's name for a processor, with musl.
fn target(arch: &str) -> String {
    format!("{arch}-unknown-linux-musl")
}

/// What to build, and the origin that artefacts name.
struct Release {
    arch: Vec<String>,
    /// Cargo's profile.
    profile: &'static str,
    version: &'static str,
    /// The commit, with `-dirty` where files differ from it; absent outside of git.
    revision: Option<String>,
    /// The time that every artefact carries, in seconds since 1970.
    epoch: u64,
    /// The same in RFC 3339.
    time: String,
    /// The repository's address.
    source: Option<String>,
}

impl Release {
    /// The time is `SOURCE_DATE_EPOCH`, else the commit's.
    fn new(workspace: &Workspace, mut arch: Vec<String>, profile: &'static str) -> Result<Self> {
        let epoch = std::env::var("SOURCE_DATE_EPOCH");
        let epoch = epoch.or_else(|_| {
            workspace.git("log -1 --format=%ct").with_context(|| {
                let set = "set SOURCE_DATE_EPOCH to the seconds since 1970 of its last change";
                let problem = "the time of the release is unknown: this is not a git checkout";
                help(problem, &[set])
            })
        })?;
        let epoch = epoch
            .parse()
            .context("SOURCE_DATE_EPOCH: no seconds since 1970")?;
        let describe = "describe --always --dirty --abbrev=40 --exclude=*";
        arch.sort();
        arch.dedup();
        Ok(Self {
            arch,
            profile,
            version: env!("CARGO_PKG_VERSION"),
            revision: workspace.git(describe).ok(),
            epoch,
            time: jiff::Timestamp::from_second(i64::try_from(epoch)?)?.to_string(),
            source: None,
        })
    }

    /// Gzip without a name or a time. What only tests unpack need not be small.
    fn gzip(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let level = if self.profile == "dev" {
            Compression::fast()
        } else {
            Compression::best()
        };
        let mut gzip = GzBuilder::new().write(Vec::new(), level);
        gzip.write_all(bytes)?;
        Ok(gzip.finish()?)
    }
}

/// The programs of one processor, by their names, and the module.
struct Programs {
    arch: String,
    files: [(&'static str, Vec<u8>); 2],
    module: Vec<u8>,
    folder: PathBuf,
}

impl Programs {
    /// Builds static programs for Linux, on any Linux machine: Rust includes musl and the linker, and
    /// Zig compiles the C code of two libraries for any processor.
    fn build(workspace: &Workspace, ui: &Ui, arch: &str, profile: &str) -> Result<Self> {
        let module = module::build_portable(workspace, ui, arch, profile)?;
        ui.heading(&format!("Static programs for {arch}"));
        let tools = Tools::new(workspace, ui);
        let target = target(arch);
        tools.target(&target)?;
        let [cc, ar] = tools.c_compiler(&format!("{arch}-linux-musl"))?;
        let lower = target.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", lower.to_uppercase());
        let programs = [
            "build",
            "--locked",
            "--bins",
            "--package=limiter",
            "--package=ctl",
        ];
        let mut cargo = workspace.shipped(&programs, profile, &[])?;
        cargo
            .args(["--target", &target])
            .env(format!("CC_{lower}"), cc)
            .env(format!("AR_{lower}"), ar)
            .env(linker, "rust-lld");
        command::run(&mut cargo)?;
        let folder = workspace.built(&target, profile);
        let program = |name| anyhow::Ok((name, without_paths(workspace, &folder.join(name))?));
        Ok(Self {
            arch: arch.to_owned(),
            files: [program("limiter")?, program("rlctl")?],
            module: without_paths(workspace, &module)?,
            folder,
        })
    }

    /// Adds the manual and shell completions, which the programs generate themselves: they must be built for
    /// this machine.
    fn add_docs(&self, files: &mut Archive) -> Result<()> {
        let (rlctl, limiter) = (self.folder.join("rlctl"), self.folder.join("limiter"));
        // The file name that each shell expects.
        for (shell, name) in [("bash", "rlctl"), ("zsh", "_rlctl"), ("fish", "rlctl.fish")] {
            let script = command::output(Command::new(&rlctl).args(["completions", shell]))?;
            files.file(&format!("completions/{shell}/{name}"), 0o644, script);
        }
        let pages = tempfile::tempdir()?;
        command::output(Command::new(rlctl).args(["man", "--dir"]).arg(pages.path()))?;
        files.folder("man/man1", pages.path())?;
        let manual = command::output(Command::new(limiter).arg("--man"))?;
        files.file("man/man1/limiter.1", 0o644, manual);
        Ok(())
    }
}

/// Reads what was compiled, which must contain no path of this machine.
fn without_paths(workspace: &Workspace, path: &Path) -> Result<Vec<u8>> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    for home in [Some(workspace.root.clone()), command::cargo_home()]
        .iter()
        .flatten()
    {
        ensure!(
            !text.contains(&*home.to_string_lossy()),
            "{} contains {}, a path of this machine",
            workspace.short(path).display(),
            home.display()
        );
    }
    Ok(bytes)
}

/// Reads a whole file.
fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Builds all artefacts into `out`.
fn make(workspace: &Workspace, ui: &Ui, release: &Release, out: &Path) -> Result<()> {
    check_folder(out)?;
    let own = this_machine()?;
    if !release.arch.iter().any(|arch| arch == own) {
        let problem = "the manual is generated by rlctl, which must be built for this machine too";
        bail!(help(problem, &[&format!("add --arch {own}")]));
    }
    let filter = read(&wasm::build(workspace, ui)?)?;
    let arch = release.arch.iter();
    let built = arch.map(|arch| Programs::build(workspace, ui, arch, release.profile));
    let built: Vec<Programs> = built.collect::<Result<_>>()?;
    ui.heading(&format!("Artefacts of {}", release.version));
    let graph = Graph::of_release(workspace, &release.arch)?;
    // The files that must accompany the programs when they are passed on.
    let (libraries, rust) = packages::licenses(workspace, ui, &graph)?;
    let mut legal = Archive::default();
    legal.file("LICENSE", 0o644, read(&workspace.root.join("LICENSE"))?);
    legal.file("LICENSES-OF-LIBRARIES.txt", 0o644, libraries);
    legal.file("LICENSES-OF-RUST.html", 0o644, rust);
    let mut beside = for_every_machine(workspace)?;
    beside.file("filter.wasm", 0o644, filter.clone());
    beside.add("", &legal);
    for programs in built.iter().filter(|programs| programs.arch == own) {
        programs.add_docs(&mut beside)?;
    }
    let version = release.version;
    let mut files = Files::new();
    for programs in &built {
        let (mut archive, folder) = (Archive::default(), format!("rl-{version}/"));
        for (name, program) in &programs.files {
            archive.file(&format!("{folder}{name}"), 0o755, program.clone());
        }
        let module = format!("{folder}librl_filter.so");
        archive.file(&module, 0o755, programs.module.clone());
        archive.add(&folder, &beside);
        let arch = &programs.arch;
        let name = format!("rl-{version}-{arch}-linux.tar.gz");
        files.insert(name, release.gzip(&archive.tar(release.epoch)?)?);
        // Envoy does not load a path again, so the name has the version.
        let name = format!("librl_filter-{version}-{arch}.so");
        files.insert(name, programs.module.clone());
    }
    let sbom = packages::bill_of_materials(workspace, release, &graph)?;
    files.insert(format!("rl-{version}.cdx.json"), sbom);
    files.insert("filter.wasm".to_owned(), filter.clone());
    let certificates = read(&Tools::new(workspace, ui).get(Tool::Certificates)?)?;
    let images = [
        limiter_image(&built, certificates, &legal),
        filter_image(filter),
        module_image(&built, &legal),
    ];
    add_images(&mut files, release, &images)?;
    write(&files, workspace, ui, out)
}

/// Adds the images, the digests that pin them, the filter and the modules, and all checksums.
fn add_images(files: &mut Files, release: &Release, images: &[Image<'_>]) -> Result<()> {
    let mut digests = String::new();
    for (name, bytes) in &*files {
        if [".wasm", ".so"].iter().any(|end| name.ends_with(end)) {
            let _ = writeln!(digests, "{name} sha256:{}", sha256(bytes));
        }
    }
    for image in images {
        let (name, version) = (image.name, release.version);
        let (digest, tar) = image.layout(release)?;
        let _ = writeln!(digests, "{name}:{version} {digest}");
        files.insert(format!("{name}-{version}.oci.tar"), tar);
    }
    files.insert("digests.txt".to_owned(), digests.into_bytes());
    let sum = |(name, bytes): (&String, &Vec<u8>)| format!("{}  {name}\n", sha256(bytes));
    let sums: String = files.iter().map(sum).collect();
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    Ok(())
}

fn write(files: &Files, workspace: &Workspace, ui: &Ui, out: &Path) -> Result<()> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    for (name, bytes) in files {
        let path = out.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        let size = wasm::kilobytes(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        ui.line(&format!("{}: {size}", workspace.short(&path).display()));
    }
    Ok(())
}

/// What users without a container engine download besides the programs: example configurations, units,
/// the Helm chart.
fn for_every_machine(workspace: &Workspace) -> Result<Archive> {
    let mut files = Archive::default();
    for (name, path) in [
        ("envoy.yaml", "envoy.yaml"),
        ("limits.yaml", "limits.yaml"),
        ("limits.schema.json", "docs/limits.schema.json"),
        ("systemd/limiter.service", "deploy/systemd/limiter.service"),
        ("systemd/limiter.env", "deploy/systemd/limiter.env"),
    ] {
        let text = String::from_utf8(read(&workspace.root.join(path))?)?;
        // They must work from the folder that they are unpacked to.
        let text = { text.replace("#   cargo xtask wasm\n", "") }
            .replace("target/filter.wasm", "filter.wasm")
            .replace("$schema=docs/", "$schema=");
        files.file(name, 0o644, text);
    }
    let chart = workspace.root.join("deploy/helm");
    for folder in ["", "/files", "/templates"] {
        files.folder(
            &format!("helm{folder}"),
            &chart.join(folder.trim_start_matches('/')),
        )?;
    }
    Ok(files)
}

/// Only a folder of artefacts may be emptied; any other folder is left alone.
fn check_folder(out: &Path) -> Result<()> {
    let mut found = match std::fs::read_dir(out) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("cannot read {}", out.display()))?,
    };
    if found.next().is_some() && !out.join("SHA256SUMS").is_file() {
        let other = "name a folder that is empty, or not there yet: --out FOLDER";
        let problem = format!("{} has files that are no artefacts", out.display());
        bail!(help(problem, &[other]));
    }
    Ok(())
}

/// Builds a copy of the sources in another folder and compares the artefacts with those in `out`.
fn verify(workspace: &Workspace, ui: &Ui, release: &Release, out: &Path) -> Result<()> {
    ui.heading("The same from another folder");
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("a-copy-of-the-sources");
    std::fs::create_dir(&root)?;
    let copy = "git ls-files -z --cached --others --exclude-standard \
                | tar -c --null --files-from=- --ignore-failed-read | tar -x -C \"$1\"";
    let mut copy = workspace.program("sh", &["-c", copy, "sh"]);
    command::output(copy.arg(&root)).context("only a git checkout can be verified")?;
    let target = root.join("target");
    let copy = Workspace { root, target };
    std::fs::create_dir_all(&copy.target)?;
    std::fs::create_dir_all(workspace.tools())?;
    std::os::unix::fs::symlink(workspace.tools(), copy.tools())?;
    let second = copy.target.join("artifacts");
    make(&copy, ui, release, &second)?;
    let mut compare = Command::new("diff");
    let differ = "two builds of the same sources differ";
    command::output(compare.arg("--recursive").args([out, &second])).context(differ)?;
    ui.line("all artefacts have the same bytes");
    Ok(())
}

// ---- The two images, as OCI image layouts: blobs by their digest, and an index of them; and archives whose
// bytes depend only on their content

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
fn limiter_image<'a>(built: &'a [Programs], certificates: Vec<u8>, legal: &Archive) -> Image<'a> {
    let mut base = Archive::default();
    base.file("etc/passwd", 0o644, PASSWD);
    base.file("etc/group", 0o644, GROUP);
    base.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates);
    base.add("usr/share/doc/rl/", legal);
    let layers = built.iter().map(|Programs { arch, files, .. }| {
        let mut layer = Archive::default();
        for (name, program) in files {
            layer.file(&format!("usr/local/bin/{name}"), 0o755, program.clone());
        }
        // The path at which Envoy Gateway starts its rate limit service.
        layer.link("bin/ratelimit", "/usr/local/bin/limiter");
        (arch.as_str(), vec![base.clone(), layer])
    });
    Image {
        name: "rl-limiter",
        what: "The limiter and rlctl",
        layers: layers.collect(),
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
        }),
        ..Image::default()
    }
}

/// The module for each processor: a folder to mount beside Envoy, by an image volume or an init container's
/// copy. It has no program to run.
fn module_image<'a>(built: &'a [Programs], legal: &Archive) -> Image<'a> {
    let layers = built.iter().map(|Programs { arch, module, .. }| {
        let mut layer = legal.clone();
        layer.file("librl_filter.so", 0o755, module.clone());
        (arch.as_str(), vec![layer])
    });
    Image {
        name: "rl-module",
        what: "The filter as a dynamic module",
        layers: layers.collect(),
        ..Image::default()
    }
}

/// The filter in the form that Istio and Envoy Gateway pull: one compressed layer with one file,
/// `plugin.wasm`. It runs on every processor, but the standard tools expect one to be named.
fn filter_image(filter: Vec<u8>) -> Image<'static> {
    let mut layer = Archive::default();
    layer.file("plugin.wasm", 0o644, filter);
    Image {
        name: "rl-filter",
        what: "The filter that Envoy loads",
        layers: vec![("x86_64", vec![layer])],
        plugin: true,
        ..Image::default()
    }
}

#[derive(Default)]
struct Image<'a> {
    /// Its name, without registry and tag.
    name: &'static str,
    what: &'static str,
    /// Each processor's, from the lowest up.
    layers: Vec<(&'a str, Vec<Archive>)>,
    settings: Value,
    /// Whether it is one manifest that says so, and not an index of the processors'.
    plugin: bool,
}

impl Image<'_> {
    /// The digest to pull it by, and the whole layout as one archive.
    fn layout(&self, release: &Release) -> Result<(String, Vec<u8>)> {
        let (labels, mut files) = (self.labels(release), Archive::default());
        let mut manifests = Vec::new();
        for (arch, layers) in &self.layers {
            manifests.push(self.manifest(&mut files, release, arch, layers)?);
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": labels,
        });
        let mut top = match manifests.pop() {
            Some(only) if self.plugin => only,
            _ => files.blob(INDEX, index.to_string()),
        };
        let digest = top.get("digest").and_then(Value::as_str);
        let digest = digest.unwrap_or_default().to_owned();
        let (name, tag) = (self.name, release.version);
        let annotations = json!({
            "org.opencontainers.image.ref.name": tag,
            // The name that `docker load` gives it.
            "io.containerd.image.name": format!("docker.io/library/{name}:{tag}"),
        });
        set(&mut top, "annotations", annotations);
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]});
        files.file("index.json", 0o644, index.to_string());
        let version = json!({"imageLayoutVersion": "1.0.0"});
        files.file("oci-layout", 0o644, version.to_string());
        Ok((digest, files.tar(release.epoch)?))
    }

    /// Adds one processor's manifest, and returns its descriptor.
    fn manifest(
        &self,
        files: &mut Archive,
        release: &Release,
        arch: &str,
        layers: &[Archive],
    ) -> Result<Value> {
        let mut annotations = self.labels(release);
        let mut settings = self.settings.clone();
        set(&mut settings, "Labels", json!(annotations));
        if self.plugin {
            annotations.insert("module.wasm.image/variant".to_owned(), json!("compat"));
        }
        let (mut diffs, mut blobs) = (Vec::new(), Vec::new());
        for layer in layers {
            let tar = layer.tar(release.epoch)?;
            diffs.push(format!("sha256:{}", sha256(&tar)));
            blobs.push(files.blob(LAYER, release.gzip(&tar)?));
        }
        let processor = PROCESSORS.iter().find(|(name, _)| *name == arch);
        let processor = processor.map(|(_, name)| name);
        let by = json!({"created": release.time, "created_by": "cargo xtask dist"});
        let config = json!({
            "created": release.time,
            "architecture": processor,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": diffs},
            "history": vec![by; layers.len()],
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": files.blob(CONFIG, config.to_string()),
            "layers": blobs,
            "annotations": annotations,
        });
        let mut manifest = files.blob(MANIFEST, manifest.to_string());
        let platform = json!({"architecture": processor, "os": "linux"});
        set(&mut manifest, "platform", platform);
        Ok(manifest)
    }

    /// The standard labels.
    fn labels(&self, release: &Release) -> Map<String, Value> {
        let what = self.what;
        let description = format!("{what} of a distributed rate limiter for Envoy and Istio");
        let known = [
            ("title", Some(self.name)),
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
        labels.collect()
    }
}

/// Sets a field of an object, or of what is none yet.
fn set(object: &mut Value, field: &str, value: Value) {
    object[field] = value;
}

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Files by path, in the order of their names; parent folders are added.
#[derive(Clone, Default)]
struct Archive(BTreeMap<String, Entry>);

/// A file, folder or symbolic link, with its mode, and the content or the path that it links to.
#[derive(Clone)]
struct Entry(EntryType, u32, Vec<u8>);

impl Archive {
    /// Adds a file and its parent folders.
    fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.insert(path, Entry(EntryType::Regular, mode, bytes.into()));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry(EntryType::Symlink, 0o777, target.into()));
    }

    /// Adds the files of a folder, but not of folders in it. The chart's manifests are links to their only copies,
    /// which this follows.
    fn folder(&mut self, path: &str, folder: &Path) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.path().is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                self.file(&format!("{path}/{name}"), 0o644, read(&entry.path())?);
            }
        }
        Ok(())
    }

    /// Adds another archive's entries below a folder.
    fn add(&mut self, folder: &str, other: &Self) {
        for (path, entry) in &other.0 {
            self.insert(&format!("{folder}{path}"), entry.clone());
        }
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: impl Into<Vec<u8>>) -> Value {
        let bytes = bytes.into();
        let (digest, size) = (sha256(&bytes), bytes.len());
        self.file(&format!("blobs/sha256/{digest}"), 0o644, bytes);
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.trim_end_matches('/').match_indices('/') {
            let (folder, _) = path.split_at(at);
            let parent = Entry(EntryType::Directory, 0o755, Vec::new());
            self.0.insert(format!("{folder}/"), parent);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The tar archive: every entry is owned by root and has the same time.
    fn tar(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, Entry(kind, mode, bytes)) in &self.0 {
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

/// The SHA-256 of bytes, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

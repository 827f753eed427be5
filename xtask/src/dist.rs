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
    let release = Release::new(workspace, args)?;
    make(workspace, ui, &release, &out)?;
    if args.verify {
        verify(workspace, ui, &release, &out)?;
    }
    Ok(())
}

/// The folder of artefacts for tests: the value of `RL_TEST_ARTIFACTS`, or else built for this
/// machine's processor with the quick profile.
pub fn for_tests(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("RL_TEST_ARTIFACTS") {
        return Ok(std::path::absolute(named)?);
    }
    let out = workspace.target.join("artifacts-for-tests");
    let args = Args {
        arch: vec![this_machine()?.to_owned()],
        out: Some(out.clone()),
        source: None,
        quick: true,
        verify: false,
    };
    run(&args, workspace, ui)?;
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
    /// The profile of `Cargo.toml`.
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
    fn new(workspace: &Workspace, args: &Args) -> Result<Self> {
        let git = |arguments: &[&str]| {
            let said = command::output(&mut workspace.program("git", arguments))?;
            anyhow::Ok(said.trim().to_owned())
        };
        let epoch = std::env::var("SOURCE_DATE_EPOCH");
        let epoch = epoch.or_else(|_| {
            git(&["log", "-1", "--format=%ct"]).with_context(|| {
                let set = "set SOURCE_DATE_EPOCH to the seconds since 1970 of its last change";
                let problem = "the time of the release is unknown: this is not a git checkout";
                help(problem, &[set])
            })
        })?;
        let epoch = epoch.parse().with_context(|| {
            let set = "set it to seconds since 1970, or unset it: then the commit's time counts";
            help(
                format!("SOURCE_DATE_EPOCH is not a number: {epoch}"),
                &[set],
            )
        })?;
        let revision = git(&["rev-parse", "HEAD"]).ok().map(|commit| {
            let changes = git(&["status", "--porcelain"]).unwrap_or_default();
            let dirty = if changes.is_empty() { "" } else { "-dirty" };
            format!("{commit}{dirty}")
        });
        let mut arch = args.arch.clone();
        if arch.is_empty() {
            arch = PROCESSORS.map(|(arch, _)| arch.to_owned()).into();
        }
        arch.sort();
        arch.dedup();
        Ok(Self {
            arch,
            // The quick one compiles in a fraction of the time.
            profile: if args.quick { "dist-quick" } else { "dist" },
            version: env!("CARGO_PKG_VERSION"),
            revision,
            epoch,
            time: jiff::Timestamp::from_second(i64::try_from(epoch)?)?.to_string(),
            source: args.source.clone(),
        })
    }
}

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The programs of one processor, and the module.
struct Programs {
    arch: String,
    /// Both, by their names.
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
        let packages = ["--package", "limiter", "--package", "ctl", "--bins"];
        let mut cargo = workspace.cargo(&["build", "--locked", "--profile", profile]);
        cargo
            .args(["--target", &target])
            .args(packages)
            .env("CARGO_TARGET_DIR", &workspace.target)
            .env(format!("CC_{lower}"), cc)
            .env(format!("AR_{lower}"), ar)
            .env(linker, "rust-lld");
        let flags = workspace.flags_without_paths(&[])?;
        command::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags))?;
        let folder = workspace.target.join(target).join(profile);
        let program = |name| anyhow::Ok((name, without_paths(workspace, &folder.join(name))?));
        Ok(Self {
            arch: arch.to_owned(),
            files: [program("limiter")?, program("rlctl")?],
            module: without_paths(workspace, &module)?,
            folder,
        })
    }

    /// The manual and shell completions, which the programs generate themselves: they must be built for
    /// this machine.
    fn docs(&self) -> Result<Files> {
        let (rlctl, limiter) = (self.folder.join("rlctl"), self.folder.join("limiter"));
        let mut docs = Files::new();
        // The file name that each shell expects.
        for (shell, name) in [("bash", "rlctl"), ("zsh", "_rlctl"), ("fish", "rlctl.fish")] {
            let script = command::output(Command::new(&rlctl).args(["completions", shell]))?;
            docs.insert(format!("completions/{shell}/{name}"), script.into_bytes());
        }
        let pages = tempfile::tempdir()?;
        command::output(Command::new(rlctl).args(["man", "--dir"]).arg(pages.path()))?;
        for page in std::fs::read_dir(pages.path())? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            docs.insert(format!("man/man1/{name}"), std::fs::read(page.path())?);
        }
        let manual = command::output(Command::new(limiter).arg("--man"))?;
        docs.insert("man/man1/limiter.1".to_owned(), manual.into_bytes());
        Ok(docs)
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
    let legal = Files::from([
        ("LICENSE".to_owned(), read(&workspace.root.join("LICENSE"))?),
        ("LICENSES-OF-LIBRARIES.txt".to_owned(), libraries),
        ("LICENSES-OF-RUST.html".to_owned(), rust),
    ]);
    let mut beside = for_every_machine(workspace)?;
    beside.insert("filter.wasm".to_owned(), filter.clone());
    for programs in built.iter().filter(|programs| programs.arch == own) {
        beside.extend(programs.docs()?);
    }
    beside.extend(legal.clone());
    let mut files = Files::new();
    for Programs {
        arch,
        files: programs,
        module,
        ..
    } in &built
    {
        let mut archive = Archive::default();
        let folder = format!("rl-{}", release.version);
        for (name, program) in programs {
            archive.file(&format!("{folder}/{name}"), 0o755, program.clone());
        }
        let path = format!("{folder}/librl_filter.so");
        archive.file(&path, 0o755, module.clone());
        for (path, bytes) in &beside {
            archive.file(&format!("{folder}/{path}"), 0o644, bytes.clone());
        }
        let name = format!("rl-{}-{arch}-linux.tar.gz", release.version);
        files.insert(name, gzip(&archive.tar(release.epoch)?)?);
        // Envoy does not load a path again, so the name has the version.
        let name = format!("librl_filter-{}-{arch}.so", release.version);
        files.insert(name, module.clone());
    }
    let sbom = packages::bill_of_materials(workspace, release, &graph)?;
    files.insert(format!("rl-{}.cdx.json", release.version), sbom);
    let certificates = read(&Tools::new(workspace, ui).get(Tool::Certificates)?)?;
    let limiter = limiter_image(release, &built, certificates, &legal)?;
    let module = module_image(release, &built, &legal)?;
    let images = [limiter, filter_image(release, &filter)?, module];
    files.insert("filter.wasm".to_owned(), filter);
    add_images(&mut files, images)?;
    write(&files, workspace, ui, out)
}

/// Adds the images, the digests that pin them, the filter and the modules, and all checksums.
fn add_images(files: &mut Files, images: [Image<'_>; 3]) -> Result<()> {
    let mut digests = String::new();
    for (name, bytes) in &*files {
        if [".wasm", ".so"].iter().any(|end| name.ends_with(end)) {
            let _ = writeln!(digests, "{name} sha256:{}", sha256(bytes));
        }
    }
    for image in images {
        let (name, version) = (image.name, image.release.version);
        let _ = writeln!(digests, "{name}:{version} {}", image.digest());
        files.insert(format!("{name}-{version}.oci.tar"), image.tar()?);
    }
    files.insert("digests.txt".to_owned(), digests.into_bytes());
    let mut sums = String::new();
    for (name, bytes) in &*files {
        let _ = writeln!(sums, "{}  {name}", sha256(bytes));
    }
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
fn for_every_machine(workspace: &Workspace) -> Result<Files> {
    let text = |path: &str| {
        let text = std::fs::read_to_string(workspace.root.join(path));
        text.with_context(|| format!("cannot read {path}"))
    };
    // It must work from the folder that it is unpacked to.
    let (envoy, built) = (text("envoy.yaml")?, "target/filter.wasm");
    ensure!(envoy.contains(built), "envoy.yaml does not load {built}");
    let envoy = envoy
        .replace("#   cargo xtask wasm\n", "")
        .replace(built, "filter.wasm");
    let limits = text("limits.yaml")?.replace("$schema=docs/", "$schema=");
    let unit = |file: &str| text(&format!("deploy/systemd/{file}"));
    let files = [
        ("envoy.yaml", envoy),
        ("limits.yaml", limits),
        ("limits.schema.json", text("docs/limits.schema.json")?),
        ("systemd/limiter.service", unit("limiter.service")?),
        ("systemd/limiter.env", unit("limiter.env")?),
    ];
    let mut files: Files = files
        .map(|(name, text)| (name.to_owned(), text.into_bytes()))
        .into();
    let chart = workspace.root.join("deploy/helm");
    for folder in ["", "files", "templates"] {
        for entry in std::fs::read_dir(chart.join(folder))? {
            let path = entry?.path();
            // The manifests are links to their only copies, which this follows.
            if path.is_file() {
                let name = path.strip_prefix(&chart)?.display();
                files.insert(format!("helm/{name}"), read(&path)?);
            }
        }
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
    let all = ["ls-files", "-z", "--cached", "--others"];
    let mut list = workspace.program("git", &all);
    let tracked = command::output(list.arg("--exclude-standard"));
    let tracked = tracked.context("only a git checkout can be verified")?;
    for file in tracked.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (workspace.root.join(file), root.join(file));
        if !from.is_file() {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let target = root.join("target");
    let copy = Workspace { root, target };
    std::fs::create_dir_all(&copy.target)?;
    std::fs::create_dir_all(workspace.tools())?;
    std::os::unix::fs::symlink(workspace.tools(), copy.tools())?;
    let second = copy.target.join("artifacts");
    make(&copy, ui, release, &second)?;
    let [first, second] = [out, &second].map(|folder| folder.join("SHA256SUMS"));
    let (first, second) = (read(&first)?, read(&second)?);
    let (first, second) = (str::from_utf8(&first)?, str::from_utf8(&second)?);
    // The lines are a checksum and a name each.
    let other = |line: &&str| !second.lines().any(|found| found == *line);
    let differ: Vec<&str> = first.lines().filter(other).collect();
    ensure!(
        differ.is_empty() && first.len() == second.len(),
        "two builds of the same sources differ in {}",
        differ.join(", ")
    );
    let count = first.lines().count();
    ui.line(&format!("{count} artefacts have the same bytes"));
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
fn limiter_image<'a>(
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
    image.index(&manifests);
    Ok(image)
}

/// The module for each processor: a folder to mount beside Envoy, by an image volume or an init container's
/// copy. It has no program to run.
fn module_image<'a>(release: &'a Release, built: &[Programs], legal: &Files) -> Result<Image<'a>> {
    let mut image = Image::new("rl-module", "The filter as a dynamic module", release);
    let mut manifests = Vec::new();
    for Programs { arch, module, .. } in built {
        let mut layer = Archive::default();
        layer.file("librl_filter.so", 0o755, module.clone());
        for (name, text) in legal {
            layer.file(name, 0o644, text.clone());
        }
        let layer = image.layer(&layer)?;
        let settings = json!({"Labels": image.labels});
        let annotations = image.labels.clone();
        manifests.push(image.manifest(arch, &[&layer], &settings, &annotations));
    }
    image.index(&manifests);
    Ok(image)
}

/// The filter in the form that Istio and Envoy Gateway pull: one compressed layer with one file,
/// `plugin.wasm`. It runs on every processor, but the standard tools expect one to be named.
fn filter_image<'a>(release: &'a Release, module: &[u8]) -> Result<Image<'a>> {
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
struct Image<'a> {
    /// Its name, without registry and tag.
    name: &'static str,
    release: &'a Release,
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

    /// Adds the index of the processors' manifests, which is what to pull.
    fn index(&mut self, manifests: &[Value]) {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": self.labels,
        });
        self.top = self.json(INDEX, &index);
    }

    /// The digest to pull it by.
    fn digest(&self) -> &str {
        let digest = self.top.get("digest").and_then(Value::as_str);
        digest.unwrap_or_default()
    }

    /// The whole layout as one archive.
    fn tar(mut self) -> Result<Vec<u8>> {
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
struct Archive {
    entries: BTreeMap<String, Entry>,
}

/// A file, folder or symbolic link, with its mode, and the content or the path that it links to.
struct Entry(EntryType, u32, Vec<u8>);

impl Archive {
    /// Adds a file and its parent folders.
    fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
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
    fn tar(&self, epoch: u64) -> Result<Vec<u8>> {
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
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// The SHA-256 of bytes, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

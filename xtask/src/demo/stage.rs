//! The programs of the demo: Redis, two limiters, a service and Envoy.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Programs, Redis, Request, Upstream,
};
use tokio::process::Command;

use super::ports::DemoPorts;
use super::printer::Printer;
use crate::workspace::Workspace;

/// Everything that runs.
pub struct Stage {
    programs: Programs,
    ports: DemoPorts,
    store: String,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    client: Client,
    _redis: Redis,
    upstream: Upstream,
    _envoy: Envoy,
}

impl Stage {
    /// Starts everything, and shows each command.
    pub async fn start(
        printer: &Printer,
        workspace: &Workspace,
        programs: Programs,
        ports: DemoPorts,
    ) -> Result<Self> {
        let dir = fresh_folder(workspace)?;
        printer.heading("Everything starts");
        printer.text("A store keeps the limits and what was used of them:");
        let redis = Redis::start(&programs.valkey, ports.redis, &dir).await?;
        printer.command(&redis.typed());
        let store = redis.url();
        printer.command(&format!("export RL_STORE={store}"));
        printer.text(
            "Two limiters decide; neither has a state of its own. (They and Envoy have more \
             patience here than by default, so that the story holds on a busy machine.)",
        );
        let mut limiters = Vec::new();
        for (port, admin) in ports.envoy.limiters.into_iter().zip(ports.limiter_admins) {
            let mut plan = LimiterPlan::new(&programs, &store, [port, admin], &dir);
            plan.arguments
                .extend(["--store-timeout", "500ms"].map(str::to_owned));
            printer.command(&plan.typed());
            limiters.push(plan.start().await?);
        }
        printer.text(
            "Envoy asks them, by the filter; behind it is a service that says hello. The \
             configuration is envoy.yaml with these ports and that patience:",
        );
        let upstream = Upstream::start(ports.envoy.upstream).await?;
        let config = config(&programs, &ports, &dir)?;
        let envoy = Envoy::serve(&programs, &config, ports.envoy, WORKERS, &dir).await?;
        printer.command(envoy.typed());
        printer.text(&format!("What they log is in {}.", dir.display()));
        let client = Client::new();
        Ok(Self {
            programs,
            ports,
            store,
            limiters,
            stopped: Vec::new(),
            client,
            _redis: redis,
            upstream,
            _envoy: envoy,
        })
    }

    /// A POST to a path through Envoy, as a user.
    pub fn post(&self, path: &str, user: &str) -> Request {
        self.client
            .post(&format!("{}{path}", self.url()), "")
            .header("x-user-id", user)
    }

    /// Envoy's URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.envoy.envoy)
    }

    /// Requests that have reached the service.
    pub fn served(&self) -> u64 {
        self.upstream.requests()
    }

    /// The store's URL.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The ports in use.
    pub fn ports(&self) -> &DemoPorts {
        &self.ports
    }

    /// rlctl, on this store.
    pub fn rlctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.rlctl);
        command.args(arguments).env("RL_STORE", &self.store);
        command
    }

    /// Stops both limiters.
    pub async fn stop_limiters(&mut self) -> Result<()> {
        for limiter in std::mem::take(&mut self.limiters) {
            self.stopped.push(limiter.stop().await?);
        }
        Ok(())
    }

    /// Starts them again.
    pub async fn start_limiters(&mut self) -> Result<()> {
        for plan in std::mem::take(&mut self.stopped) {
            self.limiters.push(plan.start().await?);
        }
        Ok(())
    }
}

const WORKERS: u32 = 2;

/// An empty folder for the demo's files.
pub fn fresh_folder(workspace: &Workspace) -> Result<PathBuf> {
    let dir = workspace
        .short(&workspace.target.join("demo"))
        .to_path_buf();
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// envoy.yaml with the demo's ports and timeouts.
fn config(programs: &Programs, ports: &DemoPorts, dir: &Path) -> Result<PathBuf> {
    let path = dir.join("envoy.json");
    EnvoyConfig::shipped(&programs.root)?
        .filter_code(&programs.filter)?
        .limiter_timeout("1s")?
        .ports(&ports.envoy)?
        .write(&path)?;
    Ok(path)
}

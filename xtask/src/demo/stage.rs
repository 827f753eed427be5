//! The programs of the demo: Redis, limiters, a service and Envoys; and their ports.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Request, Upstream,
};
use tokio::process::Command;

use super::printer::Printer;
use crate::command::Workspace;
use crate::ui::Help;

/// Everything that runs.
pub struct Stage {
    pub programs: Programs,
    pub ports: DemoPorts,
    pub dir: PathBuf,
    pub redis: Redis,
    pub upstream: Upstream,
    pub envoys: Vec<Envoy>,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    client: Client,
}

impl Stage {
    /// Starts a store and a service, with an empty folder for their files.
    pub async fn start(
        workspace: &Workspace,
        programs: Programs,
        ports: DemoPorts,
    ) -> Result<Self> {
        let dir = workspace.target.join("demo");
        let dir = workspace.short(&dir).to_path_buf();
        if dir.exists() {
            std::fs::remove_dir_all(&dir)
                .with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self {
            redis: Redis::start(&programs.valkey, ports.redis, &dir).await?,
            upstream: Upstream::start(ports.envoy.upstream).await?,
            programs,
            ports,
            dir,
            envoys: Vec::new(),
            limiters: Vec::new(),
            stopped: Vec::new(),
            client: Client::new(),
        })
    }

    /// Starts another limiter, and shows the command. It has more patience than by default, so that the
    /// story holds on a busy machine.
    pub async fn limiter(&mut self, printer: &Printer, arguments: &[&str]) -> Result<()> {
        let all = self
            .ports
            .envoy
            .limiters
            .into_iter()
            .zip(self.ports.limiter_admins);
        let ports = all.map(<[u16; 2]>::from).nth(self.limiters.len());
        let ports = ports.context("there are ports for two limiters")?;
        let mut plan = LimiterPlan::new(&self.programs, &self.redis.url(), ports, &self.dir);
        let patience = ["--store-timeout", "500ms"];
        let arguments = arguments.iter().chain(&patience);
        plan.arguments.extend(arguments.map(ToString::to_string));
        printer.command(&plan.typed());
        self.limiters.push(plan.start().await?);
        Ok(())
    }

    /// Starts another Envoy, and shows the command.
    pub async fn envoy(
        &mut self,
        printer: &Printer,
        config: EnvoyConfig,
        ports: Ports,
    ) -> Result<()> {
        let path = self.dir.join(format!("envoy-{}.json", self.envoys.len()));
        config.write(&path)?;
        let envoy = Envoy::serve(&self.programs, &path, ports, 2, &self.dir).await?;
        printer.command(envoy.typed());
        self.envoys.push(envoy);
        Ok(())
    }

    /// envoy.yaml with these ports and more patience.
    pub fn config(&self, ports: &Ports) -> Result<EnvoyConfig> {
        EnvoyConfig::shipped(&self.programs.root)?
            .filter_code(&self.programs.filter)?
            .limiter_timeout("1s")?
            .ports(ports)
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

    /// rlctl, on this store.
    pub fn rlctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.rlctl);
        command.args(arguments).env("RL_STORE", self.redis.url());
        command
    }

    /// Stops all limiters.
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

/// Every port of the demo, all on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub struct DemoPorts {
    /// The ports in Envoy's configuration.
    pub envoy: Ports,
    /// The limiters' admin ports.
    pub limiter_admins: [u16; 2],
    /// Redis or Valkey. Not 6379, which the owner of this machine may use.
    pub redis: u16,
}

impl DemoPorts {
    const DOCUMENTED: Self = Self {
        envoy: Ports::SHIPPED,
        limiter_admins: [8091, 8093],
        redis: 6390,
    };

    /// The documented ports, or eight in a row.
    pub fn choose(base: Option<u16>) -> Result<Self> {
        let Some(base) = base else {
            return Ok(Self::DOCUMENTED);
        };
        let nth = |n: u16| {
            base.checked_add(n).with_context(|| {
                Help::new(format!("there are no 8 ports from {base} on"))
                    .remedy("choose one below 65528: cargo xtask demo --port-base 20000")
            })
        };
        Ok(Self {
            envoy: Ports {
                envoy: nth(0)?,
                envoy_admin: nth(1)?,
                limiters: [nth(2)?, nth(4)?],
                upstream: nth(6)?,
            },
            limiter_admins: [nth(3)?, nth(5)?],
            redis: nth(7)?,
        })
    }

    /// Fails if any port is in use, and names all of them.
    pub fn check_free(&self) -> Result<()> {
        let Ports {
            envoy,
            envoy_admin,
            upstream,
            limiters,
        } = self.envoy;
        let others = [envoy, envoy_admin, upstream, self.redis];
        let mut taken = Vec::new();
        for port in others
            .into_iter()
            .chain(limiters)
            .chain(self.limiter_admins)
        {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AddrInUse => taken.push(port.to_string()),
                Err(error) => return Err(error).with_context(|| format!("cannot use port {port}")),
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        Err(
            Help::new(format!("in use on 127.0.0.1: port {}", taken.join(", ")))
                .remedy("use others: cargo xtask demo --port-base 20000")
                .remedy("or stop what listens there; perhaps a demo left with --keep")
                .into(),
        )
    }
}

//! The limiter service as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{Client, Process, Programs, free_port, process::Signal, programs::from_env, shown};

/// How to start a limiter; kept, so that a stopped one can be started again.
#[derive(Debug, Clone)]
pub struct LimiterPlan {
    /// Its name in logs.
    pub name: String,
    /// The data port.
    pub port: u16,
    /// The admin port.
    pub admin_port: u16,
    /// The store's URL.
    pub store: String,
    /// More arguments.
    pub arguments: Vec<String>,
    /// The program.
    pub program: PathBuf,
    /// The folder of its log.
    pub dir: PathBuf,
}

impl LimiterPlan {
    /// A limiter of `store` on two ports.
    pub fn new(programs: &Programs, store: &str, [port, admin_port]: [u16; 2], dir: &Path) -> Self {
        Self {
            name: format!("limiter-{port}"),
            port,
            admin_port,
            store: store.to_owned(),
            arguments: Vec::new(),
            program: programs.limiter.clone(),
            dir: dir.to_path_buf(),
        }
    }

    /// A limiter of `store` on free ports, with a file of these limits and more arguments.
    pub fn under(limits: &str, store: &str, dir: &Path, more: &[&str]) -> Result<Self> {
        let file = dir.join("limits.yaml");
        std::fs::write(&file, limits)?;
        let file = file.display().to_string();
        let arguments = ["--limits", &file].into_iter().chain(more.iter().copied());
        Ok(Self {
            name: "limiter".to_owned(),
            port: free_port()?,
            admin_port: free_port()?,
            store: store.to_owned(),
            arguments: arguments.map(str::to_owned).collect(),
            program: from_env("RL_TEST_BIN")?.join("limiter"),
            dir: dir.to_path_buf(),
        })
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", self.port))
            .arg("--admin")
            .arg(format!("127.0.0.1:{}", self.admin_port))
            .args(["--store", &self.store])
            .args(&self.arguments);
        command
    }

    /// The same command, if `RL_STORE` names the store.
    pub fn typed(&self) -> String {
        let store = format!(" --store {}", self.store);
        shown(&self.command()).replace(&store, "")
    }

    /// Starts it and waits until it has loaded the limits, or knows that there are none.
    pub async fn start(self) -> Result<Limiter> {
        let mut process = Process::start(&self.name, &mut self.command(), &self.dir)?;
        let client = Client::new();
        let url = format!("http://127.0.0.1:{}/readyz", self.admin_port);
        let ready = async || {
            client
                .get(&url)
                .send()
                .await
                .ok()
                .filter(|reply| reply.status == 200)
        };
        process.ready(ready).await?;
        Ok(Limiter {
            process,
            plan: self,
        })
    }
}

/// A running limiter.
#[derive(Debug)]
pub struct Limiter {
    process: Process,
    plan: LimiterPlan,
}

impl Limiter {
    /// Stops it; the plan starts it again.
    pub async fn stop(self) -> Result<LimiterPlan> {
        self.process.stop().await?;
        Ok(self.plan)
    }

    /// Kills it; the plan starts it again.
    pub async fn kill(mut self) -> Result<LimiterPlan> {
        self.process.signal(Signal::KILL)?;
        self.process.ended().await?;
        Ok(self.plan)
    }

    /// `http://127.0.0.1:PORT` of the data port.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.plan.port)
    }

    /// `http://127.0.0.1:PORT` of the admin port.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.plan.admin_port)
    }

    /// The running program.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

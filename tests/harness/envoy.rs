//! Envoy as a process.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{Client, EnvoyConfig, Ports, Process, Programs, Request};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    ports: Ports,
    client: Client,
}

/// How to start Envoy by hand on a configuration file.
pub(crate) fn command(envoy: &Path, config: &Path, workers: u32) -> Command {
    let mut command = Command::new(envoy);
    command
        .arg("--config-path")
        .arg(config)
        .args(["--concurrency", &workers.to_string()])
        // Several Envoys on one machine must not share memory.
        .args(["--use-dynamic-base-id", "--log-level", "warning"])
        .args(["--component-log-level", "wasm:info"]);
    command
}

impl Envoy {
    /// Starts one on `config`, whose ports are `ports`, and waits until it
    /// serves.
    pub async fn start(
        programs: &Programs,
        config: EnvoyConfig,
        ports: Ports,
        workers: u32,
        dir: &Path,
    ) -> Result<Self> {
        let name = format!("envoy-{}", ports.envoy);
        let file = dir.join(format!("{name}.json"));
        config.ports(&ports)?.write(&file)?;
        let mut command = command(&programs.envoy, &file, workers);
        let mut process = Process::start(&name, command.current_dir(&programs.root), dir)?;
        let client = Client::new();
        let ready = format!("http://127.0.0.1:{}/ready", ports.envoy_admin);
        process
            .ready(async || {
                client
                    .get(&ready)
                    .send()
                    .await
                    .ok()
                    .filter(|reply| reply.status == 200)
            })
            .await?;
        Ok(Self {
            process,
            ports,
            client,
        })
    }

    /// A GET of a path through it.
    pub fn get(&self, path: &str) -> Request {
        self.client
            .get(&format!("http://127.0.0.1:{}{path}", self.ports.envoy))
    }

    /// A POST to a path through it.
    pub fn post(&self, path: &str, body: impl Into<hyper::body::Bytes>) -> Request {
        self.client.post(
            &format!("http://127.0.0.1:{}{path}", self.ports.envoy),
            body,
        )
    }

    /// One of its counters or gauges; 0 while it does not exist yet.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let url = format!(
            "http://127.0.0.1:{}/stats?filter=^{name}$",
            self.ports.envoy_admin
        );
        let reply = self.client.get(&url).send().await?;
        match reply.text().trim().rsplit_once(": ") {
            None => Ok(0),
            Some((_, value)) => value.parse().with_context(|| format!("{name} is {value}")),
        }
    }

    /// The running program.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

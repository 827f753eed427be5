//! Envoy as a process.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{Client, EnvoyConfig, Host, Ports, Process, Programs, Request, shown};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    typed: String,
    ports: Ports,
    client: Client,
}

impl Envoy {
    /// Starts an Envoy on `config`, with `ports` instead of the shipped ones, and waits until it
    /// serves.
    pub async fn start(
        programs: &Programs,
        config: EnvoyConfig,
        ports: Ports,
        workers: u32,
        dir: &Path,
    ) -> Result<Self> {
        let file = dir.join(format!("envoy-{}.json", ports.envoy));
        let arguments = config.more_arguments();
        config.ports(&ports)?.write(&file)?;
        let mut command = command(&programs.envoy, &file, workers);
        command.args(arguments);
        Self::run(command, programs, ports, dir).await
    }

    /// Starts an Envoy on a configuration file that names `ports`.
    pub async fn serve(
        programs: &Programs,
        file: &Path,
        ports: Ports,
        workers: u32,
        dir: &Path,
    ) -> Result<Self> {
        let command = command(&programs.envoy, file, workers);
        Self::run(command, programs, ports, dir).await
    }

    async fn run(
        mut command: Command,
        programs: &Programs,
        ports: Ports,
        dir: &Path,
    ) -> Result<Self> {
        let typed = shown(&command);
        // The shipped file names the filter relative to the checkout.
        // Tests wait for the access log, which Envoy otherwise flushes every ten seconds.
        command
            .args(["--file-flush-interval-msec", "50"])
            .current_dir(&programs.root);
        let mut process = Process::start(&format!("envoy-{}", ports.envoy), &mut command, dir)?;
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
            typed,
            ports,
            client,
        })
    }

    /// The command that started it, for a shell in the checkout.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports.envoy
    }

    /// The port of its admin listener.
    pub fn admin_port(&self) -> u16 {
        self.ports.envoy_admin
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports.envoy)
    }

    /// A GET of a path through it.
    pub fn get(&self, path: &str) -> Request {
        self.client
            .get(&format!("http://127.0.0.1:{}{path}", self.ports.envoy))
    }

    /// A POST to a path through it.
    pub fn post(&self, path: &str, body: impl Into<hyper::body::Bytes>) -> Request {
        self.client.post(&self.url(path), body)
    }

    /// One of its counters or gauges; 0 while it does not exist yet. The filter's have the names that they
    /// have with the wasm filter.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let name = Host::stat(name);
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

    /// A page of its admin listener.
    pub async fn admin(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports.envoy_admin);
        Ok(self.client.get(&url).send().await?.text())
    }

    /// The running program.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

fn command(envoy: &Path, config: &Path, workers: u32) -> Command {
    let mut command = Command::new(envoy);
    command
        .arg("--config-path")
        .arg(config)
        .args(["--concurrency", &workers.to_string()])
        // Several Envoys on one machine must not share memory.
        .args(["--use-dynamic-base-id", "--log-level", "warning"])
        .args(["--component-log-level", "wasm:info,dynamic_modules:info"]);
    command
}

//! An NGINX that answers everything itself.

use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::{Client, Process, free_port, variable};

/// A running NGINX, of one process, so that all its requests have one clock.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    port: u16,
    dir: TempDir,
}

impl Nginx {
    /// Starts it with an `error_log`, directives of its `http`, and locations of its only server. Logs are files in a
    /// folder of its own.
    pub async fn start(error_log: &str, http: &str, locations: &str) -> Result<Self> {
        let (dir, port) = (tempfile::tempdir()?, free_port()?);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|of| format!("{of}_temp_path tmp;")).concat();
        let config = format!(
            "worker_processes 1; daemon off; master_process off; pid nginx.pid; error_log {error_log};
            events {{}}
            http {{
                {temporary}
                {http}
                server {{ listen 127.0.0.1:{port}; {locations} location = /ready {{ return 200; }} }}
            }}"
        );
        std::fs::write(dir.path().join("nginx.conf"), config)?;
        let folder = format!("{}/", dir.path().display());
        let mut command = Command::new(variable("RL_TEST_NGINX"));
        command.args(["-e", "stderr", "-p", &folder, "-c", "nginx.conf"]);
        let mut process = Process::start("nginx", &mut command, dir.path())?;
        let (client, url) = (Client::new(), format!("http://127.0.0.1:{port}/ready"));
        let ready = process.ready(async || client.get(&url).send().await.ok());
        ready.await?;
        Ok(Self { process, port, dir })
    }

    /// Where it listens, on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What it has written into one of its logs.
    pub fn log(&self, name: &str) -> Result<String> {
        read(&self.dir, name)
    }

    /// Stops it; returns one of its logs as a whole.
    pub async fn stop(self, name: &str) -> Result<String> {
        self.process.stop().await?;
        read(&self.dir, name)
    }
}

fn read(dir: &TempDir, name: &str) -> Result<String> {
    let path = dir.path().join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

//! A Redis or Valkey server without persistence.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Engine, Process, Programs, shown};

/// A running server.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    server: PathBuf,
    port: u16,
    dir: PathBuf,
}

impl Redis {
    /// Starts a server on `port` and waits until it answers.
    pub async fn start(programs: &Programs, engine: Engine, port: u16, dir: &Path) -> Result<Self> {
        let server = programs.server(engine).to_path_buf();
        let process = launch(&server, port, dir).await?;
        Ok(Self {
            process,
            server,
            port,
            dir: dir.to_path_buf(),
        })
    }

    /// What a store URL for it looks like.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The command that started it.
    pub fn typed(&self) -> String {
        shown(&command(&self.server, self.port, &self.dir))
    }

    /// Stops it and starts it empty: keys and scripts are gone.
    pub async fn restart_empty(self) -> Result<Self> {
        let Self {
            process,
            server,
            port,
            dir,
        } = self;
        process.stop().await?;
        let process = launch(&server, port, &dir).await?;
        Ok(Self {
            process,
            server,
            port,
            dir,
        })
    }

    /// The running program.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// How to start a server by hand.
fn command(server: &Path, port: u16, dir: &Path) -> Command {
    let mut command = Command::new(server);
    command
        .args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
        ])
        .arg(port.to_string())
        .arg("--dir")
        .arg(dir);
    command
}

async fn launch(server: &Path, port: u16, dir: &Path) -> Result<Process> {
    let mut process = Process::start(
        &format!("redis-{port}"),
        &mut command(server, port, dir),
        dir,
    )?;
    process.ready(async || ping(port).await.ok()).await?;
    Ok(process)
}

async fn ping(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).await?;
    (&reply == b"+PONG\r\n").then_some(()).context("not a PONG")
}

//! A Redis or Valkey server without persistence.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Process, Signal, shown};

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
    pub async fn start(server: &Path, port: u16, dir: &Path) -> Result<Self> {
        Self::start_with(server, port, dir, &[]).await
    }

    /// Starts a server with additional arguments.
    pub async fn start_with(
        server: &Path,
        port: u16,
        dir: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        Ok(Self {
            process: launch(server, port, dir, arguments).await?,
            server: server.to_path_buf(),
            port,
            dir: dir.to_path_buf(),
        })
    }

    /// Its store URL.
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

    /// Restarts it without keys and scripts.
    pub async fn restart_empty(self) -> Result<Self> {
        self.stop().await?.start().await
    }

    /// Stops it; its keys are lost.
    pub async fn stop(self) -> Result<StoppedRedis> {
        self.process.stop().await?;
        Ok(StoppedRedis {
            server: self.server,
            port: self.port,
            dir: self.dir,
        })
    }

    /// Kills it; its keys are lost.
    pub async fn kill(mut self) -> Result<StoppedRedis> {
        self.process.signal(Signal::KILL)?;
        self.process.ended().await?;
        Ok(StoppedRedis {
            server: self.server,
            port: self.port,
            dir: self.dir,
        })
    }

    /// Stops it; a later start finds its keys, but not its scripts.
    pub async fn stop_saved(self) -> Result<StoppedRedis> {
        self.command(&["SAVE"]).await?;
        self.stop().await
    }

    /// Sends one command and returns its reply as received. An error reply is an error.
    pub async fn command(&self, words: &[&str]) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        let sent: String = words.iter().map(word).collect();
        let request = format!("*{}\r\n{sent}", words.len());
        stream.write_all(request.as_bytes()).await?;
        stream.shutdown().await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        ensure!(!reply.starts_with('-'), "{words:?}: {reply}");
        Ok(reply)
    }

    /// The running program.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// A server that was stopped; connections to it are refused.
#[derive(Debug)]
pub struct StoppedRedis {
    server: PathBuf,
    port: u16,
    dir: PathBuf,
}

impl StoppedRedis {
    /// Starts it again, on the same port.
    pub async fn start(self) -> Result<Redis> {
        self.start_with(&[]).await
    }

    /// Starts it again, with additional arguments.
    pub async fn start_with(self, arguments: &[&str]) -> Result<Redis> {
        let process = launch(&self.server, self.port, &self.dir, arguments).await?;
        Ok(Redis {
            process,
            server: self.server,
            port: self.port,
            dir: self.dir,
        })
    }
}

/// The command that starts a server.
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

async fn launch(server: &Path, port: u16, dir: &Path, arguments: &[&str]) -> Result<Process> {
    let mut command = command(server, port, dir);
    command.args(arguments);
    let mut process = Process::start(&format!("redis-{port}"), &mut command, dir)?;
    process
        .ready(async || redis_answers(port).await.ok())
        .await?;
    Ok(process)
}

/// Checks that a server or a sentinel answers, even with LOADING or NOAUTH. On a slow disk it
/// accepts connections long before.
pub async fn redis_answers(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).await?;
    let known = [b"+PONG\r\n", b"-LOADIN", b"-NOAUTH"];
    ensure!(known.contains(&&reply), "not a PONG");
    Ok(())
}

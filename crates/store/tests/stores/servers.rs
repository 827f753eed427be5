//! Servers and stores under test.

use std::{
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use harness::{Process, free_port};
use store::{Options, Store, StoreUrl, open};
use tempfile::TempDir;

/// A kind of server: where the environment names it, and what it is called on `PATH`.
#[derive(Clone, Copy)]
pub struct Kind {
    variable: &'static str,
    program: &'static str,
}

pub const REDIS: Kind = Kind {
    variable: "RL_TEST_REDIS",
    program: "redis-server",
};
pub const VALKEY: Kind = Kind {
    variable: "RL_TEST_VALKEY",
    program: "valkey-server",
};

/// A server of its own for one test, without persistence.
pub struct Server {
    kind: Kind,
    process: Option<Process>,
    port: u16,
    dir: TempDir,
}

pub fn memory() -> Result<Arc<dyn Store>> {
    Ok(open(&StoreUrl::Memory, Options::default())?)
}

/// Patient: a test machine is busy, and what is tested is not how fast it is.
pub fn patient() -> Options {
    Options {
        timeout: Duration::from_secs(5),
        control_timeout: Duration::from_secs(5),
        ..Options::default()
    }
}

impl Server {
    pub async fn start(kind: Kind) -> Result<Self> {
        Self::start_with(kind, &[]).await
    }

    pub async fn start_with(kind: Kind, arguments: &[&str]) -> Result<Self> {
        let mut server = Self {
            kind,
            process: None,
            port: free_port()?,
            dir: TempDir::new()?,
        };
        server.launch(arguments).await?;
        Ok(server)
    }

    /// Starts the program (again) on the same port.
    pub async fn launch(&mut self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(program(self.kind)?);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--port", &self.port.to_string()]);
        command.arg("--dir").arg(self.dir.path());
        command.args(arguments);
        let mut process = Process::start("server", &mut command, self.dir.path())?;
        let address = ("127.0.0.1", self.port);
        process
            .ready(async || tokio::net::TcpStream::connect(address).await.ok())
            .await?;
        self.process = Some(process);
        Ok(())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.store_with(patient())
    }

    pub fn store_with(&self, options: Options) -> Result<Arc<dyn Store>> {
        Ok(open(&self.url().parse()?, options)?)
    }

    /// As the user of a URL with these credentials.
    pub fn store_as(&self, credentials: &str) -> Result<Arc<dyn Store>> {
        let url = format!("redis://{credentials}@127.0.0.1:{}", self.port);
        Ok(open(&url.parse()?, patient())?)
    }

    /// Kills it without a warning; [`Server::launch`] brings another one.
    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().context("running")?.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().context("running")?.resume()
    }

    /// One command on a connection of its own.
    pub async fn command(&self, words: &[&str]) -> Result<redis::Value> {
        self.ask(words).await
    }

    /// As [`Server::command`], for its answer.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words.first().context("a command")?);
        words.iter().skip(1).for_each(|word| {
            command.arg(*word);
        });
        Ok(command.query_async(&mut connection).await?)
    }
}

/// The server program of a kind.
pub fn program(kind: Kind) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(kind.variable) {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(kind.program));
    found.find(|program| program.is_file()).with_context(|| {
        format!(
            "this test needs {}: `cargo xtask test` brings it, or install it, or let {} name it",
            kind.program, kind.variable
        )
    })
}

/// Looks until `probe` finds something, and tells how long that took.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    probe: impl AsyncFnMut() -> Option<T>,
) -> Result<(T, Duration)> {
    let started = Instant::now();
    let found = harness::until(what, limit, probe).await?;
    Ok((found, started.elapsed()))
}

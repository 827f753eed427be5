//! Servers and stores under test.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use harness::{Engine, Process, Redis, free_port};
use store::{Options, Store, StoreUrl, open};
use tempfile::TempDir;

/// A server of its own for one test, without persistence.
pub struct Server {
    engine: Engine,
    redis: Option<Redis>,
    port: u16,
    dir: TempDir,
}

pub fn memory() -> Result<Arc<dyn Store>> {
    Ok(open(&StoreUrl::Memory, Options::default())?)
}

pub async fn redis() -> Result<Server> {
    Server::start(Engine::Redis).await
}

pub async fn valkey() -> Result<Server> {
    Server::start(Engine::Valkey).await
}

/// Long timeouts: a test machine is busy, and the tests do not measure its speed.
pub fn patient() -> Options {
    Options {
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        control_timeout: Duration::from_secs(5),
        ..Options::default()
    }
}

impl Server {
    pub async fn start(engine: Engine) -> Result<Self> {
        Self::start_with(engine, &[]).await
    }

    pub async fn start_with(engine: Engine, arguments: &[&str]) -> Result<Self> {
        let mut server = Self {
            engine,
            redis: None,
            port: free_port()?,
            dir: TempDir::new()?,
        };
        server.launch(arguments).await?;
        Ok(server)
    }

    /// Starts the program (again) on the same port.
    pub async fn launch(&mut self, arguments: &[&str]) -> Result<()> {
        let (program, dir) = (self.engine.program()?, self.dir.path());
        let redis = Redis::start_with(&program, self.port, dir, arguments).await?;
        self.redis = Some(redis);
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

    /// Kills it without a warning; [`Server::launch`] starts another one.
    pub fn kill(&mut self) {
        self.redis = None;
    }

    fn process(&self) -> Result<&Process> {
        Ok(self.redis.as_ref().context("running")?.process())
    }

    pub fn pause(&self) -> Result<()> {
        self.process()?.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.process()?.resume()
    }

    /// One command on a connection of its own.
    pub async fn command(&self, words: &[&str]) -> Result<redis::Value> {
        self.ask(words).await
    }

    /// As [`Server::command`], for its answer.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let client = redis::Client::open(self.url())?;
        // A server waits for its disk when it saves the configuration of a Cluster.
        let patience = Some(Duration::from_secs(10));
        let patient = redis::AsyncConnectionConfig::new()
            .set_response_timeout(patience)
            .set_connection_timeout(patience);
        let connected = client.get_multiplexed_async_connection_with_config(&patient);
        let mut connection = connected.await?;
        let mut command = redis::cmd(words.first().context("a command")?);
        words.iter().skip(1).for_each(|word| {
            command.arg(*word);
        });
        Ok(command.query_async(&mut connection).await?)
    }
}

/// Polls until `probe` finds something, and returns how long that took.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    probe: impl AsyncFnMut() -> Option<T>,
) -> Result<(T, Duration)> {
    let started = Instant::now();
    let found = harness::until(what, limit, probe).await?;
    Ok((found, started.elapsed()))
}

//! Real servers.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, Redis, free_port};
use store::{Options, Store, open};
use tempfile::TempDir;

use super::PATIENCE;

/// A server of its own for one test.
pub struct Server {
    redis: Redis,
    dir: TempDir,
}

impl Server {
    pub async fn start(engine: Engine) -> Result<Self> {
        let dir = TempDir::new()?;
        let redis = Redis::start(&engine.program()?, free_port()?, dir.path()).await?;
        Ok(Self { redis, dir })
    }

    /// A store on it with a long timeout, for busy machines.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.store_within(PATIENCE)
    }

    /// A store on it with this timeout for checks.
    pub fn store_within(&self, timeout: Duration) -> Result<Arc<dyn Store>> {
        let options = Options {
            timeout,
            ..Options::default()
        };
        Ok(open(&self.redis.url().parse()?, options)?)
    }

    pub fn pause(&self) -> Result<()> {
        self.redis.process().pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.redis.process().resume()
    }

    /// Stops it and starts it empty.
    pub async fn restart_empty(self) -> Result<Self> {
        Ok(Self {
            redis: self.redis.restart_empty().await?,
            dir: self.dir,
        })
    }

    /// Stops it and starts it with its keys, of which it loads a thousand a second.
    pub async fn restart_slowly(self) -> Result<Self> {
        let slowly = [
            "--key-load-delay",
            "1000",
            "--loading-process-events-interval-bytes",
            "1024",
        ];
        Ok(Self {
            redis: self.redis.stop_saved().await?.start_with(&slowly).await?,
            dir: self.dir,
        })
    }

    /// One command, as a shell would send it.
    pub async fn command(&self, words: &[&str]) -> Result<String> {
        self.redis.command(words).await
    }

    /// Its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Stops it with its keys saved, lets `meanwhile` happen, and starts it again.
    pub async fn away(self, meanwhile: impl Future<Output = Result<()>>) -> Result<Self> {
        let stopped = self.redis.stop_saved().await?;
        meanwhile.await?;
        Ok(Self {
            redis: stopped.start().await?,
            dir: self.dir,
        })
    }
}

//! Where the programs are that a suite starts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A server that speaks the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Redis 7.
    Redis,
    /// Valkey 9.
    Valkey,
}

/// The programs, and the checkout they are tested for.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The folder of the checkout.
    pub root: PathBuf,
    /// `envoy`.
    pub envoy: PathBuf,
    /// `redis-server`.
    pub redis: PathBuf,
    /// `valkey-server`.
    pub valkey: PathBuf,
    /// `limiter`.
    pub limiter: PathBuf,
    /// `rlctl`.
    pub rlctl: PathBuf,
    /// The filter as Envoy loads it.
    pub filter: PathBuf,
}

impl Programs {
    /// From the environment, as `cargo xtask test` sets it: `RL_TEST_ENVOY`,
    /// `RL_TEST_REDIS`, `RL_TEST_VALKEY`, `RL_TEST_FILTER`, and `RL_TEST_BIN`,
    /// the folder that holds `limiter` and `rlctl`.
    pub fn from_env() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("no checkout")?;
        let bin = from_env("RL_TEST_BIN")?;
        Ok(Self {
            root: root.to_path_buf(),
            envoy: from_env("RL_TEST_ENVOY")?,
            redis: from_env("RL_TEST_REDIS")?,
            valkey: from_env("RL_TEST_VALKEY")?,
            limiter: bin.join("limiter"),
            rlctl: bin.join("rlctl"),
            filter: from_env("RL_TEST_FILTER")?,
        })
    }

    /// The server program of an engine.
    pub fn server(&self, engine: Engine) -> &Path {
        match engine {
            Engine::Redis => &self.redis,
            Engine::Valkey => &self.valkey,
        }
    }
}

fn from_env(name: &str) -> Result<PathBuf> {
    let value = std::env::var_os(name);
    value
        .map(PathBuf::from)
        .with_context(|| format!("{name} is not set: run this suite by `cargo xtask test`"))
}

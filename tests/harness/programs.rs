//! The paths of the programs that suites start.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const REDIS: &str = "RL_TEST_REDIS";
const VALKEY: &str = "RL_TEST_VALKEY";

/// A server that speaks the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Redis 7.
    Redis,
    /// Valkey 9.
    Valkey,
}

impl Engine {
    /// Its program: the value of `RL_TEST_REDIS` or `RL_TEST_VALKEY`, or else the one on `PATH`.
    pub fn program(self) -> Result<PathBuf> {
        let (variable, program) = match self {
            Self::Redis => (REDIS, "redis-server"),
            Self::Valkey => (VALKEY, "valkey-server"),
        };
        if let Some(named) = env::var_os(variable) {
            return Ok(named.into());
        }
        on_path(program).with_context(|| {
            format!("no {program} on PATH: run `cargo xtask test`, or name one in {variable}")
        })
    }
}

/// What runs the filter in Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// The wasm filter.
    Wasm,
    /// The dynamic module, from this file.
    Module(PathBuf),
}

impl Host {
    /// The variable that names the module's file. Without it, the wasm filter runs.
    pub const MODULE: &str = "RL_TEST_MODULE";

    /// As the environment says.
    pub fn from_env() -> Self {
        env::var_os(Self::MODULE).map_or(Self::Wasm, |path| Self::Module(path.into()))
    }

    /// Whether tests run with the dynamic module.
    pub fn is_module() -> bool {
        Self::from_env() != Self::Wasm
    }

    /// Envoy's name for a metric that has this name with the wasm filter (`wasmcustom.rl_hold_full`). The
    /// module's have labels instead of further parts, and Envoy writes the label before its value.
    pub fn stat(name: &str) -> String {
        let Some(of) = name
            .strip_prefix("wasmcustom.")
            .filter(|_| Self::is_module())
        else {
            return name.to_owned();
        };
        let mut parts = of.split('.');
        let family = parts.next().unwrap_or_default();
        let (own, labels): (usize, &[&str]) = match family {
            "rl_decisions" => (0, &["decision", "source", "limit"]),
            "rl_exempt" => (0, &["exemption"]),
            "rl_costs" => (1, &["limit"]),
            _ => (usize::MAX, &[]),
        };
        let mut named = vec!["dynamicmodulescustom", family];
        named.extend(parts.by_ref().take(own));
        for (label, value) in labels.iter().zip(parts) {
            named.extend([*label, value]);
        }
        named.join(".")
    }
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
    /// The programs that the environment names, as `cargo xtask test` sets it: `RL_TEST_ENVOY`,
    /// `RL_TEST_REDIS`, `RL_TEST_VALKEY`, `RL_TEST_FILTER`, and `RL_TEST_BIN`, the folder that
    /// holds `limiter` and `rlctl`.
    pub fn from_env() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("no checkout")?;
        let bin = from_env("RL_TEST_BIN")?;
        Ok(Self {
            root: root.to_path_buf(),
            envoy: from_env("RL_TEST_ENVOY")?,
            redis: from_env(REDIS)?,
            valkey: from_env(VALKEY)?,
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

/// A program on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|program| program.is_file())
}

/// A path that `cargo xtask test` sets.
///
/// # Panics
/// If it is not set: then a suite cannot run.
#[expect(clippy::panic, reason = "only suites ask")]
pub fn variable(name: &str) -> PathBuf {
    from_env(name).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn from_env(name: &str) -> Result<PathBuf> {
    let value = env::var_os(name);
    value
        .map(PathBuf::from)
        .with_context(|| format!("{name} is not set: run this suite by `cargo xtask test`"))
}

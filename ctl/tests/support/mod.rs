//! Servers, and rlctl in a clean environment.

#![expect(dead_code, reason = "each test binary uses its part of this")]

pub mod relay;
pub mod schema;
pub mod terminal;

use std::process::Command;

use anyhow::Result;
use harness::{Engine, Process, Redis, free_port};
use tempfile::TempDir;

/// A server without persistence, gone when this is dropped.
pub struct Server {
    redis: Redis,
    _dir: TempDir,
}

impl Server {
    pub fn start(engine: Engine, arguments: &[&str]) -> Result<Self> {
        let dir = TempDir::new()?;
        let program = engine.program()?;
        let redis = Redis::start_with(&program, free_port()?, dir.path(), arguments);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            redis: runtime.block_on(redis)?,
            _dir: dir,
        })
    }

    pub fn url(&self) -> String {
        self.redis.url()
    }

    pub fn port(&self) -> u16 {
        self.redis.port()
    }

    /// Runs a command of the server.
    pub async fn command(&self, words: &[&str]) -> Result<String> {
        self.redis.command(words).await
    }

    /// How many hashes the server's clients have read.
    pub async fn hashes_read(&self) -> Option<u64> {
        let stats = self.command(&["INFO", "commandstats"]).await.ok()?;
        let calls = stats.split("cmdstat_hgetall:calls=").nth(1)?;
        calls.split(',').next()?.parse().ok()
    }

    pub fn process(&self) -> &Process {
        self.redis.process()
    }
}

/// Hides the environment of the user who runs the tests.
const CLEAN: [(&str, &str); 13] = [
    ("RLCTL_REDIS", ""),
    ("RL_STORE", ""),
    ("REDIS_URL", ""),
    ("RLCTL_DOMAIN", ""),
    ("RLCTL_TIMEOUT", ""),
    ("RLCTL_CONTEXT", ""),
    ("XDG_CONFIG_HOME", "/dev/null"),
    ("RLCTL_AUTHOR", "ada@example"),
    ("RL_KEY_PREFIX", ""),
    ("LC_ALL", "C.UTF-8"),
    ("NO_COLOR", ""),
    ("CLICOLOR_FORCE", ""),
    ("COLUMNS", ""),
];

pub fn cases() -> trycmd::TestCases {
    let cases = trycmd::TestCases::new();
    cases.default_bin_name("rlctl");
    for (name, value) in CLEAN {
        cases.env(name, value);
    }
    cases
}

/// rlctl in that environment.
pub fn rlctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
    command.envs(CLEAN).args(arguments);
    command
}

//! Servers, and rlctl in a clean environment.

pub mod relay;
pub mod schema;
pub mod terminal;

use std::process::{Command, Output, Stdio};

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
        Ok(Self {
            redis: wait(redis)?,
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

    /// rlctl with these words, on the domain `shop` of this server.
    pub fn rlctl(&self, words: &str) -> Command {
        let url = self.url();
        let mut command = rlctl(&["--redis", &url, "--domain", "shop"]);
        command.args(words.split_whitespace());
        command
    }

    /// Runs it, without input.
    pub fn run(&self, words: &str) -> Result<Ran> {
        ran(&mut self.rlctl(words))
    }

    /// Runs a transcript against this server.
    pub fn transcript(&self, file: &str) {
        let cases = cases();
        cases.env("RLCTL_REDIS", self.url());
        cases.case(file);
        cases.run();
    }

    pub fn process(&self) -> &Process {
        self.redis.process()
    }
}

/// What a program that ended has printed, and its exit code.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Fails unless it ended with this code.
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

pub fn ran(command: &mut Command) -> Result<Ran> {
    Ok(of(&command.stdin(Stdio::null()).output()?))
}

pub fn of(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// Runs a future to its end.
pub fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(future)
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

//! Servers, and rlctl as a stranger runs it.

#![expect(dead_code, reason = "each test binary uses its part of this")]

pub mod schema;
pub mod terminal;

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};
use harness::{Process, free_port};
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

/// A server without persistence, gone when this is dropped.
pub struct Server {
    process: Process,
    port: u16,
    _dir: TempDir,
}

impl Server {
    pub fn start(kind: Kind, arguments: &[&str]) -> Result<Self> {
        let dir = TempDir::new()?;
        let port = free_port()?;
        let mut command = Command::new(program(kind)?);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command
            .args(["--port", &port.to_string()])
            .arg("--dir")
            .arg(dir.path())
            .args(arguments);
        let mut process = Process::start("server", &mut command, dir.path())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let address = ("127.0.0.1", port);
        runtime
            .block_on(process.ready(async || tokio::net::TcpStream::connect(address).await.ok()))?;
        Ok(Self {
            process,
            port,
            _dir: dir,
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// The program of a kind of server.
pub fn program(kind: Kind) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os(kind.variable) {
        return Ok(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(kind.program));
    { found }
        .find(|program| program.is_file())
        .with_context(|| {
            let Kind { program, variable } = kind;
            format!("no {program} on PATH: run `cargo xtask test`, or name one in {variable}")
        })
}

/// The environment of whoever runs the tests must not show.
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

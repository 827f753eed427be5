//! The program: how it starts, what it says, how it ends.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result};
use harness::{Client, Process, free_port, until};
use rustix::process::Signal;
use tempfile::TempDir;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command.args(arguments).stdin(Stdio::null());
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("RL_") {
            command.env_remove(variable);
        }
    }
    command
}

/// The exit status and standard error of a limiter that exits on its own.
fn ends(arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let arguments: Vec<&str> = ports.iter().chain(arguments).copied().collect();
    let Output { status, stderr, .. } = command(&arguments).output()?;
    Ok((status.code(), String::from_utf8(stderr)?))
}

/// A running program.
struct Running {
    process: Process,
    client: Client,
    ports: [u16; 2],
    _dir: TempDir,
}

impl Running {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let (dir, ports) = (TempDir::new()?, [free_port()?, free_port()?]);
        let [listen, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
        let mut command = command(&["--listen", &listen, "--admin", &admin]);
        let running = Self {
            process: Process::start("limiter", command.args(arguments), dir.path())?,
            client: Client::new(),
            ports,
            _dir: dir,
        };
        running.page_with("/healthz", "alive").await?;
        Ok(running)
    }

    /// Waits until a page of the admin port has these words.
    async fn page_with(&self, path: &str, words: &str) -> Result<()> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[1]);
        until(words, PATIENCE, async || {
            let page = self.client.get(&url).send().await.ok()?.text();
            page.contains(words).then_some(())
        })
        .await
    }
}

/// As many systems begin, and where the system permits no more than so few.
#[tokio::test]
async fn clients_cannot_take_the_files_that_a_limiter_needs() -> Result<()> {
    for limit in ["-Sn 200", "-n 200"] {
        let (dir, ports) = (TempDir::new()?, [free_port()?, free_port()?]);
        let [listen, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
        let mut shell = Command::new("sh");
        let script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_limiter")]);
        shell.args(["--listen", &listen, "--admin", &admin]);
        let running = Running {
            process: Process::start("limiter", &mut shell, dir.path())?,
            client: Client::new(),
            ports,
            _dir: dir,
        };
        running.page_with("/healthz", "alive").await?;
        let mut clients = Vec::new();
        for _ in 0..250 {
            clients.push(TcpStream::connect(&listen)?);
        }
        running.page_with("/metrics", "rl_store_up").await?;
    }
    Ok(())
}

#[test]
fn a_port_in_use_is_reported_with_its_flag() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let output = command(&["--listen", "127.0.0.1:0", "--admin", &address]).output()?;
    let text = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains(&format!("{address}: the port is in use")),
        "{text}"
    );
    assert!(text.contains("--admin"), "{text}");
    Ok(())
}

#[test]
fn a_typo_in_the_limits_is_shown_as_a_compiler_would() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    fs::write(
        &path,
        "domain: shop\nlimits:\n  - {name: a, rate: 1/s, brust: 2}\n",
    )?;
    for store in ["memory", "redis://127.0.0.1:1"] {
        let path = path.to_str().context("a path")?;
        let (code, text) = ends(&["--store", store, "--limits", path])?;
        assert_eq!(code, Some(1), "{text}");
        for part in ["limits.yaml:3:", "brust", "^^^^^", "did you mean `burst`?"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
    Ok(())
}

#[test]
fn an_invalid_store_url_is_reported_without_its_password() -> Result<()> {
    for url in [
        "redis://:s3cret@host:none",
        "mysql://:s3cret@host",
        "redis://:s3cret#@host",
    ] {
        let (code, text) = ends(&["--store", url])?;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("--store"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    Ok(())
}

#[test]
fn wrong_flags_are_usage_errors() -> Result<()> {
    for wrong in [
        ["--store-timeout", "10"],
        ["--max-body", "1GB"],
        ["--max-inflight", "0"],
        ["--listen", "localhost"],
        ["--lisen", "127.0.0.1:0"],
        ["--log", "infoo"],
    ] {
        let output = command(&wrong).output()?;
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn a_misspelt_variable_is_named_without_its_value() -> Result<()> {
    let mut limiter = command(&["--listen", "127.0.0.1:0", "--token-file", "/nowhere"]);
    for name in [
        "RL_TOKENFILE",
        "RL_THING",
        "RL_X_PORT_8090_TCP",
        "RL_X_SERVICE_HOST",
    ] {
        limiter.env(name, "s3cret");
    }
    let text = String::from_utf8(limiter.output()?.stderr)?;
    assert!(
        text.contains("RL_TOKENFILE is not read; did you mean RL_TOKEN_FILE?"),
        "{text}"
    );
    assert!(text.contains("RL_THING is not read"), "{text}");
    assert!(!text.contains("RL_X") && !text.contains("s3cret"), "{text}");
    Ok(())
}

#[tokio::test]
async fn the_limiter_starts_without_its_store_and_logs_no_password() -> Result<()> {
    let store = format!("redis://:s3cret@127.0.0.1:{}", free_port()?);
    let mut running = Running::start(&["--store", &store, "--drain", "1ms"]).await?;
    running
        .page_with("/readyz", "waiting for the store")
        .await?;
    running.process.signal(Signal::HUP)?;
    running.page_with("/healthz", "alive").await?;
    until("SIGHUP is answered in the log", PATIENCE, async || {
        let log = running.process.log();
        log.contains("SIGHUP changes nothing").then_some(())
    })
    .await?;
    running.process.signal(Signal::TERM)?;
    assert_eq!(running.process.ended().await?.code(), Some(0));
    let log = running.process.log();
    assert!(!log.contains("s3cret"), "{log}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).with_context(|| line.to_owned())?;
    }
    Ok(())
}

#[tokio::test]
async fn sighup_reloads_the_limits() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    let limits = "domain: shop\nlimits: [{name: all, rate: 1/s}]\n";
    fs::write(&path, limits)?;
    let running = Running::start(&["--limits", path.to_str().context("a path")?]).await?;
    running.page_with("/readyz", "\"revision\": 1").await?;
    running.process.signal(Signal::HUP)?;
    until("they were read again", PATIENCE, async || {
        let log = running.process.log();
        log.contains("limits files read again").then_some(())
    })
    .await
}

#[tokio::test]
async fn a_second_signal_stops_the_limiter_at_once() -> Result<()> {
    let mut running = Running::start(&["--drain", "1h"]).await?;
    running.process.signal(Signal::INT)?;
    running.page_with("/readyz", "shutting down").await?;
    running.process.signal(Signal::TERM)?;
    assert_eq!(running.process.ended().await?.code(), Some(130));
    Ok(())
}

//! An independent gRPC client: grpcio, against a limiter alone.

use std::{fs, path::Path};

use harness::{Engine, LimiterPlan, Process, Redis, Signal, free_port, until};
use tempfile::TempDir;

use crate::{
    certificates::certificates,
    stage::{PATIENCE, python},
};

const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, descriptor: [user], algorithm: fixed_window, rate: 2/365d}
  - {name: counted, descriptor: [counted], algorithm: fixed_window, rate: 1000000/365d}
";

fn plan(dir: &Path, store: &str, arguments: &[&str]) -> LimiterPlan {
    let arguments = [&["--store-timeout", "5s"], arguments].concat();
    LimiterPlan::under(LIMITS, store, dir, &arguments).unwrap()
}

/// The client as a process; its output goes to its log.
fn client(scenario: &str, port: u16, dir: &Path) -> Process {
    let mut command = python("client.py");
    command
        .args([scenario, &format!("localhost:{port}")])
        .arg(dir);
    Process::start("grpcio", &mut command, dir).unwrap()
}

/// Runs a scenario to its end, against a limiter with these arguments.
async fn proves(scenario: &str, dir: &Path, arguments: &[&str]) {
    let plan = plan(dir, "memory", arguments);
    let port = plan.port;
    let limiter = plan.start().await.unwrap();
    let mut client = client(scenario, port, dir);
    let ended = client.ended().await.unwrap();
    let logs = format!("{}\n{}", client.log(), limiter.process().log());
    assert!(
        ended.success() && client.log().trim().ends_with("proved"),
        "{logs}"
    );
}

#[tokio::test]
async fn grpcio_gets_answers_and_statuses() {
    let dir = TempDir::new().unwrap();
    proves("answers", dir.path(), &[]).await;
}

#[tokio::test]
async fn grpcio_speaks_tls_and_shows_a_token() {
    let dir = TempDir::new().unwrap();
    let [_, cert, key] = certificates(dir.path());
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "a-token-of-the-suite\n").unwrap();
    let tokens = tokens.to_str().unwrap();
    let arguments = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--token-file",
        tokens,
    ];
    proves("secured", dir.path(), &arguments).await;
}

#[tokio::test]
async fn grpcio_shows_a_client_certificate() {
    let dir = TempDir::new().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let arguments = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca];
    proves("mutual", dir.path(), &arguments).await;
}

#[tokio::test]
async fn a_connection_at_its_maximum_age_ends_without_losing_a_call() {
    let dir = TempDir::new().unwrap();
    proves("aged", dir.path(), &["--max-connection-age", "200ms"]).await;
}

#[tokio::test]
async fn a_watch_follows_the_health_to_the_end() {
    let dir = TempDir::new().unwrap();
    let port = free_port().unwrap();
    let plan = plan(dir.path(), &format!("redis://127.0.0.1:{port}"), &[]);
    let mut limiter = Process::start("limiter", &mut plan.command(), dir.path()).unwrap();
    let mut client = client("watched", plan.port, dir.path());
    let shown = async |client: &Process, states: &[&str]| {
        let shown = until("the states of the health", PATIENCE, async || {
            let log = client.log();
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| line.contains("SERVING"))
                .collect();
            (lines == states).then_some(())
        });
        shown.await.unwrap();
    };
    shown(&client, &["NOT_SERVING"]).await;
    let program = Engine::Redis.program().unwrap();
    let _redis = Redis::start(&program, port, dir.path()).await.unwrap();
    shown(&client, &["NOT_SERVING", "SERVING"]).await;
    limiter.signal(Signal::TERM).unwrap();
    shown(&client, &["NOT_SERVING", "SERVING", "NOT_SERVING"]).await;
    // An open health watch stops neither the limiter nor the client from ending.
    assert!(
        limiter.ended().await.unwrap().success(),
        "{}",
        limiter.log()
    );
    assert!(client.ended().await.unwrap().success(), "{}", client.log());
}

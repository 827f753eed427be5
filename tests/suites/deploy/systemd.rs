//! `deploy/systemd`.

use std::process::Command;
use std::time::Duration;

use harness::{Client, LimiterPlan, Process, Programs, Redis, free_port, until};

use crate::checks::{passes, text};

const PATIENCE: Duration = Duration::from_secs(10);
const UNIT: &str = "deploy/systemd/limiter.service";

fn systemd_analyze() -> Option<Command> {
    let there = Command::new("systemd-analyze").arg("--version").output();
    there.is_ok().then(|| Command::new("systemd-analyze"))
}

/// Skipped if systemd is missing; the tests below run everywhere.
#[test]
fn systemd_accepts_the_unit_and_finds_it_locked_down() {
    let Some(mut analyze) = systemd_analyze() else {
        println!("no systemd-analyze here");
        return;
    };
    // systemd-analyze requires the program to exist.
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("limiter.service");
    let here = text(UNIT).replace("/usr/local/bin/limiter", programs.limiter.to_str().unwrap());
    std::fs::write(&unit, here).unwrap();
    passes(analyze.arg("verify").arg(&unit));
    let mut security = Command::new("systemd-analyze");
    // 15 of 100 points at most: all that remains is that it opens sockets.
    passes(
        security
            .args(["security", "--offline=true", "--threshold=15"])
            .arg(&unit),
    );
}

/// Without the call, limits are compiled at the priority of the threads that serve.
#[test]
fn the_limiter_may_lower_the_priority_of_a_thread() {
    let Some(mut analyze) = systemd_analyze() else {
        println!("no systemd-analyze here");
        return;
    };
    let known = passes(analyze.arg("syscall-filter"));
    let has = |set: &str, call: &str| {
        let mut lines = known.lines().skip_while(|line| *line != set).skip(1);
        let mut calls = lines.by_ref().take_while(|line| line.starts_with(' '));
        calls.any(|line| line.trim() == call)
    };
    assert!(has("@resources", "setpriority"), "{known}");
    let mut allowed = false;
    for filter in text(UNIT).lines() {
        let Some(filter) = filter.strip_prefix("SystemCallFilter=") else {
            continue;
        };
        let (allows, names) = match filter.strip_prefix('~') {
            Some(names) => (false, names),
            None => (true, filter),
        };
        let names_it = |name: &str| name == "setpriority" || has(name, "setpriority");
        if names.split_whitespace().any(names_it) {
            allowed = allows;
        }
    }
    assert!(allowed);
}

/// systemd starts no unit whose credential is missing.
#[test]
fn commands_in_the_units_comments_create_the_files_it_loads() {
    let unit = text(UNIT);
    let loads = unit.lines().filter_map(|line| {
        let credential = line.strip_prefix("LoadCredential=")?;
        credential.split(':').nth(1)
    });
    let files = unit
        .lines()
        .filter_map(|line| line.strip_prefix("EnvironmentFile="));
    for path in loads.chain(files) {
        let made = |line: &str| {
            let install = line
                .strip_prefix('#')
                .filter(|line| line.contains("install "));
            install.is_some_and(|line| line.split_whitespace().any(|word| word == path))
        };
        assert!(unit.lines().any(made), "{path}");
    }
}

#[tokio::test]
async fn the_variables_start_a_limiter() {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, "a-token-of-some-length\n").unwrap();
    let [port, admin] = [free_port().unwrap(), free_port().unwrap()];
    let mut limiter = Command::new(&programs.limiter);
    let environment = text("deploy/systemd/limiter.env");
    for line in environment.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.split_once('=').unwrap();
        let value = match name {
            "RL_STORE" => "memory".to_owned(),
            "RL_LISTEN" => format!("127.0.0.1:{port}"),
            "RL_ADMIN" => format!("127.0.0.1:{admin}"),
            "RL_TOKEN_FILE" => tokens.to_str().unwrap().to_owned(),
            _ => value.to_owned(),
        };
        limiter.env(name, value);
    }
    let mut process = Process::start("limiter", &mut limiter, dir.path()).unwrap();
    let health = Client::new().get(&format!("http://127.0.0.1:{admin}/healthz"));
    process
        .ready(async || health.send().await.ok().filter(|reply| reply.status == 200))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_reload_does_not_stop_the_limiter() {
    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let port = free_port().unwrap();
    let redis = Redis::start(&programs.redis, port, dir.path());
    let redis = redis.await.unwrap();
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let plan = LimiterPlan::new(&programs, &redis.url(), ports, dir.path());
    let limiter = plan.start().await.unwrap();
    assert!(text(UNIT).contains("ExecReload=/bin/kill -HUP $MAINPID"));

    limiter.process().hang_up().unwrap();

    until("it says what became of it", PATIENCE, async || {
        limiter.process().log().contains("SIGHUP").then_some(())
    })
    .await
    .unwrap();
    let health = format!("{}/healthz", limiter.admin_url());
    let reply = Client::new().get(&health).send().await.unwrap();
    assert_eq!(reply.status, 200);
}

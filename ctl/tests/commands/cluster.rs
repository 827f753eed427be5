//! rlctl and a limiter on one Cluster.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use crate::support::{rlctl, schema};
use anyhow::{Context, Result, ensure};
use harness::{Client, Cluster, Engine, until};
use limiter::{Listeners, Settings, run};
use serde_json::{Value, json};
use store::{Options, open, slot};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
const USERS: usize = 12;

fn run_rlctl(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let mut command = rlctl(arguments);
    command.env("RLCTL_REDIS", cluster.url());
    Ok(command.args(["-o", "json"]).output()?)
}

/// What rlctl prints, parsed as JSON and validated against its schema.
fn documented(arguments: &[&str], output: &Output) -> Result<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = serde_json::from_slice(&output.stdout);
    let printed = printed.with_context(|| format!("{arguments:?}: {said}"))?;
    let command = arguments.first().context("a command")?;
    schema::validate(command, &printed)?;
    Ok(printed)
}

/// What rlctl prints on stdout.
fn rl(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let output = run_rlctl(cluster, arguments)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    documented(arguments, &output)
}

/// Starts a limiter in this process, which lives as long as the runtime; returns its address.
fn limiter(cluster: &Cluster) -> Result<SocketAddr> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listeners = Listeners::bind(any, &[any])?;
    let address = listeners.data.local_addr()?;
    let settings = Settings {
        store_timeout: PATIENCE,
        ..Settings::default()
    };
    let options = Options {
        timeout: PATIENCE,
        ..Options::default()
    };
    let store = open(&cluster.url().parse()?, options)?;
    tokio::spawn(run(settings, listeners, store, std::future::pending()));
    Ok(address)
}

async fn check(client: &Client, at: SocketAddr, user: usize) -> Result<Value> {
    let body = json!({"domain": "shop", "descriptor": {"user": format!("u{user}")}});
    let url = format!("http://{at}/v1/check");
    client.post(&url, body.to_string()).send().await?.json()
}

/// Limits of the domain `shop`, one bucket a user.
fn apply_limits(cluster: &Cluster, dir: &Path) -> Result<()> {
    let file = dir.join("limits.yaml");
    let limits = "domain: shop\nlimits:\n  - {name: per-user, per: [user], rate: 10/1d}\n";
    std::fs::write(&file, limits)?;
    rl(cluster, &["load-scripts"])?;
    rl(cluster, &["apply", "-f", &file.to_string_lossy()])?;
    Ok(())
}

/// Checks that `doctor` reports nothing of a Cluster but servers without persistence.
fn finds_no_error(cluster: &Cluster) -> Result<()> {
    let doctor = run_rlctl(cluster, &["doctor", "--ignore", "fleet=limiters"])?;
    let doctor = documented(&["doctor"], &doctor)?;
    let list = |name: &str| doctor.get(name).and_then(Value::as_array).context("a list");
    let error = |finding: &&Value| finding.get("severity") == Some(&"error".into());
    assert_eq!(list("findings")?.iter().find(error), None, "{doctor}");
    let commands = list("findings")?.iter().filter_map(|f| f["mend"].as_str());
    let at_servers: Vec<&str> = commands.filter(|mend| mend.contains("-cli ")).collect();
    assert_eq!(at_servers.len(), 3, "one for each keeps nothing: {doctor}");
    for mend in at_servers {
        assert!(mend.contains("-cli -u redis://127.0.0.1:"), "{mend}");
    }
    assert_eq!(list("servers")?.len(), 3, "{doctor}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn every_command_reaches_the_nodes_it_needs() -> Result<()> {
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&Engine::Valkey.program()?, dir.path()).await?;
    apply_limits(&cluster, dir.path())?;
    let (client, at) = (Client::new(), limiter(&cluster)?);
    let ready = async || {
        let answer = check(&client, at, 0).await.ok()?;
        answer["allowed"].as_bool()
    };
    until("a first decision", PATIENCE, ready).await?;
    for user in 1..USERS {
        let answer = check(&client, at, user).await?;
        assert_eq!(answer["remaining"], 9, "{answer}");
    }
    let mut nodes = BTreeSet::new();
    for user in 0..USERS {
        let bucket = format!("user=u{user}");
        let report = rl(&cluster, &["inspect", "per-user", &bucket])?;
        assert_eq!(report["used"], 1, "{report}");
        let key = report["redis_key"].as_str().unwrap();
        let owner = cluster.owner(slot(key.as_bytes()))?;
        assert_eq!(report["node"], format!("127.0.0.1:{owner}"), "{report}");
        nodes.insert(owner);
    }
    assert_eq!(nodes.len(), 3, "there are buckets on every node");
    let keys = rl(&cluster, &["list-keys"])?.to_string();
    for user in 0..USERS {
        assert!(keys.contains(&format!("\"u{user}\"")), "{keys}");
    }
    let decided = async || {
        let stats = rl(&cluster, &["stats", "--over", "1h"]).ok()?;
        let limit = stats["limits"].get(0)?;
        (limit["allowed"]["count"].as_u64()? == USERS as u64).then_some(())
    };
    until("all are counted", PATIENCE, decided).await?;
    finds_no_error(&cluster)?;
    for command in [
        "ping",
        "list-domains",
        "list-limits",
        "list-proxies",
        "denials",
        "history",
    ] {
        rl(&cluster, &[command])?;
    }
    for user in 0..USERS {
        let report = rl(&cluster, &["check", "-d", &format!("user=u{user}")])?;
        assert_eq!(report["remaining"], 8, "{report}");
    }
    let report = rl(&cluster, &["explain", "-d", "user=u0"])?;
    assert_eq!(report["limits"][0]["bucket"], "user=u0", "{report}");
    rl(&cluster, &["credit", "per-user", "user=u0", "--units", "1"])?;
    rl(&cluster, &["reset", "per-user", "--yes"])?;
    for user in 0..USERS {
        let report = rl(&cluster, &["inspect", "per-user", &format!("user=u{user}")])?;
        assert_eq!(report["used"], 0, "{report}");
    }
    Ok(())
}

/// By the servers' own client, as an operator would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn what_limits_left_behind_is_deleted_by_the_commands_that_are_printed() -> Result<()> {
    let dir = TempDir::new()?;
    let program = Engine::Redis.program()?;
    let cluster = Cluster::start(&program, dir.path()).await?;
    apply_limits(&cluster, dir.path())?;
    let values = ["", ":a", ":b", ":c", ":d", ":e", ":f"];
    for key in values.map(|value| format!("rl:b:shop:gone{value}")) {
        cluster.command_at(&key, &format!("SET {key} 1")).await?;
    }
    let overrides = "rl:{shop}:o:lost";
    let set = format!("HSET {overrides} alice {{}}");
    cluster.command_at(overrides, &set).await?;
    let mends = || -> Result<Vec<String>> {
        let doctor = documented(&["doctor"], &run_rlctl(&cluster, &["doctor"])?)?;
        let findings = doctor["findings"].as_array().context("a list")?.iter();
        let orphans = findings.filter(|finding| finding["check"] == "orphans");
        let mends = orphans.filter_map(|finding| Some(finding["mend"].as_str()?.to_owned()));
        Ok(mends.collect())
    };
    let printed = mends()?;
    assert_eq!(printed.len(), 2, "{printed:?}");
    let program = program.canonicalize()?;
    let beside = program.parent().context("a folder")?.display();
    for mend in printed {
        let command = format!("PATH={beside}:$PATH; set -e; {mend}");
        let done = Command::new("sh").args(["-c", &command]).output()?;
        assert!(done.status.success(), "{mend}: {done:?}");
    }
    assert_eq!(mends()?, [""; 0]);
    Ok(())
}

/// Every command that needs the limits, with `--domain` and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn limits_of_a_later_version_are_guessed_at_by_no_command() -> Result<()> {
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&Engine::Redis.program()?, dir.path()).await?;
    apply_limits(&cluster, dir.path())?;
    let record = "rl:{shop}:policy";
    let format = async |number: u8| {
        let write = format!("HSET {record} format {number}");
        cluster.command_at(record, &write).await
    };
    format(9).await?;
    for command in [
        "check -d user=u1",
        "explain -d user=u1",
        "inspect -d user=u1",
        "inspect per-user user=u1",
        "list-limits",
        "get-limit per-user",
        "list-keys",
        "export",
        "stats",
        "denials",
        "set-limit per-user --rate 3/1d",
        "credit per-user user=u1 --units 1",
        "reset per-user --yes",
        "pause --yes",
        "delete-limit per-user --yes",
        "rollback 1 --yes",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        for named in [&[][..], &["--domain", "shop"]] {
            let output = run_rlctl(&cluster, &[&words, named].concat())?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(8), "{command}: {said}");
            assert!(said.contains("a record of format 9"), "{command}: {said}");
            assert!(output.stdout.is_empty(), "{command}");
        }
    }
    format(2).await?;
    let report = rl(&cluster, &["check", "-d", "user=u1"])?;
    assert_eq!(report["revision"], 1, "{report}");
    assert_eq!(report["remaining"], 9, "{report}");
    Ok(())
}

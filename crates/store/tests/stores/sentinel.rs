//! A primary that Sentinel replaces.

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, Process, free_port, redis_answers};
use store::{Store, StoreError, open};
use tempfile::TempDir;

use crate::{
    given::{TEN_A_DAY, check, policy, publish, request},
    servers::{Server, patient, until},
};

const PASSWORD: &str = "s3cret";

/// A sentinel that alone decides, after 300 ms.
struct Sentinel {
    _process: Process,
    _dir: TempDir,
    port: u16,
}

impl Sentinel {
    async fn start(engine: Engine, primary: u16) -> Result<Self> {
        let (dir, port) = (TempDir::new()?, free_port()?);
        let configuration = dir.path().join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", dir.path().display()),
            format!("sentinel monitor main 127.0.0.1 {primary} 1"),
            format!("sentinel auth-pass main {PASSWORD}"),
            "sentinel down-after-milliseconds main 300".to_owned(),
            "sentinel failover-timeout main 1000".to_owned(),
        ];
        std::fs::write(&configuration, lines.join("\n"))?;
        let mut command = Command::new(engine.program()?);
        command.arg(&configuration).arg("--sentinel");
        let mut process = Process::start("sentinel", &mut command, dir.path())?;
        let answers = async || redis_answers(port).await.ok();
        process.ready(answers).await?;
        Ok(Self {
            _process: process,
            _dir: dir,
            port,
        })
    }
}

/// A primary that a sentinel watches.
pub struct Primary {
    _primary: Server,
    sentinel: Sentinel,
}

impl Primary {
    pub async fn start(engine: Engine) -> Result<Self> {
        let primary = Server::start_with(engine, &["--requirepass", PASSWORD]).await?;
        Ok(Self {
            sentinel: Sentinel::start(engine, primary.port()).await?,
            _primary: primary,
        })
    }

    pub fn store(&self) -> Result<Arc<dyn Store>> {
        store_of(&format!("127.0.0.1:{}", self.sentinel.port), "main")
    }
}

fn store_of(hosts: &str, service: &str) -> Result<Arc<dyn Store>> {
    let url = format!("redis-sentinel://:{PASSWORD}@{hosts}/{service}");
    Ok(open(&url.parse()?, patient())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_redis_is_followed() -> Result<()> {
    follow(Engine::Redis).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_valkey_is_followed() -> Result<()> {
    follow(Engine::Valkey).await
}

async fn follow(engine: Engine) -> Result<()> {
    let login = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
    let mut primary = Server::start_with(engine, &login).await?;
    let port = primary.port().to_string();
    let mut arguments = login.to_vec();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let replica = Server::start_with(engine, &arguments).await?;
    let sentinel = Sentinel::start(engine, primary.port()).await?;

    // Of three sentinels one is there.
    let hosts = format!(
        "127.0.0.1:{},127.0.0.1:{},127.0.0.1:1",
        free_port()?,
        sentinel.port
    );
    let store = store_of(&hosts, "main")?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    let alice = request(&[("user", "alice")]);
    assert!(check(&store, &policy, &alice).await?.allowed);

    let follower = replica.store_as(&format!(":{PASSWORD}"))?;
    let replicated = async || {
        follower
            .heads()
            .await
            .ok()
            .filter(|heads| !heads.is_empty())
    };
    until("replication", Duration::from_secs(10), replicated).await?;
    let known = async || {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", sentinel.port)).ok()?;
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        let mut replicas = redis::cmd("SENTINEL");
        replicas.arg("REPLICAS").arg("main");
        let found: Vec<redis::Value> = replicas.query_async(&mut connection).await.ok()?;
        (!found.is_empty()).then_some(())
    };
    until(
        "the sentinel knows the replica",
        Duration::from_secs(20),
        known,
    )
    .await?;

    primary.kill();
    let answers = async || check(&store, &policy, &alice).await.ok();
    let (answer, _) = until("the new primary", Duration::from_secs(20), answers).await?;
    assert!(answer.allowed);
    // Edits go over a connection of their own, which finds the new primary by itself.
    let reads = async || store.heads().await.ok();
    until("edits find it too", Duration::from_secs(5), reads).await?;
    let again = publish(
        &store,
        &crate::given::policy("  - {name: new, rate: 1/s}\n"),
    )
    .await?;
    assert_eq!(again.revision().number, 2, "the record went with the data");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_service_is_named() -> Result<()> {
    let primary = Server::start_with(Engine::Redis, &["--requirepass", PASSWORD]).await?;
    let sentinel = Sentinel::start(Engine::Redis, primary.port()).await?;
    let store = store_of(&format!("127.0.0.1:{}", sentinel.port), "other")?;
    let Err(StoreError::Unreachable(why)) = store.ping().await else {
        panic!("there is no such service")
    };
    assert!(why.contains("knows no service other"), "{why}");
    Ok(())
}

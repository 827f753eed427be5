//! A primary that Sentinel replaces.

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, Process, free_port, redis_answers};
use store::{Store, StoreError, open};
use tempfile::TempDir;

use crate::{
    given::{TEN_A_DAY, check, policy, publish, request},
    servers::{Server, patient, until},
    with_both_engines,
};

with_both_engines!(
    a_replaced_primary_is_followed,
    a_primary_deposed_by_a_failover_is_abandoned
);

const PASSWORD: &str = "s3cret";
const PATIENCE: Duration = Duration::from_secs(20);

/// A sentinel that alone decides, after 300 ms.
struct Sentinel {
    _process: Process,
    _dir: TempDir,
    port: u16,
}

impl Sentinel {
    async fn start(engine: Engine, primary: u16) -> Result<Self> {
        Self::start_at_epoch(engine, primary, 0).await
    }

    async fn start_at_epoch(engine: Engine, primary: u16, epoch: u64) -> Result<Self> {
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
            format!("sentinel config-epoch main {epoch}"),
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

    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg(words);
        Ok(command.query_async(&mut connection).await?)
    }

    /// Waits until it knows a replica that it can promote.
    async fn knows_a_replica(&self) -> Result<()> {
        let known = async || {
            let replicas: Vec<redis::Value> = self.ask(&["REPLICAS", "main"]).await.ok()?;
            let linked = format!("{replicas:?}").contains("slave-repl-offset")
                && !format!("{replicas:?}").contains("disconnected");
            (!replicas.is_empty() && linked).then_some(())
        };
        until("the sentinel knows the replica", PATIENCE, known).await?;
        Ok(())
    }
}

/// A primary that a sentinel watches.
pub struct Primary {
    _primary: Server,
    sentinel: Sentinel,
}

impl Primary {
    pub async fn valkey() -> Result<Self> {
        let engine = Engine::Valkey;
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

async fn a_replaced_primary_is_followed(engine: Engine) -> Result<()> {
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
    sentinel.knows_a_replica().await?;

    primary.kill();
    let answers = async || check(&store, &policy, &alice).await.ok();
    let (answer, _) = until("the new primary", Duration::from_secs(20), answers).await?;
    assert!(answer.allowed);
    // Edits use a separate connection, which finds the new primary on its own.
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

/// Checks, edits and hints follow the new primary, though the old one is not demoted and accepts
/// every write.
async fn a_primary_deposed_by_a_failover_is_abandoned(engine: Engine) -> Result<()> {
    let primary = Server::start(engine).await?;
    let port = primary.port().to_string();
    let replica = Server::start_with(engine, &["--replicaof", "127.0.0.1", &port]).await?;
    let sentinel = Sentinel::start(engine, primary.port()).await?;
    let url = format!("redis-sentinel://127.0.0.1:{}/main", sentinel.port);
    let store = open(&url.parse()?, patient())?;
    let compiled = publish(&store, &policy(TEN_A_DAY)).await?;
    let alice = request(&[("user", "alice")]);
    assert!(check(&store, &compiled, &alice).await?.allowed);
    let mut hints = store.watch_edits();
    sentinel.knows_a_replica().await?;
    let rights = ["ACL", "SETUSER", "default", "-replicaof", "-slaveof"];
    primary.command(&rights).await?;

    let _: String = sentinel.ask(&["FAILOVER", "main"]).await?;
    let bucket = ["EXISTS", "rl:b:shop:per-user:bob"];
    let bob = request(&[("user", "bob")]);
    let charged = async || {
        check(&store, &compiled, &bob).await.ok()?;
        let there: u64 = replica.ask(&bucket).await.ok()?;
        (there == 1).then_some(())
    };
    until("the new primary is charged", PATIENCE, charged).await?;
    let role: Vec<redis::Value> = primary.ask(&["ROLE"]).await?;
    assert!(format!("{role:?}").contains("master"), "it lives on");

    let edited = async || {
        let edit = policy("  - {name: new, rate: 1/s}\n");
        publish(&store, &edit).await.ok()?;
        let after: u64 = replica.ask(&["XLEN", "rl:{shop}:history"]).await.ok()?;
        (after > 1).then_some(())
    };
    until("edits go there too", PATIENCE, edited).await?;
    let notified = async || {
        hints.mark_unchanged();
        let published = ["PUBLISH", "rl:edits", "shop 9 0"];
        let listeners: u64 = replica.ask(&published).await.ok()?;
        (listeners > 0).then_some(())
    };
    until("and the subscription", PATIENCE, notified).await?;
    hints.changed().await?;
    Ok(())
}

/// Two sentinels know the primary; a third names another server, with an epoch that it made up.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn one_sentinel_of_three_misleads_nobody() -> Result<()> {
    let engine = Engine::Valkey;
    let (primary, stranger) = (Server::start(engine).await?, Server::start(engine).await?);
    let honest = [
        Sentinel::start(engine, primary.port()).await?,
        Sentinel::start(engine, primary.port()).await?,
    ];
    let liar = Sentinel::start_at_epoch(engine, stranger.port(), 999).await?;
    let [one, other] = &honest;
    let url = format!(
        "redis-sentinel://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}/main",
        liar.port, one.port, other.port
    );
    for _ in 0..5 {
        let store = open(&url.parse()?, patient())?;
        let compiled = publish(&store, &policy(TEN_A_DAY)).await?;
        for user in 0..20 {
            let request = request(&[("user", &user.to_string())]);
            check(&store, &compiled, &request).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let keys: u64 = stranger.ask(&["DBSIZE"]).await?;
    assert_eq!(keys, 0, "nothing was ever written there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn an_unknown_service_is_named() -> Result<()> {
    let primary = Server::start_with(Engine::Redis, &["--requirepass", PASSWORD]).await?;
    let sentinel = Sentinel::start(Engine::Redis, primary.port()).await?;
    let store = store_of(&format!("127.0.0.1:{}", sentinel.port), "other")?;
    let Err(StoreError::Unreachable(why)) = store.ping().await else {
        panic!("there is no such service")
    };
    assert!(why.contains("has no service other"), "{why}");
    Ok(())
}

//! Failover: a primary with a replica that a sentinel promotes.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{Process, cluster::ask, free_port, until};

/// Both exchange PINGs once a second, on a busy machine less often.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server and the port that it listens on.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) port: u16,
    /// Killed when it is dropped.
    _process: Process,
}

impl Node {
    /// Starts one without persistence, on a free port; its files go below `dir`.
    pub(crate) async fn start(server: &Path, dir: &Path, arguments: &[&str]) -> Result<Self> {
        let port = free_port()?;
        let dir = dir.join(format!("node-{port}"));
        fs::create_dir(&dir)?;
        let mut command = Command::new(server);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--port", &port.to_string()]);
        command.arg("--dir").arg(&dir).args(arguments);
        let mut process = Process::start(&format!("node-{port}"), &mut command, &dir)?;
        process.ready(async || ask(port, "PING").await.ok()).await?;
        Ok(Self {
            port,
            _process: process,
        })
    }

    /// The value of a field of `INFO replication`.
    async fn replication(&self, field: &str) -> Result<String> {
        let info = ask(self.port, "INFO replication").await?;
        let line = info.lines().find_map(|line| line.strip_prefix(field));
        let value = line.and_then(|rest| rest.strip_prefix(':'));
        Ok(value.context("no such field")?.trim().to_owned())
    }

    async fn offset(&self, field: &str) -> Option<u64> {
        self.replication(field).await.ok()?.parse().ok()
    }
}

/// A primary and the replica that will be promoted.
#[derive(Debug)]
pub struct Pair {
    pub(crate) primary: Option<Node>,
    pub(crate) replica: Node,
}

impl Pair {
    /// Waits until the replica has every write that the primary has received so far.
    pub async fn in_sync(&self) -> Result<()> {
        let primary = self.primary.as_ref().context("it was killed")?;
        let sent = async || primary.offset("master_repl_offset").await;
        let sent = until("the primary says how far it is", PATIENCE, sent).await?;
        let has_it = async || {
            let up = self.replica.replication("master_link_status").await.ok()?;
            let has = self.replica.offset("slave_repl_offset").await?;
            (up == "up" && has >= sent).then_some(())
        };
        until("the replica is in sync", PATIENCE, has_it).await
    }

    /// Stops replication: the replica misses the primary's further writes. (Pausing the replica is
    /// not enough: it would later read what the kernel has received meanwhile.)
    pub async fn cut(&self) -> Result<()> {
        let primary = self.primary.as_ref().context("it was killed")?.port;
        ask(primary, "ACL SETUSER default -psync -sync").await?;
        ask(primary, "CLIENT KILL TYPE replica").await.map(drop)
    }

    /// Kills the primary.
    pub fn kill_primary(&mut self) -> Result<()> {
        let primary = self.primary.take();
        primary.map(drop).context("it was killed")
    }
}

/// A primary, its replica, and one sentinel that decides alone, after 300 ms.
#[derive(Debug)]
pub struct Sentinel {
    pair: Pair,
    _process: Process,
    port: u16,
}

impl Sentinel {
    /// Starts all three; returns once the sentinel has discovered the replica.
    pub async fn start(server: &Path, dir: &Path) -> Result<Self> {
        let primary = Node::start(server, dir, &[]).await?;
        let of = ["--replicaof", "127.0.0.1", &primary.port.to_string()];
        let replica = Node::start(server, dir, &of).await?;
        let port = free_port()?;
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", dir.display()),
            format!("sentinel monitor main 127.0.0.1 {} 1", primary.port),
            "sentinel down-after-milliseconds main 300".to_owned(),
            "sentinel failover-timeout main 1000".to_owned(),
        ];
        let configuration = dir.join("sentinel.conf");
        fs::write(&configuration, lines.join("\n"))?;
        let mut command = Command::new(server);
        command.arg(&configuration).arg("--sentinel");
        let process = Process::start("sentinel", &mut command, dir)?;
        let discovered = async || {
            let replicas = ask(port, "SENTINEL REPLICAS main").await.ok()?;
            replicas
                .contains("master-link-status\r\n$2\r\nok")
                .then_some(())
        };
        until(
            "the sentinel has discovered the replica",
            PATIENCE,
            discovered,
        )
        .await?;
        Ok(Self {
            pair: Pair {
                primary: Some(primary),
                replica,
            },
            _process: process,
            port,
        })
    }

    /// A store URL that names the sentinel.
    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.port)
    }

    /// Makes the replica the primary. The old primary goes on running, and accepts writes until Sentinel makes it a replica.
    pub async fn fail_over(&self) -> Result<()> {
        ask(self.port, "SENTINEL FAILOVER main").await.map(drop)
    }

    /// The primary and its replica.
    pub fn pair(&mut self) -> &mut Pair {
        &mut self.pair
    }
}

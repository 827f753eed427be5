//! The servers of a Redis Cluster: three masters, with a third of the slots each.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    failover::{Node, Pair},
    free_port, until,
};

/// The first and the last slot of each master.
pub const CLUSTER_SLOTS: [[u16; 2]; 3] = [[0, 5460], [5461, 10922], [10923, 16383]];
/// Nodes exchange PINGs once a second, on a busy machine less often.
const PATIENCE: Duration = Duration::from_secs(20);

/// The arguments of a node; `bus` is the port of the cluster bus. A node counts as failed after a second.
pub fn cluster_arguments(bus: u16) -> [String; 6] {
    let bus = bus.to_string();
    let timeout = ["--cluster-node-timeout", "1000"];
    let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    [
        arguments[0],
        arguments[1],
        arguments[2],
        arguments[3],
        timeout[0],
        timeout[1],
    ]
    .map(str::to_owned)
}

/// Assigns each of three nodes its slots, joins them by CLUSTER MEET, and waits until all serve.
/// A node is its port and its bus.
pub async fn join_cluster(nodes: &[[u16; 2]; 3]) -> Result<()> {
    let [[seed, _], ..] = *nodes;
    for (epoch, ([port, bus], [first, last])) in (1..).zip(nodes.iter().zip(CLUSTER_SLOTS)) {
        let epoch = format!("CLUSTER SET-CONFIG-EPOCH {epoch}");
        ask(*port, &epoch).await?;
        let slots = format!("CLUSTER ADDSLOTSRANGE {first} {last}");
        ask(*port, &slots).await?;
        if *port != seed {
            let meet = format!("CLUSTER MEET 127.0.0.1 {port} {bus}");
            ask(seed, &meet).await?;
        }
    }
    for [port, _] in nodes {
        let serves = async || {
            let state = ask(*port, "CLUSTER INFO").await.ok()?;
            state.contains("cluster_state:ok").then_some(())
        };
        until("the node serves", PATIENCE, serves).await?;
    }
    Ok(())
}

/// Sends a server one command, its words without spaces; returns the reply as it is on the wire.
pub(crate) async fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let last = format!("{command}\r\nQUIT\r\n");
    stream.write_all(last.as_bytes()).await?;
    // A sentinel has no QUIT.
    stream.shutdown().await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    ensure!(!reply.starts_with('-'), "{command}: {reply}");
    Ok(reply)
}

/// A node's id.
async fn name(port: u16) -> Result<String> {
    let reply = ask(port, "CLUSTER MYID").await?;
    Ok(reply.lines().nth(1).context("a name")?.trim().to_owned())
}

/// A running Cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

/// A running Cluster whose every master has a replica.
#[derive(Debug)]
pub struct ReplicatedCluster {
    masters: [u16; 3],
    pairs: Vec<Pair>,
}

impl ReplicatedCluster {
    /// Starts one of this server program; its files go below `dir`.
    pub async fn start(server: &Path, dir: &Path) -> Result<Self> {
        let cluster = Cluster::start(server, dir).await?;
        let masters: Vec<u16> = cluster.ports().collect();
        let mut pairs = Vec::new();
        for master in cluster.nodes {
            let (replica, bus) = start_node(server, dir).await?;
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", replica.port);
            ask(master.port, &meet).await?;
            let replicate = format!("CLUSTER REPLICATE {}", name(master.port).await?);
            let follows = async || ask(replica.port, &replicate).await.ok();
            until("the replica follows its master", PATIENCE, follows).await?;
            let pair = Pair {
                primary: Some(master),
                replica,
            };
            pair.in_sync().await?;
            pairs.push(pair);
        }
        // A replica is promoted only after the other masters have discovered it.
        for port in masters.iter().copied() {
            let known = async || {
                let nodes = ask(port, "CLUSTER NODES").await.ok()?;
                let replicas = nodes.lines().filter(|line| line.contains("slave"));
                let all = replicas.filter(|line| line.contains(" connected")).count() == 3;
                all.then_some(())
            };
            until("all replicas are known", PATIENCE, known).await?;
        }
        Ok(Self {
            masters: masters.try_into().ok().context("three masters")?,
            pairs,
        })
    }

    /// A store URL with one node; clients discover the others.
    pub fn url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.masters[0])
    }

    /// The number of the master that has a key, from 0.
    pub async fn master_of(&self, key: &str) -> Result<usize> {
        let slot = slot(self.masters[0], key).await?;
        let master = CLUSTER_SLOTS.iter().position(|[_, last]| slot <= *last);
        master.context("no such slot")
    }

    /// One of the masters and its replica.
    pub fn pair(&mut self, nth: usize) -> Result<&mut Pair> {
        self.pairs.get_mut(nth).context("there are three")
    }
}

/// Starts a server as a node; returns it and its bus port.
async fn start_node(server: &Path, dir: &Path) -> Result<(Node, u16)> {
    let bus = free_port()?;
    let arguments = cluster_arguments(bus);
    let arguments = arguments.each_ref().map(String::as_str);
    Ok((Node::start(server, dir, &arguments).await?, bus))
}

/// The slot of a key, computed by one of the nodes.
async fn slot(port: u16, key: &str) -> Result<u16> {
    let reply = ask(port, &format!("CLUSTER KEYSLOT {key}")).await?;
    let number = reply.lines().next().and_then(|line| line.strip_prefix(':'));
    Ok(number.context("a number")?.parse()?)
}

impl Cluster {
    /// Starts one of this server program; its files go below `dir`.
    pub async fn start(server: &Path, dir: &Path) -> Result<Self> {
        let (mut nodes, mut ports) = (Vec::new(), [[0; 2]; 3]);
        for place in &mut ports {
            let (node, bus) = start_node(server, dir).await?;
            *place = [node.port, bus];
            nodes.push(node);
        }
        join_cluster(&ports).await?;
        Ok(Self { nodes })
    }

    /// A store URL with one node; clients discover the others.
    pub fn url(&self) -> String {
        let port = self.ports().next().unwrap_or_default();
        format!("redis-cluster://127.0.0.1:{port}")
    }

    /// The nodes' ports, in the order of their slots.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.nodes.iter().map(|node| node.port)
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> Result<u16> {
        slot(self.ports().next().context("a node")?, key).await
    }

    /// Sends one command, its words without spaces, to the master of a key; returns the reply as it
    /// is on the wire. An error reply is an error.
    pub async fn command_at(&self, key: &str, command: &str) -> Result<String> {
        ask(self.owner(self.slot(key).await?)?, command).await
    }

    /// The port of the master that was assigned a slot at the start.
    pub fn owner(&self, slot: u16) -> Result<u16> {
        let owner = CLUSTER_SLOTS.iter().position(|[_, last]| slot <= *last);
        let node = owner.and_then(|node| self.nodes.get(node));
        Ok(node.context("no such slot")?.port)
    }
}

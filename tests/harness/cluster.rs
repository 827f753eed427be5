//! The servers of a Redis Cluster: three masters, with a third of the slots each.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{failover::Node, free_port, until};

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

/// A running Cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

/// Starts a server as a node; returns it and its bus port.
async fn start_node(server: &Path, dir: &Path) -> Result<(Node, u16)> {
    let bus = free_port()?;
    let arguments = cluster_arguments(bus);
    let arguments = arguments.each_ref().map(String::as_str);
    Ok((Node::start(server, dir, &arguments).await?, bus))
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
        let port = self.ports().next().context("a node")?;
        let reply = ask(port, &format!("CLUSTER KEYSLOT {key}")).await?;
        let number = reply.lines().next().and_then(|line| line.strip_prefix(':'));
        Ok(number.context("a number")?.parse()?)
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

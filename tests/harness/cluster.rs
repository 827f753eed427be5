//! Servers that make up a Cluster: three masters, a third of the slots each.

use std::{fs, net::Ipv4Addr, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Process, free_port, until};

/// The first and the last slot of each master.
pub const CLUSTER_SLOTS: [[u16; 2]; 3] = [[0, 5460], [5461, 10922], [10923, 16383]];
/// Nodes greet each other once a second, on a busy machine less often.
const PATIENCE: Duration = Duration::from_secs(20);

/// What makes a server a node; `bus` is the port on which the nodes talk to each other. A node is
/// missed after a second.
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

/// Gives each of three nodes its slots, makes them known to each other, and waits until all serve.
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

/// Sends a server one command, its words without spaces; the reply as it is on the wire.
async fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let last = format!("{command}\r\nQUIT\r\n");
    stream.write_all(last.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    ensure!(!reply.starts_with('-'), "{command}: {reply}");
    Ok(reply)
}

/// What a node is called by the others.
async fn name(port: u16) -> Result<String> {
    let reply = ask(port, "CLUSTER MYID").await?;
    Ok(reply.lines().nth(1).context("a name")?.trim().to_owned())
}

/// A running Cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<(u16, Process)>,
}

impl Cluster {
    /// Starts one of this server program; its files go below `dir`.
    pub async fn start(server: &Path, dir: &Path) -> Result<Self> {
        let (mut nodes, mut ports) = (Vec::new(), [[0; 2]; 3]);
        for place in &mut ports {
            let [port, bus] = [free_port()?, free_port()?];
            *place = [port, bus];
            let dir = dir.join(format!("node-{port}"));
            fs::create_dir(&dir)?;
            let mut command = Command::new(server);
            command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.args(["--port", &port.to_string()]);
            command.arg("--dir").arg(&dir).args(cluster_arguments(bus));
            let mut process = Process::start(&format!("node-{port}"), &mut command, &dir)?;
            process.ready(async || ask(port, "PING").await.ok()).await?;
            nodes.push((port, process));
        }
        join_cluster(&ports).await?;
        Ok(Self { nodes })
    }

    /// A store URL that names one node, which knows the others.
    pub fn url(&self) -> String {
        let port = self.ports().next().unwrap_or_default();
        format!("redis-cluster://127.0.0.1:{port}")
    }

    /// The nodes' ports, in the order of their slots.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.nodes.iter().map(|(port, _)| *port)
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> Result<u16> {
        let port = self.ports().next().context("a node")?;
        let reply = ask(port, &format!("CLUSTER KEYSLOT {key}")).await?;
        let number = reply.lines().next().and_then(|line| line.strip_prefix(':'));
        Ok(number.context("a number")?.parse()?)
    }

    /// Moves a slot with all its keys to the master after its own, as an operator does: first both
    /// say that it is on its way, then the keys go, one after the other, then all say that it is
    /// there. Returns both ports.
    pub async fn move_slot(&self, slot: u16) -> Result<[u16; 2]> {
        let from = self.owner(slot)?;
        let ports: Vec<u16> = self.ports().collect();
        let after = ports.iter().position(|port| *port == from).map(|at| at + 1);
        let to = after.and_then(|at| ports.get(at % ports.len())).copied();
        let to = to.context("another node")?;
        let [source, target] = [name(from).await?, name(to).await?];
        ask(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}")).await?;
        ask(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {target}")).await?;
        let keys = ask(from, &format!("CLUSTER GETKEYSINSLOT {slot} 1000")).await?;
        for key in keys.lines().filter(|line| line.starts_with("rl:")) {
            ask(from, &format!("MIGRATE 127.0.0.1 {to} {key} 0 5000")).await?;
        }
        for port in [to, from] {
            ask(port, &format!("CLUSTER SETSLOT {slot} NODE {target}")).await?;
        }
        Ok([from, to])
    }

    /// The port of the master of a slot, as the slots were given out.
    pub fn owner(&self, slot: u16) -> Result<u16> {
        let owner = CLUSTER_SLOTS.iter().position(|[_, last]| slot <= *last);
        let node = owner.and_then(|node| self.nodes.get(node));
        Ok(node.context("no such slot")?.0)
    }
}

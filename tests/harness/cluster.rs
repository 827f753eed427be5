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

    /// The port of the master of a slot.
    pub fn owner(&self, slot: u16) -> Result<u16> {
        let owner = CLUSTER_SLOTS.iter().position(|[_, last]| slot <= *last);
        let node = owner.and_then(|node| self.nodes.get(node));
        Ok(node.context("no such slot")?.0)
    }
}

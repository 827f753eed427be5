//! The servers of a Cluster.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use harness::free_port;
use redis::Value;
use store::{Options, Store, open};

use crate::servers::{Kind, Server, patient, until};

/// The first and the last slot of each node.
pub const SLOTS: [[&str; 2]; 3] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];

/// Three nodes, each with a third of the slots.
pub struct Cluster {
    pub nodes: Vec<Server>,
    kind: Kind,
    buses: Vec<String>,
}

const PATIENCE: Duration = Duration::from_secs(20);

fn arguments(bus: &str) -> [&str; 6] {
    // A node is missed after a second.
    let timeout = ["--cluster-node-timeout", "1000"];
    [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        bus,
        timeout[0],
        timeout[1],
    ]
}

impl Cluster {
    pub async fn start(kind: Kind) -> Result<Self> {
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for (epoch, [first, last]) in ["1", "2", "3"].into_iter().zip(SLOTS) {
            let bus = free_port()?.to_string();
            let node = Server::start_with(kind, &arguments(&bus)).await?;
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", epoch])
                .await?;
            node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last])
                .await?;
            nodes.push(node);
            buses.push(bus);
        }
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let port = node.port().to_string();
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, bus];
            nodes[0].command(&meet).await?;
        }
        for node in &nodes {
            let serves = async || {
                let state: String = node.ask(&["CLUSTER", "INFO"]).await.ok()?;
                state.contains("cluster_state:ok").then_some(())
            };
            until("the node serves", Duration::from_secs(15), serves).await?;
        }
        Ok(Self { nodes, kind, buses })
    }

    /// Starts a node again that was killed; it finds the others by what it wrote down.
    pub async fn revive(&mut self, node: usize) -> Result<()> {
        let bus = self.buses[node].clone();
        self.nodes[node].launch(&arguments(&bus)).await
    }

    /// Gives a master a replica, and waits until it follows.
    pub async fn add_replica(&mut self, of: usize) -> Result<()> {
        let bus = free_port()?.to_string();
        let node = Server::start_with(self.kind, &arguments(&bus)).await?;
        let port = node.port().to_string();
        let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
        self.nodes[0].command(&meet).await?;
        let master = self.id(of).await?;
        let follows = async || {
            let replicate = ["CLUSTER", "REPLICATE", &master];
            node.command(&replicate).await.ok()
        };
        until("the replica knows its master", PATIENCE, follows).await?;
        let in_sync = async || {
            let info: String = node.ask(&["INFO", "replication"]).await.ok()?;
            info.contains("master_link_status:up").then_some(())
        };
        until("the replica is in sync", PATIENCE, in_sync).await?;
        self.nodes.push(node);
        self.buses.push(bus);
        Ok(())
    }

    pub async fn id(&self, node: usize) -> Result<String> {
        self.nodes[node].ask(&["CLUSTER", "MYID"]).await
    }

    /// Which node has a slot.
    pub async fn owner(&self, slot: u16) -> Result<usize> {
        let ranges = self.owners().await?;
        let owner = ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        let (_, _, port) = owner.context("somebody has it")?;
        let node = self.nodes.iter().position(|node| node.port() == *port);
        node.context("one of ours")
    }

    /// A store that is told of one node, and finds the others.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.store_with(patient())
    }

    pub fn store_with(&self, options: Options) -> Result<Arc<dyn Store>> {
        let url = format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port());
        Ok(open(&url.parse()?, options)?)
    }

    /// The ports of the nodes, each with the first and last of its slots.
    pub async fn owners(&self) -> Result<Vec<(u16, u16, u16)>> {
        let ranges: Vec<Vec<Value>> = self.nodes[0].ask(&["CLUSTER", "SLOTS"]).await?;
        let owner = |range: &Vec<Value>| match range.as_slice() {
            [Value::Int(first), Value::Int(last), Value::Array(node), ..] => match node.get(1) {
                Some(Value::Int(port)) => Ok((
                    (*first).try_into()?,
                    (*last).try_into()?,
                    (*port).try_into()?,
                )),
                other => bail!("not a port: {other:?}"),
            },
            other => bail!("not a range of slots: {other:?}"),
        };
        ranges.iter().map(owner).collect()
    }

    pub async fn flush_scripts(&self) -> Result<()> {
        for node in &self.nodes {
            node.command(&["SCRIPT", "FLUSH"]).await?;
        }
        Ok(())
    }
}

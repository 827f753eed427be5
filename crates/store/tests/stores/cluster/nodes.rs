//! The servers of a Cluster.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use harness::{Engine, cluster_arguments, free_port, join_cluster};
use redis::Value;
use store::{Options, Store, open};

use crate::servers::{Server, patient, until};

/// Three nodes, each with a third of the slots.
pub struct Cluster {
    pub nodes: Vec<Server>,
    engine: Engine,
    buses: Vec<u16>,
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a server that is a node; returns the port of its bus, too.
async fn start_node(engine: Engine) -> Result<(Server, u16)> {
    let bus = free_port()?;
    let arguments = cluster_arguments(bus);
    let node = Server::start_with(engine, &arguments.each_ref().map(String::as_str)).await?;
    Ok((node, bus))
}

impl Cluster {
    pub async fn redis() -> Result<Self> {
        Self::start(Engine::Redis).await
    }

    pub async fn start(engine: Engine) -> Result<Self> {
        let (mut nodes, mut buses, mut ports) = (Vec::new(), Vec::new(), [[0; 2]; 3]);
        for place in &mut ports {
            let (node, bus) = start_node(engine).await?;
            *place = [node.port(), bus];
            nodes.push(node);
            buses.push(bus);
        }
        join_cluster(&ports).await?;
        Ok(Self {
            nodes,
            engine,
            buses,
        })
    }

    /// Restarts a node that was killed; it finds the others by its saved configuration.
    pub async fn revive(&mut self, node: usize) -> Result<()> {
        let arguments = cluster_arguments(self.buses[node]);
        let arguments = arguments.each_ref().map(String::as_str);
        self.nodes[node].launch(&arguments).await
    }

    /// Gives a master a replica, and waits until it follows.
    pub async fn add_replica(&mut self, of: usize) -> Result<()> {
        let (node, bus) = start_node(self.engine).await?;
        let (port, bus_port) = (node.port().to_string(), bus.to_string());
        let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port];
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

    /// A store that is given one node, and finds the others.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.store_with(patient())
    }

    /// Runs a test on the servers as if they had just been started. If it fails, its name is the last one printed.
    pub async fn run(
        &self,
        name: &str,
        test: impl AsyncFnOnce(Arc<dyn Store>) -> Result<()>,
    ) -> Result<()> {
        println!("{name}");
        for node in &self.nodes {
            node.command(&["FLUSHALL"]).await?;
            node.command(&["SCRIPT", "FLUSH"]).await?;
        }
        test(self.store()?).await
    }

    pub fn store_with(&self, options: Options) -> Result<Arc<dyn Store>> {
        let url = format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port());
        Ok(open(&url.parse()?, options)?)
    }

    /// The ports of the nodes, each with the first and last of its slots.
    async fn owners(&self) -> Result<Vec<(u16, u16, u16)>> {
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
}

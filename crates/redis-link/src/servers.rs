//! The servers of one store: a single one, or those of a Cluster.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    Error, Outcome, Request, Script, Server, Subscription,
    cluster::Cluster,
    connection::{Connection, Deadline, WhenLost},
    dial::{Dialer, Network, Route},
    request::send,
    url::Address,
};

/// Which of the connections to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// For latency-critical commands, so that a long listing never delays them. Scripts are loaded
    /// before its first use.
    Data,
    /// For everything else.
    Control,
}

/// A certificate chain and its private key, in PEM files that are read again for new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The chain, its own certificate first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// How long servers may take, and what they need.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For a connection attempt, login included.
    pub connect_timeout: Duration,
    /// For the reply to a probe before a connection is given up.
    pub probe_timeout: Duration,
    /// The certificate for servers that require one, over TLS.
    pub client_certificate: Option<ClientCertificate>,
    /// What connects in place of TCP, in a simulation.
    pub network: Option<Arc<dyn Network>>,
    /// Loaded into each server that lacks them before [`Lane::Data`] is used.
    pub scripts: Arc<[&'static Script]>,
}

/// The connections to one server.
pub struct Node {
    route: Route,
    data: Connection,
    control: Connection,
}

impl Node {
    /// Connects at the first use.
    pub(crate) fn new(route: Route, settings: &Settings, when_lost: WhenLost) -> Self {
        let link = |lane| Connection::new(route.clone(), lane, settings.clone(), when_lost);
        Self {
            data: link(Lane::Data),
            control: link(Lane::Control),
            route,
        }
    }

    /// Sends requests together, whatever slots their keys are in; one outcome each.
    pub async fn run(&self, lane: Lane, requests: &[&Request], deadline: Deadline) -> Vec<Outcome> {
        send(self.link(lane), requests, false, deadline).await
    }

    pub(crate) fn link(&self, lane: Lane) -> &Connection {
        match lane {
            Lane::Data => &self.data,
            Lane::Control => &self.control,
        }
    }

    /// The route, for other kinds of connections.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }
}

/// All servers of a store.
pub enum Servers {
    /// A single server, or the primary that Sentinel names.
    One(Box<Node>),
    /// The masters of a Cluster.
    Cluster(Cluster),
}

impl Servers {
    /// Connects at the first use. Fails only where TLS has no root certificates, or the client's cannot be
    /// used.
    pub fn new(server: Server, settings: &Settings) -> Result<Self, Error> {
        let dialer = Dialer::new(server, settings)?;
        if matches!(dialer.server().address, Address::Cluster { .. }) {
            return Ok(Self::Cluster(Cluster::new(dialer, settings.clone())));
        }
        let route = Route::new(dialer, settings);
        let node = Node::new(route, settings, WhenLost::Wait);
        Ok(Self::One(Box::new(node)))
    }

    /// Counts the messages of a channel, from its first use on.
    pub fn subscription(&self, channel: String, connect_timeout: Duration) -> Subscription {
        match self {
            Self::One(node) => Subscription::new(node.route.clone(), channel, connect_timeout),
            Self::Cluster(cluster) => Subscription::new(cluster.clone(), channel, connect_timeout),
        }
    }

    /// Sends each request to the server of its slot; one outcome each.
    pub async fn run(&self, lane: Lane, requests: &[Request], deadline: Deadline) -> Vec<Outcome> {
        match self {
            Self::One(node) => {
                let requests: Vec<&Request> = requests.iter().collect();
                node.run(lane, &requests, deadline).await
            }
            Self::Cluster(cluster) => cluster.run(lane, requests, deadline).await,
        }
    }

    /// Sends the same requests to every server that holds keys; returns a list of outcomes for
    /// each. `fresh` first queries which servers these are.
    pub async fn run_on_each(
        &self,
        requests: &[Request],
        fresh: bool,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Outcome>>, Error> {
        match self {
            Self::One(_) => Ok(vec![self.run(Lane::Control, requests, deadline).await]),
            Self::Cluster(cluster) => cluster.run_on_each(requests, fresh, deadline).await,
        }
    }

    /// Of a Cluster, the address of the node that has a slot, as last known.
    pub async fn node_of(&self, slot: u16, deadline: Deadline) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => {
                let masters = cluster.masters(false, deadline).await.ok()?;
                masters.owner(slot)
            }
        }
    }

    /// Connects [`Lane::Data`] now, so that its first command need not wait for that.
    pub fn start(&self) {
        match self {
            Self::One(node) => node.data.start(),
            Self::Cluster(cluster) => cluster.start(),
        }
    }

    /// Whether [`Lane::Data`] is connected to each server that can be reached.
    pub fn is_warm(&self) -> bool {
        match self {
            Self::One(node) => node.data.is_connected(),
            Self::Cluster(cluster) => cluster.is_warm(),
        }
    }

    /// Why [`Lane::Data`] gets no usable replies, as last known; sends nothing.
    pub fn fault(&self) -> Option<Error> {
        match self {
            Self::One(node) if node.data.is_connecting() => {
                Some(Error::Unreachable("a connection is being made".to_owned()))
            }
            Self::One(node) => node.data.fault(),
            Self::Cluster(cluster) => cluster.fault(),
        }
    }
}

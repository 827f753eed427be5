//! The servers of a store: one, or those of a Cluster, behind one way to ask.

use std::time::Duration;

use super::{
    cluster::Cluster,
    dial::Dialer,
    link::{Deadline, Link, WhenLost},
    request::{Outcome, Request, send},
};
use crate::{StoreError, url::Address};

/// Which of the connections to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// For checks alone, so that a long listing never delays one.
    Checks,
    /// For everything else.
    Control,
}

/// The connections to one server.
pub(crate) struct Node {
    dialer: Dialer,
    checks: Link,
    control: Link,
}

impl Node {
    /// Connects at the first use.
    pub(crate) fn new(dialer: Dialer, connect_timeout: Duration, when_lost: WhenLost) -> Self {
        let link = || Link::new(dialer.clone(), connect_timeout, when_lost);
        Self {
            checks: link(),
            control: link(),
            dialer,
        }
    }

    pub(crate) fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Checks => &self.checks,
            Lane::Control => &self.control,
        }
    }

    /// For a connection of another kind.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }
}

/// All servers of a store.
pub(crate) enum Servers {
    One(Box<Node>),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn new(dialer: Dialer, connect_timeout: Duration) -> Self {
        match &dialer.server().address {
            Address::Cluster { .. } => Self::Cluster(Cluster::new(dialer, connect_timeout)),
            _ => Self::One(Box::new(Node::new(dialer, connect_timeout, WhenLost::Wait))),
        }
    }

    /// Sends each request to the server of its slot; one answer each.
    pub(crate) async fn run(
        &self,
        lane: Lane,
        requests: &[Request],
        deadline: Deadline,
    ) -> Vec<Outcome> {
        match self {
            Self::One(node) => {
                let requests: Vec<&Request> = requests.iter().collect();
                send(node.link(lane), &requests, false, deadline).await
            }
            Self::Cluster(cluster) => cluster.run(lane, requests, deadline).await,
        }
    }

    /// Sends the same requests to every server that holds keys; a list of answers for each.
    /// `fresh` makes sure first which these are.
    pub(crate) async fn run_on_each(
        &self,
        requests: &[Request],
        fresh: bool,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Outcome>>, StoreError> {
        match self {
            Self::One(_) => Ok(vec![self.run(Lane::Control, requests, deadline).await]),
            Self::Cluster(cluster) => cluster.run_on_each(requests, fresh, deadline).await,
        }
    }

    /// Of a Cluster, the address of the node that has a slot, as far as is known.
    pub(crate) async fn node_of(&self, slot: u16, deadline: Deadline) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => {
                let masters = cluster.masters(false, deadline).await.ok()?;
                masters.owner(slot)
            }
        }
    }

    /// Connects for checks now, so that the first need not wait for it.
    pub(crate) fn start_checks(&self) {
        match self {
            Self::One(node) => node.checks.start(),
            Self::Cluster(cluster) => cluster.start_checks(),
        }
    }

    /// Whether the last that checks heard was good.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::One(node) => node.checks.is_up(),
            Self::Cluster(cluster) => cluster.is_up(),
        }
    }
}

//! The servers of a store: one, or those of a Cluster, behind one way to ask.

use super::{
    cluster::Cluster,
    dial::Dialer,
    link::{Deadline, Link, Timeouts, WhenLost},
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
    pub(crate) fn new(dialer: Dialer, timeouts: Timeouts, when_lost: WhenLost) -> Self {
        let link = |lane| Link::new(dialer.clone(), lane, timeouts, when_lost);
        Self {
            checks: link(Lane::Checks),
            control: link(Lane::Control),
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
    pub(crate) fn new(dialer: Dialer, timeouts: Timeouts) -> Self {
        match &dialer.server().address {
            Address::Cluster { .. } => Self::Cluster(Cluster::new(dialer, timeouts)),
            _ => Self::One(Box::new(Node::new(dialer, timeouts, WhenLost::Wait))),
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

    /// Whether connections for checks were made, to each server that can be reached.
    pub(crate) fn is_warm(&self) -> bool {
        match self {
            Self::One(node) => node.checks.is_connected(),
            Self::Cluster(cluster) => cluster.is_warm(),
        }
    }

    /// Why checks get no decision, as far as is known.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        match self {
            Self::One(node) if node.checks.is_connecting() => Some(StoreError::Unreachable(
                "a connection is being made".to_owned(),
            )),
            Self::One(node) => node.checks.trouble(),
            Self::Cluster(cluster) => cluster.trouble(),
        }
    }
}

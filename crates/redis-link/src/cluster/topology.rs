//! The map of a Cluster, kept up to date.
//!
//! A single task queries it, so that there is never more than one query in progress, however many
//! callers lose their node. It pauses between queries, however many redirects arrive meanwhile. The
//! last map stays in force while no node replies.

mod keeper;
mod majority;

use std::sync::{Arc, OnceLock, atomic::Ordering};

use super::map::{Map, Place};
use crate::{Error, Lane, Node, Settings, connection::Connection, dial::Dialer, task::AbortOnDrop};
use keeper::Shared;

/// The map, and the task that updates it.
pub(super) struct Topology {
    shared: Arc<Shared>,
    keeper: OnceLock<AbortOnDrop>,
}

impl Topology {
    pub(super) fn new(seeds: Dialer, settings: Settings) -> Self {
        Self {
            shared: Arc::new(Shared::new(seeds, settings)),
            keeper: OnceLock::new(),
        }
    }

    /// Queries now, and connects [`Lane::Data`] to every current and future node.
    pub(super) fn start_data(&self) {
        self.shared.eager.store(true, Ordering::Relaxed);
        self.start();
        if let Some(map) = &self.shared.known.borrow().map {
            connect(map);
        }
    }

    fn start(&self) {
        self.keeper.get_or_init(|| {
            let shared = Arc::clone(&self.shared);
            AbortOnDrop::new(tokio::spawn(async move { shared.keep().await }))
        });
    }

    /// The map, whatever its age; or why there never was one.
    pub(super) async fn map(&self) -> Result<Arc<Map>, Error> {
        self.start();
        let mut known = self.shared.known.subscribe();
        let decided = known.wait_for(|k| k.map.is_some() || k.error.is_some());
        let known = decided.await.map_err(|_| closed())?;
        match (&known.map, &known.error) {
            (Some(map), _) => Ok(Arc::clone(map)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(closed()),
        }
    }

    /// A map that was queried after this call began.
    pub(super) async fn fresh(&self) -> Result<Arc<Map>, Error> {
        self.start();
        let mut known = self.shared.known.subscribe();
        let begun = known.borrow().begun;
        self.refresh();
        let asked = known.wait_for(|k| k.ended > begun);
        let known = asked.await.map_err(|_| closed())?;
        match (&known.map, &known.error) {
            (_, Some(error)) => Err(error.clone()),
            (Some(map), None) => Ok(Arc::clone(map)),
            (None, None) => Err(closed()),
        }
    }

    /// Whether there is a map, at least one connection to its nodes, and no other node is still
    /// connecting.
    pub(super) fn is_warm(&self) -> bool {
        let known = self.shared.known.borrow();
        let Some(map) = &known.map else { return false };
        let any = links(map).any(Connection::is_connected);
        any && !links(map).any(Connection::is_connecting)
    }

    /// Why there is no map, or the fault of one of its nodes.
    pub(super) fn fault(&self) -> Option<Error> {
        let known = self.shared.known.borrow();
        match (&known.map, &known.error) {
            (Some(map), _) => links(map).find_map(Connection::fault),
            (None, Some(error)) => Some(error.clone()),
            (None, None) => Some(Error::Unreachable("a connection is being made".to_owned())),
        }
    }

    /// Queries the map again, because it may be outdated.
    pub(super) fn refresh(&self) {
        self.shared.refresh.notify_one();
    }

    /// The node that a slot moved to, according to a redirect.
    pub(super) fn moved(&self, slot: u16, to: &Place) -> Option<Arc<Node>> {
        self.refresh();
        self.shared.change(to, |map, connect| {
            let owner = map.owner(slot).map(|(place, _)| place);
            (owner != Some(to)).then(|| map.with_moved(slot, to, connect))
        })
    }

    /// Adds a node, which may have no slots yet.
    pub(super) fn add_node(&self, place: &Place) -> Option<Arc<Node>> {
        self.shared.change(place, |map, connect| {
            map.node(place)
                .is_none()
                .then(|| map.with_node(place, connect))
        })
    }
}

fn closed() -> Error {
    Error::Unreachable("the store was closed".to_owned())
}

/// The connections of [`Lane::Data`].
fn links(map: &Map) -> impl Iterator<Item = &Connection> {
    map.nodes().iter().map(|(_, node)| node.link(Lane::Data))
}

fn connect(map: &Map) {
    links(map).for_each(Connection::start);
}

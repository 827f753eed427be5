//! The task that queries nodes for the map, and its shared state.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{closed, connect, majority::majority};
use crate::{
    Error, Lane, Node, Request, Settings,
    cluster::map::{self, Map, Place, Range},
    connection::{Deadline, WhenLost},
    dial::Dialer,
    route::Route,
    task::jittered,
};

/// Pause between two queries: how much later a failover may be detected.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a query without a reply, and what it grows to.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Nodes queried at once.
const AT_ONCE: usize = 3;

pub(super) struct Shared {
    /// Dials the nodes that the URL names.
    seeds: Dialer,
    settings: Settings,
    pub(super) known: watch::Sender<Known>,
    pub(super) refresh: Notify,
    /// Whether [`Lane::Data`] is connected before its first use.
    pub(super) eager: AtomicBool,
}

/// The state of the map.
#[derive(Default)]
pub(super) struct Known {
    pub(super) map: Option<Arc<Map>>,
    /// Why the last query was not answered.
    pub(super) error: Option<Error>,
    /// Queries begun and ended.
    pub(super) begun: u64,
    pub(super) ended: u64,
}

impl Shared {
    pub(super) fn new(seeds: Dialer, settings: Settings) -> Self {
        Self {
            seeds,
            settings,
            known: watch::Sender::default(),
            refresh: Notify::new(),
            eager: AtomicBool::new(false),
        }
    }

    /// Changes the map if necessary, and returns the node at `place`.
    pub(super) fn change(
        &self,
        place: &Place,
        change: impl FnOnce(&Map, &dyn Fn(&Place) -> Node) -> Option<Map>,
    ) -> Option<Arc<Node>> {
        let mut node = None;
        self.known.send_if_modified(|known| {
            let Some(map) = &mut known.map else {
                return false;
            };
            let changed = change(map, &|place| self.connect_to(place)).map(Arc::new);
            let changed = changed.map(|new| *map = new).is_some();
            node = map.node(place).cloned();
            changed
        });
        node
    }

    fn connect_to(&self, (host, port): &Place) -> Node {
        let route = Route::new(self.seeds.to(host, *port), &self.settings);
        Node::new(route, &self.settings, WhenLost::Fail)
    }

    pub(super) async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            self.known.send_modify(|known| known.begun += 1);
            let found = self.ask().await;
            let answered = found.is_ok();
            self.end(found);
            if answered {
                backoff = BACKOFF_MIN;
                sleep(jittered(PACE)).await;
                self.refresh.notified().await;
            } else {
                sleep(jittered(backoff)).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }

    /// Applies the result of a query.
    fn end(&self, found: Result<Vec<Range>, Error>) {
        self.known.send_modify(|known| {
            known.ended = known.begun;
            let ranges = match found {
                Ok(ranges) => ranges,
                Err(error) => {
                    tracing::warn!(servers = %self.seeds.server(), %error, "no map of the cluster");
                    known.error = Some(error);
                    return;
                }
            };
            let old = known.map.take().unwrap_or_default();
            let new = Map::new(&ranges, &old, |place| self.connect_to(place));
            if new.fingerprint() != old.fingerprint() {
                tracing::info!(masters = new.nodes().len(), "a new map of the cluster");
            }
            if self.eager.load(Ordering::Relaxed) {
                connect(&new);
            }
            known.error = None;
            known.map = Some(Arc::new(new));
        });
    }

    /// Queries known masters first, then the nodes that the URL names, a few at once.
    async fn ask(&self) -> Result<Vec<Range>, Error> {
        let known = self.known.borrow().map.clone();
        let mut masters: Vec<(Place, Arc<Node>)> =
            known.iter().flat_map(|map| map.nodes().to_vec()).collect();
        fastrand::shuffle(&mut masters);
        let mut seeds = self.seeds.server().seeds();
        fastrand::shuffle(&mut seeds);
        seeds.retain(|seed| masters.iter().all(|(place, _)| place != seed));
        let strangers = seeds.into_iter().map(|seed| {
            let node = Arc::new(self.connect_to(&seed));
            (seed, node)
        });
        let nodes: Vec<_> = masters.into_iter().chain(strangers).collect();
        let mut last = Error::Unreachable("the URL names no node".to_owned());
        for some in nodes.chunks(AT_ONCE) {
            let asked = some.iter().map(|node| self.slots(node)).collect();
            match majority(asked).await {
                Ok(ranges) => return Ok(ranges),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn slots(&self, ((host, _), node): &(Place, Arc<Node>)) -> Result<Vec<Range>, Error> {
        let mut query = redis::cmd("CLUSTER");
        query.arg("SLOTS");
        let query = Request::from(query);
        // Time to connect, and for the answer.
        let deadline = Deadline::within(2 * self.settings.connect_timeout);
        let mut answers = node.run(Lane::Control, &[&query], deadline).await;
        match answers.pop() {
            Some(Ok(answer)) => map::ranges(answer, host),
            Some(Err(Error::Refused(refusal))) if refusal.code == "ERR" => {
                Err(Error::Unsupported(format!(
                    "the server is not a node of a cluster ({}): use redis:// for it",
                    refusal.message
                )))
            }
            Some(Err(error)) => Err(error),
            None => Err(closed()),
        }
    }
}

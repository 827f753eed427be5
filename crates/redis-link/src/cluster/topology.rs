//! The map of a Cluster, kept up to date.
//!
//! A single task asks for it, so that there is never more than one question under way, however
//! many callers find their node gone; and it pauses between questions, however many redirections
//! come in meanwhile. The last map stays in force while no node replies.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout_at},
};

use super::map::{self, Map, Place, Range};
use crate::{
    Error, Lane, Node, Request, Settings,
    connection::{Connection, Deadline, WhenLost},
    dial::Dialer,
    route::Route,
    task::{AbortOnDrop, jittered},
};

/// Pause between two questions: what a failover may be noticed late by.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a query without a reply, and what it grows to.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Nodes that are asked at once.
const AT_ONCE: usize = 3;
/// What the others are waited for once one has answered: one that hangs costs no more.
const OTHERS: Duration = Duration::from_millis(50);

/// The map, and the task that keeps it.
pub(super) struct Topology {
    shared: Arc<Shared>,
    keeper: OnceLock<AbortOnDrop>,
}

struct Shared {
    /// To the nodes that the URL names.
    seeds: Dialer,
    settings: Settings,
    known: watch::Sender<Known>,
    refresh: Notify,
    /// Whether [`Lane::Data`] is connected before its first use.
    eager: AtomicBool,
}

/// The state of the map.
#[derive(Default)]
struct Known {
    map: Option<Arc<Map>>,
    /// Why the last question was not answered.
    error: Option<Error>,
    /// Questions begun and ended.
    begun: u64,
    ended: u64,
}

impl Topology {
    pub(super) fn new(seeds: Dialer, settings: Settings) -> Self {
        Self {
            shared: Arc::new(Shared {
                seeds,
                settings,
                known: watch::Sender::default(),
                refresh: Notify::new(),
                eager: AtomicBool::new(false),
            }),
            keeper: OnceLock::new(),
        }
    }

    /// Asks now, and connects [`Lane::Data`] to every node that there is or will be.
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

    /// A map that was asked for after this call began.
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

    /// Whether there is a map, a connection to a node of it, and to each of the others one or a reason
    /// why not.
    pub(super) fn is_warm(&self) -> bool {
        let known = self.shared.known.borrow();
        let Some(map) = &known.map else { return false };
        let any = links(map).any(Connection::is_connected);
        any && !links(map).any(Connection::is_connecting)
    }

    /// Why there is no map, or what is the matter with a node of it.
    pub(super) fn fault(&self) -> Option<Error> {
        let known = self.shared.known.borrow();
        match (&known.map, &known.error) {
            (Some(map), _) => links(map).find_map(Connection::fault),
            (None, Some(error)) => Some(error.clone()),
            (None, None) => Some(Error::Unreachable("a connection is being made".to_owned())),
        }
    }

    /// The map may be wrong: it is asked for again.
    pub(super) fn refresh(&self) {
        self.shared.refresh.notify_one();
    }

    /// The node that a slot moved to, as the one that had it redirects.
    pub(super) fn moved(&self, slot: u16, to: &Place) -> Option<Arc<Node>> {
        self.refresh();
        self.shared.change(to, |map, connect| {
            let owner = map.owner(slot).map(|(place, _)| place);
            (owner != Some(to)).then(|| map.with_moved(slot, to, connect))
        })
    }

    /// A node that may have no slots yet.
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

impl Shared {
    /// Changes the map unless that is not needed, and gives the node at a place of it.
    fn change(
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

    async fn keep(&self) {
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

    /// Puts what was found in force.
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

    /// Asks known masters first, then those that the URL names, a few at once.
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
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let question = Request::from(question);
        // Time to connect, and for the answer.
        let deadline = Deadline::within(2 * self.settings.connect_timeout);
        let mut answers = node.run(Lane::Control, &[&question], deadline).await;
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

/// The map that most of the nodes agree on, and of those as many the first to come. A master that was
/// deposed behind a partition is one of them, and may be the nearest.
async fn majority(
    mut asked: FuturesUnordered<impl Future<Output = Result<Vec<Range>, Error>>>,
) -> Result<Vec<Range>, Error> {
    let mut maps: Vec<(Vec<Range>, usize)> = Vec::new();
    let (mut until, mut last) = (None, closed());
    loop {
        let answer = match until {
            None => asked.next().await,
            Some(until) => timeout_at(until, asked.next()).await.unwrap_or_default(),
        };
        match answer {
            Some(Ok(mut map)) => {
                map.sort_unstable();
                until.get_or_insert_with(|| Instant::now() + OTHERS);
                match maps.iter_mut().find(|(known, _)| *known == map) {
                    Some((_, votes)) => *votes += 1,
                    None => maps.push((map, 1)),
                }
            }
            Some(Err(error)) => last = error,
            None => break,
        }
    }
    // Of equals the last is the greatest.
    let most = maps.into_iter().rev().max_by_key(|(_, votes)| *votes);
    most.map(|(map, _)| map).ok_or(last)
}

#[cfg(test)]
mod tests;

//! Which node of a Cluster has which slots: the map, kept up to date.
//!
//! A single task queries it, so that there is never more than one query in progress, however many
//! callers lose their node. It pauses between queries, however many redirects arrive meanwhile. The
//! last map stays in force while no node replies.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout_at},
};

use crate::{
    Error, Lane, Node, Request, Settings,
    connection::{Connection, Deadline, OutageLog, WhenLost},
    dial::{Dialer, Route},
    task::{AbortOnDrop, jittered},
    value,
};

/// Pause between two queries: how much later a failover may be detected.
const PACE: Duration = Duration::from_millis(100);
/// Pause between two searches for lost nodes, to which no request may be sent.
const SEARCH_PACE: Duration = Duration::from_secs(1);
/// Pause after a query without a reply, and what it grows to.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Nodes queried at once.
const AT_ONCE: usize = 3;
/// How long to wait for the other nodes after the first answer, so that a hanging one costs no
/// more.
const OTHERS: Duration = Duration::from_millis(50);
/// Slots of a Cluster.
const SLOTS: usize = 16384;
/// Bound: nodes of a Cluster that connections are kept to. Beyond it, requests for the others are
/// refused.
///
/// More than a Cluster supports.
const NODES_MAX: usize = 1024;
/// The index of a slot without a node.
const NO_NODE: u16 = u16::MAX;

/// The map, and the task that updates it.
pub(super) struct Topology {
    shared: Arc<Shared>,
    keeper: OnceLock<AbortOnDrop>,
}

/// The host and port of a node.
pub(super) type NodeAddress = (String, u16);

/// A range of slots, first and last, and the address of the master that has them.
type Range = (u16, u16, NodeAddress);

/// The masters, and the slots of each.
#[derive(Clone, Default)]
pub(super) struct Map {
    nodes: Vec<(NodeAddress, Arc<Node>)>,
    /// For each slot an index into `nodes`.
    owners: Vec<u16>,
}

/// What the task that queries nodes for the map shares with its callers.
struct Shared {
    /// Dials the nodes that the URL names.
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
    /// Why the last query was not answered.
    error: Option<Error>,
    /// Queries begun and ended.
    begun: u64,
    ended: u64,
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
        let any = serving(map).any(Connection::is_connected);
        any && !serving(map).any(Connection::is_connecting)
    }

    /// Why there is no map, or the fault of one of its nodes.
    pub(super) fn fault(&self) -> Option<Error> {
        let known = self.shared.known.borrow();
        match (&known.map, &known.error) {
            (Some(map), _) => serving(map).find_map(Connection::fault),
            (None, Some(error)) => Some(error.clone()),
            (None, None) => Some(Error::Unreachable("a connection is being made".to_owned())),
        }
    }

    /// Queries the map again, because it may be outdated.
    pub(super) fn refresh(&self) {
        self.shared.refresh.notify_one();
    }

    /// The node that a slot moved to, according to a redirect.
    pub(super) fn moved(&self, slot: u16, to: &NodeAddress) -> Option<Arc<Node>> {
        self.refresh();
        self.shared.change(to, |map, connect| {
            let owner = map.owner(slot).map(|(address, _)| address);
            (owner != Some(to)).then(|| map.with_moved(slot, to, connect))
        })
    }

    /// Adds a node, which may have no slots yet.
    pub(super) fn add_node(&self, address: &NodeAddress) -> Option<Arc<Node>> {
        self.shared.change(address, |map, connect| {
            map.node(address)
                .is_none()
                .then(|| map.with_node(address, connect))
        })
    }
}

impl Shared {
    fn new(seeds: Dialer, settings: Settings) -> Self {
        Self {
            seeds,
            settings,
            known: watch::Sender::default(),
            refresh: Notify::new(),
            eager: AtomicBool::new(false),
        }
    }

    /// Changes the map if necessary, and returns the node at `address`.
    fn change(
        &self,
        address: &NodeAddress,
        change: impl FnOnce(&Map, &dyn Fn(&NodeAddress) -> Node) -> Option<Map>,
    ) -> Option<Arc<Node>> {
        let mut node = None;
        self.known.send_if_modified(|known| {
            let Some(map) = &mut known.map else {
                return false;
            };
            let changed = change(map, &|address| self.connect_to(address)).map(Arc::new);
            let changed = changed.map(|new| *map = new).is_some();
            node = map.node(address).cloned();
            changed
        });
        node
    }

    fn connect_to(&self, (host, port): &NodeAddress) -> Node {
        let route = Route::new(self.seeds.to(host, *port), &self.settings);
        Node::new(route, &self.settings, WhenLost::Fail)
    }

    async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        let mut outage = OutageLog::default();
        let mut seeds = Vec::new();
        loop {
            self.known.send_modify(|known| known.begun += 1);
            let found = self.ask(&mut seeds).await;
            self.log(found.as_ref().err(), &mut outage);
            let answered = found.is_ok();
            self.end(found);
            if answered {
                seeds.clear();
                backoff = BACKOFF_MIN;
                sleep(jittered(PACE)).await;
                self.outdated().await;
            } else {
                sleep(jittered(backoff)).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }

    /// Returns once the map may be outdated. Callers say so where a request fails; but a node that was replaced, or left
    /// the Cluster, may get none, and would be dialled for ever.
    async fn outdated(&self) {
        let has_lost = || {
            let known = self.known.borrow();
            let mut links = known.map.iter().flat_map(|map| links(map));
            links.any(|link| link.fault().is_some())
        };
        loop {
            tokio::select! {
                () = self.refresh.notified() => return,
                () = sleep(jittered(SEARCH_PACE)) => {}
            }
            if has_lost() {
                return;
            }
        }
    }

    fn log(&self, failed: Option<&Error>, outage: &mut OutageLog) {
        let (servers, now) = (self.seeds.server(), Instant::now());
        if let Some(error) = failed {
            if let Some(attempts) = outage.failed(error, now) {
                tracing::warn!(%servers, %error, attempts, "no map of the cluster");
            }
        } else if let Some((lasted, attempts)) = outage.over(now) {
            tracing::info!(%servers, ?lasted, attempts, "the cluster's nodes answer again");
        }
    }

    /// Applies the result of a query.
    fn end(&self, found: Result<Vec<Range>, Error>) {
        self.known.send_modify(|known| {
            known.ended = known.begun;
            let ranges = match found {
                Ok(ranges) => ranges,
                Err(error) => {
                    known.error = Some(error);
                    return;
                }
            };
            let old = known.map.take().unwrap_or_default();
            let new = Map::new(&ranges, &old, |address| self.connect_to(address));
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

    /// Queries known masters first, then the nodes that the URL names, a few at once. `strangers` keeps the
    /// latter: a new connection each time would log its failure each time.
    async fn ask(
        &self,
        strangers: &mut Vec<(NodeAddress, Arc<Node>)>,
    ) -> Result<Vec<Range>, Error> {
        let known = self.known.borrow().map.clone();
        let mut masters: Vec<(NodeAddress, Arc<Node>)> =
            known.iter().flat_map(|map| map.nodes().to_vec()).collect();
        fastrand::shuffle(&mut masters);
        if strangers.is_empty() {
            for seed in self.seeds.server().seeds() {
                let node = Arc::new(self.connect_to(&seed));
                strangers.push((seed, node));
            }
        }
        fastrand::shuffle(strangers);
        let unknown = |(seed, _): &&(NodeAddress, _)| masters.iter().all(|(at, _)| at != seed);
        let strangers = strangers.iter().filter(unknown).cloned();
        let strangers: Vec<_> = strangers.collect();
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

    async fn slots(
        &self,
        ((host, _), node): &(NodeAddress, Arc<Node>),
    ) -> Result<Vec<Range>, Error> {
        let mut query = redis::cmd("CLUSTER");
        query.arg("SLOTS");
        let query = Request::from(query);
        // Time to connect, and for the answer.
        let deadline = Deadline::within(2 * self.settings.connect_timeout);
        let mut answers = node.run(Lane::Control, &[&query], deadline).await;
        match answers.pop() {
            Some(Ok(answer)) => ranges(answer, host),
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

fn closed() -> Error {
    Error::Unreachable("the store was closed".to_owned())
}

/// The connections of [`Lane::Data`] to nodes that have slots. One that a migration named has none yet, and
/// stays in the map without any if the migration is aborted.
fn serving(map: &Map) -> impl Iterator<Item = &Connection> {
    let mut serves = vec![false; map.nodes.len()];
    for owner in &map.owners {
        if let Some(serves) = serves.get_mut(usize::from(*owner)) {
            *serves = true;
        }
    }
    let links = links(map).zip(serves);
    links.filter_map(|(link, serves)| serves.then_some(link))
}

/// The connections of [`Lane::Data`].
fn links(map: &Map) -> impl Iterator<Item = &Connection> {
    map.nodes().iter().map(|(_, node)| node.link(Lane::Data))
}

fn connect(map: &Map) {
    links(map).for_each(Connection::start);
}

/// The map that most nodes agree on; on a tie, the first to arrive. A deposed master behind a
/// partition may be among the nodes, and may be the nearest.
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
    // `max_by_key` returns the last of equals, hence the reversed order.
    let most = maps.into_iter().rev().max_by_key(|(_, votes)| *votes);
    most.map(|(map, _)| map).ok_or(last)
}

impl Map {
    /// The map of these ranges. A node that `known` has a connection to keeps it.
    fn new(ranges: &[Range], known: &Self, connect: impl Fn(&NodeAddress) -> Node) -> Self {
        let mut map = Self {
            nodes: Vec::new(),
            owners: vec![NO_NODE; SLOTS],
        };
        let kept: HashMap<&NodeAddress, &Arc<Node>> =
            known.nodes.iter().map(|(p, n)| (p, n)).collect();
        for (first, last, address) in ranges {
            let node = || match kept.get(address) {
                Some(node) => Arc::clone(node),
                None => Arc::new(connect(address)),
            };
            let Some(index) = map.index_of(address, node) else {
                continue;
            };
            let slots = usize::from(*first)..=usize::from(*last);
            if let Some(owners) = map.owners.get_mut(slots) {
                owners.fill(index);
            }
        }
        map
    }

    /// The same map with one slot moved, and a new node if necessary.
    fn with_moved(
        &self,
        slot: u16,
        address: &NodeAddress,
        connect: impl Fn(&NodeAddress) -> Node,
    ) -> Self {
        let mut map = self.clone();
        if let Some(index) = map.index_of(address, || Arc::new(connect(address)))
            && let Some(owner) = map.owners.get_mut(usize::from(slot))
        {
            *owner = index;
        }
        map
    }

    /// The same map with a node that has no slots yet.
    fn with_node(&self, address: &NodeAddress, connect: impl Fn(&NodeAddress) -> Node) -> Self {
        let mut map = self.clone();
        map.index_of(address, || Arc::new(connect(address)));
        map
    }

    fn index_of(&mut self, address: &NodeAddress, node: impl FnOnce() -> Arc<Node>) -> Option<u16> {
        let found = self.nodes.iter().position(|(known, _)| known == address);
        if found.is_none() && self.nodes.len() < NODES_MAX {
            self.nodes.push((address.clone(), node()));
        }
        let index = found.unwrap_or(self.nodes.len() - 1);
        let known = self.nodes.get(index).is_some_and(|(p, _)| p == address);
        known.then(|| u16::try_from(index).ok()).flatten()
    }

    /// The node that has a slot, and its address.
    pub(super) fn owner(&self, slot: u16) -> Option<&(NodeAddress, Arc<Node>)> {
        let index = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*index))
    }

    fn node(&self, address: &NodeAddress) -> Option<&Arc<Node>> {
        let found = self.nodes.iter().find(|(known, _)| known == address);
        found.map(|(_, node)| node)
    }

    pub(super) fn nodes(&self) -> &[(NodeAddress, Arc<Node>)] {
        &self.nodes
    }

    /// Almost certainly differs between different maps.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (address, _) in &self.nodes {
            address.hash(&mut hasher);
        }
        self.owners.hash(&mut hasher);
        hasher.finish()
    }
}

/// Reads the answer to CLUSTER SLOTS of the node at `asked`.
fn ranges(answer: Value, asked: &str) -> Result<Vec<Range>, Error> {
    let ranges = value::items(answer)?.into_iter();
    let ranges: Vec<Range> = ranges.map(|r| range(r, asked)).collect::<Result<_, _>>()?;
    if ranges.is_empty() {
        return Err(Error::Unreachable(
            "the cluster's node has no map of slots yet".to_owned(),
        ));
    }
    Ok(ranges)
}

fn range(answer: Value, asked: &str) -> Result<Range, Error> {
    let mut parts = value::items(answer)?.into_iter();
    let mut next = || parts.next().ok_or_else(value::short);
    let number = |value: Value| u16::try_from(value::integer(value)?).map_err(|_| value::short());
    let (first, last) = (number(next()?)?, number(next()?)?);
    let mut master = value::items(next()?)?.into_iter();
    let mut next = || master.next().ok_or_else(value::short);
    let (host, port) = (value::optional_text(next()?)?, number(next()?)?);
    Ok((first, last, (named(host.as_deref(), asked), port)))
}

/// A node that gives no host for itself is at the host that was queried.
pub(super) fn named(host: Option<&str>, asked: &str) -> String {
    match host {
        None | Some("" | "?") => asked.to_owned(),
        Some(host) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests;

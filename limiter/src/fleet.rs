//! The proxies that sent requests: which of them count, which limits they have in force and which entries
//! they supply, and how many share each limit.
//!
//! Clients choose the id they send, so an id proves nothing: made-up ids would shrink the share that each
//! proxy takes while no limiter answers, and fill Redis. So an id counts only if it has the form that filters
//! generate, and at most [`Settings::proxies_per_address`](crate::Settings) ids of one address count at
//! once. Requests with other ids are answered like any other, but neither counted nor reported.
//!
//! Known gaps: a caller with many addresses counts once for each, and one that reaches several limiters
//! counts at each. For the loopback address only the limiter-wide bounds apply: a mesh's sidecar forwards
//! all callers' requests from there, and the mesh must decide who may call.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use policy::{Name, Revision};
use store::{ActiveProxies, ProxyStatus, Store};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::domains::Domains;

/// How long a proxy stays after its last request. Proxies poll several times a second, and the store's
/// counts expire as fast.
const LIFE: Duration = Duration::from_secs(10);

/// Bound: proxies that a limiter counts. Beyond it, answered, but not counted.
const PROXIES_MAX: usize = 5000;
/// Bound: proxies in a limiter's report. Beyond it, further ones are not reported.
const LISTED_MAX: usize = 5000;
/// Bound: entries in the different lists that the proxies of a limiter send. Beyond it, what proxies with a
/// further list supply is unknown.
const ENTRIES_MAX: usize = 5000;

/// Bound: proxies that a limiter begins to count in a second. Beyond it, answered, but not counted.
///
/// A large fleet that starts is counted within ten seconds.
const NEW_MAX: usize = 500;

/// How often expired ids are removed, and how often rejected ids are logged.
const SWEEP: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_mins(1);

/// How often proxies are recorded in the store.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Bound: pairs of a limit and a proxy of a domain in a second. Beyond it, all limits have the
/// domain's count.
///
/// No domain takes another's. With more pairs, its limits have the domain's count until the next
/// recording.
const PAIRS_MAX: usize = 50_000;

/// Bound: limits of a domain whose proxies are counted one by one. Beyond it, further limits have
/// the domain's count.
///
/// The others use the count of the whole domain, which is never lower, so that a proxy takes too
/// small a share rather than too large a one.
const LIMITS_MAX: usize = 1000;

/// The longest reported node name, in bytes. The longest that Istio makes of a Pod fits.
const NODE_MAX: usize = 384;

/// The random id of one Envoy process, shared by all tables.
pub(crate) type ProxyId = Arc<str>;

/// The proxies of this limiter, and how many there are at all.
pub(crate) struct Fleet {
    store: Arc<dyn Store>,
    registry: Mutex<Registry>,
    counts: ArcSwap<HashMap<Name, Arc<DomainCounts>>>,
    /// Whether a proxy came, or has another revision, since the last report.
    news: Notify,
}

/// What a request says of its proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestingProxy<'a> {
    pub(crate) id: &'a str,
    /// The name of its node.
    pub(crate) node: Option<&'a str>,
    /// Whether its filter is a dynamic module.
    pub(crate) is_module: bool,
    /// The revision it has in force.
    pub(crate) revision: Option<&'a Revision>,
}

/// Live proxies of a domain, at all limiters.
#[derive(Debug, Default)]
pub(crate) struct DomainCounts {
    /// Proxies that checked or reported.
    pub(crate) all: u64,
    /// Proxies that checked each limit; without limits that none checked recently.
    pub(crate) limits: BTreeMap<Name, u64>,
    /// Whether some limits are not counted one by one.
    partial: bool,
}

impl DomainCounts {
    /// The proxies of a limit: the divisor of a proxy's share while no limiter answers. `None`: none checked
    /// it lately.
    pub(crate) fn of(&self, limit: &Name) -> Option<u64> {
        let counted = self.limits.get(limit).copied();
        counted.or((self.partial && self.all > 0).then_some(self.all))
    }
}

impl Fleet {
    pub(crate) fn new(store: Arc<dyn Store>, per_address: usize) -> Self {
        Self {
            store,
            registry: Mutex::new(Registry::new(per_address, Instant::now())),
            counts: ArcSwap::default(),
            news: Notify::new(),
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the id of a request from this address counts as a proxy.
    pub(crate) fn admit(&self, address: IpAddr, id: &str) -> Option<ProxyId> {
        self.registry().admit(address, id, Instant::now())
    }

    /// Records that a proxy sent a request for a domain, which need not exist. `None`: its id does not
    /// count.
    pub(crate) fn saw(
        &self,
        address: IpAddr,
        domain: &Name,
        proxy: RequestingProxy<'_>,
    ) -> Option<ProxyId> {
        let now = Instant::now();
        let mut registry = self.registry();
        let id = registry.admit(address, proxy.id, now)?;
        if registry.record(domain, &id, proxy, now) {
            self.news.notify_one();
        }
        Some(id)
    }

    /// Waits until a proxy has come, or has another revision, since this last returned.
    pub(crate) async fn has_news(&self) {
        self.news.notified().await;
    }

    /// Records the entries that a known proxy supplies, listed as `tenant,user`.
    pub(crate) fn list_entries(&self, domain: &Name, id: &ProxyId, list: &str) {
        self.registry()
            .list_entries(domain, id, list, Instant::now());
    }

    /// Records that a proxy checked these limits of a domain.
    pub(crate) fn checked<'n>(
        &self,
        domain: &Name,
        proxy: &ProxyId,
        limits: impl IntoIterator<Item = &'n Name>,
    ) {
        let mut registry = self.registry();
        if !registry.unrecorded.contains_key(domain) {
            let none = Unrecorded::default();
            registry.unrecorded.insert(domain.clone(), none);
        }
        if let Some(unrecorded) = registry.unrecorded.get_mut(domain) {
            unrecorded.add(proxy, limits);
        }
    }

    /// Live proxies of a domain.
    pub(crate) fn counts(&self, domain: &Name) -> Option<Arc<DomainCounts>> {
        self.counts.load().get(domain).cloned()
    }

    /// The live proxies of this limiter; forgets the others.
    pub(crate) fn alive(&self) -> Alive {
        self.registry().alive(Instant::now())
    }

    /// Records in the store who checked, and counts who did at any replica within the last 10 s, for ever.
    pub(crate) async fn record_forever(&self, domains: &Domains) {
        loop {
            sleep(RECORD_EVERY).await;
            self.record(domains).await;
        }
    }

    async fn record(&self, domains: &Domains) {
        let mut unrecorded = std::mem::take(&mut self.registry().unrecorded);
        let mut counts = HashMap::new();
        for (name, domain) in &*domains.all() {
            let Some(active) = &domain.active else {
                continue;
            };
            let mut seen = unrecorded.remove(name).unwrap_or_default();
            let limits = active.compiled.limits();
            let ids = |proxies: HashSet<ProxyId>| proxies.iter().map(ToString::to_string).collect();
            // Also count limits that only other replicas checked.
            let counted = limits.iter().take(LIMITS_MAX).map(|limit| {
                let proxies = seen.by_limit.remove(&limit.name).unwrap_or_default();
                (Some(limit.name.clone()), ids(proxies))
            });
            let all = (None, ids(seen.all));
            let asked: ActiveProxies = std::iter::once(all).chain(counted).collect();
            match self.store.count_proxies(name, &asked).await {
                Ok(found) => {
                    let live = found.iter().filter(|(_, count)| **count > 0);
                    let live = live.filter_map(|(limit, count)| Some((limit.clone()?, *count)));
                    let domain = DomainCounts {
                        all: found.get(&None).copied().unwrap_or(0),
                        limits: live.filter(|_| !seen.crowded).collect(),
                        partial: seen.crowded || limits.len() > LIMITS_MAX,
                    };
                    counts.insert(name.clone(), Arc::new(domain));
                }
                // Keep the last counts: proxies need them during an outage of the store.
                Err(error) => {
                    tracing::debug!(domain = %name, %error, "cannot count the proxies");
                    let before = self.counts(name);
                    counts.extend(before.map(|before| (name.clone(), before)));
                }
            }
        }
        self.counts.store(Arc::new(counts));
    }
}

/// The proxies that sent a request to this limiter recently.
#[derive(Debug)]
struct Registry {
    per_address: usize,
    /// The ids that count, by the last request of each.
    ids: HashMap<ProxyId, Admitted>,
    /// How many of these ids each address sent first.
    addresses: HashMap<IpAddr, usize>,
    /// New ids since the last sweep.
    new: usize,
    swept: Instant,
    logged: Option<Instant>,
    /// What `rlctl` sees of them; no decision depends on it. A domain need not have limits.
    listed: BTreeMap<Name, HashMap<ProxyId, Proxy>>,
    pairs: usize,
    lists: Lists,
    /// Who checked since the last recording, in domains that exist.
    unrecorded: HashMap<Name, Unrecorded>,
}

#[derive(Debug)]
struct Admitted {
    id: ProxyId,
    address: Option<IpAddr>,
    at: Instant,
}

#[derive(Debug)]
struct Proxy {
    node: Option<String>,
    is_module: bool,
    revision: Option<Revision>,
    /// The entries that it supplies beside the built-in ones, and when it last said so.
    supplies: Option<(Arc<BTreeSet<Name>>, Instant)>,
    at: Instant,
}

/// The lists of entries that proxies send, as they send them: most proxies send the same.
#[derive(Debug, Default)]
struct Lists {
    read: HashMap<Box<str>, Arc<BTreeSet<Name>>>,
    /// The entries of all lists.
    entries: usize,
}

#[derive(Debug, Default)]
struct Unrecorded {
    all: HashSet<ProxyId>,
    by_limit: HashMap<Name, HashSet<ProxyId>>,
    pairs: usize,
    /// Whether there were more pairs.
    crowded: bool,
}

/// The live proxies, by domain.
pub(crate) type Alive = BTreeMap<Name, Vec<ProxyStatus>>;

impl Registry {
    fn new(per_address: usize, now: Instant) -> Self {
        Self {
            per_address,
            ids: HashMap::new(),
            addresses: HashMap::new(),
            new: 0,
            swept: now,
            logged: None,
            listed: BTreeMap::new(),
            pairs: 0,
            lists: Lists::default(),
            unrecorded: HashMap::new(),
        }
    }

    fn admit(&mut self, address: IpAddr, id: &str, now: Instant) -> Option<ProxyId> {
        if !protocol::is_proxy_id(id) {
            return None;
        }
        if now.saturating_duration_since(self.swept) >= SWEEP {
            self.sweep(now);
        }
        if let Some(known) = self.ids.get_mut(id) {
            known.at = now;
            return Some(ProxyId::clone(&known.id));
        }
        let address = (!address.is_loopback()).then_some(address);
        let named = address.and_then(|address| self.addresses.get(&address).copied());
        if named.unwrap_or(0) >= self.per_address {
            self.log_once(address, now);
            return None;
        }
        if self.ids.len() >= PROXIES_MAX || self.new >= NEW_MAX {
            return None;
        }
        self.new += 1;
        if let Some(address) = address {
            *self.addresses.entry(address).or_default() += 1;
        }
        let id = ProxyId::from(id);
        let admitted = Admitted {
            id: ProxyId::clone(&id),
            address,
            at: now,
        };
        self.ids.insert(ProxyId::clone(&id), admitted);
        Some(id)
    }

    fn sweep(&mut self, now: Instant) {
        self.ids.retain(|_, known| is_recent(known.at, now));
        self.addresses.clear();
        for address in self.ids.values().filter_map(|known| known.address) {
            *self.addresses.entry(address).or_default() += 1;
        }
        (self.new, self.swept) = (0, now);
    }

    fn log_once(&mut self, address: Option<IpAddr>, now: Instant) {
        let recent = |at: Instant| now.saturating_duration_since(at) < LOG_EVERY;
        if self.logged.is_some_and(recent) {
            return;
        }
        self.logged = Some(now);
        tracing::warn!(
            ?address,
            most = self.per_address,
            "more proxies at one address than are counted; if they share it, raise \
             --proxies-per-address"
        );
    }

    /// Returns whether the proxy is new, or has another revision than before.
    fn record(
        &mut self,
        domain: &Name,
        id: &ProxyId,
        sender: RequestingProxy<'_>,
        now: Instant,
    ) -> bool {
        let known = self.listed.get_mut(domain);
        if let Some(proxy) = known.and_then(|domain| domain.get_mut(id)) {
            proxy.at = now;
            let differs = proxy.revision.as_ref() != sender.revision;
            if differs {
                proxy.revision = sender.revision.cloned();
            }
            if proxy.node.is_none() {
                proxy.node = sender.node.map(named);
            }
            // Polls say so, and checks do not.
            proxy.is_module |= sender.is_module;
            return differs;
        }
        let has_room = self.pairs < LISTED_MAX;
        if has_room {
            self.pairs += 1;
            let proxy = Proxy {
                node: sender.node.map(named),
                is_module: sender.is_module,
                revision: sender.revision.cloned(),
                supplies: None,
                at: now,
            };
            let domain = self.listed.entry(domain.clone()).or_default();
            domain.insert(ProxyId::clone(id), proxy);
        }
        has_room
    }

    fn list_entries(&mut self, domain: &Name, id: &ProxyId, list: &str, now: Instant) {
        if let Some(domain) = self.listed.get_mut(domain)
            && let Some(proxy) = domain.get_mut(id)
        {
            proxy.supplies = self.lists.find(list).map(|entries| (entries, now));
        }
    }

    fn alive(&mut self, now: Instant) -> Alive {
        for domain in self.listed.values_mut() {
            domain.retain(|_, proxy| is_recent(proxy.at, now));
            for proxy in domain.values_mut() {
                proxy.supplies.take_if(|(_, at)| !is_recent(*at, now));
            }
        }
        self.listed.retain(|_, domain| !domain.is_empty());
        self.pairs = self.listed.values().map(HashMap::len).sum();
        self.lists.drop_unused();
        let mut alive = Alive::new();
        for (name, domain) in &self.listed {
            let seen = domain.iter().map(|(id, proxy)| ProxyStatus {
                id: id.to_string(),
                node: proxy.node.clone(),
                is_module: proxy.is_module,
                revision: proxy.revision.clone(),
                supplies: { proxy.supplies.as_ref() }.map(|(entries, _)| Arc::clone(entries)),
                ago_ms: millis(now.saturating_duration_since(proxy.at)),
            });
            alive.insert(name.clone(), seen.collect());
        }
        alive
    }
}

impl Unrecorded {
    fn add<'n>(&mut self, proxy: &ProxyId, limits: impl IntoIterator<Item = &'n Name>) {
        if self.all.len() < PROXIES_MAX {
            self.all.insert(ProxyId::clone(proxy));
        }
        for limit in limits {
            let known = self.by_limit.get(limit);
            if known.is_some_and(|proxies| proxies.contains(proxy)) {
                continue;
            }
            if self.pairs >= PAIRS_MAX {
                self.crowded = true;
                return;
            }
            self.pairs += 1;
            let proxies = self.by_limit.entry(limit.clone()).or_default();
            proxies.insert(ProxyId::clone(proxy));
        }
    }
}

impl Lists {
    /// The entries of a list; `None` if it is none, or does not fit.
    fn find(&mut self, list: &str) -> Option<Arc<BTreeSet<Name>>> {
        if let Some(known) = self.read.get(list) {
            return Some(Arc::clone(known));
        }
        let entries = names(list);
        let entries: BTreeSet<Name> = entries
            .map(|name| name.parse().ok())
            .collect::<Option<_>>()?;
        // Counted as it was written, which may repeat one.
        let count = names(list).count();
        if self.entries + count > ENTRIES_MAX {
            return None;
        }
        self.entries += count;
        let entries = Arc::new(entries);
        self.read.insert(list.into(), Arc::clone(&entries));
        Some(entries)
    }

    fn drop_unused(&mut self) {
        self.read
            .retain(|_, entries| Arc::strong_count(entries) > 1);
        self.entries = self.read.keys().map(|list| names(list).count()).sum();
    }
}

/// The names of a list, of which only the empty list has none.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .take(if list.is_empty() { 0 } else { usize::MAX })
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= LIFE
}

/// A node's name as reported: printable characters only, cut to the maximum length.
fn named(node: &str) -> String {
    let mut name = String::new();
    for c in node.chars().filter(|c| policy::is_printable(*c)) {
        if name.len() + c.len_utf8() > NODE_MAX {
            break;
        }
        name.push(c);
    }
    name
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

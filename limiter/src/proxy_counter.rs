//! How many proxies share each limit: the divisor of a proxy's share while no limiter answers.
//!
//! Requests carry the id of their proxy; [`Callers`](crate::callers::Callers) decides which ids count.
//! Once a second the limiter records them in the store, which returns how many proxies all replicas
//! saw within the last 10 s.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use policy::Name;
use store::{ActiveProxies, Store};
use tokio::time::sleep;

use crate::domains::Domains;

/// How often proxies are recorded in the store.
const EVERY: Duration = Duration::from_secs(1);

/// The most pairs of limit and proxy between two recordings. With more, counts are too low and proxies
/// take too large a share.
const SEEN_MAX: usize = 100_000;

/// Limits of a domain whose proxies are counted individually. The others use the count of the whole
/// domain, which is never lower, so that a proxy takes too small a share rather than too large a
/// one.
const LIMITS_MAX: usize = 1000;

type Counts = HashMap<Name, Arc<DomainCounts>>;

/// Live proxies of a domain.
#[derive(Debug, Default)]
pub(crate) struct DomainCounts {
    /// Proxies that sent any request.
    pub(crate) all: u64,
    /// Proxies that checked each limit; without limits that none checked recently.
    pub(crate) limits: BTreeMap<Name, u64>,
    /// Whether some limits are not counted one by one.
    partial: bool,
}

impl DomainCounts {
    /// The proxies of a limit; `None`: none checked it lately.
    pub(crate) fn of(&self, limit: &Name) -> Option<u64> {
        let counted = self.limits.get(limit).copied();
        counted.or((self.partial && self.all > 0).then_some(self.all))
    }
}

/// The proxies seen since the last recording, and the latest counts.
pub(crate) struct ProxyCounter {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    seen: Mutex<Seen>,
    counts: ArcSwap<Counts>,
}

#[derive(Default)]
struct Seen {
    domains: HashMap<Name, HashMap<Option<Name>, HashSet<String>>>,
    pairs: usize,
}

impl ProxyCounter {
    pub(crate) fn new(store: Arc<dyn Store>, domains: Arc<Domains>) -> Self {
        Self {
            store,
            domains,
            seen: Mutex::default(),
            counts: ArcSwap::default(),
        }
    }

    /// Records that a proxy checked these limits of a domain.
    pub(crate) fn saw<'n>(
        &self,
        domain: &Name,
        proxy: &str,
        limits: impl IntoIterator<Item = &'n Name>,
    ) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.add(domain, None, proxy);
        for limit in limits {
            seen.add(domain, Some(limit), proxy);
        }
    }

    /// Live proxies of a domain.
    pub(crate) fn counts(&self, domain: &Name) -> Option<Arc<DomainCounts>> {
        self.counts.load().get(domain).cloned()
    }

    /// Records and counts for ever.
    pub(crate) async fn record_forever(&self) {
        loop {
            sleep(EVERY).await;
            self.exchange().await;
        }
    }

    async fn exchange(&self) {
        let mut seen = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *seen).domains
        };
        let mut counts = Counts::new();
        for (name, domain) in &*self.domains.all() {
            let Some(active) = &domain.active else {
                continue;
            };
            let mut by_limit = seen.remove(name).unwrap_or_default();
            let limits = active.compiled.limits();
            // Also count limits that only other replicas checked.
            let counted = limits.iter().take(LIMITS_MAX);
            let counted = counted.map(|limit| Some(limit.name.clone()));
            let asked: ActiveProxies = std::iter::once(None)
                .chain(counted)
                .map(|limit| {
                    let proxies = by_limit.remove(&limit).unwrap_or_default();
                    (limit, proxies.into_iter().collect())
                })
                .collect();
            match self.store.count_proxies(name, &asked).await {
                Ok(found) => {
                    let live = found.iter().filter(|(_, count)| **count > 0);
                    let live = live.filter_map(|(limit, count)| Some((limit.clone()?, *count)));
                    let domain = DomainCounts {
                        all: found.get(&None).copied().unwrap_or(0),
                        limits: live.collect(),
                        partial: limits.len() > LIMITS_MAX,
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

impl Seen {
    fn add(&mut self, domain: &Name, limit: Option<&Name>, proxy: &str) {
        let limit = limit.cloned();
        let known = self
            .domains
            .get(domain)
            .and_then(|limits| limits.get(&limit));
        if known.is_some_and(|proxies| proxies.contains(proxy)) || self.pairs >= SEEN_MAX {
            return;
        }
        self.pairs += 1;
        self.domains
            .entry(domain.clone())
            .or_default()
            .entry(limit)
            .or_default()
            .insert(proxy.to_owned());
    }
}

//! How many proxies share each limit: what a proxy divides by while no limiter answers.
//!
//! Proxies name themselves when they ask; [`Callers`](crate::callers::Callers) says which of the names
//! count. They are recorded in the store every second, which returns how many all replicas saw
//! within its last 10 s.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use policy::Name;
use store::{Asked, Store};
use tokio::time::sleep;

use crate::domains::Domains;

/// How often the store is told.
const EVERY: Duration = Duration::from_secs(1);

/// Pairs of limit and proxy remembered between two tellings. Beyond it a fleet is counted too
/// small, and its proxies allow themselves too large a share.
const SEEN_MAX: usize = 100_000;

/// Limits of a domain whose proxies are counted one by one. The others share the count of the whole
/// domain: never fewer, so that a proxy takes too little of them rather than too much.
const LIMITS_MAX: usize = 1000;

type Counts = HashMap<Name, Arc<DomainCounts>>;

/// Live proxies of a domain.
#[derive(Debug, Default)]
pub(crate) struct DomainCounts {
    /// Those that asked for anything.
    pub(crate) all: u64,
    /// Those that asked for a limit; limits that none asked for lately are not in it.
    pub(crate) limits: BTreeMap<Name, u64>,
    /// Whether some limits are not counted one by one.
    partial: bool,
}

impl DomainCounts {
    /// The proxies of a limit; `None`: none asked for it lately.
    pub(crate) fn of(&self, limit: &Name) -> Option<u64> {
        let counted = self.limits.get(limit).copied();
        counted.or((self.partial && self.all > 0).then_some(self.all))
    }
}

/// The proxies seen, and counted.
pub(crate) struct Proxies {
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

impl Proxies {
    pub(crate) fn new(store: Arc<dyn Store>, domains: Arc<Domains>) -> Self {
        Self {
            store,
            domains,
            seen: Mutex::default(),
            counts: ArcSwap::default(),
        }
    }

    /// A proxy asked for these limits of a domain.
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

    /// Tells and asks the store for ever.
    pub(crate) async fn follow(&self) {
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
            let mut told = seen.remove(name).unwrap_or_default();
            let limits = active.compiled.limits();
            // Limits that only other replicas were asked for are counted too.
            let counted = limits.iter().take(LIMITS_MAX);
            let counted = counted.map(|limit| Some(limit.name.clone()));
            let asked: Asked = std::iter::once(None)
                .chain(counted)
                .map(|limit| {
                    let proxies = told.remove(&limit).unwrap_or_default();
                    (limit, proxies.into_iter().collect())
                })
                .collect();
            match self.store.proxies(name, &asked).await {
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
                // What was known stays: an outage of the store is when it is needed.
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

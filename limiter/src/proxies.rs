//! How many proxies share each limit: what a proxy divides by while no limiter answers.
//!
//! Proxies name themselves when they ask. Who was seen is told to the store every second, and the
//! store tells how many all replicas saw within its last 10 s.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use policy::Name;
use store::Store;
use tokio::time::sleep;

use crate::domains::Domains;

/// How often the store is told.
const EVERY: Duration = Duration::from_secs(1);

/// Pairs of limit and proxy remembered between two tellings. Beyond it a fleet is counted too
/// small, and its proxies allow themselves too large a share.
const SEEN_MAX: usize = 100_000;

/// Limits of a domain whose proxies are counted.
const LIMITS_MAX: usize = 1000;

/// The longest name of a proxy; longer ones are not counted.
const ID_MAX: usize = 64;

type Counts = HashMap<Name, Arc<BTreeMap<Name, u64>>>;

/// The proxies seen, and counted.
pub(crate) struct Proxies {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    seen: Mutex<Seen>,
    counts: ArcSwap<Counts>,
}

#[derive(Default)]
struct Seen {
    domains: HashMap<Name, HashMap<Name, HashSet<String>>>,
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
        if proxy.is_empty() || proxy.len() > ID_MAX {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for limit in limits {
            seen.add(domain, limit, proxy);
        }
    }

    /// Live proxies per limit of a domain; limits that none asked for lately are not in it.
    pub(crate) fn counts(&self, domain: &Name) -> Option<Arc<BTreeMap<Name, u64>>> {
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
            // Limits that only other replicas were asked for are counted too.
            let asked: BTreeMap<Name, Vec<String>> = active
                .compiled
                .limits()
                .iter()
                .take(LIMITS_MAX)
                .map(|limit| {
                    let proxies = told.remove(&limit.name).unwrap_or_default();
                    (limit.name.clone(), proxies.into_iter().collect())
                })
                .collect();
            match self.store.proxies(name, &asked).await {
                Ok(found) => {
                    let live = found.into_iter().filter(|(_, count)| *count > 0);
                    counts.insert(name.clone(), Arc::new(live.collect()));
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
    fn add(&mut self, domain: &Name, limit: &Name, proxy: &str) {
        let known = self
            .domains
            .get(domain)
            .and_then(|limits| limits.get(limit));
        if known.is_some_and(|proxies| proxies.contains(proxy)) || self.pairs >= SEEN_MAX {
            return;
        }
        self.pairs += 1;
        self.domains
            .entry(domain.clone())
            .or_default()
            .entry(limit.clone())
            .or_default()
            .insert(proxy.to_owned());
    }
}

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

/// The most proxies of a domain, and pairs of a limit and a proxy of it, between two recordings. No domain
/// takes another's. With more pairs, its limits have the domain's count until the next recording.
const PROXIES_MAX: usize = 5000;
const PAIRS_MAX: usize = 50_000;

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

type Seen = HashMap<Name, SeenProxies>;

/// The proxies of a domain.
#[derive(Default)]
struct SeenProxies {
    all: HashSet<String>,
    by_limit: HashMap<Name, HashSet<String>>,
    pairs: usize,
    /// Whether there were more pairs.
    crowded: bool,
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
        if !seen.contains_key(domain) {
            seen.insert(domain.clone(), SeenProxies::default());
        }
        if let Some(proxies) = seen.get_mut(domain) {
            proxies.add(proxy, limits);
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
            std::mem::take(&mut *seen)
        };
        let mut counts = Counts::new();
        for (name, domain) in &*self.domains.all() {
            let Some(active) = &domain.active else {
                continue;
            };
            let mut seen = seen.remove(name).unwrap_or_default();
            let limits = active.compiled.limits();
            // Also count limits that only other replicas checked.
            let counted = limits.iter().take(LIMITS_MAX).map(|limit| {
                let proxies = seen.by_limit.remove(&limit.name).unwrap_or_default();
                (Some(limit.name.clone()), proxies.into_iter().collect())
            });
            let all = (None, seen.all.into_iter().collect());
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

impl SeenProxies {
    fn add<'n>(&mut self, proxy: &str, limits: impl IntoIterator<Item = &'n Name>) {
        if !self.all.contains(proxy) && self.all.len() < PROXIES_MAX {
            self.all.insert(proxy.to_owned());
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
            proxies.insert(proxy.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use policy::Policy;
    use store::{Change, Edit, Options, Overrides, Signature, StoreUrl, open};

    #[tokio::test]
    async fn a_domain_with_many_pairs_takes_nothing_of_anothers_count_nor_of_its_own() {
        let store = open(&StoreUrl::Memory, Options::default()).unwrap();
        for domain in ["busy", "quiet"] {
            let limits = (0..60).map(|n| format!("{{name: l{n}, rate: 1/s}}"));
            let limits = limits.collect::<Vec<_>>().join(",");
            let text = format!("domain: {domain}\nlimits: [{limits}]\n");
            let policy = Policy::from_yaml("test", text.as_bytes()).unwrap();
            let base = store.read(&policy.domain, Overrides::All).await.unwrap();
            let edit = Edit {
                domain: &policy.domain,
                base: &base,
                change: Change::Limits(&policy),
                by: &Signature::default(),
            };
            store.write(&edit).await.unwrap();
        }
        let domains = Arc::new(Domains::new(Arc::clone(&store), Arc::new(Metrics::new())));
        let polling = Arc::clone(&domains);
        let polling = tokio::spawn(async move { polling.poll_forever().await });
        while domains.all().len() < 2 {
            tokio::task::yield_now().await;
        }
        polling.abort();
        let counter = ProxyCounter::new(store, domains);
        let name = |text: &str| text.parse::<Name>().unwrap();
        let limits: Vec<Name> = (0..60).map(|n| name(&format!("l{n}"))).collect();
        let proxies = PAIRS_MAX / limits.len() + 100;
        for nth in 0..proxies {
            counter.saw(&name("busy"), &format!("{nth:032x}"), &limits);
        }
        for nth in 0..3 {
            counter.saw(&name("quiet"), &format!("{nth:032x}"), &limits[..2]);
        }
        counter.exchange().await;
        let counts = |domain| {
            let counts = counter.counts(&name(domain)).unwrap();
            (
                counts.all,
                ["l0", "l59"].map(|limit| counts.of(&name(limit))),
            )
        };
        let proxies = u64::try_from(proxies).unwrap();
        // Never less than there are, so that no proxy takes too large a share.
        assert_eq!(counts("busy"), (proxies, [Some(proxies); 2]));
        assert_eq!(counts("quiet"), (3, [Some(3), None]));
    }
}

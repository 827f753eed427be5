//! The proxies that sent a request recently: which limits they have in force, and which entries
//! they supply.
//!
//! No decision depends on this registry: it holds the last request of each proxy and domain, stays
//! in this process for 10 s, and may be incomplete. The separate
//! [`ProxyCounter`](crate::proxy_counter::ProxyCounter) counts pairs of limit and proxy in the
//! store every second, and proxies divide limits by the result.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Name, Revision};
use store::ProxyStatus;
use tokio::time::Instant;

/// How long a proxy stays after its last request. Proxies poll several times a second.
const LIFE: Duration = Duration::from_secs(10);

/// The most pairs of domain and proxy; further proxies are not listed.
const PAIRS_MAX: usize = 5000;

/// Entries kept of all domains; what a domain with more supplies is not reported.
const ENTRIES_MAX: usize = 5000;

/// The longest reported node name, in bytes.
const NODE_MAX: usize = 128;

/// The proxies by domain. A domain need not have limits.
#[derive(Debug, Default)]
pub(super) struct ProxyRegistry(Mutex<Proxies>);

#[derive(Debug, Default)]
struct Proxies {
    domains: BTreeMap<Name, Domain>,
    pairs: usize,
    entries: usize,
}

#[derive(Debug, Default)]
struct Domain {
    proxies: HashMap<String, Proxy>,
    /// The entries they supply besides the built-in ones, and when a proxy last listed each.
    entries: BTreeMap<Name, Instant>,
}

#[derive(Debug)]
struct Proxy {
    node: Option<String>,
    revision: Option<Revision>,
    /// When it last listed its entries.
    listed_at: Option<Instant>,
    at: Instant,
}

/// The live proxies, by domain.
#[derive(Debug, Default)]
pub(super) struct Alive {
    pub(super) proxies: BTreeMap<Name, Vec<ProxyStatus>>,
    /// The entries they supply, for domains in which every proxy has listed its own.
    pub(super) entries: BTreeMap<Name, BTreeSet<Name>>,
}

/// What a request says of its proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestingProxy<'a> {
    /// The random id of one Envoy process.
    pub(crate) id: &'a str,
    /// The name of its node.
    pub(crate) node: Option<&'a str>,
    /// The revision it has in force.
    pub(crate) revision: Option<&'a Revision>,
}

impl ProxyRegistry {
    pub(super) fn record(&self, domain: &Name, sender: RequestingProxy<'_>, now: Instant) {
        let mut proxies = self.lock();
        let known = proxies.domains.get_mut(domain);
        if let Some(proxy) = known.and_then(|domain| domain.proxies.get_mut(sender.id)) {
            proxy.at = now;
            if proxy.revision.as_ref() != sender.revision {
                proxy.revision = sender.revision.cloned();
            }
            if proxy.node.is_none() {
                proxy.node = sender.node.map(named);
            }
        } else if proxies.pairs < PAIRS_MAX {
            proxies.pairs += 1;
            let proxy = Proxy {
                node: sender.node.map(named),
                revision: sender.revision.cloned(),
                listed_at: None,
                at: now,
            };
            let domain = proxies.domains.entry(domain.clone()).or_default();
            domain.proxies.insert(sender.id.to_owned(), proxy);
        }
    }

    /// Records the entries that a known proxy supplies, listed as `tenant,user`.
    pub(super) fn list_entries(&self, domain: &Name, id: &str, list: &str, now: Instant) {
        let mut proxies = self.lock();
        let Proxies {
            domains, entries, ..
        } = &mut *proxies;
        if let Some(domain) = domains.get_mut(domain)
            && let Some(proxy) = domain.proxies.get_mut(id)
        {
            let kept = keep(&mut domain.entries, list, entries, now);
            proxy.listed_at = kept.then_some(now);
        }
    }

    /// The live proxies; removes the others.
    pub(super) fn alive(&self, now: Instant) -> Alive {
        let mut proxies = self.lock();
        proxies.forget(now);
        let mut alive = Alive::default();
        for (name, domain) in &proxies.domains {
            let seen = domain.proxies.iter().map(|(id, proxy)| ProxyStatus {
                id: id.clone(),
                node: proxy.node.clone(),
                revision: proxy.revision.clone(),
                ago_ms: millis(now.saturating_duration_since(proxy.at)),
            });
            alive.proxies.insert(name.clone(), seen.collect());
            let has_listed = |proxy: &Proxy| proxy.listed_at.is_some_and(|at| is_recent(at, now));
            if domain.proxies.values().all(has_listed) {
                let entries = domain.entries.keys().cloned().collect();
                alive.entries.insert(name.clone(), entries);
            }
        }
        alive
    }

    fn lock(&self) -> MutexGuard<'_, Proxies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxies {
    fn forget(&mut self, now: Instant) {
        for domain in self.domains.values_mut() {
            domain.proxies.retain(|_, proxy| is_recent(proxy.at, now));
            domain.entries.retain(|_, at| is_recent(*at, now));
        }
        self.domains.retain(|_, domain| !domain.proxies.is_empty());
        let domains = self.domains.values();
        self.pairs = domains.clone().map(|domain| domain.proxies.len()).sum();
        self.entries = domains.map(|domain| domain.entries.len()).sum();
    }
}

/// Keeps the entries of a list; returns whether all fit. `kept` counts the entries of all domains.
fn keep(entries: &mut BTreeMap<Name, Instant>, list: &str, kept: &mut usize, now: Instant) -> bool {
    for name in list.split(',').filter(|name| !name.is_empty()) {
        if let Some(at) = entries.get_mut(name) {
            *at = now;
            continue;
        }
        match name.parse() {
            Ok(name) if *kept < ENTRIES_MAX => {
                *kept += 1;
                entries.insert(name, now);
            }
            _ => return false,
        }
    }
    true
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= LIFE
}

/// A node's name as reported: printable characters only, cut to the maximum length.
fn named(node: &str) -> String {
    let printable = node.chars().filter(|c| policy::is_printable(*c));
    let mut name = String::new();
    for c in printable {
        if name.len() + c.len_utf8() > NODE_MAX {
            break;
        }
        name.push(c);
    }
    name
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender<'a>(id: &'a str, revision: Option<&'a Revision>) -> RequestingProxy<'a> {
        RequestingProxy {
            id,
            node: Some("edge-1\u{1b}[2J"),
            revision,
        }
    }

    #[test]
    fn a_proxy_stays_for_ten_seconds_with_its_last_report() {
        let registry = ProxyRegistry::default();
        let shop: Name = "shop".parse().unwrap();
        let first = Revision {
            number: 1,
            digest: 7,
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        registry.record(&shop, sender("p1", None), at(0));
        registry.record(&shop, sender("p2", None), at(0));
        registry.record(&shop, sender("p1", Some(&first)), at(6));
        let alive = registry.alive(at(11)).proxies;
        let [p1] = &alive[&shop][..] else {
            panic!("{alive:?}");
        };
        assert_eq!((p1.id.as_str(), p1.ago_ms), ("p1", 5000));
        assert_eq!(p1.revision, Some(first));
        assert_eq!(p1.node.as_deref(), Some("edge-1[2J"));
        assert!(registry.alive(at(17)).proxies.is_empty());
    }

    #[test]
    fn invented_proxies_take_bounded_memory_and_expire() {
        let registry = ProxyRegistry::default();
        let shop: Name = "shop".parse().unwrap();
        let now = Instant::now();
        for n in 0..2 * PAIRS_MAX {
            registry.record(&shop, sender(&format!("p{n}"), None), now);
        }
        assert_eq!(registry.alive(now).proxies[&shop].len(), PAIRS_MAX);
        let later = now + LIFE * 2;
        assert!(registry.alive(later).proxies.is_empty());
        registry.record(&shop, sender("p", None), later);
        assert_eq!(registry.alive(later).proxies[&shop].len(), 1);
    }

    #[test]
    fn a_domains_entries_are_known_only_if_every_proxy_lists_its_own() {
        let registry = ProxyRegistry::default();
        let shop: Name = "shop".parse().unwrap();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let record = |id, entries, s| {
            registry.record(&shop, sender(id, None), at(s));
            registry.list_entries(&shop, id, entries, at(s));
        };
        let entries = |s| {
            let alive = registry.alive(at(s));
            let names = alive.entries.get(&shop)?.iter().map(Name::to_string);
            Some(names.collect::<Vec<_>>().join(","))
        };
        assert_eq!(entries(0), None);
        record("p1", "user,tenant", 0);
        record("p2", "", 0);
        assert_eq!(entries(1).unwrap(), "tenant,user");
        record("p3", "no name", 3);
        assert_eq!(entries(3), None);
        record("p3", "", 4);
        assert_eq!(entries(4).unwrap(), "tenant,user");
        registry.record(&shop, sender("p4", None), at(5));
        assert_eq!(entries(5), None, "it checks, and has not polled yet");
        record("p1", "user", 8);
        assert_eq!(entries(16).unwrap(), "user", "the others are gone");
        registry.record(&shop, sender("p1", None), at(17));
        assert_eq!(entries(19), None, "it lists nothing any more");
    }

    #[test]
    fn invented_entries_take_bounded_memory_and_expire() {
        let registry = ProxyRegistry::default();
        let shop: Name = "shop".parse().unwrap();
        let start = Instant::now();
        let list = |from: usize, to| {
            let names = (from..to).map(|n| format!("e{n}"));
            names.collect::<Vec<_>>().join(",")
        };
        let known = |list: &str, now| {
            registry.record(&shop, sender("p1", None), now);
            registry.list_entries(&shop, "p1", list, now);
            registry.alive(now).entries.contains_key(&shop)
        };
        assert!(known(&list(0, ENTRIES_MAX), start));
        assert!(!known("one-more", start));
        registry.alive(start + LIFE * 2);
        assert!(known("one-more", start + LIFE * 2));
    }
}

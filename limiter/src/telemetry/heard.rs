//! The proxies that asked lately: which limits they follow, and how far.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Name, Revision};
use store::ProxySeen;
use tokio::time::Instant;

/// How long a proxy is told of after it was last heard of. They ask several times a second.
const LIFE: Duration = Duration::from_secs(10);

/// Pairs of domain and proxy; the proxies of more are not listed.
const PAIRS_MAX: usize = 5000;

/// As much of what an operator calls a proxy as is told, in bytes.
const NODE_MAX: usize = 128;

/// The proxies, by domain. There need not be limits for one.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<Proxies>);

#[derive(Debug, Default)]
struct Proxies {
    domains: BTreeMap<Name, HashMap<String, Proxy>>,
    pairs: usize,
}

#[derive(Debug)]
struct Proxy {
    node: Option<String>,
    revision: Option<Revision>,
    at: Instant,
}

/// What a proxy says of itself when it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// The random word of one Envoy process.
    pub(crate) id: &'a str,
    /// What its operator calls it.
    pub(crate) node: Option<&'a str>,
    /// What it has in force.
    pub(crate) revision: Option<&'a Revision>,
}

impl Heard {
    pub(super) fn hear(&self, domain: &Name, asker: Asker<'_>, now: Instant) {
        let mut proxies = self.lock();
        let known = proxies.domains.get_mut(domain);
        if let Some(proxy) = known.and_then(|domain| domain.get_mut(asker.id)) {
            proxy.at = now;
            if proxy.revision.as_ref() != asker.revision {
                proxy.revision = asker.revision.cloned();
            }
            if proxy.node.is_none() {
                proxy.node = asker.node.map(named);
            }
        } else if proxies.pairs < PAIRS_MAX {
            proxies.pairs += 1;
            let proxy = Proxy {
                node: asker.node.map(named),
                revision: asker.revision.cloned(),
                at: now,
            };
            let domain = proxies.domains.entry(domain.clone()).or_default();
            domain.insert(asker.id.to_owned(), proxy);
        }
    }

    /// Who is alive, by domain; forgets the others.
    pub(super) fn alive(&self, now: Instant) -> BTreeMap<Name, Vec<ProxySeen>> {
        let mut proxies = self.lock();
        for domain in proxies.domains.values_mut() {
            domain.retain(|_, proxy| now.saturating_duration_since(proxy.at) <= LIFE);
        }
        proxies.domains.retain(|_, domain| !domain.is_empty());
        proxies.pairs = proxies.domains.values().map(HashMap::len).sum();
        let seen = |(id, proxy): (&String, &Proxy)| ProxySeen {
            id: id.clone(),
            node: proxy.node.clone(),
            revision: proxy.revision.clone(),
            ago_ms: millis(now.saturating_duration_since(proxy.at)),
        };
        let domains = proxies.domains.iter();
        domains
            .map(|(name, domain)| (name.clone(), domain.iter().map(seen).collect()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Proxies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever a proxy is called, it is text that is not long.
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

    fn asker<'a>(id: &'a str, revision: Option<&'a Revision>) -> Asker<'a> {
        Asker {
            id,
            node: Some("edge-1\u{1b}[2J"),
            revision,
        }
    }

    #[test]
    fn a_proxy_is_known_for_ten_seconds_by_what_it_said_last() {
        let heard = Heard::default();
        let shop: Name = "shop".parse().unwrap();
        let first = Revision {
            number: 1,
            digest: 7,
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        heard.hear(&shop, asker("p1", None), at(0));
        heard.hear(&shop, asker("p2", None), at(0));
        heard.hear(&shop, asker("p1", Some(&first)), at(6));
        let alive = heard.alive(at(11));
        let [p1] = &alive[&shop][..] else {
            panic!("{alive:?}");
        };
        assert_eq!((p1.id.as_str(), p1.ago_ms), ("p1", 5000));
        assert_eq!(p1.revision, Some(first));
        assert_eq!(p1.node.as_deref(), Some("edge-1[2J"));
        assert!(heard.alive(at(17)).is_empty());
    }

    #[test]
    fn made_up_proxies_take_a_bounded_place_and_give_it_back() {
        let heard = Heard::default();
        let shop: Name = "shop".parse().unwrap();
        let now = Instant::now();
        for n in 0..2 * PAIRS_MAX {
            heard.hear(&shop, asker(&format!("p{n}"), None), now);
        }
        assert_eq!(heard.alive(now)[&shop].len(), PAIRS_MAX);
        let later = now + LIFE * 2;
        assert!(heard.alive(later).is_empty());
        heard.hear(&shop, asker("p", None), later);
        assert_eq!(heard.alive(later)[&shop].len(), 1);
    }
}

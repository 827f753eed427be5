//! Which ids count as proxies.
//!
//! Clients choose the id they send, so an id proves nothing: made-up ids would shrink the share
//! that each proxy takes while no limiter answers, and fill Redis. So an id counts only if it has
//! the form that filters generate, and at most
//! [`Settings::proxies_per_address`](crate::Settings) ids of one address count at once. Requests
//! with other ids are answered like any other, but neither counted nor reported.
//!
//! Known gaps: a caller with many addresses counts once for each, and one that reaches several
//! limiters counts at each. For the loopback address only the limiter-wide bounds apply: a mesh's
//! sidecar forwards all callers' requests from there, and the mesh must decide who may call.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long an id stays after its last request; the proxy counts expire as fast.
const LIFE: Duration = Duration::from_secs(10);

/// Ids alive at once.
const PROXIES_MAX: usize = 5000;

/// The most new ids per second: a large fleet that starts is counted within ten seconds.
const NEW_MAX: usize = 500;

/// How often expired ids are removed, and how often rejected ids are logged.
const SWEEP: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The ids that count.
#[derive(Debug)]
pub(crate) struct Callers {
    per_address: usize,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    proxies: HashMap<Box<str>, Proxy>,
    /// How many of these ids each address sent first.
    addresses: HashMap<IpAddr, usize>,
    /// New ids since the last sweep.
    new: usize,
    swept: Instant,
    logged: Option<Instant>,
}

#[derive(Debug)]
struct Proxy {
    address: Option<IpAddr>,
    at: Instant,
}

impl Callers {
    pub(crate) fn new(per_address: usize, now: Instant) -> Self {
        Self {
            per_address,
            known: Mutex::new(Known {
                proxies: HashMap::new(),
                addresses: HashMap::new(),
                new: 0,
                swept: now,
                logged: None,
            }),
        }
    }

    /// Whether the id of a request from this address counts as a proxy.
    pub(crate) fn count(&self, address: IpAddr, id: &str) -> bool {
        self.count_at(address, id, Instant::now())
    }

    fn count_at(&self, address: IpAddr, id: &str, now: Instant) -> bool {
        if !protocol::is_proxy_id(id) {
            return false;
        }
        let address = (!address.is_loopback()).then_some(address);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(known.swept) >= SWEEP {
            known.sweep(now);
        }
        if let Some(proxy) = known.proxies.get_mut(id) {
            proxy.at = now;
            return true;
        }
        let named = address.and_then(|address| known.addresses.get(&address).copied());
        if named.unwrap_or(0) >= self.per_address {
            known.log_once(address, self.per_address, now);
            return false;
        }
        if known.proxies.len() >= PROXIES_MAX || known.new >= NEW_MAX {
            return false;
        }
        known.new += 1;
        if let Some(address) = address {
            *known.addresses.entry(address).or_default() += 1;
        }
        known.proxies.insert(id.into(), Proxy { address, at: now });
        true
    }
}

impl Known {
    fn sweep(&mut self, now: Instant) {
        self.proxies
            .retain(|_, proxy| now.saturating_duration_since(proxy.at) <= LIFE);
        self.addresses.clear();
        for address in self.proxies.values().filter_map(|proxy| proxy.address) {
            *self.addresses.entry(address).or_default() += 1;
        }
        (self.new, self.swept) = (0, now);
    }

    fn log_once(&mut self, address: Option<IpAddr>, most: usize, now: Instant) {
        let recent = |at: Instant| now.saturating_duration_since(at) < LOG_EVERY;
        if self.logged.is_some_and(recent) {
            return;
        }
        self.logged = Some(now);
        tracing::warn!(
            ?address,
            most,
            "more proxies at one address than are counted; if they share it, raise \
             --proxies-per-address"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> String {
        format!("{n:032x}")
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn after(start: Instant, s: u64) -> Instant {
        start + Duration::from_secs(s)
    }

    #[test]
    fn one_address_adds_at_most_its_share_of_proxies_and_hides_none() {
        let start = Instant::now();
        let callers = Callers::new(16, start);
        assert!(callers.count_at(address(1), &id(1), start));
        let invented = (100..7100).filter(|n| callers.count_at(address(2), &id(*n), start));
        assert_eq!(invented.count(), 16);
        assert!(callers.count_at(address(3), &id(2), start), "others count");
        assert!(callers.count_at(address(1), &id(1), start));
        // Expired ids make room.
        assert!(!callers.count_at(address(2), &id(9000), after(start, 9)));
        assert!(callers.count_at(address(2), &id(9000), after(start, 12)));
    }

    #[test]
    fn a_proxy_whose_address_changes_still_counts() {
        let start = Instant::now();
        let callers = Callers::new(1, start);
        assert!(callers.count_at(address(1), &id(1), start));
        assert!(callers.count_at(address(2), &id(1), after(start, 5)));
        assert!(callers.count_at(address(2), &id(1), after(start, 12)));
        assert!(callers.count_at(address(2), &id(2), after(start, 12)));
    }

    #[test]
    fn proxies_behind_a_sidecar_are_bounded_in_total() {
        let start = Instant::now();
        let callers = Callers::new(16, start);
        let loopback = IpAddr::from([127, 0, 0, 6]);
        let named = |from, at| {
            let all = (from..from + 1000).filter(|n| callers.count_at(loopback, &id(*n), at));
            all.count()
        };
        assert_eq!(named(0, start), NEW_MAX);
        let mut all = NEW_MAX;
        for s in 1..=9 {
            let at = after(start, s);
            all += named(usize::try_from(s).unwrap() * 1000, at);
        }
        assert_eq!(all, PROXIES_MAX);
        assert_eq!(named(20_000, after(start, 10)), 0);
    }

    #[test]
    fn an_invalid_proxy_id_does_not_count() {
        let start = Instant::now();
        let callers = Callers::new(16, start);
        for id in [
            "",
            "p1",
            "\u{1b}[2J",
            &"x".repeat(32),
            &"A".repeat(32),
            &"0".repeat(33),
        ] {
            assert!(!callers.count_at(address(1), id, start), "{id}");
        }
    }
}

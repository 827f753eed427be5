//! Which proxies are active for which limits.

use std::collections::HashMap;

use policy::Name;
use store_plan::telemetry::PROXY_LIFE_MS;

use crate::{ActiveProxies, PROXIES_MAX, ProxyCounts};

/// Per domain and limit, the proxies and when they last asked, in milliseconds since the epoch.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    seen_at: HashMap<(Name, Option<Name>), HashMap<String, u64>>,
}

impl Proxies {
    pub(super) fn count(
        &mut self,
        domain: &Name,
        seen: &ActiveProxies,
        now_ms: u64,
    ) -> ProxyCounts {
        // Also not for longer after the clock stepped back.
        let alive = |at: u64| now_ms.abs_diff(at) <= PROXY_LIFE_MS;
        self.seen_at.retain(|_, proxies| {
            proxies.retain(|_, at| alive(*at));
            !proxies.is_empty()
        });
        let count = |(limit, new): (&Option<Name>, &Vec<String>)| {
            let proxies = self
                .seen_at
                .entry((domain.clone(), limit.clone()))
                .or_default();
            for proxy in new {
                if proxies.len() < PROXIES_MAX || proxies.contains_key(proxy) {
                    proxies.insert(proxy.clone(), now_ms);
                }
            }
            let count = u64::try_from(proxies.len()).unwrap_or(u64::MAX);
            (limit.clone(), count)
        };
        seen.iter().map(count).collect()
    }
}

//! Which proxies are active for which limits.

use policy::Name;
use redis_link::value;
use store_plan::telemetry::PROXY_LIFE_MS;

use super::RedisStore;
use crate::{ActiveProxies, PROXIES_MAX, ProxyCounts, StoreError, scripts::POLICY_PROXIES};

/// Limits and proxies in one script call, which takes the server about a millisecond.
const PROXIES_PER_CALL: usize = 500;

/// A limit, and some of the proxies that are active for it.
pub(super) type Piece<'a> = (&'a Option<Name>, &'a [String]);

impl RedisStore {
    pub(super) async fn count_proxies_of(
        &self,
        domain: &Name,
        asked: &[Piece<'_>],
        counts: &mut ProxyCounts,
    ) -> Result<(), StoreError> {
        let mut keys = Vec::with_capacity(asked.len());
        let mut args = vec![PROXY_LIFE_MS.to_string(), PROXIES_MAX.to_string()];
        for (limit, ids) in asked {
            keys.push(self.keys().proxies(domain, limit.as_ref()));
            args.push(ids.len().to_string());
            args.extend(ids.iter().cloned());
        }
        let reply = self.control_script(&POLICY_PROXIES, &keys, &args).await?;
        let found = value::integers(reply)?.into_iter();
        let found = found.map(|n| u64::try_from(n).unwrap_or(0));
        // If a limit is in several calls, the last count includes all its proxies.
        let limits = asked.iter().map(|(limit, _)| (*limit).clone());
        counts.extend(limits.zip(found));
        Ok(())
    }
}

/// Cuts what was asked so that no part is much larger than [`PROXIES_PER_CALL`].
pub(super) fn in_calls(seen: &ActiveProxies) -> Vec<Vec<Piece<'_>>> {
    let mut calls = Vec::new();
    let (mut call, mut size) = (Vec::new(), 0);
    for (limit, proxies) in seen {
        let none = proxies.is_empty().then_some(proxies.as_slice());
        for ids in proxies.chunks(PROXIES_PER_CALL).chain(none) {
            if size > 0 && size + 1 + ids.len() > PROXIES_PER_CALL {
                calls.push(std::mem::take(&mut call));
                size = 0;
            }
            call.push((limit, ids));
            size += 1 + ids.len();
        }
    }
    calls.push(call);
    calls.retain(|call| !call.is_empty());
    calls
}

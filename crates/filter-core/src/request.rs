//! The path of a request to its decision.
//!
//! `decide` decides as much of a request as this proxy can and carries out the decision; `claims` has what
//! the request holds meanwhile, also while a queue delays it.

mod claims;
mod decide;
mod denials;
mod descriptor;
mod in_flight;
mod limit_check;
mod pending_check;

use protocol::CHECK_STREAM;

use crate::{
    call::{CHECK_PATH, POLICY_PATH, REPORT_PATH},
    cost::{Metered, RequestBodies},
    response::QuotaHeaders,
    worker::{StreamId, Worker},
};
pub(crate) use claims::{Claims, LeasedUnits, LimiterSlots, LocalUnits};
use claims::{Held, Holds};
pub(crate) use decide::Admission;
pub(crate) use denials::Denials;
pub(crate) use descriptor::{Extracted, Plan};
pub use descriptor::{NoProperty, Request};
use in_flight::InFlight;
pub(crate) use in_flight::{HeldSlots, RequestDescriptor, Share};
pub(crate) use limit_check::{DenyingLimits, LimitCheck, quota_status};
pub(crate) use pending_check::{Attempts, PendingCheck, SlotRelease};

/// The requests of a worker that have not ended.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) streams: ByStream<Stream>,
    pub(crate) holds: Holds,
    pub(crate) in_flight: InFlight,
    pub(crate) metered: Metered,
    pub(crate) bodies: RequestBodies,
}

impl Requests {
    /// `hold_max` is how many requests may be held at once, `key` random.
    pub(crate) fn new(hold_max: usize, key: [u8; 16]) -> Self {
        Self {
            streams: ByStream::default(),
            holds: Holds::new(hold_max),
            in_flight: InFlight::new(key),
            metered: Metered::default(),
            bodies: RequestBodies::default(),
        }
    }
}

// --- The state of each request that has not ended.

/// Requests whose ids have the same low byte share a chain. The host counts ids up, so thousands of
/// concurrent requests are a few in each chain, and no table has to grow.
const CHAINS: usize = 256;

/// The state of one request.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The filter reads its body, which determines what it reserves.
    Body,
    /// Its check is in flight.
    Waiting,
    /// A queue holds it.
    Held,
    /// It continued; its response will show these quotas.
    Passed(QuotaHeaders),
}

/// A map from requests to values, by their ids.
#[derive(Debug)]
pub(crate) struct ByStream<T> {
    chains: Box<[Vec<(StreamId, T)>; CHAINS]>,
    len: usize,
}

impl<T> Default for ByStream<T> {
    fn default() -> Self {
        Self {
            chains: Box::new([const { Vec::new() }; CHAINS]),
            len: 0,
        }
    }
}

impl<T> ByStream<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&T> {
        let chain = self.chains.get(chain_of(id))?;
        chain.iter().find(|(of, _)| *of == id).map(|(_, kept)| kept)
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let mut kept = chain.iter_mut().filter(|(of, _)| *of == id);
        kept.next().map(|(_, kept)| kept)
    }

    /// Returns what was replaced.
    pub(crate) fn insert(&mut self, id: StreamId, new: T) -> Option<T> {
        if let Some(kept) = self.get_mut(id) {
            return Some(std::mem::replace(kept, new));
        }
        self.chains.get_mut(chain_of(id))?.push((id, new));
        self.len += 1;
        None
    }

    pub(crate) fn remove(&mut self, id: StreamId) -> Option<T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let at = chain.iter().position(|(of, _)| *of == id)?;
        self.len -= 1;
        Some(chain.swap_remove(at).1)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (StreamId, T)> {
        self.chains.iter_mut().flatten()
    }
}

/// Always below [`CHAINS`].
fn chain_of(id: StreamId) -> usize {
    let [low, ..] = id.0.to_le_bytes();
    usize::from(low)
}

// --- Recognizes the filter's own calls to a limiter, which are not limited.

impl Worker {
    /// Whether a request is a filter's call to the limiter that passes through another Envoy (the
    /// sidecar of a limiter). Checking it would cause another call, and so on. The limiter's token
    /// proves it. The `:authority` alone does not, unless the configuration says that clients cannot
    /// reach that host.
    pub(crate) fn is_limiter_traffic(&self, request: &impl Request) -> bool {
        let bearer = self.calls.bearer.as_deref();
        if bearer.is_none() && !self.config.limiter.trust_host {
            return false;
        }
        let Some(path) = request.header(":path") else {
            return false;
        };
        // Only these paths: otherwise every path of that host would be unlimited.
        let polls = path.strip_prefix(POLICY_PATH.as_bytes());
        let polls = polls.is_some_and(|rest| matches!(rest, [] | [b'?', ..]));
        let posts = [CHECK_PATH, REPORT_PATH, CHECK_STREAM];
        if !posts.iter().any(|known| *path == *known.as_bytes()) && !polls {
            return false;
        }
        let authority = self.config.limiter.authority.as_bytes();
        let to_limiter = request
            .header(":authority")
            .is_some_and(|host| *host == *authority);
        let given = || request.header("authorization");
        to_limiter
            && bearer.is_none_or(|own| given().is_some_and(|token| *token == *own.as_bytes()))
    }
}

// --- Groups items that belong to one bucket.

/// Splits items into groups in which each item is the `same` as the first. Equal items have equal
/// `hash`es, which are keyed, so that clients cannot fill one chain.
pub(crate) fn grouped<T>(
    items: Vec<T>,
    hash: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
) -> impl Iterator<Item = Vec<T>> {
    let mut chains: Vec<Vec<Vec<T>>> = Vec::new();
    chains.resize_with(if items.len() > 1 { CHAINS } else { 1 }, Vec::new);
    let mask = chains.len() - 1;
    for item in items {
        let [low, ..] = hash(&item).to_le_bytes();
        let Some(chain) = chains.get_mut(usize::from(low) & mask) else {
            continue;
        };
        let of = |group: &&mut Vec<T>| group.first().is_some_and(|first| same(first, &item));
        match chain.iter_mut().find(of) {
            Some(group) => group.push(item),
            None => chain.push(vec![item]),
        }
    }
    chains.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_keeps_its_own_state_until_it_is_removed() {
        let mut streams = ByStream::default();
        assert!(streams.is_empty());
        for id in 0..2000 {
            streams.insert(StreamId(id), Stream::Waiting);
        }
        for id in (0..2000).step_by(2) {
            streams.insert(StreamId(id), Stream::Held);
        }
        for id in (0..2000).step_by(5) {
            assert!(streams.remove(StreamId(id)).is_some());
        }
        for id in 0..2000 {
            let kept = streams.remove(StreamId(id));
            let right = match id {
                _ if id % 5 == 0 => kept.is_none(),
                _ if id % 2 == 0 => matches!(kept, Some(Stream::Held)),
                _ => matches!(kept, Some(Stream::Waiting)),
            };
            assert!(right, "{id}: {kept:?}");
            assert!(streams.get(StreamId(id)).is_none());
        }
        assert!(streams.is_empty());
    }
}

#[cfg(test)]
mod grouped_tests {
    use super::*;

    #[test]
    fn equal_items_form_one_group_in_their_original_order() {
        for count in [0, 1, 2, 3000_u64] {
            let items: Vec<u64> = (0..count).collect();
            let same = |one: &u64, other: &u64| one % 1000 == other % 1000;
            let groups: Vec<_> = grouped(items, |item| item % 1000, same).collect();
            let wanted = usize::try_from(count.min(1000)).unwrap();
            assert_eq!(groups.len(), wanted);
            for group in groups {
                let first = group[0] % 1000;
                let like: Vec<u64> = (first..count).step_by(1000).collect();
                assert_eq!(group, like);
            }
        }
    }
}

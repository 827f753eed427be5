//! Who holds the slots of requests in flight, and since when.

use algorithms::{InFlightSlot, QueueSlot, SlotId};
use policy::format_timestamp;
use serde::Serialize;
use store::{Fleet, Inspection};

use crate::session::Session;

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldSlot {
    /// The proxy, by its node name or id; `program` or `rate limit service`.
    pub holder: String,
    /// When its request came.
    pub since: String,
    /// When it expires if nobody renews it, in milliseconds.
    pub expires_in_ms: u64,
}

/// The slots in a bucket as stored, the longest first; the store shows a hundred at most.
pub async fn of(session: &Session<'_>, inspection: &Inspection) -> Vec<HeldSlot> {
    let Some(state) = &inspection.state else {
        return Vec::new();
    };
    let mut slots = read(state, inspection.now_ms);
    slots.sort_by_key(|(slot, _)| slot.id.stamp);
    let fleet = session.store.fleet().await.ok();
    let holders = slots.into_iter().map(|(slot, expiry)| HeldSlot {
        holder: holder(slot.id, fleet.as_ref(), inspection.now_ms),
        since: format_timestamp(slot.id.at_s().saturating_mul(1000)),
        expires_in_ms: expiry.saturating_sub(inspection.now_ms),
    });
    holders.collect()
}

/// A proxy is listed within about a second of its first call, and until 10 s after its last.
const LISTED_WITHIN_MS: u64 = 10_000;

fn holder(slot: SlotId, fleet: Option<&Fleet>, now_ms: u64) -> String {
    let mark = match slot.mark() {
        SlotId::SERVICE => return "rate limit service".to_owned(),
        SlotId::PROGRAM => return "program".to_owned(),
        mark => mark,
    };
    let Some(fleet) = fleet else {
        return format!("proxy {mark:05x}");
    };
    let mut proxies = fleet.proxies.values().flatten();
    if let Some(proxy) = proxies.find(|proxy| SlotId::mark_of(&proxy.id) == mark) {
        return proxy.node.clone().unwrap_or_else(|| proxy.id.clone());
    }
    let age_ms = now_ms.saturating_sub(slot.at_s().saturating_mul(1000));
    // The limiter that gave the slot knows the proxy, and may not have reported since.
    if age_ms < LISTED_WITHIN_MS {
        format!("new proxy ({mark:05x})")
    } else {
        format!("proxy that reports no more ({mark:05x})")
    }
}

/// The members of the sorted set and their scores, as the store shows them.
fn read(state: &str, now_ms: u64) -> Vec<(InFlightSlot, u64)> {
    let mut words = state.split(' ');
    let mut slots = Vec::new();
    while let (Some(member), Some(score)) = (words.next(), words.next()) {
        let mut numbers = member.split(':').map(|number| number.parse().ok());
        let name = [numbers.next(), numbers.next(), numbers.next()].map(Option::flatten);
        if let ([Some(start_ms), Some(parts), Some(since_ms)], Ok(expiry)) =
            (name, score.parse::<u64>())
            && expiry > now_ms
        {
            let name = QueueSlot {
                start_ms,
                parts,
                since_ms,
                turn: 0,
            };
            slots.push((name.into(), expiry));
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_has_not_reported_yet_is_not_gone() {
        let slot = SlotId::new(1_763_000_000, SlotId::mark_of("p1"), 7);
        let fleet = Fleet::default();
        let came_ms = slot.at_s() * 1000;
        let at = |now_ms| holder(slot, Some(&fleet), now_ms);
        assert!(at(came_ms + 500).starts_with("new proxy ("));
        assert!(at(came_ms + 10_500).starts_with("proxy that reports no more ("));
        let unread = holder(slot, None, came_ms + 10_500);
        assert!(unread.starts_with("proxy ") && !unread.contains("no more"));
        // As soon as a limiter lists it, it has its name.
        let listed = store::ProxyStatus {
            id: "p1".to_owned(),
            node: Some("edge-1".to_owned()),
            revision: None,
            ago_ms: 0,
        };
        let proxies = [("shop".parse().unwrap(), vec![listed])].into();
        let fleet = Fleet {
            proxies,
            ..Fleet::default()
        };
        assert_eq!(holder(slot, Some(&fleet), came_ms), "edge-1");
    }

    #[test]
    fn slots_are_read_and_marks_and_what_expired_are_not() {
        let state = "8000:77:10000 2500 8001:78:10000 900 g -18 t -1001";
        let slots = read(state, 1000);
        let (slot, expiry) = slots.first().unwrap();
        assert_eq!((slots.len(), slot.id.secret, *expiry), (1, 77, 2500));
        assert_eq!(read("TokenBucket(TokenBucketState { debt: 1 })", 0), []);
    }
}

//! Who holds the slots of requests in flight, and since when.

use algorithms::{InFlightSlot, QueueSlot, SlotId};
use policy::format_timestamp;
use serde::Serialize;
use store::Inspection;

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
    let fleet = session.store.fleet().await.unwrap_or_default();
    let name = |mark: u64| match mark {
        SlotId::SERVICE => "rate limit service".to_owned(),
        SlotId::PROGRAM => "program".to_owned(),
        _ => {
            let mut proxies = fleet.proxies.values().flatten();
            let known = proxies.find(|proxy| SlotId::mark_of(&proxy.id) == mark);
            known.map_or_else(
                || format!("proxy that reports no more ({mark:05x})"),
                |proxy| proxy.node.clone().unwrap_or_else(|| proxy.id.clone()),
            )
        }
    };
    let holders = slots.into_iter().map(|(slot, expiry)| HeldSlot {
        holder: name(slot.id.mark()),
        since: format_timestamp(slot.id.at_s().saturating_mul(1000)),
        expires_in_ms: expiry.saturating_sub(inspection.now_ms),
    });
    holders.collect()
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
    fn slots_are_read_and_marks_and_what_expired_are_not() {
        let state = "8000:77:10000 2500 8001:78:10000 900 g -18 t -1001";
        let slots = read(state, 1000);
        let (slot, expiry) = slots.first().unwrap();
        assert_eq!((slots.len(), slot.id.secret, *expiry), (1, 77, 2500));
        assert_eq!(read("TokenBucket(TokenBucketState { debt: 1 })", 0), []);
    }
}

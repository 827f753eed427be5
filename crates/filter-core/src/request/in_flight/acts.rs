//! Checks that free, renew or enter slots and charge nothing: one check for the slots of one bucket.

use algorithms::SlotAct;

use super::held::HeldSlot;
use crate::{
    cache::BucketKey,
    grouped::grouped,
    request::{PendingCheck, SlotRelease},
    time::Now,
    worker::{StreamId, Worker},
};

/// Slots of one bucket in one check, at most.
const MAX_TOGETHER: usize = protocol::MAX_FREE;

/// A slot, and the request that holds it if that still runs.
type OfStream = (Option<StreamId>, HeldSlot);

impl Worker {
    /// Makes checks that free, renew or enter slots, those of a bucket together.
    pub(super) fn send_acts(&mut self, now: Now, act: SlotAct, slots: Vec<OfStream>) {
        // A slot whose bucket is not known here gets a check of its own.
        let hash = |(_, slot): &OfStream| slot.key.map_or(slot.slot.parts, BucketKey::hash);
        let same = |(_, one): &OfStream, (_, other): &OfStream| {
            one.key.is_some() && one.key == other.key && one.limit == other.limit
        };
        for slots in grouped(slots, hash, same) {
            for together in slots.chunks(MAX_TOGETHER) {
                self.send_act(now, act, together);
            }
        }
    }

    fn send_act(&mut self, now: Now, act: SlotAct, slots: &[OfStream]) {
        let Some((_, first)) = slots.first() else {
            return;
        };
        let ttls = slots.iter().filter_map(|(_, held)| held.slot.ttl_ms());
        let release = SlotRelease {
            act,
            slots: slots.iter().map(|(_, held)| held.free(act)).collect(),
            settle: Vec::new(),
            streams: slots.iter().filter_map(|(stream, _)| *stream).collect(),
            skip: Some(first.request.skip.clone()),
            entries: first.request.entries.clone(),
            until_us: now.after_ms(ttls.max().unwrap_or(0)),
        };
        let check = PendingCheck::of_slots(release);
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
        }
    }
}

//! The slots of a bucket in chunks, most of them shared with the state before the last write.

use std::sync::Arc;

use super::InFlightSlot;

/// Slots per chunk. A write copies at most this many, and one pointer per chunk.
const CHUNK: usize = 256;

/// Slots and when each expires, in milliseconds since the epoch, in the order of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldSlots {
    chunks: Vec<Arc<Chunk>>,
    len: usize,
}

/// Neighbouring slots; never empty.
#[derive(Clone, Debug)]
struct Chunk {
    slots: Vec<(InFlightSlot, u64)>,
    /// The earliest and the latest expiry.
    first_ms: u64,
    last_ms: u64,
    /// When the latest of them was written: its expiry less its ttl.
    written_ms: u64,
}

impl Chunk {
    /// `None` for no slots.
    fn new(slots: Vec<(InFlightSlot, u64)>) -> Option<Arc<Self>> {
        let expiries = || slots.iter().map(|(_, expiry)| *expiry);
        let written = slots
            .iter()
            .map(|(slot, at)| at.saturating_sub(slot.ttl_ms));
        Some(Arc::new(Self {
            first_ms: expiries().min()?,
            last_ms: expiries().max()?,
            written_ms: written.max()?,
            slots,
        }))
    }

    fn place(&self, slot: InFlightSlot) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&slot, |(slot, _)| *slot)
    }

    fn begins_after(&self, slot: InFlightSlot) -> bool {
        self.slots.first().is_some_and(|(first, _)| *first > slot)
    }
}

impl HeldSlots {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = (InFlightSlot, u64)> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.slots.iter().copied())
    }

    pub fn expiry_of(&self, slot: InFlightSlot) -> Option<u64> {
        let chunk = self.chunks.get(self.chunk_of(slot))?;
        let place = chunk.place(slot).ok()?;
        chunk.slots.get(place).map(|(_, expiry)| *expiry)
    }

    /// Adds a slot, or changes its expiry.
    pub fn insert(&mut self, slot: InFlightSlot, expiry_ms: u64) {
        let at = self.chunk_of(slot);
        let mut slots = self.take(at);
        match slots.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(place) => {
                if let Some((_, expiry)) = slots.get_mut(place) {
                    *expiry = expiry_ms;
                }
            }
            Err(place) => {
                slots.insert(place, (slot, expiry_ms));
                self.len += 1;
            }
        }
        // Names rise with time, so a slot added at the end leaves a full chunk behind.
        let full = slots.len() > CHUNK;
        let more = full.then(|| match slots.last() {
            Some((last, _)) if *last == slot => slots.split_off(CHUNK),
            _ => slots.split_off(CHUNK / 2),
        });
        self.put(at, [Some(slots), more].into_iter().flatten());
    }

    /// Removes a slot; returns whether it was there.
    pub fn remove(&mut self, slot: InFlightSlot) -> bool {
        let at = self.chunk_of(slot);
        let Some(place) = self.chunks.get(at).and_then(|chunk| chunk.place(slot).ok()) else {
            return false;
        };
        let mut slots = self.take(at);
        slots.remove(place);
        self.len -= 1;
        self.put(at, [slots]);
        self.join(at);
        self.join(at.saturating_sub(1));
        true
    }

    /// Drops the slots that expire by `now_ms`.
    pub fn drop_expired(&mut self, now_ms: u64) {
        self.change(
            |chunk| chunk.first_ms <= now_ms,
            |(slot, expiry)| (expiry > now_ms).then_some((slot, expiry)),
        );
    }

    /// Cuts each expiry to the slot's ttl from now; returns whether any may have been later.
    pub fn cut(&mut self, now_ms: u64) -> bool {
        self.change(
            |chunk| chunk.written_ms > now_ms,
            |(slot, expiry)| Some((slot, expiry.min(now_ms + slot.ttl_ms))),
        )
    }

    /// The expiry at place `nth`, from 0, in ascending order.
    pub fn nth_expiry(&self, nth: usize) -> Option<u64> {
        if nth == 0 {
            return self.chunks.iter().map(|chunk| chunk.first_ms).min();
        }
        let mut expiries: Vec<u64> = self.iter().map(|(_, expiry)| expiry).collect();
        (nth < expiries.len()).then(|| *expiries.select_nth_unstable(nth).1)
    }

    pub fn last_expiry(&self) -> Option<u64> {
        self.chunks.iter().map(|chunk| chunk.last_ms).max()
    }

    /// The index of the chunk that holds a slot, or would hold it.
    fn chunk_of(&self, slot: InFlightSlot) -> usize {
        let after = self
            .chunks
            .partition_point(|chunk| !chunk.begins_after(slot));
        after.saturating_sub(1)
    }

    /// Removes the chunk at a place.
    fn take(&mut self, at: usize) -> Vec<(InFlightSlot, u64)> {
        if at >= self.chunks.len() {
            return Vec::new();
        }
        Arc::unwrap_or_clone(self.chunks.remove(at)).slots
    }

    fn put(&mut self, at: usize, slots: impl IntoIterator<Item = Vec<(InFlightSlot, u64)>>) {
        let chunks = slots.into_iter().filter_map(Chunk::new);
        self.chunks.splice(at..at, chunks);
    }

    /// Makes one chunk of two small ones.
    fn join(&mut self, at: usize) {
        let pair = self.chunks.get(at..at + 2).unwrap_or_default();
        let len: usize = pair.iter().map(|chunk| chunk.slots.len()).sum();
        if pair.len() == 2 && len <= CHUNK / 2 {
            let mut slots = self.take(at);
            slots.append(&mut self.take(at));
            self.put(at, [slots]);
        }
    }

    /// Changes or drops the slots of some chunks; returns whether there were such chunks.
    fn change(
        &mut self,
        which: impl Fn(&Chunk) -> bool,
        to: impl Fn((InFlightSlot, u64)) -> Option<(InFlightSlot, u64)>,
    ) -> bool {
        if !self.chunks.iter().any(|chunk| which(chunk)) {
            return false;
        }
        self.chunks = std::mem::take(&mut self.chunks)
            .into_iter()
            .filter_map(|chunk| {
                if which(&chunk) {
                    Chunk::new(chunk.slots.iter().copied().filter_map(&to).collect())
                } else {
                    Some(chunk)
                }
            })
            .collect();
        self.len = self.chunks.iter().map(|chunk| chunk.slots.len()).sum();
        for at in (0..self.chunks.len()).rev() {
            self.join(at);
        }
        true
    }
}

/// Compares slots, however they are divided into chunks.
impl PartialEq for HeldSlots {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for HeldSlots {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::SlotId;

    fn slot(secret: u64) -> InFlightSlot {
        InFlightSlot {
            id: SlotId { stamp: 7, secret },
            ttl_ms: 100,
        }
    }

    #[test]
    fn held_slots_behave_like_a_map_through_any_changes() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let (mut held, mut map) = (HeldSlots::default(), BTreeMap::<_, u64>::new());
        let mut now_ms = 1000;
        for step in 0..20_000 {
            // It grows, shrinks and grows.
            let grows = step / 5000 % 2 == 0;
            let slot = slot(next(3000));
            match next(20) {
                0 if !grows => {
                    now_ms += next(3);
                    held.drop_expired(now_ms);
                    map.retain(|_, expiry| *expiry > now_ms);
                }
                1 if next(50) == 0 => {
                    let latest_ms = now_ms + 50;
                    let ahead = map.values().any(|expiry| *expiry > latest_ms + 100);
                    assert_eq!(held.cut(latest_ms), ahead);
                    for expiry in map.values_mut() {
                        *expiry = (*expiry).min(latest_ms + 100);
                    }
                }
                2..=9 if grows => {
                    let expiry = now_ms + 1 + next(400);
                    held.insert(slot, expiry);
                    map.insert(slot, expiry);
                }
                _ => assert_eq!(held.remove(slot), map.remove(&slot).is_some()),
            }
            assert_eq!(held.expiry_of(slot), map.get(&slot).copied());
            assert_eq!(held.len(), map.len());
            if step % 100 == 0 {
                assert!(
                    held.iter()
                        .eq(map.iter().map(|(slot, expiry)| (*slot, *expiry)))
                );
                let mut expiries: Vec<u64> = map.values().copied().collect();
                expiries.sort_unstable();
                for nth in [0, 1, 7, 500] {
                    assert_eq!(held.nth_expiry(nth), expiries.get(nth).copied());
                }
                assert_eq!(held.last_expiry(), expiries.last().copied());
                assert!(held.chunks.iter().all(|chunk| chunk.slots.len() <= CHUNK));
                assert!(
                    held.chunks.len() <= 2 + map.len() / (CHUNK / 4),
                    "few are small"
                );
            }
        }
    }

    #[test]
    fn a_write_shares_what_it_does_not_change() {
        let mut held = HeldSlots::default();
        for secret in 0..10_000 {
            held.insert(slot(secret), 500);
        }
        assert_eq!(held.chunks.len(), 10_000_usize.div_ceil(CHUNK));
        let changes: [fn(&mut HeldSlots); 2] = [
            |held| held.insert(slot(10_001), 500),
            |held| assert!(held.remove(slot(5000))),
        ];
        for change in changes {
            let mut next = held.clone();
            next.drop_expired(499);
            assert!(!next.cut(400));
            change(&mut next);
            let before = |chunk: &&Arc<Chunk>| held.chunks.iter().any(|of| Arc::ptr_eq(of, chunk));
            let shared = next.chunks.iter().filter(before).count();
            assert_eq!(shared, held.chunks.len() - 1);
        }
    }
}

//! Slots that are held while their limit is edited.

use policy::{Limit, Name};

use super::InFlight;

/// A limit on requests in flight whose fields an edit changed: what it counts runs on, and is entered
/// again if need be. After a reset, which changes the generation alone, it is forgotten.
#[derive(Debug)]
pub(crate) struct EditedSlots {
    limit: Name,
    /// Its generations.
    before: u64,
    now: u64,
}

impl InFlight {
    /// Continues to hold slots under the newer generations of limits that were edited.
    pub(crate) fn continue_under(&mut self, edited: &[EditedSlots]) {
        if edited.is_empty() {
            return;
        }
        for held in self.held.values_mut().flat_map(|held| &mut held.slots) {
            let edit = edited.iter().find(|edit| edit.limit == held.limit);
            if let Some(edit) = edit.filter(|edit| edit.before == held.slot.turn) {
                held.slot.turn = edit.now;
            }
        }
    }
}

/// The limits on requests in flight that an edit changed.
pub(crate) fn edited_slots(before: &[Limit], now: &[Limit]) -> Vec<EditedSlots> {
    let slots = now.iter().filter(|limit| limit.gives_slots());
    let edited = slots.filter_map(|limit| {
        let old = before.iter().find(|old| old.name == limit.name)?;
        let same = Limit {
            generation: limit.generation,
            ..old.clone()
        };
        (same != *limit).then(|| EditedSlots {
            limit: limit.name.clone(),
            before: old.generation,
            now: limit.generation,
        })
    });
    edited.collect()
}

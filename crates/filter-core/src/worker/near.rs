//! What this worker knows of buckets by itself, in front of the table that all workers share.
//!
//! A look into shared data costs as much as the rest of a decision together. So what was found
//! there, and what the limiter said since, is remembered here for a second: a client that is
//! denied in a loop, or asked about in a loop, is not looked up each time. What other workers
//! were told meanwhile is missed for that long, which costs a check and never a wrong decision.
//!
//! What the limiter said is needed in the table on the day it cannot be asked. The first word on
//! a bucket is written at once, a later one with the next tick and only if it says something
//! new; once calls fail, everything.

use policy::Positions;

use crate::{
    host::Host,
    table::{Denial, Entry, Place, Table, Told, Update},
    time::Now,
};

/// Buckets of a half; the older of two halves is forgotten when the younger is full.
const MAX_BUCKETS: usize = 2048;
/// How long what was found in the table is relied upon: a denial lasts no longer there.
const FRESH_US: u64 = Denial::MAX_MS * 1000;
/// The part of a quota by which the table may think more left than there is.
const NEWS_PART: u64 = 64;

/// Buckets that this worker met lately.
#[derive(Debug, Default)]
pub(super) struct Near {
    young: Half,
    old: Half,
    /// What is to be written with the next tick.
    unwritten: Vec<Place>,
}

/// Buckets that became known within one time.
#[derive(Debug, Default)]
struct Half {
    positions: Positions,
    list: Vec<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    place: Place,
    /// `None` once it has gone over to the younger half.
    known: Option<Known>,
}

/// What is known of one bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    generation: u64,
    /// When the table was looked into.
    looked_us: u64,
    /// The last denial.
    pub(super) denial: Option<Denial>,
    /// What the limiter last said.
    pub(super) told: Option<Told>,
    /// What the table has of that.
    written: Option<Told>,
    /// Whether it is among the unwritten.
    waits: bool,
}

impl Known {
    /// Whether the table lacks the last word, and nothing has been put down to tell it.
    fn is_owed_to_the_table(&self) -> bool {
        !self.waits && self.told != self.written
    }
}

impl Near {
    /// What is known of a bucket, unless it is too long ago, or from before `since_us`.
    pub(super) fn recall(
        &mut self,
        place: Place,
        generation: u64,
        now: Now,
        since_us: u64,
    ) -> Option<Known> {
        let known = *self.of(place, generation)?;
        let age_us = now.mono_us.saturating_sub(known.looked_us);
        (known.looked_us > since_us && age_us < FRESH_US).then_some(known)
    }

    /// Has a bucket looked up in the table when it is next asked for.
    pub(super) fn distrust(&mut self, place: Place, generation: u64) {
        if let Some(known) = self.of(place, generation) {
            known.looked_us = 0;
        }
    }

    /// Takes over what the table has.
    pub(super) fn looked(&mut self, place: Place, generation: u64, entry: &Entry, now: Now) {
        let Some(known) = self.enter(place, generation) else {
            return;
        };
        known.looked_us = now.mono_us;
        known.written = entry.told;
        let newer = |told: &Told| known.told.is_none_or(|own| own.at_us < told.at_us);
        if let Some(told) = entry.told.filter(newer) {
            known.told = Some(told);
        }
        // One's own denial was written too, and may only have been pushed out since.
        let denials = [entry.denial, known.denial].into_iter().flatten();
        known.denial = denials.max_by_key(|denial| denial.until_us);
    }

    /// Takes over a denial, which the caller writes to the table.
    pub(super) fn denied(&mut self, place: Place, generation: u64, told: Told, denial: Denial) {
        let Some(known) = self.enter(place, generation) else {
            return;
        };
        known.told = Some(told);
        known.written = Some(told);
        known.denial = Some(denial);
    }

    /// Takes over what the limiter said; whether the table has to be told at once, as always in
    /// trouble.
    pub(super) fn heard(
        &mut self,
        place: Place,
        generation: u64,
        told: Told,
        trouble: bool,
    ) -> bool {
        let Some(known) = self.enter(place, generation) else {
            return true;
        };
        known.told = Some(told);
        known.denial = None;
        match known.written {
            written if trouble || written.is_none() => {
                known.written = Some(told);
                true
            }
            Some(written) if is_news(written, told) => {
                if !std::mem::replace(&mut known.waits, true) {
                    self.unwritten.push(place);
                }
                false
            }
            _ => false,
        }
    }

    /// Has the table told what is known of a bucket to the unit, with the next writing.
    pub(super) fn insist(&mut self, place: Place) {
        let known = self.young.of(place);
        if let Some(known) = known.or_else(|| self.old.of(place))
            && known.is_owed_to_the_table()
        {
            known.waits = true;
            self.unwritten.push(place);
        }
    }

    /// As [`Near::insist`], of every bucket.
    pub(super) fn insist_on_all(&mut self) {
        for bucket in self.young.list.iter_mut().chain(&mut self.old.list) {
            if let Some(known) = &mut bucket.known
                && known.is_owed_to_the_table()
            {
                known.waits = true;
                self.unwritten.push(bucket.place);
            }
        }
    }

    /// Whether there is no room for another bucket before the next [`Near::write`].
    pub(super) fn is_full(&self) -> bool {
        self.young.list.len() >= MAX_BUCKETS
    }

    /// Writes what is new, and makes room.
    pub(super) fn write(&mut self, host: &impl Host, now: Now, table: &Table) {
        for place in std::mem::take(&mut self.unwritten) {
            let known = self.young.of(place);
            let Some(known) = known.or_else(|| self.old.of(place)) else {
                continue;
            };
            known.waits = false;
            known.written = known.told;
            if let Some(told) = known.told {
                tell(host, now, table, place, known.generation, told);
            }
        }
        if self.is_full() {
            self.old = std::mem::take(&mut self.young);
        }
    }

    fn of(&mut self, place: Place, generation: u64) -> Option<&mut Known> {
        if self.young.position(place).is_none() {
            let known = self.old.take(place)?;
            self.young.add(place, known);
        }
        let known = self.young.of(place)?;
        (known.generation == generation).then_some(known)
    }

    /// What is known of a bucket, be it nothing yet.
    fn enter(&mut self, place: Place, generation: u64) -> Option<&mut Known> {
        if self.young.position(place).is_none() {
            let known = self.old.take(place).unwrap_or_default();
            self.young.add(place, known);
        }
        let known = self.young.of(place)?;
        if known.generation != generation {
            *known = Known {
                generation,
                waits: known.waits,
                ..Known::default()
            };
        }
        Some(known)
    }
}

impl Half {
    fn position(&self, place: Place) -> Option<usize> {
        let mut positions = self.positions.of(place.hash());
        let same = |bucket: &Bucket| bucket.place == place && bucket.known.is_some();
        positions.find(|at| self.list.get(*at).is_some_and(same))
    }

    fn of(&mut self, place: Place) -> Option<&mut Known> {
        let at = self.position(place)?;
        self.list.get_mut(at)?.known.as_mut()
    }

    fn take(&mut self, place: Place) -> Option<Known> {
        let at = self.position(place)?;
        self.list.get_mut(at)?.known.take()
    }

    /// Adds a bucket that is not there.
    fn add(&mut self, place: Place, known: Known) {
        self.positions.add(place.hash(), self.list.len());
        let known = Some(known);
        self.list.push(Bucket { place, known });
    }
}

/// Writes what the limiter said of a bucket.
pub(super) fn tell(
    host: &impl Host,
    now: Now,
    table: &Table,
    place: Place,
    generation: u64,
    told: Told,
) {
    // Contended: other workers are told the same.
    let _ = table.update(host, place, generation, now, |found| {
        if found.entry.hear(told) {
            Update::Write(())
        } else {
            Update::Keep(())
        }
    });
}

/// Whether the table, which has `written`, would think too much left, or is long behind.
fn is_news(written: Told, told: Told) -> bool {
    let (Some(limit), Some(before)) = (told.limit, written.limit) else {
        return written.limit != told.limit;
    };
    let elapsed_us = told.at_us.saturating_sub(written.at_us);
    // What an outage would start from: what was left then, and what came back since.
    let window_us = told.window_ms.saturating_mul(1000).max(1);
    let back = u128::from(limit) * u128::from(elapsed_us) / u128::from(window_us);
    let expected = u128::from(written.remaining)
        .saturating_add(back)
        .min(limit.into());
    let tolerated = u128::from(told.remaining) + u128::from(limit / NEWS_PART);
    limit != before || expected > tolerated || elapsed_us > FRESH_US
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simulated::SharedData, time::at};

    fn told(ms: u64, remaining: u64) -> Told {
        Told {
            at_us: ms * 1000,
            limit: Some(640),
            window_ms: 64_000,
            remaining,
            reset_after_ms: 1,
        }
    }

    fn places() -> (Table, impl Iterator<Item = Place>) {
        let table = Table::new("shop", 16, [7; 16]);
        let own = table.clone();
        let places = (0_u32..).map(move |n| {
            let value = n.to_le_bytes();
            own.place("per-user", [Some(&value[..])].into_iter())
        });
        (table, places)
    }

    #[test]
    fn what_was_found_is_relied_upon_for_a_second_and_not_across_trouble() {
        let (_, mut places) = places();
        let place = places.next().unwrap();
        let mut near = Near::default();
        assert!(near.recall(place, 1, at(5), 0).is_none());
        near.looked(place, 1, &Entry::default(), at(5));
        assert!(near.recall(place, 1, at(1004), 0).is_some());
        assert!(near.recall(place, 1, at(1005), 0).is_none());
        assert!(near.recall(place, 1, at(6), 5000).is_none(), "trouble");
        assert!(near.recall(place, 2, at(6), 0).is_none(), "an edit");
    }

    #[test]
    fn the_first_word_is_written_at_once_and_then_only_news() {
        let (table, mut places) = places();
        let (host, place) = (SharedData::default(), places.next().unwrap());
        let mut near = Near::default();
        let in_table = || {
            let found = table.read(&host, place, 1, at(9));
            found.entry.told.map(|told| told.remaining)
        };
        assert!(near.heard(place, 1, told(1, 600), false));
        tell(&host, at(1), &table, place, 1, told(1, 600));
        for (ms, remaining, expected) in [
            (2, 590, 600),   // A 64th of the limit less: no news.
            (3, 589, 589),   // More than that.
            (503, 589, 589), // Five came back and were taken again.
            (1503, 579, 579),
        ] {
            assert!(!near.heard(place, 1, told(ms, remaining), false));
            near.write(&host, at(ms), &table);
            assert_eq!(in_table(), Some(expected), "{ms}");
        }
        assert!(!near.heard(place, 1, told(1504, 578), false));
        near.insist(place);
        near.write(&host, at(1504), &table);
        assert_eq!(in_table(), Some(578));
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let (table, places) = places();
        let host = SharedData::default();
        let mut near = Near::default();
        for place in places.take(10 * MAX_BUCKETS) {
            near.heard(place, 1, told(1, 1), false);
            if near.is_full() {
                near.write(&host, at(1), &table);
            }
        }
        assert!(near.young.list.len() + near.old.list.len() <= 2 * MAX_BUCKETS);
    }
}

//! The units that one worker has at hand.

use std::rc::Rc;

use protocol::Lease;

use super::{Lot, Seen, Tally, Terms, demand::Demand};
use crate::{
    table::{Place, Told},
    time::Now,
};

/// Buckets that one worker knows the demand of, at most; a power of two.
const SLOTS: usize = 1024;
/// After which time without a request a bucket that has nothing makes room, in microseconds.
const FORGET_US: u64 = 200_000;
/// The part of a quota that may have been used without the limiter being told, while somebody is
/// about to call for more of it.
const UNTOLD_PART: u64 = 128;

/// How much a worker takes of what is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Units.
    pub(crate) units: u64,
    /// Whether little is left of the bucket, so that nobody should have much of it at hand.
    pub(crate) scarce: bool,
}

/// What one worker has of one bucket.
#[derive(Debug)]
pub(crate) struct Hand<O> {
    place: Place,
    /// The generation of its limit.
    generation: u64,
    /// Units at hand, of one grant.
    pub(crate) lot: Lot,
    /// What this worker did with units, as far as the others do not know.
    pub(crate) tally: Tally,
    /// What the limiter last said of the bucket.
    pub(crate) told: Option<Told>,
    /// Units that the others could still take when this worker last looked.
    pub(crate) shared: u64,
    /// When to look after what is left; `u64::MAX`: nothing is.
    pub(crate) look_at_us: u64,
    /// When to look after it first.
    due_us: u64,
    /// When the last of it ends.
    last_deadline_us: u64,
    /// Units that the others have not told the limiter of, when this worker last looked.
    untold: u64,
    /// How long a grant lasts.
    ttl_us: u64,
    /// A request by which the bucket can be named to the limiter.
    pub(crate) origin: Option<Rc<O>>,
    /// The size of a portion.
    portion: u64,
    /// When the portion at hand was taken.
    drawn_us: u64,
    /// When it last had a request.
    used_us: u64,
    /// What its requests need.
    demand: Demand,
    /// Whether the limit was edited, as an answer told, and this worker does not follow that yet.
    outdated: bool,
}

/// Units taken for a request that is not decided yet. They are neither spent nor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    epoch: u64,
    deadline_us: u64,
}

/// What one worker has of all buckets: a fixed number of places, two for each bucket to choose
/// from. A bucket that finds both in use by others is checked request by request.
#[derive(Debug)]
pub(crate) struct Hands<O> {
    slots: Vec<Option<Box<Hand<O>>>>,
}

impl<O> Default for Hands<O> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<O> Hands<O> {
    /// Takes what a request needs, if it is at hand and its time has not come.
    pub(crate) fn take(
        &mut self,
        place: Place,
        generation: u64,
        cost: u64,
        now: Now,
    ) -> Option<Token> {
        self.find(place, generation)?.take(cost, now)
    }

    /// The hand for a bucket, if there is one of this generation of its limit.
    pub(crate) fn find(&mut self, place: Place, generation: u64) -> Option<&mut Hand<O>> {
        let at = self.position(place)?;
        let hand = self.slots.get_mut(at)?.as_deref_mut()?;
        (hand.generation == generation).then_some(hand)
    }

    /// The hand for a bucket, a new one if need be; `None`: there is no room.
    pub(crate) fn open(&mut self, place: Place, generation: u64, now: Now) -> Option<&mut Hand<O>> {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let at = self.position(place).or_else(|| {
            let free = |at: &usize| {
                let slot = self.slots.get(*at).and_then(Option::as_ref);
                slot.is_none_or(|hand| hand.is_forgotten(now))
            };
            choices(place).into_iter().find(free)
        })?;
        let slot = self.slots.get_mut(at)?;
        let fits = |hand: &Hand<O>| hand.place == place && hand.generation == generation;
        if !slot.as_deref().is_some_and(fits) {
            // What it had was another bucket's, or of an older generation.
            *slot = Some(Box::new(Hand::new(place, generation, now)));
        }
        slot.as_deref_mut()
    }

    /// Forgets what is out of use, and lists the places of what needs to be looked after.
    pub(crate) fn due(&mut self, now: Now) -> Vec<(Place, u64)> {
        let mut due = Vec::new();
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|hand| hand.is_forgotten(now)) {
                *slot = None;
            }
            let Some(hand) = slot else { continue };
            if now.reached(hand.next_look_us()) && !hand.can_wait(now) {
                due.push((hand.place, hand.generation));
            }
        }
        due
    }

    /// When one of them has to be looked after; `u64::MAX`: none has.
    pub(crate) fn next_look_us(&self) -> u64 {
        let hands = self.slots.iter().flatten();
        hands
            .map(|hand| hand.next_look_us())
            .min()
            .unwrap_or(u64::MAX)
    }

    fn position(&self, place: Place) -> Option<usize> {
        choices(place).into_iter().find(|at| {
            let slot = self.slots.get(*at).and_then(Option::as_ref);
            slot.is_some_and(|hand| hand.place == place)
        })
    }
}

/// Where the hand for a bucket may be.
fn choices(place: Place) -> [usize; 2] {
    let at = usize::try_from(place.hash() % (SLOTS as u64)).unwrap_or(0);
    [at, at ^ 1]
}

impl<O> Hand<O> {
    fn new(place: Place, generation: u64, now: Now) -> Self {
        Self {
            place,
            generation,
            lot: Lot::default(),
            tally: Tally::default(),
            told: None,
            shared: 0,
            look_at_us: u64::MAX,
            due_us: 0,
            last_deadline_us: 0,
            untold: 0,
            ttl_us: 0,
            outdated: false,
            origin: None,
            portion: 0,
            drawn_us: 0,
            used_us: now.mono_us,
            demand: Demand::default(),
        }
    }

    /// Takes what a request needs, if it is at hand and its time has not come.
    pub(crate) fn take(&mut self, cost: u64, now: Now) -> Option<Token> {
        if self.lot.is_over(now) {
            return None;
        }
        self.lot.units = self.lot.units.checked_sub(cost)?;
        self.demand.add(cost);
        self.used_us = now.mono_us;
        Some(Token {
            epoch: self.lot.epoch,
            deadline_us: self.lot.deadline_us,
        })
    }

    /// How much was asked for of what is shared.
    pub(crate) fn asked_for(&mut self, portion: Portion) {
        self.portion = portion.units;
    }

    /// Takes a lot that has just come to hand.
    pub(crate) fn receive(&mut self, lot: Lot, now: Now) {
        self.lot = lot;
        self.drawn_us = now.mono_us;
    }

    /// A request was admitted by what was taken for it.
    pub(crate) fn spend(&mut self, token: Token, cost: u64) {
        self.tally.add(token.epoch, cost, 0);
    }

    /// A request was not admitted: what was taken for it goes where it came from. If that is not
    /// at hand any more, it goes back to the limiter; never into another grant, whose deadline
    /// may be later.
    pub(crate) fn put_back(&mut self, token: Token, cost: u64) {
        if self.lot.is_of(token.epoch, token.deadline_us) {
            self.lot.units = self.lot.units.saturating_add(cost);
        } else {
            self.tally.add(token.epoch, 0, cost);
        }
    }

    /// Counts a request that found nothing here; returns how many units are needed in the time of a
    /// grant, if it pays to ask for them in advance while so many checks share a callout and so
    /// much is left of the bucket.
    pub(crate) fn miss(
        &mut self,
        now: Now,
        terms: &Terms,
        together: usize,
        left: Option<u64>,
    ) -> Option<u64> {
        self.used_us = now.mono_us;
        self.ttl_us = terms.ttl_us;
        let needed = self.demand.miss(now, terms, together, left);
        needed.filter(|_| !self.outdated)
    }

    /// A grant came under a later generation than this worker knows. Nobody asks for more until it
    /// does, for its own requests would drop what they find of that generation; what came goes back.
    pub(crate) fn outdate(&mut self, lease: Option<Lease>) {
        self.outdated = true;
        if let Some(lease) = lease {
            self.tally.add(lease.epoch, 0, lease.units);
        }
    }

    /// Whether there is room for another lot.
    pub(crate) fn is_empty(&self) -> bool {
        self.lot.units == 0
    }

    /// How much to take next: what lasts for about a sixteenth of a grant's time, and not less than is
    /// worth a look at what is shared.
    pub(crate) fn next_portion(&self, now: Now, terms: &Terms) -> Portion {
        let lasted_us = now.mono_us.saturating_sub(self.drawn_us);
        let units = if lasted_us < terms.part_us(32) {
            self.portion.saturating_mul(2)
        } else if lasted_us > terms.part_us(8) {
            self.portion / 2
        } else {
            self.portion
        };
        let scarce = self.demand.scarce;
        let least = if scarce {
            terms.cost
        } else {
            terms.least_portion()
        };
        let units = units.max(least);
        Portion { units, scarce }
    }

    /// Everything that was here is in other hands now.
    pub(crate) fn emptied(&mut self) {
        self.lot = Lot::default();
        self.tally = Tally::default();
    }

    /// Takes over what was seen of the shared units, after what was taken of them.
    pub(crate) fn saw(&mut self, seen: &Seen, now: Now) {
        self.shared = seen.left;
        self.untold = seen.untold;
        self.due_us = seen.due_us;
        self.last_deadline_us = seen.last_deadline_us.max(self.lot.deadline_us);
        self.look_at_us = if self.last_deadline_us == 0 && seen.untold == 0 {
            u64::MAX
        } else {
            self.look_after(now)
        };
    }

    /// When what is left has to go back if it is to count where it comes from: the bucket may forget
    /// of a grant as soon as its time is over.
    fn return_us(&self) -> u64 {
        self.last_deadline_us.saturating_sub(self.ttl_us / 8)
    }

    /// When what became of it is told at the latest: by then somebody has called who could tell it
    /// along with that.
    fn tell_us(&self) -> u64 {
        self.last_deadline_us.saturating_add(self.ttl_us / 4)
    }

    /// The first moment after now to look after what is left.
    fn look_after(&self, now: Now) -> u64 {
        let looks = [self.due_us, self.return_us()].into_iter();
        let mut next = looks.filter(|at_us| !now.reached(*at_us));
        next.next().unwrap_or(self.tell_us())
    }

    /// Whether what is left will be needed in its time, so that nobody has to look after it but who
    /// asks for more, or is so little that it may be lost. They tell what became of it, too; only if
    /// that is much, it cannot wait.
    fn can_wait(&mut self, now: Now) -> bool {
        if self.look_at_us >= self.tell_us() {
            return false;
        }
        let limit = self.told.and_then(|told| told.limit).unwrap_or(u64::MAX);
        let (spent, returned) = self.tally.totals();
        let untold = spent.saturating_add(returned).saturating_add(self.untold);
        let left_us = self.lot.deadline_us.saturating_sub(now.mono_us);
        let needed =
            self.demand.in_ttl(now, self.ttl_us).saturating_mul(left_us) / self.ttl_us.max(1);
        let left = self.lot.units.saturating_add(self.shared);
        let little = limit / UNTOLD_PART;
        let waits = if self.look_at_us < self.return_us() {
            left <= needed && untold <= little
        } else {
            untold.saturating_add(left) <= little
        };
        let waits = waits && !self.demand.scarce;
        if waits {
            self.look_at_us = self.look_after(now);
        }
        waits
    }

    /// When it has to be looked after: at once where there is only something to tell.
    fn next_look_us(&self) -> u64 {
        if self.look_at_us == u64::MAX && !self.tally.is_empty() {
            return 0;
        }
        self.look_at_us
    }

    /// Whether nothing is at hand, nor known to be left with the others, nor to be told.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.look_at_us == u64::MAX && self.tally.is_empty()
    }

    fn is_forgotten(&self, now: Now) -> bool {
        let idle_us = now.mono_us.saturating_sub(self.used_us);
        idle_us > FORGET_US && self.is_at_rest()
    }
}

#[cfg(test)]
mod tests;

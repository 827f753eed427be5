//! The units of one bucket that the workers of a process share.

use protocol::Lease;

use super::{Lot, Portion, Tally, Terms};
use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// Grants whose units are kept at once: the one in use, and the one that came before it ran out.
const LOTS: usize = 2;

/// What is kept of a bucket's grants. Every method works on a copy that replaces the shared value
/// only if nobody else wrote meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    /// The one that ends first comes first.
    lots: [Lot; LOTS],
    /// What the limiter has not been told.
    tally: Tally,
    /// Units to ask for: about half of what is needed while a grant lasts.
    want: u64,
    /// Until when the answer to the last question is waited for.
    asking_until_us: u64,
    /// When the newest grant was asked for.
    sent_us: u64,
    /// Its size; 0 once it was judged.
    granted: u64,
}

/// What a call asks the limiter for a bucket, and tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Units wanted.
    pub(crate) want: u64,
    /// What became of earlier ones.
    pub(crate) settle: Tally,
}

/// What a look at a pool finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Units that may be taken.
    pub(crate) left: u64,
    /// When to look after them.
    pub(crate) due_us: u64,
    /// When the last of them ends; 0: there are none.
    pub(crate) last_deadline_us: u64,
    /// Units that the limiter was not told of.
    pub(crate) untold: u64,
}

impl Pool {
    /// What there is.
    pub(crate) fn seen(&self, now: Now, terms: &Terms) -> Seen {
        let some = self.lots.iter().filter(|lot| lot.units > 0);
        let (spent, returned) = self.tally.totals();
        Seen {
            left: self.units(now),
            due_us: self.due_us(terms),
            last_deadline_us: some.map(|lot| lot.deadline_us).max().unwrap_or(0),
            untold: spent.saturating_add(returned),
        }
    }

    /// Units that may be taken now.
    pub(crate) fn units(&self, now: Now) -> u64 {
        let live = self.lots.iter().filter(|lot| !lot.is_over(now));
        live.map(|lot| lot.units).fold(0, u64::saturating_add)
    }

    /// Drops what is past its deadline; how many units that were. The limiter is told as soon as
    /// somebody asks: nobody can use them any more.
    pub(crate) fn expire(&mut self, now: Now) -> u64 {
        let mut expired: u64 = 0;
        for lot in &mut self.lots {
            if lot.units > 0 && lot.is_over(now) {
                expired = expired.saturating_add(lot.units);
                self.tally.add(lot.epoch, 0, lot.units);
                *lot = Lot::default();
            }
        }
        expired
    }

    /// Takes over what a worker did with units, and those it did not use.
    pub(crate) fn hand_in(&mut self, lot: Lot, tally: &Tally) {
        self.tally.merge(tally);
        self.put(lot);
    }

    /// Adds units, with those of the same grant. Where there is no room for another grant, the one
    /// that ends first goes back to the limiter.
    fn put(&mut self, lot: Lot) {
        if lot.units == 0 {
            return;
        }
        let same = |own: &&mut Lot| own.units > 0 && own.is_of(lot.epoch, lot.deadline_us);
        if let Some(own) = self.lots.iter_mut().find(same) {
            own.units = own.units.saturating_add(lot.units);
            return;
        }
        let ends = |own: &&mut Lot| if own.units > 0 { own.deadline_us } else { 0 };
        let mut rest = lot;
        if let Some(own) = self.lots.iter_mut().min_by_key(ends)
            && (own.units == 0 || own.deadline_us < lot.deadline_us)
        {
            rest = std::mem::replace(own, lot);
        }
        self.tally.add(rest.epoch, 0, rest.units);
        let [first, second] = &mut self.lots;
        if first.units == 0 || (second.units > 0 && second.deadline_us < first.deadline_us) {
            std::mem::swap(first, second);
        }
    }

    /// Takes a portion for one worker: at most half of what is there, unless that is little, or a
    /// quarter where little is left of the bucket; and at least what one request takes.
    pub(crate) fn take(&mut self, now: Now, terms: &Terms, portion: Portion) -> Option<Lot> {
        let (parts, least) = if portion.scarce {
            (4, terms.cost)
        } else {
            (2, terms.least_portion())
        };
        let part = terms.whole(self.units(now).div_ceil(parts));
        let most = part.max(least);
        let portion = terms.whole(portion.units).min(most).max(terms.cost);
        let fits = |lot: &&mut Lot| lot.units >= terms.cost && !lot.is_over(now);
        let lot = self.lots.iter_mut().find(fits)?;
        let units = terms.whole(lot.units).min(portion);
        lot.units = lot.units.saturating_sub(units);
        Some(Lot { units, ..*lot })
    }

    /// Whether it is time to ask for more, and for how much: not less than `least`, which a worker
    /// needed lately and did not find, and not more than `most`. Only one worker asks at a time.
    pub(crate) fn ask(&mut self, now: Now, terms: &Terms, least: u64, most: u64) -> Option<Ask> {
        if self.units(now) > self.want / 4 || !now.reached(self.asking_until_us) {
            return None;
        }
        let age_us = now.mono_us.saturating_sub(self.sent_us);
        // A grant that was smaller than what was wanted says nothing about the demand.
        if self.granted > 0 && self.granted >= self.want && age_us < terms.part_us(4) {
            self.want = self.want.saturating_mul(2);
        }
        self.want = terms.whole(self.want.max(least).min(most));
        if self.want == 0 {
            return None;
        }
        self.asking_until_us = now.mono_us.saturating_add(terms.patience_us);
        Some(Ask {
            want: self.want,
            settle: self.tally.take(),
        })
    }

    /// Takes over the answer to a question that was sent at `sent`.
    pub(crate) fn answered(&mut self, now: Now, sent: Now, lease: Option<Lease>, terms: &Terms) {
        let Some(lease) = lease.filter(|lease| lease.units > 0) else {
            // Little is left: for a while the requests themselves ask.
            self.asking_until_us = now.mono_us.saturating_add(terms.part_us(8));
            return;
        };
        self.asking_until_us = 0;
        self.sent_us = sent.mono_us;
        let lot = Lot::granted(lease, sent);
        self.granted = terms.whole(lot.units);
        // What is less than a request takes is of no use.
        self.tally
            .add(lot.epoch, 0, lot.units.saturating_sub(self.granted));
        let units = self.granted;
        self.put(Lot { units, ..lot });
    }

    /// Takes out what the limiter is to be told with a call that asks for nothing.
    pub(crate) fn tell(&mut self) -> Option<Ask> {
        let settle = self.tally.take();
        (!settle.is_empty()).then_some(Ask { want: 0, settle })
    }

    /// When to look after the newest grant: at 0.7 of its time.
    fn due_us(&self, terms: &Terms) -> u64 {
        self.sent_us
            .saturating_add(terms.ttl_us.saturating_mul(7) / 10)
    }

    /// Looks after units that nobody asks for: once they are due, what will not be needed in the
    /// rest of their time goes back. Returns what the limiter is to be told.
    pub(crate) fn tend(&mut self, now: Now, terms: &Terms) -> Option<Ask> {
        if !now.reached(self.due_us(terms)) {
            return None;
        }
        if self.granted > 0 {
            let left = self.units(now);
            let used = self.granted.saturating_sub(left);
            if used < left {
                self.want = terms.whole(self.want / 2);
            }
            self.granted = 0;
            let needed = used.saturating_mul(3) / 7;
            self.give_back(terms.whole(left.saturating_sub(needed)));
        }
        self.end_soon(now, terms);
        self.tell()
    }

    /// Gives back what nobody used almost until its end: later it would not arrive in time.
    fn end_soon(&mut self, now: Now, terms: &Terms) {
        for lot in &mut self.lots {
            let since_us = lot.deadline_us.saturating_sub(terms.part_us(8));
            if lot.units > 0 && now.reached(since_us) {
                self.tally.add(lot.epoch, 0, lot.units);
                *lot = Lot::default();
            }
        }
    }

    fn give_back(&mut self, mut excess: u64) {
        for lot in &mut self.lots {
            let units = lot.units.min(excess);
            lot.units = lot.units.saturating_sub(units);
            excess = excess.saturating_sub(units);
            self.tally.add(lot.epoch, 0, units);
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for lot in &self.lots {
            out.put_u64(lot.epoch);
            out.put_u64(lot.deadline_us);
            out.put_u64(lot.units);
        }
        self.tally.write(out);
        out.put_u64(self.want);
        out.put_u64(self.asking_until_us);
        out.put_u64(self.sent_us);
        out.put_u64(self.granted);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut pool = Self::default();
        for lot in &mut pool.lots {
            *lot = Lot {
                epoch: reader.u64()?,
                deadline_us: reader.u64()?,
                units: reader.u64()?,
            };
        }
        pool.tally = Tally::read(reader)?;
        pool.want = reader.u64()?;
        pool.asking_until_us = reader.u64()?;
        pool.sent_us = reader.u64()?;
        pool.granted = reader.u64()?;
        Some(pool)
    }
}

#[cfg(test)]
mod tests;

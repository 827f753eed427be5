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
mod tests {
    use std::cell::Cell;

    use super::{
        super::{TERMS, portion},
        *,
    };
    use crate::{
        host::{self, CasMismatch, Change, Host, Version, Versioned},
        simulated::SharedData,
        time::at,
    };

    fn lease(units: u64, epoch: u64) -> Lease {
        let ttl_ms = 100;
        Lease {
            units,
            epoch,
            ttl_ms,
        }
    }

    /// A pool that wanted and was granted so many units, asked for at 0 and answered at 5 ms.
    fn granted(units: u64) -> Pool {
        let mut pool = Pool::default();
        let ask = pool.ask(at(0), &TERMS, units, u64::MAX).unwrap();
        assert_eq!(ask.want, units);
        pool.answered(at(5), at(0), Some(lease(units, 1)), &TERMS);
        pool
    }

    fn told(ask: Option<Ask>) -> Vec<(u64, u64, u64)> {
        let settlements = ask.map(|ask| ask.settle.settlements()).unwrap_or_default();
        let all = settlements.iter();
        all.map(|s| (s.epoch, s.spent, s.returned)).collect()
    }

    #[test]
    fn a_deadline_counts_from_the_sending_less_a_millisecond_and_a_thousandth() {
        let lot = Lot::granted(lease(1, 1), at(7));
        assert_eq!(lot.deadline_us, 7_000 + 99_000 - 99);
        assert!(!lot.is_over(Now {
            mono_us: 105_900,
            wall_ms: 0
        }));
        assert!(lot.is_over(Now {
            mono_us: 105_901,
            wall_ms: 0
        }));
    }

    #[test]
    fn units_are_taken_in_portions_until_their_deadline() {
        let mut pool = granted(100);
        let sizes =
            [8, 8, 500].map(|units| pool.take(at(6), &TERMS, portion(units)).unwrap().units);
        assert_eq!(sizes, [8, 8, 42]);
        assert_eq!(pool.units(at(98)), 42);
        assert_eq!(pool.units(at(99)), 0);
        assert!(pool.take(at(99), &TERMS, portion(1)).is_none());
        assert_eq!(pool.expire(at(99)), 42);
    }

    #[test]
    fn where_little_is_left_nobody_takes_more_than_a_quarter() {
        let mut pool = granted(100);
        let scarce = true;
        let sizes = [500, 2, 500].map(|units| {
            let lot = pool.take(at(6), &TERMS, Portion { units, scarce });
            lot.unwrap().units
        });
        assert_eq!(sizes, [25, 2, 19]);
    }

    #[test]
    fn what_is_left_goes_back_before_its_end() {
        let mut pool = granted(100);
        pool.take(at(6), &TERMS, portion(40));
        pool.take(at(6), &TERMS, portion(20));
        // What was used so fast may be needed in the rest of the time; it was not.
        assert_eq!(told(pool.tend(at(70), &TERMS)), [(1, 0, 15)]);
        assert_eq!(told(pool.tend(at(86), &TERMS)), []);
        assert_eq!(told(pool.tend(at(87), &TERMS)), [(1, 0, 25)]);
        assert_eq!(pool.units(at(87)), 0);
    }

    #[test]
    fn units_of_two_grants_are_kept_apart_and_the_older_ones_go_first() {
        let mut pool = granted(10);
        pool.answered(at(55), at(50), Some(lease(10, 1)), &TERMS);
        assert_eq!(pool.units(at(60)), 20);
        // Never past its own deadline, though of the same epoch as the later grant.
        assert_eq!(pool.expire(at(99)), 10);
        assert_eq!(pool.units(at(99)), 10);
        assert_eq!(pool.units(at(149)), 0);
    }

    #[test]
    fn a_third_grant_sends_the_first_back() {
        let mut pool = granted(10);
        for sent_ms in [20, 30] {
            pool.answered(at(35), at(sent_ms), Some(lease(10, sent_ms)), &TERMS);
        }
        assert_eq!(pool.units(at(40)), 20);
        assert_eq!(told(pool.tell()), [(1, 0, 10)]);
    }

    #[test]
    fn only_one_worker_asks_at_a_time_and_only_one_tells() {
        let mut pool = Pool::default();
        let mut tally = Tally::default();
        tally.add(9, 3, 0);
        pool.hand_in(Lot::default(), &tally);
        assert_eq!(told(pool.ask(at(0), &TERMS, 2, u64::MAX)), [(9, 3, 0)]);
        assert_eq!(pool.ask(at(39), &TERMS, 2, u64::MAX), None);
        // Whoever asked is gone; what it was to tell is not told again.
        assert_eq!(told(pool.ask(at(40), &TERMS, 2, u64::MAX)), []);
    }

    #[test]
    fn what_is_wanted_follows_the_demand() {
        let mut pool = granted(100);
        // Three quarters are gone in less than a quarter of the time: twice as much.
        let used = |pool: &mut Pool, ms| {
            while pool.units(at(ms)) > 25 {
                pool.take(at(ms), &TERMS, portion(10));
            }
            pool.ask(at(ms), &TERMS, 0, 1000).map(|ask| ask.want)
        };
        assert_eq!(used(&mut pool, 24), Some(200));
        pool.answered(at(26), at(24), Some(lease(50, 1)), &TERMS);
        // A grant smaller than what was wanted says nothing.
        assert_eq!(used(&mut pool, 30), Some(200));
        pool.answered(at(31), at(30), None, &TERMS);
        assert_eq!(used(&mut pool, 35), None, "little is left for a while");
        // More than half unspent: half as much, and the rest goes back but for what may be needed.
        let mut pool = granted(100);
        pool.take(at(6), &TERMS, portion(14));
        assert_eq!(pool.tend(at(69), &TERMS), None);
        assert_eq!(told(pool.tend(at(70), &TERMS)), [(1, 0, 80)]);
        assert_eq!(pool.units(at(71)), 6);
        assert_eq!(used(&mut pool, 71), Some(50));
    }

    #[test]
    fn costs_above_one_leave_no_units_that_nobody_can_use() {
        let terms = Terms { cost: 3, ..TERMS };
        let mut pool = Pool::default();
        assert_eq!(pool.ask(at(0), &terms, 6, u64::MAX).unwrap().want, 6);
        pool.answered(at(1), at(0), Some(lease(5, 1)), &terms);
        assert_eq!(pool.units(at(1)), 3);
        assert_eq!(pool.take(at(1), &terms, portion(1)).unwrap().units, 3);
        assert_eq!(pool.take(at(1), &terms, portion(1)), None);
        assert_eq!(told(pool.ask(at(2), &terms, 6, u64::MAX)), [(1, 0, 2)]);
    }

    #[test]
    fn what_was_written_is_read() {
        let mut pool = granted(77);
        pool.take(at(6), &TERMS, portion(10));
        pool.expire(at(200));
        let mut bytes = Vec::new();
        pool.write(&mut bytes);
        assert!(bytes.len() < 200, "an entry of the table has 255 bytes");
        assert_eq!(Pool::read(&mut Reader::new(&bytes)), Some(pool));
        assert_eq!(Pool::read(&mut Reader::new(&bytes[1..])), None);
    }

    /// Shared data where another worker always writes between a read and the write after it.
    struct Racing<'h> {
        shared: &'h SharedData,
        other: &'h Cell<u64>,
        collides: Cell<bool>,
    }

    impl Host for Racing<'_> {
        fn load(&self, key: &[u8]) -> Option<Versioned> {
            self.shared.load(key)
        }

        fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
            if self.collides.replace(false) {
                self.other.set(self.other.get() + take_one(self.shared));
            }
            self.shared.swap(key, value, expected)
        }
    }

    fn take_one(host: &impl Host) -> u64 {
        let taken = host::update(host, b"pool", |bytes| {
            let mut pool = Pool::read(&mut Reader::new(bytes)).unwrap();
            let lot = pool.take(at(6), &TERMS, portion(1));
            let mut out = Vec::new();
            pool.write(&mut out);
            Change::Write(out, lot.map_or(0, |lot| lot.units))
        });
        taken.unwrap()
    }

    #[test]
    fn two_workers_never_take_the_same_unit() {
        let shared = SharedData::default();
        let mut bytes = Vec::new();
        granted(10).write(&mut bytes);
        shared.overwrite(b"pool", &bytes);
        let other = Cell::new(0);
        let mut own = 0;
        loop {
            let host = Racing {
                shared: &shared,
                other: &other,
                collides: Cell::new(true),
            };
            match take_one(&host) {
                0 => break,
                units => own += units,
            }
        }
        assert_eq!((own, other.get()), (5, 5));
    }
}

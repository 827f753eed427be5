//! A second implementation of a leased token bucket, directly from the rules, in which each rule
//! can be left out. With all of them it has to give the algorithm's answers.

use algorithms::{Algorithm, Lease};

use super::world::{Bucket, Question, Reply};

/// A mistake in the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Refill as if there were no floor, then put the debt back up to it: time spent at the floor is
    /// credited.
    OneMax,
    /// Count epochs as ⌊t/τ⌋, by whatever τ is now.
    EpochByDivision,
    /// Checks of a limit that leases no more do not read the slots.
    StrictIgnoresSlots,
}

/// All times in milliseconds, the debt in parts.
#[derive(Clone)]
pub struct Model {
    wrong: Option<Wrong>,
    capacity: u64,
    x: u64,
    y: u64,
    debt: u64,
    ts: u64,
    gen_: u64,
    edge: u64,
    ttl: u64,
    cur: u64,
    prev: u64,
    seen: [u64; 2],
}

impl Model {
    pub fn new(algorithm: &Algorithm, wrong: Option<Wrong>) -> Self {
        let numbers = algorithm.numbers();
        Self {
            wrong,
            capacity: numbers.limit,
            x: numbers.x,
            y: numbers.y,
            debt: 0,
            ts: 0,
            gen_: 0,
            edge: 0,
            ttl: 0,
            cur: 0,
            prev: 0,
            seen: [0, 0],
        }
    }

    const fn out(&self) -> u64 {
        self.cur + self.prev
    }

    const fn drained(&self, parts: u64, ms: u64) -> u64 {
        parts.saturating_sub(self.y * ms)
    }

    /// The debt at `t`, by its closed form.
    fn debt_at(&self, t: u64, ttl: u64) -> u64 {
        let plain = self.drained(self.debt, t - self.ts);
        let second = self.edge + self.ttl.max(ttl);
        if self.out() == 0 {
            return plain;
        }
        let all = self.drained(self.out() * self.x, t.saturating_sub(self.edge));
        let own = self.drained(self.cur * self.x, t.saturating_sub(second));
        plain.max(all).max(own)
    }

    /// Advances everything to `t`.
    fn advance(&mut self, t: u64, ttl: u64) {
        if self.wrong == Some(Wrong::StrictIgnoresSlots) && ttl == 0 {
            self.debt = self.drained(self.debt, t - self.ts);
            self.ts = t;
            return;
        }
        let plain = self.drained(self.debt, t - self.ts);
        let right = self.debt_at(t, ttl);
        if self.wrong == Some(Wrong::EpochByDivision) && ttl > 0 && self.out() > 0 {
            // gen_ is ⌊t/τ⌋ of the newest grant here.
            match (t / ttl).checked_sub(self.gen_) {
                Some(0) => {}
                Some(1) => (self.prev, self.cur) = (self.cur, 0),
                _ => (self.prev, self.cur) = (0, 0),
            }
            self.gen_ = t / ttl;
            self.debt = plain.max(self.out() * self.x);
            self.ts = t;
            return;
        }
        self.roll(t, ttl);
        self.roll(t, ttl);
        self.debt = match self.wrong {
            Some(Wrong::OneMax) => plain.max(self.out() * self.x),
            _ => right,
        };
        self.ts = t;
    }

    /// Passes one edge, if its time has come.
    fn roll(&mut self, t: u64, ttl: u64) {
        if self.out() == 0 || t < self.edge {
            return;
        }
        (self.prev, self.cur) = (self.cur, 0);
        self.seen = [0, self.seen[0]];
        self.gen_ += 1;
        self.edge += self.ttl.max(ttl);
        self.ttl = if ttl > 0 { ttl } else { self.ttl };
    }

    fn take(&mut self, epoch: u64, units: u64) -> u64 {
        let slot = match self.gen_.checked_sub(epoch) {
            Some(0) => &mut self.cur,
            Some(1) => &mut self.prev,
            _ => return 0,
        };
        let taken = units.min(*slot);
        *slot -= taken;
        taken
    }

    fn grant(&mut self, t: u64, ttl: u64, question: &Question) -> Option<Lease> {
        if ttl == 0 || question.want == 0 {
            return None;
        }
        let starting = self.out() == 0;
        if starting {
            self.seen = [0, 0];
        }
        let mut seen = self.seen;
        seen[0] |= 1 << question.proxy;
        let marks = u64::from((seen[0] | seen[1]).count_ones());
        let proxies = marks + marks * marks / (128 - marks);
        let left = (self.capacity * self.x).saturating_sub(self.debt) / self.x;
        let units = question.want.min(left / (2 * proxies));
        if !starting || units > 0 {
            self.seen = seen;
        }
        if units == 0 {
            return None;
        }
        if starting {
            let name = if self.wrong == Some(Wrong::EpochByDivision) {
                t / ttl
            } else {
                t
            };
            (self.gen_, self.edge, self.ttl) = (name, t + ttl, ttl);
        }
        self.cur += units;
        self.debt += units * self.x;
        let ttl_ms = match self.wrong {
            Some(Wrong::EpochByDivision) => ttl,
            _ => self.ttl,
        };
        Some(Lease {
            units,
            epoch: self.gen_,
            ttl_ms,
        })
    }
}

impl Bucket for Model {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let stored = self.clone();
        let t = now_ms.max(self.ts);
        self.advance(t, ttl_ms);
        let before = self.out();
        for settlement in &question.settle {
            self.take(settlement.epoch, settlement.spent);
            let returned = self.take(settlement.epoch, settlement.returned);
            let floor = self.out() * self.x;
            self.debt = self.debt.saturating_sub(returned * self.x).max(floor);
        }
        let settled = self.out() != before;
        let room = (self.capacity * self.x).checked_sub(self.debt);
        let fits = room.is_some_and(|room| question.cost * self.x <= room);
        let mut lease = None;
        if fits {
            self.debt += question.cost * self.x;
            lease = self.grant(t, ttl_ms, question);
        }
        let charged = if fits { question.cost } else { 0 };
        let reply = Reply {
            allowed: fits,
            charged,
            lease,
            leased: self.out(),
            remaining: (self.capacity * self.x).saturating_sub(self.debt) / self.x,
            // A later time is no mistake.
            reset_after_ms: self.debt / self.y + 1 + (self.edge + 2 * self.ttl).saturating_sub(t),
            wrote: settled || charged > 0 || lease.is_some(),
        };
        if !reply.wrote {
            *self = stored;
        }
        reply
    }

    fn edit(&mut self, algorithm: Algorithm) {
        let numbers = algorithm.numbers();
        (self.capacity, self.x, self.y) = (numbers.limit, numbers.x, numbers.y);
    }

    fn reset(&mut self) {
        self.debt = 0;
    }

    fn expire(&mut self) {
        (self.debt, self.cur, self.prev) = (0, 0, 0);
    }
}

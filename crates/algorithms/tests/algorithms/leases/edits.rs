//! What operators and others do to the bucket meanwhile.

use algorithms::{Algorithm, Kind, Parameters};

use super::bucket::Question;
use super::world::{Event, World};

/// Which edits happen while proxies lease.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each may be switched on by itself"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub ttl: bool,
    pub switched_off: bool,
    pub resets: bool,
    /// Rate and capacity.
    pub numbers: bool,
    /// The algorithm.
    pub kind: bool,
    /// The server's clock is set: forward, back within the horizon, back beyond it.
    pub clock: bool,
}

impl World<'_> {
    pub fn edited(&mut self) {
        match self.random.below(5) {
            0 if self.edits.switched_off => self.ttl_ms = 0,
            1 if self.edits.resets => self.reset(),
            2 if self.edits.numbers => self.renumber(),
            3 if self.edits.clock => self.set_clock(),
            3 if self.edits.kind => self.switch(),
            _ if self.edits.ttl => self.ttl_ms = self.random.pick(&self.choices_ms),
            _ => self.ttl_ms = self.choices_ms[0],
        }
        let pause = self.random.below(6_000 * self.choices_ms[0]);
        self.later(pause + 1, Event::Edited);
    }

    /// Other numbers, none larger than those of the audit.
    fn renumber(&mut self) {
        let mut parameters = *self.algorithm.parameters();
        let (burst, units) = self.numbers;
        parameters.burst = Some(self.random.pick(&[burst / 2, burst, 2 * burst]));
        parameters.rate.units = self.random.pick(&[units, 2 * units]);
        let edited = Algorithm::new(&parameters).unwrap();
        if edited
            .lease_max_ms()
            .is_some_and(|ms| ms >= self.choices_ms[0])
        {
            self.edit(edited);
        }
    }

    /// Another algorithm, for which the bucket starts unused.
    fn switch(&mut self) {
        let kind = match self.algorithm.kind() {
            Kind::Gcra => Kind::TokenBucket,
            _ => Kind::Gcra,
        };
        let parameters = Parameters {
            kind,
            ..*self.algorithm.parameters()
        };
        self.edit(Algorithm::new(&parameters).unwrap());
    }

    /// An edit may forgive debt: what exceeds a new capacity, all of it with another algorithm, and
    /// in a GCRA, which owes time, what a lower rate makes of that.
    fn edit(&mut self, edited: Algorithm) {
        let (limit, edited_limit) = (self.algorithm.limit(), edited.limit());
        let (leased, owed) = self.owed();
        self.algorithm = edited;
        self.bucket.edit(edited);
        let (still_leased, still_owed) = self.owed();
        // Outstanding units are used later, if at all: so they count as capacity, not as a credit.
        let mut later = leased.saturating_sub(still_leased);
        // Answers have whole units.
        let now = (owed + 1).saturating_sub(still_owed + later);
        if still_leased > edited_limit {
            // Forgiven once they have expired.
            later += limit.saturating_sub(edited_limit);
        }
        self.audit.capacity += i128::from(later * self.unit);
        self.audit.credit(now * self.unit);
    }

    /// Units leased out, and owed.
    fn owed(&mut self) -> (u64, u64) {
        let (now_ms, ttl_ms) = (self.now_ms(), self.ttl_ms);
        let reply = self.bucket.ask(now_ms, ttl_ms, &Question::default());
        (reply.leased, self.algorithm.limit() - reply.remaining)
    }

    /// Adds to the audit's capacity what a step forward may admit.
    fn set_clock(&mut self) {
        let horizon_ms = self.algorithm.horizon_ms();
        let by_ms = match self.random.below(3) {
            0 => self.random.below(2 * self.choices_ms[0] + 1),
            1 => self.random.below(horizon_ms + 1),
            _ => horizon_ms + self.random.below(50_000),
        };
        if self.random.one_in(2) {
            let by_ms = by_ms.min(2 * self.choices_ms[0]);
            self.offset_ms += by_ms;
            self.audit.capacity += self.audit.per_ms * i128::from(by_ms);
        } else {
            self.offset_ms = self.offset_ms.saturating_sub(by_ms);
        }
    }

    fn reset(&mut self) {
        let ask = Question::default();
        let (now_ms, ttl_ms) = (self.now_ms(), self.ttl_ms);
        let before = self.bucket.ask(now_ms, ttl_ms, &ask).remaining;
        self.bucket.reset();
        self.resets.push(self.log.len());
        let after = self.bucket.ask(now_ms, ttl_ms, &ask).remaining;
        self.audit
            .credit((after + 1 - before.min(after)) * self.unit);
    }

    pub fn check_later(&mut self) {
        let often = if self.quiet { 20_000 } else { self.checks };
        let pause = self.random.below(often * self.choices_ms[0]);
        self.later(pause + 1, Event::Checked { again: true });
    }

    /// A burst of requests without a lease takes all that is left.
    pub fn checked(&mut self, again: bool) {
        let now_ms = self.now_ms();
        let ask = Question::default();
        let left = self.bucket.ask(now_ms, self.ttl_ms, &ask).remaining;
        if left > 0 {
            self.ask(&Question {
                cost: left,
                ..Question::default()
            });
        }
        if again {
            self.check_later();
        }
    }
}

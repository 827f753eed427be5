//! Leases of a token bucket: its debt and its two counts of outstanding units, from one millisecond to the next.

use algorithms::check::{Options, Part, Stored};
use algorithms::{Algorithm, Debits, Kind, Lease, LeaseRequest, Settlement};

use crate::support::bursting;

use super::{
    Random, START_MS, STEPS_PER_WALK, ask, assert_decides, count, lease_request, part, settlements,
    walks,
};

/// The units of a rate, its period, and a burst.
const LIMITS: [(u64, u64, u64); 3] = [(100, 1000, 40), (30, 100, 100), (7, 60, 50)];

/// Debt is in parts: a unit has as many as the period has milliseconds, and as many drain each as the rate has units.
#[derive(Clone, Copy, Default)]
struct Model {
    limit: (u64, u64, u64),
    debt: u64,
    at_ms: u64,
    epoch: u64,
    edge_ms: u64,
    ttl_ms: u64,
    /// Outstanding units, and the proxies that leased, of this epoch and of the one before.
    counts: [u64; 2],
    proxies: [u64; 2],
}

impl Model {
    fn full(&self) -> u64 {
        self.limit.2 * self.limit.1
    }

    fn out(&self) -> u64 {
        self.counts[0] + self.counts[1]
    }

    fn left(&self) -> u64 {
        self.full().saturating_sub(self.debt) / self.limit.1
    }

    /// The bucket at a time, or at its own if the clock is a little behind that. A clock that is behind by more than the
    /// bucket takes to drain takes the times with it; whether it does is returned, too.
    fn read(mut self, now_ms: u64, ttl_ms: u64) -> (Self, bool) {
        let behind_ms = self.at_ms.saturating_sub(now_ms);
        let far = behind_ms > self.full().max(self.debt) / self.limit.0;
        if far {
            (self.at_ms, self.edge_ms) = (now_ms, self.edge_ms.saturating_sub(behind_ms));
        }
        while self.at_ms < now_ms && (self.debt > 0 || self.out() > 0) {
            self.at_ms += 1;
            // Never below what may still be used: time at that level refills nothing.
            let floor = self.out() * self.limit.1;
            self.debt = self.debt.saturating_sub(self.limit.0).max(floor);
            if self.at_ms == self.edge_ms && self.out() > 0 {
                self.next_epoch(ttl_ms);
            }
        }
        self.at_ms = self.at_ms.max(now_ms);
        (self, far)
    }

    fn next_epoch(&mut self, ttl_ms: u64) {
        self.epoch += 1;
        self.edge_ms += self.ttl_ms.max(ttl_ms);
        // While the limit leases nothing, the old ttl goes on.
        self.ttl_ms = if ttl_ms > 0 { ttl_ms } else { self.ttl_ms };
        self.counts = [0, self.counts[0]];
        self.proxies = [0, self.proxies[0]];
    }

    fn settle(&mut self, of: Settlement) {
        let age = self.epoch.wrapping_sub(of.epoch);
        if self.out() == 0 || age > 1 {
            return;
        }
        let count = &mut self.counts[usize::from(age == 1)];
        *count -= of.spent.min(*count);
        let returned = of.returned.min(*count);
        *count -= returned;
        self.lower(returned);
    }

    fn lower(&mut self, units: u64) {
        let debt = self.debt.saturating_sub(units * self.limit.1);
        self.debt = debt.max(self.out() * self.limit.1);
    }

    fn grant(&mut self, lease: &LeaseRequest<'_>) -> Option<Lease> {
        if lease.ttl_ms == 0 || lease.want == 0 {
            return None;
        }
        let mut next = *self;
        if self.out() == 0 {
            (next.epoch, next.ttl_ms) = (self.at_ms, lease.ttl_ms);
            next.edge_ms = self.at_ms + lease.ttl_ms;
            next.proxies = [0, 0];
        }
        next.proxies[0] |= 1 << lease.proxy;
        let proxies = u64::from((next.proxies[0] | next.proxies[1]).count_ones());
        let units = lease.want.min(self.left() / (2 * proxies));
        next.counts[0] += units;
        next.debt += units * self.limit.1;
        *self = next;
        // A grant lasts as long as those that its epoch began with.
        let (epoch, ttl_ms) = (next.epoch, next.ttl_ms);
        (units > 0).then_some(Lease {
            units,
            epoch,
            ttl_ms,
        })
    }

    fn fits(&self, cost: u64) -> bool {
        self.debt + cost * self.limit.1 <= self.full()
    }

    /// Decides a check; returns the bucket after it, and whether it was allowed.
    fn check(
        &mut self,
        now_ms: u64,
        part: &Part<'_>,
        options: Options,
    ) -> (Self, bool, Option<Lease>) {
        let asked = part.lease.unwrap();
        let (mut read, far) = self.read(now_ms, asked.ttl_ms);
        let before = read;
        for of in asked.settle {
            read.settle(*of);
        }
        let (used, debit) = (read.debt > 0, part.debit * read.limit.1);
        match options.debits {
            Debits::Refunded => read.lower(part.debit),
            _ => read.debt = read.full().min(read.debt + debit).max(read.debt),
        }
        let gives_back = options.debits == Debits::Refunded && part.debit > 0 && used;
        let mut changed = gives_back || (read.out(), read.debt) != (before.out(), before.debt);
        let (allowed, mut lease) = (read.fits(part.cost), None);
        if allowed && !options.peek {
            read.debt += part.cost * read.limit.1;
            lease = read.grant(&asked);
            changed |= part.cost > 0 || lease.is_some();
        }
        // A step of the clock is stored at once, and what has drained and who asked only with a change.
        if changed {
            *self = read;
        } else if far {
            *self = before;
        }
        (read, allowed, lease)
    }
}

fn walk(mut random: Random) -> [u64; 5] {
    let (mut seen, mut now_ms, mut stored) = ([0; 5], START_MS, None::<Stored>);
    let limit = random.pick(&LIMITS);
    let mut model = Model {
        limit,
        ..Model::default()
    };
    let kind = random.pick(&[Kind::TokenBucket, Kind::LeakyBucket]);
    let parameters = bursting(kind, limit.0, limit.1, limit.2);
    let algorithm = Algorithm::new(&parameters).unwrap();
    let (mut ttl_ms, mut leases) = (20, Vec::<Lease>::new());
    for _ in 0..STEPS_PER_WALK {
        if random.one_in(40) {
            ttl_ms = random.pick(&[0, 10, 20, 50]);
        }
        now_ms = random.tick(now_ms, 40);
        let settle = settlements(&mut random, &leases);
        let lease = lease_request(&mut random, ttl_ms, &settle);
        let debits = random.pick(&[Debits::Admitted, Debits::Refunded]);
        let options = Options {
            peek: random.one_in(8),
            debits,
            ..Options::default()
        };
        let debit = (1 + random.below(limit.2)) * u64::from(random.one_in(20));
        let cost = random.pick(&[0, 1, 1, 2, 5]);
        let asked = Part {
            debit,
            lease: Some(lease),
            ..part(&algorithm, cost)
        };
        let far = model.read(now_ms, ttl_ms).1 && model.out() > 0;
        let (read, allowed, granted) = model.check(now_ms, &asked, options);
        let (verdict, write) = ask((&asked, stored.as_ref(), None), now_ms, options);
        stored = write.or(stored);
        assert_eq!((verdict.lease, verdict.leased), (granted, read.out()));
        let at = |ms| read.read(ms, ttl_ms).0;
        let expected = (allowed, read.left(), false);
        let (fits, unused) = (|ms| at(ms).fits(cost), |ms| at(ms).debt == 0);
        assert_decides(verdict.decision, now_ms, expected, fits, unused);
        leases.extend(granted);
        let behind = read.at_ms > now_ms;
        let cases = [!allowed, granted.is_some(), far, behind, read.counts[1] > 0];
        count(&mut seen, cases);
    }
    seen
}

#[test]
fn leases_are_counted_as_a_model_of_every_millisecond_does() {
    walks(walk);
}

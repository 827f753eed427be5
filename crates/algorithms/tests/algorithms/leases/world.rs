//! Proxies, a network and one bucket, on a virtual clock.
//!
//! Everything that a fleet can do to a bucket happens here, at random from a seed: messages are
//! lost in either direction, late by more than a ttl, and overtake each other; proxies spend at the
//! last moment, return what they do not need or all of it, die with their grants, and their clocks
//! drift; the ttl is edited, switched off and on; the key expires by its TTL.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use algorithms::{
    Algorithm, BucketRequest, Kind, Lease, LeaseRequest, PROXY_MARKS, Parameters, Settlement, State,
};

use super::Random;

/// What happens, and to whom.
pub enum Event {
    /// A message reaches the store.
    Asked {
        proxy: usize,
        sent_us: u64,
        question: Question,
    },
    /// A grant reaches its proxy.
    Granted {
        proxy: usize,
        sent_us: u64,
        lease: Lease,
    },
    Acts(usize),
    LastMoment(usize),
    Edited,
    Checked {
        again: bool,
    },
}

/// One bucket and the proxies that lease from it.
pub struct World {
    pub random: Random,
    pub bucket: Bucket,
    pub audit: Audit,
    /// The parts of a unit in the audit.
    pub unit: u64,
    pub algorithm: Algorithm,
    /// The capacity and rate that it began with.
    pub numbers: (u64, u64),
    /// How far the server's clock is off.
    pub offset_ms: u64,
    pub edits: Edits,
    pub now_us: u64,
    pub choices_ms: Vec<u64>,
    pub ttl_ms: u64,
    pub expires_ms: u64,
    pub proxies: Vec<Proxy>,
    pub events: BinaryHeap<Reverse<(u64, u64)>>,
    pub waiting: Vec<Option<Event>>,
    /// Proxies lease little at a time, and other requests take little.
    pub quiet: bool,
    /// How rare requests without a lease are, in thousandths of a ttl.
    pub checks: u64,
    /// Messages are often late.
    pub slow: bool,
    /// Every admission: the server's time and the units.
    pub log: Vec<(u64, u64)>,
    /// How many admissions there were before each reset.
    pub resets: Vec<usize>,
    pub granted: u64,
    pub spent: u64,
}

impl World {
    pub fn new(seed: u64, algorithm: Algorithm, edits: Edits) -> Self {
        let mut random = Random(seed);
        let (numbers, rate) = (algorithm.numbers(), algorithm.parameters().rate);
        let largest = if edits.numbers { 2 } else { 1 };
        // By the smallest capacity and the largest rate that edits reach.
        let longest = algorithm.lease_max_ms().unwrap() / (largest * largest);
        let choices_ms = [longest, longest / 2, longest / 10, longest / 3 + 1]
            .map(|ms| ms.max(1))
            .to_vec();
        let ttl_ms = if edits.ttl {
            random.pick(&choices_ms)
        } else {
            choices_ms[0]
        };
        let proxies = (0..=random.below(4)).map(|_| Proxy::new(&mut random));
        let proxies: Vec<_> = proxies.collect();
        let mut world = Self {
            bucket: Bucket {
                algorithm,
                state: None,
            },
            audit: Audit::new(
                largest * numbers.limit * rate.period_ms,
                largest * rate.units,
            ),
            unit: rate.period_ms,
            algorithm,
            numbers: (numbers.limit, rate.units),
            offset_ms: 1_000_000,
            edits,
            now_us: 1_000_000_000,
            choices_ms,
            ttl_ms,
            expires_ms: u64::MAX,
            events: BinaryHeap::new(),
            waiting: Vec::new(),
            quiet: random.one_in(3),
            checks: random.pick(&[5_000, 20_000, 200_000]),
            slow: random.one_in(2),
            random,
            proxies,
            log: Vec::new(),
            resets: Vec::new(),
            granted: 0,
            spent: 0,
        };
        for proxy in 0..world.proxies.len() {
            world.later(0, Event::Acts(proxy));
        }
        world.later(0, Event::Edited);
        world.check_later();
        world
    }

    /// The server's time.
    pub fn now_ms(&self) -> u64 {
        self.now_us / 1000 + self.offset_ms
    }

    pub fn later(&mut self, delay_us: u64, event: Event) {
        let index = self.waiting.len() as u64;
        self.waiting.push(Some(event));
        self.events.push(Reverse((self.now_us + delay_us, index)));
    }

    /// Mostly a fraction of a ttl, sometimes more than two.
    pub fn delay_us(&mut self) -> u64 {
        let ttl_us = self.choices_ms[0] * 1000;
        match self.random.below(if self.slow { 8 } else { 60 }) {
            0 => self.random.below(3 * ttl_us),
            1..=3 => self.random.below(ttl_us / 2),
            _ => self.random.below(ttl_us / 50 + 2),
        }
    }

    pub fn run(&mut self, events: u64) {
        for _ in 0..events {
            let Some(Reverse((at_us, index))) = self.events.pop() else {
                return;
            };
            self.now_us = at_us;
            match self.waiting[usize::try_from(index).unwrap()].take() {
                Some(Event::Asked {
                    proxy,
                    sent_us,
                    question,
                }) => self.asked(proxy, sent_us, &question),
                Some(Event::Granted {
                    proxy,
                    sent_us,
                    lease,
                }) => self.granted(proxy, sent_us, lease),
                Some(Event::Acts(proxy)) => self.acts(proxy),
                Some(Event::LastMoment(proxy)) => self.last_moment(proxy),
                Some(Event::Edited) => self.edited(),
                Some(Event::Checked { again }) => self.checked(again),
                None => {}
            }
        }
    }

    pub fn admit(&mut self, units: u64) {
        self.audit.admit(self.now_us / 1000, units * self.unit);
        self.log.push((self.now_ms(), units));
    }

    /// The store decides.
    pub fn ask(&mut self, question: &Question) -> Option<Lease> {
        let now_ms = self.now_ms();
        if now_ms >= self.expires_ms {
            self.bucket.state = None;
            self.expires_ms = u64::MAX;
        }
        let reply = self.bucket.ask(now_ms, self.ttl_ms, question);
        if reply.wrote {
            self.expires_ms = now_ms + reply.reset_after_ms.max(1);
        }
        if reply.charged > 0 {
            self.admit(reply.charged);
        }
        self.granted += reply.lease.map_or(0, |lease| lease.units);
        reply.lease
    }

    fn asked(&mut self, proxy: usize, sent_us: u64, question: &Question) {
        let lease = self.ask(question);
        // The answer may be lost.
        let Some(lease) = lease.filter(|_| !self.random.one_in(12)) else {
            return;
        };
        let delay = self.delay_us();
        self.later(
            delay,
            Event::Granted {
                proxy,
                sent_us,
                lease,
            },
        );
    }

    fn granted(&mut self, proxy: usize, sent_us: u64, lease: Lease) {
        let now_us = self.now_us;
        let Some(held) = self.proxies.get(proxy) else {
            return;
        };
        // A thousandth less, for clocks that drift.
        let dies_us = held.clock_us(sent_us) + lease.ttl_ms * 999;
        let left_us = dies_us.saturating_sub(held.clock_us(now_us));
        if !held.alive || left_us == 0 {
            return;
        }
        let hoards = held.hoards;
        self.proxies[proxy].held.push(Grant {
            lease,
            left: lease.units,
            spent: 0,
            dies_us,
        });
        if hoards {
            // Before it expires, by any clock that drifts by less than half a thousandth.
            self.later(left_us - left_us / 1500 - 1, Event::LastMoment(proxy));
        }
    }
}

// -----------------------------------------------------------------------------
// What proxies do.

impl World {
    /// A proxy does something.
    pub fn acts(&mut self, proxy: usize) {
        if !self.proxies[proxy].alive {
            return;
        }
        if self.random.one_in(60) {
            // It dies with its grants, and another proxy starts.
            self.proxies[proxy] = Proxy::new(&mut self.random);
        }
        self.bury(proxy);
        let hoards = self.proxies[proxy].hoards;
        match self.random.below(10) {
            0..=2 if hoards => {}
            3..=4 if hoards && !self.random.one_in(8) => {}
            0..=2 => self.spend(proxy, true),
            3 => self.spend(proxy, false),
            4 => self.give_back(proxy),
            _ => self.lease(proxy),
        }
        let ttl_us = self.choices_ms[0] * 1000;
        let pause = match self.random.below(3) {
            0 => 0,
            1 => self.random.below(ttl_us / 10 + 1),
            _ => self.random.below(2 * ttl_us),
        };
        self.later(pause + 1, Event::Acts(proxy));
    }

    /// Spends the units that are about to expire, and then whatever the bucket has left or gets.
    pub fn last_moment(&mut self, proxy: usize) {
        self.bury(proxy);
        self.spend(proxy, true);
        if self.random.one_in(4) {
            self.later(0, Event::Checked { again: false });
        }
        let soon = self.random.below(2_000 * self.choices_ms[0] + 1);
        self.later(soon, Event::Checked { again: false });
    }

    /// Expired grants are reported as spent or not at all; the rest of them is dropped.
    fn bury(&mut self, proxy: usize) {
        let now_us = self.proxies[proxy].clock_us(self.now_us);
        let grants = std::mem::take(&mut self.proxies[proxy].held);
        for grant in grants {
            if grant.dies_us > now_us {
                self.proxies[proxy].held.push(grant);
            } else if grant.spent > 0 && self.random.one_in(2) {
                self.settle(proxy, grant.lease.epoch, grant.spent, 0);
            }
        }
    }

    /// Spends units: all that are left if `all`, otherwise a random part.
    fn spend(&mut self, proxy: usize, all: bool) {
        let mut used = 0;
        for index in 0..self.proxies[proxy].held.len() {
            let part = self.random.below(4) + 1;
            let grant = &mut self.proxies[proxy].held[index];
            let units = if all {
                grant.left
            } else {
                grant.left.min(part)
            };
            grant.left -= units;
            grant.spent += units;
            used += units;
        }
        if used > 0 {
            self.spent += used;
            self.admit(used);
        }
    }

    fn give_back(&mut self, proxy: usize) {
        let Some(grant) = self.proxies[proxy].held.pop() else {
            return;
        };
        self.settle(proxy, grant.lease.epoch, grant.spent, grant.left);
    }

    /// Sends a settlement, at most once: a lost one is not retried.
    fn settle(&mut self, proxy: usize, epoch: u64, spent: u64, returned: u64) {
        let question = Question {
            cost: self.random.below(2),
            want: 0,
            proxy: self.proxies[proxy].mark,
            settle: vec![Settlement {
                epoch,
                spent,
                returned,
            }],
        };
        self.send(proxy, question);
    }

    /// Checks one request and wants as many lease units as there are; retries without an answer.
    fn lease(&mut self, proxy: usize) {
        let question = Question {
            cost: if self.proxies[proxy].hoards {
                0
            } else {
                self.random.below(2)
            },
            want: if self.quiet {
                self.random.below(4)
            } else {
                self.random.pick(&[1, 3, 10, 1 << 40, 1 << 40])
            },
            proxy: self.proxies[proxy].mark,
            settle: Vec::new(),
        };
        for _ in 0..=self.random.below(4) {
            self.send(proxy, question.clone());
        }
    }

    fn send(&mut self, proxy: usize, question: Question) {
        if self.random.one_in(15) {
            return;
        }
        let delay = self.delay_us();
        let sent_us = self.now_us;
        self.later(
            delay,
            Event::Asked {
                proxy,
                sent_us,
                question,
            },
        );
    }
}

// -----------------------------------------------------------------------------
// What operators and others do to the bucket meanwhile.

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

impl World {
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
        self.bucket.algorithm = edited;
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
        self.bucket.state = self.bucket.state.as_ref().and_then(State::reset);
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

// -----------------------------------------------------------------------------
// A proxy's grants, and its clock.

pub struct Grant {
    pub lease: Lease,
    pub left: u64,
    pub spent: u64,
    /// By the proxy's clock.
    pub dies_us: u64,
}

pub struct Proxy {
    pub mark: u8,
    pub alive: bool,
    /// How much too fast its clock runs, in millionths.
    pub drift: i64,
    pub held: Vec<Grant>,
    /// It leases all it can get and spends it at the last moment.
    pub hoards: bool,
}

impl Proxy {
    pub fn new(random: &mut Random) -> Self {
        Self {
            mark: u8::try_from(random.below(PROXY_MARKS.into())).unwrap(),
            alive: true,
            drift: i64::try_from(random.below(1001)).unwrap() - 500,
            held: Vec::new(),
            hoards: random.one_in(2),
        }
    }

    pub fn clock_us(&self, now_us: u64) -> u64 {
        let drift = i64::try_from(now_us).unwrap() * self.drift / 1_000_000;
        now_us.checked_add_signed(drift).unwrap()
    }
}

// -----------------------------------------------------------------------------
// The bucket that the proxies call.

/// The content of one message to the bucket.
#[derive(Clone, Debug, Default)]
pub struct Question {
    pub cost: u64,
    pub want: u64,
    pub proxy: u8,
    pub settle: Vec<Settlement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub charged: u64,
    pub lease: Option<Lease>,
    pub leased: u64,
    pub remaining: u64,
    pub reset_after_ms: u64,
    /// Whether the store writes the key, and with it its TTL.
    pub wrote: bool,
}

/// The algorithm and its state.
pub struct Bucket {
    algorithm: Algorithm,
    state: Option<State>,
}

impl Bucket {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let ask = BucketRequest {
            cost: question.cost,
            lease: LeaseRequest {
                ttl_ms,
                want: question.want,
                proxy: question.proxy,
                settle: &question.settle,
            },
            ..BucketRequest::default()
        };
        let state = self.state.take();
        let outcome = self
            .algorithm
            .evaluate_request(state.as_ref(), now_ms, ask)
            .charge();
        let wrote = outcome.write.is_some();
        self.state = outcome.write.or(state);
        Reply {
            charged: outcome.verdict.charged,
            lease: outcome.verdict.lease,
            leased: outcome.verdict.leased,
            remaining: outcome.verdict.decision.remaining,
            reset_after_ms: outcome.verdict.decision.reset_after_ms,
            wrote,
        }
    }
}

// -----------------------------------------------------------------------------
// Compares what was admitted with what may be.

/// Admissions of a bucket, in the order of their times: at most C + r·Δ in every interval.
///
/// With admissions of `u_1, u_2, …` parts at `t_1 ≤ t_2 ≤ …`, those from `i` to `j` are `A_j −
/// A_(i−1)`, and the promise for every `i ≤ j` is `(A_j − y·t_j) − (A_(i−1) − y·t_i) ≤ C`: one pass
/// that keeps the least of the second term.
pub struct Audit {
    /// C, in parts.
    pub capacity: i128,
    /// Parts refilled per millisecond.
    pub per_ms: i128,
    admitted: i128,
    least: i128,
    last_ms: u64,
    /// The most by which the promise was broken, in parts.
    pub worst: i128,
}

impl Audit {
    pub fn new(capacity: u64, per_ms: u64) -> Self {
        Self {
            capacity: capacity.into(),
            per_ms: per_ms.into(),
            admitted: 0,
            least: i128::MAX,
            last_ms: 0,
            worst: i128::MIN,
        }
    }

    pub fn admit(&mut self, now_ms: u64, parts: u64) {
        assert!(now_ms >= self.last_ms, "in the order of time");
        self.last_ms = now_ms;
        let refilled = self.per_ms * i128::from(now_ms);
        self.least = self.least.min(self.admitted - refilled);
        self.admitted += i128::from(parts);
        let over = self.admitted - refilled - self.least - self.capacity;
        self.worst = self.worst.max(over);
    }

    /// Units that an operator gave back may be admitted once more.
    pub fn credit(&mut self, parts: u64) {
        self.admitted -= i128::from(parts);
    }
}

#[test]
fn the_audit_finds_the_one_interval_that_is_too_full() {
    let mut audit = Audit::new(10, 1);
    for (now_ms, parts) in [(0, 4), (5, 6), (20, 10), (22, 2)] {
        audit.admit(now_ms, parts);
        assert!(audit.worst <= 0);
    }
    audit.admit(23, 2);
    assert_eq!(audit.worst, 1, "14 in 3 ms, where 13 may be");
}

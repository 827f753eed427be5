//! Proxies, a network and one bucket, on a virtual clock.
//!
//! Everything that a fleet can do to a bucket happens here, at random from a seed: messages are
//! lost in either direction, late by more than a ttl, and overtake each other; proxies spend at the
//! last moment, return what they do not need or all of it, die with their grants, and their clocks
//! drift; the ttl is edited, switched off and on; the key expires by its TTL.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use algorithms::{Algorithm, Lease};

use super::Random;
use super::audit::Audit;
use super::bucket::{Bucket, Question};
use super::edits::Edits;
use super::proxy::{Grant, Proxy};

/// Rules of the proxy, the network and the store that can be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lapses {
    /// The ttl of a lease counts from its receipt.
    pub deadline_from_receipt: bool,
    /// A message with a settlement may arrive twice.
    pub settled_twice: bool,
    /// A key lives only for as long as its debt alone takes to drain.
    pub ttl_of_the_debt: bool,
}

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
pub struct World<'b> {
    pub random: Random,
    pub bucket: &'b mut dyn Bucket,
    pub audit: Audit,
    /// The parts of a unit in the audit.
    pub unit: u64,
    pub algorithm: Algorithm,
    /// The capacity and rate that it began with.
    pub numbers: (u64, u64),
    /// How far the server's clock is off.
    pub offset_ms: u64,
    pub lapses: Lapses,
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

impl<'b> World<'b> {
    pub fn new(
        seed: u64,
        algorithm: &Algorithm,
        bucket: &'b mut dyn Bucket,
        lapses: Lapses,
        edits: Edits,
    ) -> Self {
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
            bucket,
            audit: Audit::new(
                largest * numbers.limit * rate.period_ms,
                largest * rate.units,
            ),
            unit: rate.period_ms,
            algorithm: *algorithm,
            numbers: (numbers.limit, rate.units),
            offset_ms: 1_000_000,
            lapses,
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
            self.bucket.expire();
            self.expires_ms = u64::MAX;
        }
        let reply = self.bucket.ask(now_ms, self.ttl_ms, question);
        if reply.wrote {
            let lives_ms = if self.lapses.ttl_of_the_debt {
                self.bucket.drain_ms()
            } else {
                reply.reset_after_ms
            };
            self.expires_ms = now_ms + lives_ms.max(1);
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
        let from_us = if self.lapses.deadline_from_receipt {
            held.clock_us(now_us)
        } else {
            held.clock_us(sent_us)
        };
        // A thousandth less, for clocks that drift.
        let dies_us = from_us + lease.ttl_ms * 999;
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

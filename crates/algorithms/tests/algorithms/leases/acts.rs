//! What proxies do.

use algorithms::Settlement;

use super::bucket::Question;
use super::proxy::Proxy;
use super::world::{Event, World};

impl World<'_> {
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
        if self.lapses.settled_twice {
            self.send(proxy, question.clone());
        }
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

//! Requests in flight while messages are lost, late, repeated and reordered, Envoys are cut off, and
//! the store loses its buckets: which requests run, and which slot each of them holds.

use std::collections::HashMap;

use algorithms::InFlightSlot;

use crate::{
    decisions::seeds,
    faults::any,
    world::{CONFIG, Faults, Outcome, World},
};

const LIMIT: usize = 12;
const TTL_MS: u64 = 1_500;
const LIMITS: &str = "  - {name: in-flight, match: {path: \"/**\"}, algorithm: concurrency, limit: 12, slot_ttl: 1500ms}\n";
const ENVOYS: usize = 3;
const SHARE: usize = LIMIT / ENVOYS;

/// How a running request was admitted.
enum Admission {
    /// By a limiter: its slot, and when that expires, in milliseconds since the epoch.
    Slot(InFlightSlot, u64),
    /// By its Envoy's share of the limit.
    Share,
    /// By a limiter; its slot lapsed or was lost.
    Lapsed,
}

/// A world, and the requests in it that have not ended.
struct Run {
    world: World,
    waiting: Vec<usize>,
    running: HashMap<usize, Admission>,
    /// When requests end, in microseconds.
    ends_us: HashMap<usize, u64>,
    /// How many ever lapsed or were lost, and how many shares ever admitted.
    lapsed: usize,
    shares: usize,
    /// When the store last lost its buckets, in microseconds.
    lost_us: u64,
    /// The most that ran at once.
    most: usize,
    /// Whether faults have been impossible long enough that each running request has its slot again.
    recovered: bool,
}

impl Run {
    fn new(seed: u64, config: &str) -> Self {
        let mut world = World::new(seed, ENVOYS, 2, config, LIMITS);
        world.limiter.proxies = ENVOYS as u64;
        let mut run = Self {
            world,
            waiting: Vec::new(),
            running: HashMap::new(),
            ends_us: HashMap::new(),
            lapsed: 0,
            shares: 0,
            lost_us: 0,
            most: 0,
            recovered: false,
        };
        for envoy in 0..ENVOYS {
            run.greet(envoy);
        }
        run
    }

    /// An Envoy receives answers, which contain the number of proxies.
    fn greet(&mut self, envoy: usize) {
        self.world.faults = Faults::NONE;
        self.world.cut_off = None;
        self.pass(500_000);
        for worker in [1, 2] {
            self.request(envoy, worker, 1);
            self.pass(100_000);
        }
    }

    fn request(&mut self, envoy: usize, worker: usize, lasts_ms: u64) {
        let path = format!("/{}", self.world.requests.len());
        let number = self
            .world
            .request(envoy, worker, "alice", String::leak(path));
        self.waiting.push(number);
        self.ends_us
            .insert(number, self.world.now_us + lasts_ms * 1000);
    }

    /// Requests arrive; some are short, some outlive many renewals, some leave before their answer.
    fn load(&mut self, ms: u64) {
        let end_us = self.world.now_us + ms * 1000;
        while self.world.now_us < end_us {
            let chance = &mut self.world.chance;
            let (envoy, worker) = (chance.index(ENVOYS), 1 + chance.index(2));
            let lasts_ms = match chance.below(10) {
                0 => chance.below(6 * TTL_MS),
                1 => chance.below(5),
                _ => chance.below(300),
            };
            let pause_us = chance.below(20_000);
            self.request(envoy, worker, lasts_ms);
            self.pass(pause_us);
        }
    }

    /// Time passes, event by event.
    fn pass(&mut self, us: u64) {
        let until_us = self.world.now_us + us;
        loop {
            self.end_due();
            let next_us = self.ends_us.values().copied().min();
            let next_us = next_us.unwrap_or(until_us).min(until_us);
            let more = self.world.step(next_us.max(self.world.now_us));
            self.observe();
            if !more && next_us >= until_us {
                return;
            }
        }
    }

    fn end_due(&mut self) {
        let now_us = self.world.now_us;
        let due = |(number, at_us): (&usize, &u64)| (*at_us <= now_us).then_some(*number);
        let mut due: Vec<usize> = self.ends_us.iter().filter_map(due).collect();
        due.sort_unstable();
        for number in due {
            self.ends_us.remove(&number);
            self.running.remove(&number);
            if !self.world.requests[number].gone {
                self.world.leave(number);
            }
        }
    }

    /// Updates the state of requests and slots after an event.
    fn observe(&mut self) {
        let requests = &self.world.requests;
        self.running.retain(|number, _| !requests[*number].gone);
        self.waiting.retain(|number| !requests[*number].gone);
        let decided = |number: &usize| requests[*number].outcome.is_some();
        let (decided, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(decided);
        self.waiting = waiting;
        self.renewed();
        for number in decided {
            self.decided(number);
        }
        self.most = self.most.max(self.running.len());
        self.check_bounds();
    }

    fn decided(&mut self, number: usize) {
        let sent = &self.world.requests[number];
        if !matches!(sent.outcome, Some(Outcome::Passed { .. })) {
            self.ends_us.remove(&number);
            return;
        }
        let now_ms = self.world.limiter_ms();
        let admission = if sent.answered {
            assert!(
                !self.recovered || self.running.len() < LIMIT,
                "{number} was admitted beside {}",
                self.running.len()
            );
            let limiter = &self.world.limiter;
            let slot = limiter.given[sent.path];
            match limiter.expiry_of(slot, now_ms) {
                Some(expiry_ms) => Admission::Slot(slot, expiry_ms),
                None if self.world.now_us - self.lost_us < 50_000 => {
                    self.lapsed += 1;
                    Admission::Lapsed
                }
                None => panic!("the slot of {number} was freed before it was used"),
            }
        } else {
            self.shares += 1;
            Admission::Share
        };
        self.running.insert(number, admission);
    }

    /// Slots disappear only when they expire.
    fn renewed(&mut self) {
        let now_ms = self.world.limiter_ms();
        for (number, admission) in &mut self.running {
            let Admission::Slot(slot, until_ms) = admission else {
                continue;
            };
            if let Some(expiry_ms) = self.world.limiter.expiry_of(*slot, now_ms) {
                *until_ms = expiry_ms;
            } else {
                assert!(*until_ms <= now_ms, "{number} lost its slot");
                self.lapsed += 1;
                *admission = Admission::Lapsed;
            }
        }
    }

    fn count(&self, of: impl Fn(usize, &Admission) -> bool) -> usize {
        let running = self.running.iter();
        running.filter(|(number, by)| of(**number, by)).count()
    }

    fn check_bounds(&self) {
        let held = self.count(|_, by| matches!(by, Admission::Slot(..)));
        assert!(held <= LIMIT, "{held} slots never lapsed");
        for envoy in 0..ENVOYS {
            let of = |number: usize| self.world.requests[number].envoy == envoy;
            let shares = self.count(|number, by| of(number) && matches!(by, Admission::Share));
            assert!(shares <= SHARE, "{shares} of a share");
        }
    }

    /// The store loses its buckets, as a failover may.
    fn lose_buckets(&mut self) {
        self.world.limiter.lose_buckets();
        self.lost_us = self.world.now_us;
        for admission in self.running.values_mut() {
            if matches!(admission, Admission::Slot(..)) {
                *admission = Admission::Lapsed;
                self.lapsed += 1;
            }
        }
    }

    fn slots(&self) -> usize {
        self.world.limiter.slots(self.world.limiter_ms())
    }

    /// Ends all faults, and waits until each slot is renewed.
    fn recover(&mut self) {
        self.world.faults = Faults::NONE;
        self.world.cut_off = None;
        self.pass(2 * TTL_MS * 1000);
        self.recovered = true;
    }

    /// Every request ends, and frees its slot.
    fn end_all(&mut self) {
        let now_us = self.world.now_us;
        for at_us in self.ends_us.values_mut() {
            *at_us = now_us;
        }
        self.pass(500_000);
        assert_eq!(self.slots(), 0);
    }
}

/// Any mixture of faults, with calls that overtake others and that arrive twice.
fn mixture(world: &mut World) -> Faults {
    let faults = any(world);
    Faults {
        delayed: world.chance.below(30),
        repeated: world.chance.below(30),
        ..faults
    }
}

#[test]
fn requests_beyond_the_limit_are_only_lapsed_or_locally_admitted() {
    let (mut lapsed, mut shares, mut most) = (0, 0, 0);
    for mut run in seeds().map(|seed| Run::new(seed, CONFIG)) {
        for _ in 0..12 {
            if run.world.chance.percent(5) {
                let dead = run.world.chance.index(ENVOYS);
                run.world.crash(dead, CONFIG);
                run.greet(dead);
            }
            run.world.faults = mixture(&mut run.world);
            let cut_off = run.world.chance.index(2 * ENVOYS);
            run.world.cut_off = Some(cut_off).filter(|envoy| *envoy < ENVOYS);
            if run.world.chance.percent(10) {
                run.lose_buckets();
            }
            let ms = run.world.chance.below(2 * TTL_MS);
            run.load(ms);
        }
        run.recover();
        assert_eq!(run.slots(), run.running.len(), "entered again");
        run.load(TTL_MS);
        run.pass(50_000);
        assert_eq!(run.slots(), run.running.len());
        (lapsed, shares) = (lapsed + run.lapsed, shares + run.shares);
        most = most.max(run.most);
        run.end_all();
    }
    assert!(lapsed > 0 && shares > 0, "{lapsed} lapsed, {shares} shares");
    assert!(most > LIMIT, "{most}");
    eprintln!("{lapsed} lapsed, {shares} were admitted by shares, at most {most} ran");
}

/// No overtaken call times out: five in a row would open the breaker, during which slots lapse.
#[test]
fn repeated_or_reordered_messages_neither_lapse_nor_leak_slots() {
    let config = CONFIG.replace("20ms", "100ms");
    for mut run in seeds().map(|seed| Run::new(seed, &config)) {
        run.world.faults = Faults {
            delayed: 40,
            repeated: 40,
            ..Faults::NONE
        };
        run.load(4 * TTL_MS);
        assert_eq!(run.lapsed, 0);
        run.recover();
        assert_eq!(run.slots(), run.running.len());
        run.end_all();
    }
}

//! Random limits, edits, costs and clocks, from a seed.

use algorithms::check::{Mode, Verdict};
use algorithms::{
    Adaptive, Algorithm, Align, CalendarUnit, CostSettlement, Edges, Kind, Lease, Pace, Parameters,
    Rate, Reservation, Settlement, SlotAct, SlotId, SlotOp, WeekStart,
};

use super::{Leasing, Reserving, Subject};

/// `SplitMix64`: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// An index into something that is not empty.
    pub fn below_len(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below_len(from.len())]
    }

    /// Of any magnitude up to `2^bits`.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.below(1 << bits) + self.below(2)
    }
}

const KINDS: [Kind; 8] = [
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindowLog,
    Kind::SlidingWindowBuckets,
    Kind::SlidingWindow,
    Kind::Concurrency,
];

/// Kinds that reserve and settle.
const COSTED: [Kind; 6] = [
    Kind::TokenBucket,
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingWindowBuckets,
];

const PERIODS: [u64; 12] = [
    1,
    7,
    60,
    900,
    1000,
    1500,
    10_000,
    60_000,
    86_400_000,
    2_592_000_000,
    1 << 40,
    1 << 51,
];

/// Valid parameters of one kind, from everyday numbers to the largest there are.
pub fn parameters(random: &mut Random, kind: Kind) -> Parameters {
    loop {
        let mut any = |everyday: &[u64]| match random.below(4) {
            0 => random.magnitude(51),
            _ => random.pick(everyday),
        };
        let period_ms = any(&PERIODS);
        let units = any(&[1, 2, 3, 5, 7, 10, 100, 5103, 1_000_000]);
        let mut parameters = Parameters::new(kind, units, period_ms);
        let bucket = kind.is_bucket();
        if bucket && random.one_in(2) {
            let bits = random.pick(&[3, 3, 10, 51]);
            parameters.burst = Some(random.magnitude(bits));
        }
        if bucket && random.one_in(if kind == Kind::LeakyBucket { 2 } else { 4 }) {
            let horizon = parameters.rate.period_ms.saturating_mul(2);
            parameters.max_delay_ms = Some(random.below(horizon));
        }
        if kind == Kind::FixedWindow && random.one_in(2) {
            let unit = random.pick(&CalendarUnit::ALL);
            parameters.rate = Rate::in_each(units, unit);
            if unit == CalendarUnit::Week {
                parameters.week_start = random.pick(&[None, Some(WeekStart::Sunday)]);
            }
        } else if kind == Kind::FixedWindow {
            parameters.align = Some(random.pick(&[Align::Epoch, Align::FirstRequest]));
        }
        if kind == Kind::SlidingWindowBuckets {
            parameters.sub_windows = Some(random.pick(&[1, 2, 3, 5, 7, 10, 60, 128]));
            parameters.strict = Some(random.one_in(2));
        }
        if kind == Kind::Concurrency && random.one_in(2) {
            parameters.adaptive = Some(rule(random, units));
        }
        if Algorithm::new(&parameters).is_ok() {
            return parameters;
        }
    }
}

/// A rule for a limit that starts with so many slots; not always a valid one.
pub fn rule(random: &mut Random, start: u64) -> Adaptive {
    Adaptive {
        min: random.pick(&[1, 2, start / 2, start]),
        max: random.pick(&[start, start + 1, 2 * start, 20 * start]),
        latency_ms: random.pick(&[2, 50, 300, 300, 1000, 3_600_000]),
        share: random.pick(&[500, 900, 950, 950, 990, 999]),
    }
}

/// The edges around a time by the time zone data of one limiter, made up: so many hours from UTC, with
/// clocks that change.
pub fn edges(unit: CalendarUnit, hours: u64, now_ms: u64) -> Edges {
    const HOUR_MS: u64 = 3_600_000;
    let length_ms = unit.nominal_ms();
    let serial = ((now_ms + hours * HOUR_MS) / length_ms).saturating_sub(1);
    let start = |nth: u64| {
        let serial = serial + nth;
        let changed = serial * 7919 % 3;
        (serial * length_ms + changed * HOUR_MS).saturating_sub(hours * HOUR_MS)
    };
    let starts_ms = [0, 1, 2, 3, 4, 5].map(start);
    Edges::new(u32::try_from(serial).unwrap(), starts_ms)
}

/// Limits that are edited, charged and asked at times that jump.
pub struct Walk {
    random: Random,
    limits: Vec<(Parameters, Algorithm, u64)>,
    leases: Vec<WalkLeases>,
    reserved: Vec<CostSettlement>,
    prefix: String,
    now_ms: u64,
}

impl Walk {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = (0..=random.below(3))
            .map(|_| {
                let kind = random.pick(&KINDS);
                let parameters = parameters(&mut random, kind);
                (parameters, Algorithm::new(&parameters).unwrap(), 1)
            })
            .collect();
        let leases = vec![WalkLeases::default(); 4];
        let now_ms = random.pick(&[0, 5000, 1_763_000_040_000, (1 << 52) - 5000]);
        Self {
            random,
            limits,
            leases,
            reserved: Vec::new(),
            prefix: format!("walk:{seed}"),
            now_ms,
        }
    }

    /// A walk of one limit.
    fn of(seed: u64, parameters: impl FnOnce(&mut Random) -> Parameters) -> Self {
        let mut walk = Self::new(seed);
        let parameters = parameters(&mut walk.random);
        let algorithm = Algorithm::new(&parameters).unwrap();
        walk.limits = vec![(parameters, algorithm, 1)];
        walk
    }

    /// A walk of one queue that is busy, and edited now and then.
    pub fn of_a_queue(seed: u64) -> Self {
        const RATES: [(u64, u64); 5] = [(20, 1000), (1, 1000), (7, 60), (1000, 1000), (3, 1)];
        Self::of(seed, |random| {
            let (units, period_ms) = random.pick(&RATES);
            let kind = random.pick(&[Kind::LeakyBucket, Kind::TokenBucket, Kind::Gcra]);
            let forever_ms = if kind == Kind::LeakyBucket {
                1 << 51
            } else {
                1 << 40
            };
            Parameters {
                burst: Some(random.pick(&[5, 20, 100])),
                max_delay_ms: Some(random.pick(&[0, 40, 500, 3000, forever_ms])),
                ..Parameters::new(kind, units, period_ms)
            }
        })
    }

    /// A walk of many requests in flight; the ttl is edited now and then.
    pub fn of_slots(seed: u64) -> Self {
        Self::of(seed, |random| {
            let (limit, ttl_ms) = random.pick(&[(1, 100), (3, 1000), (20, 300), (120, 5000)]);
            Parameters::new(Kind::Concurrency, limit, ttl_ms)
        })
    }

    /// A walk of a service whose speed changes, behind an adaptive limit; its rule is edited now and then.
    pub fn of_an_adaptive_limit(seed: u64) -> Self {
        Self::of(seed, |random| {
            let start = random.pick(&[1, 3, 20, 60]);
            loop {
                let parameters = Parameters {
                    adaptive: Some(rule(random, start)),
                    ..Parameters::new(Kind::Concurrency, start, 60_000)
                };
                if Algorithm::new(&parameters).is_ok() {
                    return parameters;
                }
            }
        })
    }

    /// As [`Self::step`], by the steps of requests that come, and end at the service's pace.
    pub fn adaptive_step(&mut self) -> (u64, Vec<Subject>) {
        if self.random.one_in(400) {
            let start = self.limits[0].0.rate.units;
            let (old, algorithm, generation) = &mut self.limits[0];
            let edited = Parameters {
                adaptive: (!self.random.one_in(4)).then(|| rule(&mut self.random, start)),
                ..*old
            };
            if let Ok(valid) = Algorithm::new(&edited) {
                (*old, *algorithm) = (edited, valid);
                *generation += 1;
            }
        }
        match self.random.below(400) {
            0 => self.now_ms = self.now_ms.saturating_sub(self.random.below(5000)),
            1 => self.now_ms += self.random.below(100_000),
            _ => self.now_ms += self.random.below(60),
        }
        self.now_ms = self.now_ms.min((1 << 52) - 1);
        // How the service does changes every few seconds.
        let slow = self.now_ms / 8000 * 7919 % 5;
        let mut subject = self.subject(0, 1);
        for op in &mut subject.lease.free {
            if self.random.one_in(8) || op.act == SlotAct::Enter {
                continue;
            }
            op.act = match self.random.below(10) {
                0 => SlotAct::Free(1),
                roll if roll < 2 * slow => SlotAct::Answered(Pace::Slow),
                roll if roll < 2 * slow + 1 => SlotAct::Answered(Pace::Late),
                _ => SlotAct::Answered(Pace::InTime),
            };
        }
        (self.now_ms, vec![subject])
    }

    /// A walk of one bucket that is leased now and then, and edited; debits are large and frequent.
    pub fn of_debts(seed: u64) -> Self {
        Self::of(seed, |random| {
            let kind = random.pick(&[Kind::Gcra, Kind::Gcra, Kind::TokenBucket]);
            Parameters {
                max_delay_ms: None,
                ..parameters(random, kind)
            }
        })
    }

    /// As [`Self::step`], with such debits.
    pub fn debts_step(&mut self) -> (u64, Vec<Subject>) {
        let (now_ms, mut subjects) = self.step();
        let random = &mut self.random;
        for subject in &mut subjects {
            if random.one_in(3) {
                let limit = subject.algorithm.limit();
                subject.debit = random.below(4 * limit.min(1 << 40) + 2);
            }
        }
        (now_ms, subjects)
    }

    /// As [`Self::step`], by the steps of requests that come, renew and end.
    pub fn slots_step(&mut self) -> (u64, Vec<Subject>) {
        if self.random.one_in(80) {
            self.edit();
        }
        let ttl_ms = self.limits[0].0.rate.period_ms;
        if self.random.one_in(3) {
            self.now_ms += self.random.below(ttl_ms / 3);
        } else if self.random.one_in(60) {
            self.now_ms = self.now_ms.saturating_sub(self.random.below(3 * ttl_ms));
        }
        self.now_ms = self.now_ms.min((1 << 52) - 1);
        let cost = self.random.pick(&[1, 1, 1, 1, 1, 0]);
        (self.now_ms, vec![self.subject(0, cost)])
    }

    /// A walk of one limit whose responses state their cost, edited now and then.
    pub fn of_costs(seed: u64) -> Self {
        Self::of(seed, |random| {
            // A log reserves and settles, too, but gives nothing back.
            let log = random.one_in(12);
            let kind = if log {
                Kind::SlidingWindowLog
            } else {
                random.pick(&COSTED)
            };
            let mut any = std::iter::repeat_with(|| parameters(random, kind));
            any.find(|any| any.max_delay_ms.is_none()).unwrap()
        })
    }

    /// As [`Self::step`], with reservations, and settlements that are late, repeated and made up.
    pub fn costs_step(&mut self) -> (u64, Vec<Subject>) {
        if self.random.one_in(25) {
            self.edit();
        }
        let (parameters, ..) = self.limits[0];
        let log = parameters.kind == Kind::SlidingWindowLog;
        if parameters.max_delay_ms.is_some() || !(log || COSTED.contains(&parameters.kind)) {
            *self = Self::of_costs(self.random.next());
        }
        if self.random.one_in(3) {
            self.tick();
        } else {
            self.now_ms += self.random.below(50);
        }
        self.now_ms = self.now_ms.min((1 << 52) - 1);
        let cost = self.cost(0);
        let random = &mut self.random;
        let mut settle = Vec::new();
        while !self.reserved.is_empty() && random.one_in(2) {
            let at = random.below_len(self.reserved.len());
            let mut settled = self.reserved[at];
            if random.one_in(2) {
                self.reserved.swap_remove(at);
            }
            let more = random.pick(&[1, 1, 2, 30]);
            settled.units = random.below(settled.reservation.units.min(1 << 40) * more + 3);
            match random.below(30) {
                0 => settled.reservation.secret += 1,
                1 => settled.reservation.number = random.below(1200),
                2 => settled.reservation.units = random.magnitude(52),
                3 => settled.units = random.magnitude(52),
                _ => {}
            }
            settle.push(settled);
        }
        let secret = (!random.one_in(8)).then(|| random.magnitude(51));
        let reserving = Reserving {
            key: format!("r:{{{}:0}}", self.prefix),
            count_open: secret.is_none(),
            secret,
            settle,
        };
        let debit = random.below(9) * u64::from(random.one_in(20));
        let mut subject = self.subject(0, cost);
        subject.lease = Leasing::default();
        subject.debit = debit;
        subject.costs = Some(reserving).filter(|_| !self.random.one_in(30));
        (self.now_ms, vec![subject])
    }

    /// Records reservations, to be settled.
    pub fn observe_costs(&mut self, subject: &Subject, verdict: &Verdict) {
        let limit = &verdict.limits[0];
        let secret = subject.costs.as_ref().and_then(|costs| costs.secret);
        let number = limit.reserved.number;
        self.reserved
            .extend(secret.filter(|_| number > 0).map(|secret| CostSettlement {
                reservation: Reservation {
                    secret,
                    number,
                    units: limit.charged,
                    seal: 0,
                },
                units: 0,
            }));
    }

    /// As [`Self::step`], by the steps of a queue's time.
    pub fn queue_step(&mut self) -> (u64, Vec<Subject>) {
        if self.random.one_in(150) {
            self.edit();
        }
        let apart_ms = self.limits[0].0.rate.period_ms / self.limits[0].0.rate.units.max(1);
        if self.random.one_in(3) {
            self.now_ms += self.random.below(2 * apart_ms + 2);
        } else if self.random.one_in(60) {
            self.now_ms = self
                .now_ms
                .saturating_sub(self.random.below(3 * apart_ms + 2));
        }
        self.now_ms = self.now_ms.min((1 << 52) - 1);
        let cost = self.random.pick(&[1, 1, 1, 1, 2, 3, 5, 0]);
        let mut subject = self.subject(0, cost);
        if self.random.one_in(30) {
            subject.debit = self.random.below(2 * subject.algorithm.limit());
        }
        (self.now_ms, vec![subject])
    }

    /// The time, and what a check asks of each limit.
    pub fn step(&mut self) -> (u64, Vec<Subject>) {
        if self.random.one_in(12) {
            self.edit();
        }
        for leases in &mut self.leases {
            if self.random.one_in(10) {
                leases.edit(&mut self.random);
            }
        }
        self.tick();
        let shared_cost = self.cost(0);
        let mut subjects = Vec::new();
        for index in 0..self.limits.len() {
            let own = self.random.one_in(3);
            let cost = if own { self.cost(index) } else { shared_cost };
            let debits = self.random.one_in(20);
            let debit = if debits { self.cost(index) } else { 0 };
            let subject = self.subject(index, cost);
            let window = subject.algorithm.calendar_window(self.now_ms);
            let debit_serial = window.filter(|_| self.random.one_in(2)).map(|window| {
                (window.serial + self.random.pick(&[0, 0, 1, 2, 3])).saturating_sub(1)
            });
            subjects.push(Subject {
                debit,
                debit_serial: debit_serial.filter(|serial| *serial > 0),
                ..subject
            });
        }
        (self.now_ms, subjects)
    }

    fn subject(&mut self, index: usize, cost: u64) -> Subject {
        let (parameters, mut algorithm, generation) = self.limits[index];
        if let Some(unit) = parameters.rate.calendar {
            // An edit of the zone, another version of its data, or a clock that is off.
            let random = &mut self.random;
            let other = random.one_in(4);
            let hours = if other {
                random.below(27)
            } else {
                generation % 27
            };
            let off_ms = random.below(2 * unit.nominal_ms()) * u64::from(random.one_in(10));
            let behind = random.one_in(2);
            let (before_ms, after_ms) = (self.now_ms.saturating_sub(off_ms), self.now_ms + off_ms);
            let near_ms = if behind { before_ms } else { after_ms };
            algorithm = algorithm.with_edges(edges(unit, hours, near_ms));
        }
        let behind = u64::from(self.random.one_in(30));
        let mut lease = self.leases[index].ask(&mut self.random, algorithm.limit());
        let mut cost = cost;
        if algorithm.kind() == Kind::Concurrency {
            cost = cost.min(1);
            // Some ids come again, and some are of Envoy's rate limit service.
            let secret = self.random.below(300);
            algorithm = algorithm.for_request(SlotId::new(7, secret % 2, secret));
            for freed in &mut lease.free {
                freed.act = self.random.pick(&[
                    SlotAct::Free(1),
                    SlotAct::Renew,
                    SlotAct::Renew,
                    SlotAct::Renew,
                    SlotAct::Enter,
                    SlotAct::Answered(Pace::InTime),
                    SlotAct::Answered(Pace::Late),
                    SlotAct::Answered(Pace::Slow),
                    freed.act,
                ]);
                // A check plan passes on no other values.
                freed.slot.since_ms = freed.slot.since_ms.clamp(100, 86_400_000);
            }
        }
        let mode = match self.random.below(12) {
            0 | 1 => Mode::Observe,
            2 | 3 => Mode::Together,
            _ => Mode::Enforce,
        };
        Subject {
            generation: generation.saturating_sub(behind),
            cost,
            lease,
            mode,
            ..Subject::new(&format!("{}:{index}", self.prefix), algorithm)
        }
    }

    /// Records grants, to be settled.
    pub fn observe(&mut self, verdict: &Verdict) {
        for (leases, limit) in self.leases.iter_mut().zip(&verdict.limits) {
            leases.granted.extend(limit.lease);
            let units = limit.charged;
            leases
                .slots
                .extend(limit.slot.map(|slot| SlotOp::free(slot, units)));
        }
    }

    /// Changes some numbers of one limit, sometimes its algorithm.
    fn edit(&mut self) {
        let random = &mut self.random;
        let index = random.below_len(self.limits.len());
        let (old, algorithm, generation) = &mut self.limits[index];
        let kind = if random.one_in(8) {
            random.pick(&KINDS)
        } else {
            old.kind
        };
        let new = parameters(random, kind);
        let mut edited = *old;
        match random.below(4) {
            _ if kind != old.kind => edited = new,
            0 => edited.rate = new.rate,
            1 => {
                edited.rate = Rate {
                    units: new.rate.units,
                    ..old.rate
                }
            }
            2 => edited.burst = new.burst,
            _ => edited = new,
        }
        if let Ok(valid) = Algorithm::new(&edited) {
            (*old, *algorithm) = (edited, valid);
            *generation += 1;
        }
    }

    /// Moves the clock: mostly on, by amounts that matter to a limit; sometimes back.
    fn tick(&mut self) {
        let random = &mut self.random;
        let index = random.below_len(self.limits.len());
        let algorithm = &self.limits[index].1;
        let ttl_ms = self.leases[index].ttl_ms;
        let scale = random.pick(&[algorithm.window_ms(), algorithm.horizon_ms(), 1000, ttl_ms]);
        let by = match random.below(10) {
            0..=3 => 0,
            4 => random.below(3),
            5..=7 => random.below(scale / 4 + 2),
            8 => scale + random.below(3),
            _ => random.below(scale.saturating_mul(3)),
        };
        self.now_ms = if random.one_in(8) {
            self.now_ms.saturating_sub(by)
        } else {
            (self.now_ms + by).min((1 << 52) - 1)
        };
    }

    fn cost(&mut self, index: usize) -> u64 {
        let limit = self.limits[index].1.limit();
        match self.random.below(12) {
            0 => 0,
            1 => limit,
            2 => limit + 1,
            3 => self.random.magnitude(52),
            4..=6 => self.random.below(limit / 3 + 2),
            _ => 1,
        }
    }
}

/// The leases of one limit: its ttl, and what was granted.
#[derive(Clone, Default)]
struct WalkLeases {
    ttl_ms: u64,
    granted: Vec<Lease>,
    slots: Vec<SlotOp>,
}

impl WalkLeases {
    /// Switches leasing on or off, or changes the ttl.
    fn edit(&mut self, random: &mut Random) {
        self.ttl_ms = random.pick(&[0, 1, 10, 100, 100, 1000, 60_000]);
    }

    fn ask(&mut self, random: &mut Random, limit: u64) -> Leasing {
        let mut lease = Leasing {
            ttl_ms: self.ttl_ms,
            ..Leasing::default()
        };
        if random.one_in(2) {
            lease.want = random.below(limit.min(1 << 52) + 2);
            let proxies = random.pick(&[3, 64]);
            lease.proxy = u8::try_from(random.below(proxies)).unwrap();
        }
        while !self.granted.is_empty() && random.one_in(3) {
            let at = random.below_len(self.granted.len());
            let Lease { units, epoch, .. } = self.granted[at];
            if random.one_in(3) {
                self.granted.swap_remove(at);
            }
            let spent = random.below(units + 2);
            lease.settle.push(Settlement {
                epoch: (epoch + random.pick(&[0, 0, 0, 0, 1, 2]))
                    .saturating_sub(random.below(8) / 7),
                spent: if random.one_in(3) { 0 } else { spent },
                returned: if random.one_in(3) {
                    units
                } else {
                    units.saturating_sub(spent)
                },
            });
        }
        lease.free = self.freed(random);
        lease
    }

    /// Slots that are freed, some of them repeatedly, some by an invalid name.
    fn freed(&mut self, random: &mut Random) -> Vec<SlotOp> {
        let mut free = Vec::new();
        while !self.slots.is_empty() && random.one_in(2) {
            let at = random.below_len(self.slots.len());
            let mut freed = self.slots[at];
            if random.one_in(2) {
                self.slots.swap_remove(at);
            }
            match random.below(40) {
                0 => freed.act = SlotAct::Free(random.magnitude(52)),
                1 => freed.slot.turn += 1,
                2 => freed.slot.since_ms += 1,
                3 => freed.slot.start_ms = random.magnitude(52),
                4 => freed.slot.parts = random.magnitude(52),
                _ => {}
            }
            free.push(freed);
        }
        free
    }
}

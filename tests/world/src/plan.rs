//! What happens in a run, drawn from its seed before it begins, so that each part can be left out.

use std::fmt::Write as _;

use crate::{
    redis::Kept,
    sim::{Chance, Part, Weather},
};

/// A limit of the world, and what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: &'static str,
    /// The fields of its limit but for the rate.
    pub fields: &'static str,
    /// What it allows each user in a day, before any edit.
    pub units: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each request is checked.
    Checked,
    Leased,
    /// Requests in flight.
    Slots,
    /// Requests reserve units, and their responses say what they cost.
    Costs,
}

/// What a request reserves, and the most that it may cost.
pub const RESERVE: u64 = 50;
pub const COST_MAX: u64 = 90;

/// How many requests may be in flight at once, and how long a slot lasts without its proxy.
pub const SLOTS: u64 = 5;
pub const SLOT_TTL_MS: u64 = 2_000;

/// The limits. All deny while no limiter answers: so each request that passes was charged.
pub const CLASSES: [Class; 12] = [
    class("token", "algorithm: token_bucket, burst: UNITS", 6),
    class("gcra", "algorithm: gcra, burst: UNITS", 6),
    class("leaky", "algorithm: leaky_bucket, burst: UNITS", 6),
    class("fixed", "algorithm: fixed_window", 6),
    class("sliding", "algorithm: sliding_window", 6),
    class("log", "algorithm: sliding_window_log", 6),
    class(
        "buckets",
        "algorithm: sliding_window_buckets, sub_windows: 4",
        6,
    ),
    Class {
        kind: Kind::Leased,
        ..class(
            "lease",
            "algorithm: token_bucket, burst: UNITS, lease: {ttl: 300ms}",
            120,
        )
    },
    Class {
        kind: Kind::Leased,
        ..class(
            "window",
            "algorithm: fixed_window, lease: {ttl: 300ms}",
            160,
        )
    },
    Class {
        kind: Kind::Slots,
        ..class("slots", "", SLOTS)
    },
    Class {
        kind: Kind::Costs,
        ..class(
            "tokens",
            "algorithm: fixed_window, cost: {from: {response_json: /usage/total_tokens}, reserve: 50, max: 90}",
            600,
        )
    },
    class(
        "penalty",
        "algorithm: fixed_window, penalty: {after: 3, within: 1m, for: 2m}",
        3,
    ),
];

const fn class(name: &'static str, fields: &'static str, units: u64) -> Class {
    Class {
        name,
        fields,
        units,
        kind: Kind::Checked,
    }
}

/// The limits file, with so many units of each class; `marks` differs between any two.
pub fn limits(units: &[u64], marks: u64) -> String {
    let mut text = "domain: shop\nlimits:\n".to_owned();
    for (class, units) in CLASSES.iter().zip(units) {
        let name = class.name;
        let fields = class.fields.replace("UNITS", &units.to_string());
        let rule = match class.kind {
            Kind::Slots => {
                format!("algorithm: concurrency, limit: {units}, slot_ttl: {SLOT_TTL_MS}ms")
            }
            _ => format!("per: [user], rate: {units}/1d, {fields}"),
        };
        let rule = format!("match: {{path: /{name}}}, on_failure: deny, {rule}");
        writeln!(text, "  - {{name: {name}, {rule}}}").unwrap();
    }
    // Both change in each revision: whoever has one without the other has a mixture.
    for name in ["mark-one", "mark-two"] {
        let rule = format!("match: {{path: /marks}}, rate: {marks}/1s");
        writeln!(text, "  - {{name: {name}, {rule}}}").unwrap();
    }
    text
}

/// One thing that happens to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Weather(Weather),
    CutOff(Part),
    CrashProxy(usize),
    PauseProxy(usize),
    CrashLimiter(usize),
    /// The wall clocks of the limiters, or of one proxy, step by so many milliseconds.
    StepLimiters(i64),
    StepProxy(usize, i64),
    /// Redis's clock steps forward.
    StepRedis(i64),
    PauseRedis,
    /// Redis crashes and comes back.
    CrashRedis(Kept),
    CutRedis,
    /// Redis refuses writes, or everything.
    Refuse(&'static str),
    Busy,
    /// Redis evicts some of the buckets.
    Evict,
    /// An operator changes what a class allows, to one of three numbers.
    Edit(usize, u64),
    Reset(usize),
    Pause(usize),
    Credit(usize, u64),
}

/// An act, when it begins, and how long it lasts if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub at_ms: u64,
    pub lasts_ms: u64,
    pub act: Act,
}

/// The run of one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub proxies: usize,
    pub workers: usize,
    pub limiters: usize,
    pub ends_ms: u64,
    /// The mean pause between two requests.
    pub pause_ms: u64,
    pub events: Vec<Event>,
}

impl Plan {
    pub fn of(seed: u64, minutes: u64) -> Self {
        let chance = Chance::new(seed ^ 0x5eed);
        let mut plan = Self {
            proxies: 1 + chance.index(3),
            workers: 1 + chance.index(2),
            limiters: 1 + chance.index(3),
            ends_ms: minutes * 60_000,
            pause_ms: 40 + chance.below(160),
            events: Vec::new(),
        };
        // Each seed has faults of a few kinds only; every eighth has none.
        let kinds: Vec<u64> = match seed % 8 {
            0 => Vec::new(),
            _ => (0..=chance.below(5)).map(|_| chance.below(18)).collect(),
        };
        let mut at_ms = 8_000;
        loop {
            at_ms += 500 + chance.below(12_000);
            let lasts_ms = match chance.below(3) {
                0 => 20 + chance.below(300),
                1 => chance.below(3_000),
                _ => chance.below(12_000),
            };
            if at_ms + lasts_ms > plan.ends_ms {
                break;
            }
            let edit = kinds.is_empty() || chance.percent(20);
            let kind = if edit {
                17
            } else {
                kinds[chance.index(kinds.len())]
            };
            let act = plan.act(kind, &chance);
            plan.events.push(Event {
                at_ms,
                lasts_ms,
                act,
            });
        }
        plan
    }

    fn act(&self, kind: u64, chance: &Chance) -> Act {
        let share = || chance.below(4) * chance.below(30);
        let step = || i64::try_from(chance.below(20_000)).unwrap() - 10_000;
        let (proxy, limiter) = (chance.index(self.proxies), chance.index(self.limiters));
        match kind {
            0 | 1 => Act::Weather(Weather {
                lost: share(),
                unanswered: share(),
                late: share(),
                repeated: share(),
                garbled: share(),
                slow: share(),
            }),
            2 => Act::CutOff(Part::Proxy(proxy)),
            3 => Act::CutOff(Part::Limiter(limiter)),
            4 => Act::CutOff(Part::Store(limiter)),
            5 => Act::CrashProxy(proxy),
            6 => Act::PauseProxy(proxy),
            7 => Act::CrashLimiter(limiter),
            8 => match chance.below(3) {
                0 => Act::StepLimiters(step()),
                1 => Act::StepRedis(step().abs()),
                _ => Act::StepProxy(proxy, step()),
            },
            9 => Act::PauseRedis,
            10 => {
                Act::CrashRedis([Kept::All, Kept::All, Kept::Saved, Kept::Nothing][chance.index(4)])
            }
            11 => Act::CutRedis,
            12 => Act::Refuse(
                [
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "READONLY You can't write against a read only replica.",
                ][chance.index(2)],
            ),
            13 => Act::Busy,
            14 => Act::Evict,
            _ => match chance.below(6) {
                0 => Act::Reset(chance.index(CLASSES.len() - 3)),
                1 => Act::Pause(chance.index(CLASSES.len())),
                2 => Act::Credit(chance.index(7), 1 + chance.below(3)),
                _ => Act::Edit(chance.index(9), chance.below(3)),
            },
        }
    }
}

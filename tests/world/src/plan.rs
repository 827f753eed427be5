//! What happens in a run, drawn from its seed before it begins, so that each part can be left out.

use std::fmt::Write as _;

use crate::{
    redis::{Kept, Layout},
    service::{self, Rush},
    sim::{Chance, Part, Weather},
};

/// A limit of the world, and what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: &'static str,
    /// The fields of its limit but for the rate.
    pub fields: &'static str,
    /// What it allows each user in a period, before any edit.
    pub units: u64,
    pub period: &'static str,
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
    /// Requests in flight, as many as their service answers in time; the units are the most.
    Adaptive,
    /// Requests wait for their turn.
    Queue,
    /// Who is denied again and again is denied for a while, and the next time for longer.
    Barred,
}

/// What a request reserves, and the most that it may cost.
pub const RESERVE: u64 = 50;
pub const COST_MAX: u64 = 90;

/// How many requests may be in flight at once, and how long a slot lasts without its proxy.
pub const SLOTS: u64 = 5;
pub const SLOT_TTL_MS: u64 = 2_000;

/// The limits. All deny while no limiter answers: so each request that passes was charged.
pub const CLASSES: [Class; 16] = [
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
    Class {
        kind: Kind::Adaptive,
        ..class("adaptive", "", 24)
    },
    Class {
        period: "day",
        ..class("calendar", "time_zone: America/New_York", 6)
    },
    Class {
        kind: Kind::Queue,
        period: "1s",
        ..class(
            "queue",
            "algorithm: leaky_bucket, burst: 8, over_limit: queue, max_delay: 1500ms",
            4,
        )
    },
    Class {
        kind: Kind::Barred,
        period: "2s",
        ..class(
            "barred",
            "algorithm: fixed_window, align: first_request, \
             penalty: {after: 3, within: 10s, for: 6s, grow: 2, max: 20s}",
            2,
        )
    },
];

/// How far apart the requests of a queue leave, and the longest that one waits.
pub const TURN_MS: u64 = 250;
pub const QUEUE_MS: u64 = 1_500;

/// The place of the class of a kind that one class has.
pub fn the(kind: Kind) -> usize {
    { CLASSES.iter() }
        .position(|class| class.kind == kind)
        .unwrap()
}

const fn class(name: &'static str, fields: &'static str, units: u64) -> Class {
    Class {
        name,
        fields,
        units,
        period: "1d",
        kind: Kind::Checked,
    }
}

/// A class whose limit has an override: for this user, so many units.
pub type Overridden = Option<(String, u64)>;

/// The limits file, with so many units of each class and its override, and of the second limit of the class `sliding`;
/// `marks` differs between any two.
pub fn limits(units: &[(u64, Overridden)], pair: u64, marks: u64) -> String {
    let mut text = "domain: shop\nlimits:\n".to_owned();
    for (class, (units, overridden)) in CLASSES.iter().zip(units) {
        let (name, period) = (class.name, class.period);
        let mut fields = class.fields.replace("UNITS", &units.to_string());
        if let Some((user, units)) = overridden {
            let has_burst = class.fields.contains("UNITS");
            let burst = if has_burst {
                format!(", burst: {units}")
            } else {
                String::new()
            };
            write!(
                fields,
                ", overrides: [{{values: {{user: {user}}}, rate: {units}/{period}{burst}}}]"
            )
            .unwrap();
        }
        let rule = match class.kind {
            Kind::Slots => {
                format!("algorithm: concurrency, limit: {units}, slot_ttl: {SLOT_TTL_MS}ms")
            }
            Kind::Adaptive => format!(
                "algorithm: concurrency, limit: 6, slot_ttl: {SLOT_TTL_MS}ms, \
                 adaptive: {{min: {}, max: {units}, latency: {}ms}}",
                service::MIN,
                service::LATENCY_MS,
            ),
            _ => format!("per: [user], rate: {units}/{period}, {fields}"),
        };
        let rule = format!("match: {{path: /{name}}}, on_failure: deny, {rule}");
        writeln!(text, "  - {{name: {name}, {rule}}}").unwrap();
    }
    // A second limit of the same requests.
    writeln!(
        text,
        "  - {{name: pair, match: {{path: /sliding}}, on_failure: deny, per: [user], rate: {pair}/1d, \
         algorithm: fixed_window}}"
    )
    .unwrap();
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
    /// Sentinels or a Cluster's nodes name another primary, while the old one perhaps lives.
    FailOver,
    /// Slots move from one node of a Cluster to another.
    MoveSlots,
    /// A new limiter takes the place of one that leaves as it should.
    Drain(usize),
    /// Many requests come to the service of the adaptive limit, and it fares as said.
    Rush(Rush),
    /// An operator changes what a class allows, to one of three numbers.
    Edit(usize, u64),
    Reset(usize),
    Pause(usize),
    Credit(usize, u64),
    /// A user of a class gets other units.
    Override(usize, u64),
}

/// An act, when it begins, and how long it lasts if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub at_ms: u64,
    pub lasts_ms: u64,
    pub act: Act,
}

/// Kinds of events, as [`Plan::act`] has them.
const DRAIN: u64 = 15;
const MOVE: u64 = 16;
const RUSH: u64 = 18;
const FAIL_OVER: u64 = 19;

/// The run of one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub proxies: usize,
    pub workers: usize,
    pub limiters: usize,
    pub layout: Layout,
    /// Whether proxies speak HTTP/2 to limiters, with check streams.
    pub streams: bool,
    pub ends_ms: u64,
    /// The mean pause between two requests.
    pub pause_ms: u64,
    pub events: Vec<Event>,
}

impl Plan {
    /// What a second limit allows each user of the class `sliding`. On a Cluster it denies what another node has charged.
    pub fn pair(&self) -> u64 {
        if self.layout == Layout::Cluster { 4 } else { 8 }
    }

    pub fn of(seed: u64, minutes: u64) -> Self {
        let chance = Chance::new(seed ^ 0x5eed);
        let mut plan = Self {
            proxies: 1 + chance.index(3),
            workers: 1 + chance.index(2),
            limiters: 1 + chance.index(3),
            layout: match seed % 8 {
                0 if seed % 16 == 8 => Layout::Cluster,
                2 | 5 => Layout::Sentinel,
                3 | 6 => Layout::Cluster,
                _ => Layout::Alone,
            },
            streams: chance.percent(50),
            ends_ms: minutes * 60_000,
            pause_ms: 40 + chance.below(160),
            events: Vec::new(),
        };
        let kinds = plan.kinds(seed, &chance);
        let (mut at_ms, mut rushes) = (8_000, 0);
        loop {
            at_ms += 500 + chance.below(12_000);
            let edit = kinds.is_empty() || chance.percent(20);
            let kind = if edit {
                17
            } else {
                kinds[chance.index(kinds.len())]
            };
            let mut act = plan.act(kind, &chance);
            if kinds == [RUSH]
                && let Act::Rush(rush) = &mut act
            {
                *rush = Rush::nth(seed / 8, rushes);
                rushes += 1;
            }
            let lasts_ms = match (act, chance.below(3)) {
                (Act::Rush(rush), _) => rush.lasts_ms(),
                (_, 0) => 20 + chance.below(300),
                (_, 1) => chance.below(3_000),
                _ => chance.below(12_000),
            };
            if at_ms + lasts_ms > plan.ends_ms {
                break;
            }
            plan.events.push(Event {
                at_ms,
                lasts_ms,
                act,
            });
            match kinds[..] {
                [RUSH] => at_ms += lasts_ms,
                // Users come and go without one, too.
                [FAIL_OVER] => at_ms += 30_000,
                _ => {}
            }
        }
        plan
    }

    /// Each seed has faults of a few kinds only; every eighth has none.
    fn kinds(&self, seed: u64, chance: &Chance) -> Vec<u64> {
        match seed % 8 {
            0 if self.layout == Layout::Cluster => vec![MOVE, DRAIN],
            0 => Vec::new(),
            1 => vec![0, 1],
            // What the limit makes of it shows while nothing else is wrong.
            4 => vec![RUSH],
            2 | 6 => vec![FAIL_OVER],
            5 => vec![FAIL_OVER, chance.below(18), chance.below(18)],
            3 => vec![FAIL_OVER, MOVE, chance.below(18), chance.below(18)],
            _ => (0..=chance.below(5))
                .map(|_| chance.below(RUSH + 1))
                .collect(),
        }
    }

    fn act(&self, kind: u64, chance: &Chance) -> Act {
        let step = || i64::try_from(chance.below(20_000)).unwrap() - 10_000;
        let (proxy, limiter) = (chance.index(self.proxies), chance.index(self.limiters));
        match kind {
            0 | 1 => Act::Weather(weather(kind == 0, chance)),
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
            DRAIN => Act::Drain(limiter),
            MOVE if self.layout == Layout::Cluster => Act::MoveSlots,
            FAIL_OVER => Act::FailOver,
            RUSH => Act::Rush(Rush::ALL[chance.index(Rush::ALL.len())]),
            _ => edit(chance),
        }
    }
}

/// One fault of the network, or several.
fn weather(one: bool, chance: &Chance) -> Weather {
    let mut weather = Weather::default();
    if one {
        let share = 1 + chance.below(90);
        *match chance.below(4) {
            0 => &mut weather.lost,
            1 => &mut weather.unanswered,
            2 => &mut weather.slow,
            _ => &mut weather.repeated,
        } = share;
        return weather;
    }
    let share = || chance.below(4) * chance.below(30);
    Weather {
        lost: share(),
        unanswered: share(),
        late: share(),
        repeated: share(),
        garbled: share(),
        slow: share(),
    }
}

/// What an operator does.
fn edit(chance: &Chance) -> Act {
    let any = |kinds: &[Kind]| loop {
        let class = chance.index(CLASSES.len());
        if kinds.contains(&CLASSES[class].kind) {
            return class;
        }
    };
    match chance.below(8) {
        0 => Act::Reset(any(&[Kind::Checked, Kind::Leased])),
        1 => Act::Pause(chance.index(CLASSES.len())),
        2 => Act::Credit(chance.index(7), 1 + chance.below(3)),
        3 | 4 => Act::Override(any(&[Kind::Checked]), 1 + chance.below(12)),
        _ => Act::Edit(
            any(&[Kind::Checked, Kind::Leased, Kind::Adaptive]),
            chance.below(3),
        ),
    }
}

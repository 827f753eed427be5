//! Calendar windows admit N under each label, though limiters pass different edges: their time zone data
//! differ, their clocks are off, somebody edits the zone. A label admits exactly N if there is demand.

use crate::support::random::Random;
use crate::support::{Engine, LuaRedis, RustEngine, Scripts, Subject, on_twins, script_check};
use algorithms::check::Options;
use algorithms::{Algorithm, CalendarUnit, Edges, Kind, Parameters, Rate};
use store::script::{Clock, ScriptError};

const N: u64 = 7;
const HOUR_MS: u64 = 3_600_000;
const START_MS: u64 = 1_774_000_000_000;

/// The edges as one limiter has them: by its data, the zone is so far ahead of UTC.
struct Limiter {
    ahead_ms: u64,
    clock_off_ms: i64,
    generation: u64,
}

fn by_a_clock_off(clock_off_ms: i64) -> Limiter {
    Limiter {
        ahead_ms: 0,
        clock_off_ms,
        generation: 1,
    }
}

impl Limiter {
    fn subject(&self, unit: CalendarUnit, now_ms: u64) -> Subject {
        let own_ms = now_ms.saturating_add_signed(self.clock_off_ms);
        let length_ms = unit.nominal_ms();
        let serial = (own_ms + self.ahead_ms) / length_ms - 1;
        let start = |nth: u64| (serial + nth) * length_ms - self.ahead_ms;
        let starts_ms = [0, 1, 2, 3, 4, 5].map(start);
        let edges = Edges::new(u32::try_from(serial).unwrap(), starts_ms);
        let parameters = Parameters {
            rate: Rate::in_each(N, unit),
            ..Parameters::new(Kind::FixedWindow, N, 1)
        };
        let algorithm = Algorithm::new(&parameters).unwrap().with_edges(edges);
        Subject {
            generation: self.generation,
            ..Subject::new(&format!("calendar:{unit:?}"), algorithm)
        }
    }
}

/// The label of the window that a limiter takes for current.
fn label(subject: &Subject, now_ms: u64) -> u64 {
    subject.algorithm.calendar_window(now_ms).unwrap().serial
}

/// Runs more than enough checks by limiters with different edges, at a clock that also steps back;
/// returns what they admitted, and the number of labels.
fn run(engine: &mut dyn Engine, seed: u64, unit: CalendarUnit, windows: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut limiters: Vec<Limiter> = [0, 1, 13]
        .map(|hours| Limiter {
            ahead_ms: hours * HOUR_MS,
            clock_off_ms: i64::try_from(random.below(4 * HOUR_MS)).unwrap() - 7_200_000,
            generation: 1,
        })
        .into();
    let (mut now_ms, mut admitted, mut labels) = (START_MS, 0, Vec::new());
    let step_ms = unit.nominal_ms() / 40;
    while now_ms < START_MS + windows * unit.nominal_ms() {
        if random.one_in(200) {
            // An edit of the zone reaches all limiters.
            for limiter in &mut limiters {
                limiter.ahead_ms = random.below(26) * HOUR_MS;
                limiter.generation += 1;
            }
        }
        for limiter in &limiters {
            let subject = limiter.subject(unit, now_ms);
            labels.push(label(&subject, now_ms));
            admitted += u64::from(engine.one(&subject, now_ms).decision.allowed);
        }
        now_ms = match random.below(5) {
            0 => now_ms - random.below(step_ms / 2),
            _ => now_ms + random.below(step_ms),
        };
    }
    let (first, last) = (labels.iter().min().unwrap(), labels.iter().max().unwrap());
    // Of the first windows some had begun when the first check came.
    (admitted, last - first + 1)
}

fn admits_n_for_each_label(engine: &mut dyn Engine) {
    for (unit, windows) in [(CalendarUnit::Day, 30), (CalendarUnit::Week, 8)] {
        let (admitted, labels) = run(engine, 5, unit, windows);
        let skipped = labels * N - admitted;
        assert!(admitted <= labels * N, "{unit:?}: {admitted} in {labels}");
        // Labels that a later one overtook before the first check.
        assert!(skipped <= 2 * N, "{unit:?}: {admitted} in {labels}");
        assert!(labels >= windows, "{unit:?}: {labels}");
    }
}

#[test]
fn each_window_label_admits_n_in_rust() {
    for seed in 0..40 {
        let (admitted, labels) = run(&mut RustEngine::default(), seed, CalendarUnit::Day, 12);
        assert!(admitted <= labels * N, "{seed}: {admitted} in {labels}");
    }
    admits_n_for_each_label(&mut RustEngine::default());
}

on_twins! {
    each_window_label_admits_n: admits_n_for_each_label;
}

/// The key outlives its window: for another limiter, it may be the current one for 26 hours more.
#[test]
fn a_used_up_window_is_kept_until_every_zone_has_left_it() {
    let mut redis = LuaRedis::new();
    let now_ms = START_MS / 1000 * 1000;
    redis.set_time(now_ms / 1000, 0);
    let subjects = [by_a_clock_off(0).subject(CalendarUnit::Day, now_ms)];
    let check = script_check(&subjects, Options::default());
    let reply = redis.batch(&[check], Clock::Server);
    let reset_ms = reply.results[0].as_ref().unwrap().limits[0]
        .decision
        .reset_after_ms;
    let window = subjects[0].algorithm.calendar_window(now_ms).unwrap();
    assert_eq!(now_ms + reset_ms, window.end_ms);
    let ttl_ms = u64::try_from(redis.ttl(&subjects[0].key)).unwrap();
    assert_eq!(ttl_ms, reset_ms + 26 * HOUR_MS + 1000);
}

/// Outside the edges it passed, a limiter gets no decision, but `stale` and the server's time.
#[test]
fn a_check_outside_its_calendar_edges_is_stale() {
    let mut lua = LuaRedis::new();
    let stale = Err(ScriptError::Stale {
        limit: 0,
        generation: 0,
    });
    for days in [-3, 3] {
        let subject = by_a_clock_off(days * 86_400_000).subject(CalendarUnit::Day, START_MS);
        let force = Options {
            force: true,
            ..Options::default()
        };
        for options in [Options::default(), force] {
            let subjects = std::slice::from_ref(&subject);
            assert_eq!(lua.check(subjects, START_MS, options), stale, "{days}");
            let mut rust = RustEngine::default();
            assert_eq!(rust.check(subjects, START_MS, options), stale, "{days}");
        }
    }
}

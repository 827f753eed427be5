//! Mistakes that published rate limiting scripts make, each with the test that keeps it out.
//!
//! In Rust and in Lua alike. The tests of the stores have two limiters at once.

use crate::support::{
    Engine, KINDS, LuaRedis, RustEngine, Scripts, Subject, algorithm, script_check,
};
use algorithms::check::Options;
use algorithms::{Algorithm, Kind, RetryAfter};
use store::{script::Clock, scripts::CHECK};

const NOW: u64 = 1_763_000_040_000;

/// Runs a story in both implementations.
fn in_both(story: impl Fn(&mut dyn Engine)) {
    story(&mut RustEngine::default());
    story(&mut LuaRedis::new());
}

fn subject(kind: Kind, units: u64, period_ms: u64, cost: u64) -> Subject {
    Subject {
        cost,
        ..Subject::new(kind.name(), algorithm(kind, units, period_ms))
    }
}

/// What is left, by a check that takes nothing.
fn left(engine: &mut dyn Engine, subject: &Subject, now_ms: u64) -> u64 {
    let mut asked = subject.clone();
    asked.cost = 0;
    engine.one(&asked, now_ms).decision.remaining
}

fn passes(engine: &mut dyn Engine, subject: &Subject, now_ms: u64) -> bool {
    engine.one(subject, now_ms).decision.allowed
}

/// How many of `tries` pass at one instant.
fn admitted(engine: &mut dyn Engine, subject: &Subject, now_ms: u64, tries: u64) -> u64 {
    let passed = (0..tries).filter(|_| passes(engine, subject, now_ms));
    passed.count() as u64
}

/// A timestamp as the member of a sorted set: requests of one millisecond are one.
#[test]
fn requests_of_one_millisecond_all_count() {
    in_both(|engine| {
        for kind in KINDS {
            let subject = subject(kind, 5, 60_000, 1);
            assert_eq!(admitted(engine, &subject, NOW, 50), 5, "{kind}");
        }
    });
}

/// Time in whole seconds: a window of 1500 ms is one of 1 s or 2 s.
#[test]
fn windows_are_exact_to_the_millisecond() {
    in_both(|engine| {
        let subject = subject(Kind::SlidingWindowLog, 1, 1500, 1);
        assert!(passes(engine, &subject, NOW));
        assert!(!passes(engine, &subject, NOW + 1499));
        assert!(passes(engine, &subject, NOW + 1500));
    });
}

/// Window seconds given to PEXPIRE, no expiry at all, or one shorter than the time to full.
#[test]
fn a_key_outlives_its_usage_and_is_then_gone() {
    let mut redis = LuaRedis::new();
    for kind in KINDS {
        let subjects = [subject(kind, 100, 86_400_000, 100)];
        let check = script_check(&subjects, Options::default());
        let reply = redis.batch(&[check], Clock::Server);
        let decision = reply.results[0].as_ref().unwrap().limits[0].decision;
        let reset_ms = i64::try_from(decision.reset_after_ms).unwrap();
        let ttl_ms = redis.ttl(&subjects[0].key);
        let lives = (reset_ms..=reset_ms + 1000).contains(&ttl_ms);
        assert!(lives, "{kind}: {ttl_ms} {reset_ms}");
    }
}

/// `last = now` at each request loses what is less than a unit: 9/s polled every 75 ms gives 6.66.
#[test]
fn no_fraction_is_lost_between_requests() {
    in_both(|engine| {
        for kind in [Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket] {
            let subject = subject(kind, 9, 1000, 1);
            assert_eq!(admitted(engine, &subject, NOW, 9), 9);
            let polls = (1..=400).map(|i| NOW + i * 75);
            let passed = polls.filter(|at| passes(engine, &subject, *at)).count();
            assert_eq!(passed, 270, "{kind}: 9/s over 30 s");
        }
    });
}

/// A clock that steps back mints tokens, or adds water.
#[test]
fn a_step_back_gives_nothing_and_takes_nothing() {
    in_both(|engine| {
        for kind in KINDS {
            let subject = subject(kind, 5, 10_000, 1);
            let start = NOW + 5000; // half way into an aligned window
            assert_eq!(admitted(engine, &subject, start, 3), 3);
            // One number cannot be clamped.
            let during = if kind == Kind::Gcra { 1 } else { 2 };
            assert_eq!(left(engine, &subject, start - 500), during, "{kind}");
            assert_eq!(left(engine, &subject, start), 2, "{kind}");
        }
    });
}

/// INCR counts denied requests too, so that raising the limit does not help those it denied.
#[test]
fn a_raised_limit_helps_at_once() {
    in_both(|engine| {
        for kind in KINDS {
            let low = subject(kind, 5, 60_000, 1);
            assert_eq!(admitted(engine, &low, NOW, 100), 5);
            let mut raised = *low.algorithm.parameters();
            if kind.is_bucket() {
                raised.burst = Some(8);
            } else {
                raised.rate.units = 8;
            }
            let algorithm = Algorithm::new(&raised).unwrap();
            let high = Subject {
                algorithm,
                generation: 2,
                ..low
            };
            assert_eq!(admitted(engine, &high, NOW, 100), 3, "{kind}");
        }
    });
}

/// The wait computed for the oldest permit only: too short for a cost above one.
#[test]
fn the_wait_is_for_the_whole_cost() {
    in_both(|engine| {
        let log = subject(Kind::SlidingWindowLog, 3, 60_000, 1);
        for second in 0..3 {
            assert!(passes(engine, &log, NOW + second * 1000));
        }
        let two = Subject { cost: 2, ..log };
        let wait = engine.one(&two, NOW + 3000).decision.retry_after;
        // Until the second is forgotten.
        assert_eq!(wait, RetryAfter::Millis(58_000));
    });
}

/// A cost above the limit answered with a time to retry, for ever.
#[test]
fn a_cost_above_the_limit_is_denied_with_retry_never() {
    in_both(|engine| {
        for kind in KINDS {
            let decision = engine.one(&subject(kind, 5, 60_000, 6), NOW).decision;
            assert!(!decision.allowed);
            assert_eq!(decision.retry_after, RetryAfter::Never, "{kind}");
        }
    });
}

/// A GCRA in floating point admits 9 of 10.
#[test]
fn a_burst_is_admitted_whole_at_any_rate() {
    in_both(|engine| {
        for (units, period_ms) in [(10, 3000), (7, 60_000), (9, 1001), (1_000_003, 86_400_000)] {
            let subject = subject(Kind::Gcra, units, period_ms, units.div_ceil(10));
            let whole = units / subject.cost;
            let key = format!("{units}/{period_ms}ms");
            let subject = Subject { key, ..subject };
            let passed = admitted(engine, &subject, NOW, 20);
            assert_eq!(passed, whole, "{}", subject.key);
        }
    });
}

/// Hits that one limit denies are charged to the broader ones: a client over its own limit starves
/// all others.
#[test]
fn a_denied_request_is_charged_to_nobody() {
    in_both(|engine| {
        for kind in KINDS {
            let own = algorithm(Kind::FixedWindow, 1, 60_000);
            let own = Subject::new(&format!("own {kind}"), own);
            let everybody = subject(kind, 10, 60_000, 1);
            let both = [everybody.clone(), own];
            for _ in 0..20 {
                engine.check(&both, NOW, Options::default()).unwrap();
            }
            assert_eq!(left(engine, &everybody, NOW), 9, "{kind}");
        }
    });
}

/// A reply with `true`, `false` or a fraction loses or cuts it; TIME read twice gives two times.
/// (That every item of a reply is a whole number is held by the interpreter in each test.)
#[test]
fn the_script_reads_one_clock_and_writes_exact_integers() {
    assert_eq!(CHECK.source.matches("'TIME'").count(), 1);
    for inexact in ["tostring(", "os.time", "math.random"] {
        assert!(!CHECK.source.contains(inexact), "{inexact}");
    }
    // As exact as a long is wide: used only where the script has found it wide enough.
    let chosen = [
        "LONG and '%d' or '%.0f'",
        "LONG and ':%d:%d' or ':%.0f:%.0f'",
    ];
    let source = chosen.iter().fold(CHECK.source.clone(), |source, choice| {
        source.replace(choice, "")
    });
    assert!(!source.contains("%d'"));
}

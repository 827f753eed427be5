//! What `lua/check.lua` guarantees beyond the algorithms: batches, all or nothing, refusals, TTLs.

use crate::support::LuaRedis;
use algorithms::check::{Mode, Options, Part};
use algorithms::{Algorithm, Kind, Parameters, RetryAfter};
use store::script::{Clock, ScriptCheck, ScriptError, ScriptLimit};

const NOW: u64 = 1_763_000_040_000;

#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
fn algorithm(kind: Kind, units: u64, period_ms: u64) -> Algorithm {
    Algorithm::new(&Parameters::new(kind, units, period_ms)).unwrap()
}

fn limit<'a>(key: &'a str, algorithm: &'a Algorithm, cost: u64) -> ScriptLimit<'a> {
    ScriptLimit::new(
        key.as_bytes(),
        Part {
            cost,
            ..Part::new(algorithm, 1)
        },
    )
}

fn limit_with<'a>(
    key: &'a str,
    algorithm: &'a Algorithm,
    change: impl FnOnce(&mut Part<'a>),
) -> ScriptLimit<'a> {
    let mut limit = limit(key, algorithm, 1);
    change(&mut limit.part);
    limit
}

#[expect(
    clippy::large_types_passed_by_value,
    reason = "it becomes part of the check"
)]
fn one(limit: ScriptLimit<'_>) -> ScriptCheck<'_> {
    ScriptCheck {
        limits: vec![limit],
        options: Options::default(),
    }
}

#[test]
fn a_denied_check_charges_no_limit() {
    let redis = LuaRedis::new();
    let wide = algorithm(Kind::TokenBucket, 10, 1000);
    let narrow = algorithm(Kind::Gcra, 1, 60_000);
    let check = ScriptCheck {
        limits: vec![limit("wide", &wide, 1), limit("narrow", &narrow, 1)],
        options: Options::default(),
    };
    let batch = [check.clone(), check.clone(), check];
    let reply = redis.batch(&batch, Clock::Injected(NOW));
    let verdicts: Vec<_> = reply.results.into_iter().map(Result::unwrap).collect();
    let allowed: Vec<_> = verdicts.iter().map(|verdict| verdict.allowed).collect();
    assert_eq!(
        allowed,
        [true, false, false],
        "later checks of a batch see earlier ones"
    );
    assert_eq!(verdicts[2].limits[0].decision.remaining, 9);
    assert_eq!(verdicts[2].summary().denied_by, [1]);
    assert_eq!(
        verdicts[2].summary().retry_after,
        RetryAfter::Millis(60_000)
    );
    assert_eq!(redis.writes(), 2, "one per charged limit");
}

#[test]
fn a_bucket_that_many_checks_ask_for_is_read_once_and_written_once() {
    let redis = LuaRedis::new();
    let everybody = algorithm(Kind::TokenBucket, 20, 1000);
    let user = algorithm(Kind::FixedWindow, 3, 60_000);
    let checks = ["ann", "bob", "ann", "ann", "bob", "ann"].map(|name| ScriptCheck {
        limits: vec![limit("all", &everybody, 1), limit(name, &user, 1)],
        options: Options::default(),
    });
    let reply = redis.batch(&checks, Clock::Injected(NOW));
    let verdicts: Vec<_> = reply.results.into_iter().map(Result::unwrap).collect();
    let allowed: Vec<_> = verdicts.iter().map(|verdict| verdict.allowed).collect();
    assert_eq!(allowed, [true, true, true, true, true, false]);
    assert_eq!(verdicts[5].limits[0].decision.remaining, 15);
    // Users take turns five times, and the last turn ends without a charge.
    let (everybodys, users) = (2, 2 * 5 - 1);
    assert_eq!(redis.calls(), everybodys + users);
}

#[test]
fn a_check_that_is_refused_leaves_nothing_to_the_next_one() {
    let redis = LuaRedis::new();
    let (first, second) = (
        algorithm(Kind::TokenBucket, 10, 1000),
        algorithm(Kind::Gcra, 10, 1000),
    );
    redis.command::<mlua::Value>(&["SET", "corrupt", "b", "PX", "1000"]);
    let checks = [("a", "b"), ("corrupt", "b"), ("a", "other")].map(|(one, two)| ScriptCheck {
        limits: vec![limit(one, &first, 1), limit(two, &second, 1)],
        options: Options::default(),
    });
    let reply = redis.batch(&checks, Clock::Injected(NOW));
    let remaining = reply.results.iter().map(|result| {
        let verdict = result.as_ref().map_err(Clone::clone)?;
        let limits = verdict.limits.iter();
        Ok(limits.map(|limit| limit.decision.remaining).collect())
    });
    let remaining: Vec<Result<Vec<_>, _>> = remaining.collect();
    let corrupt = Err(ScriptError::Corrupt { limit: 0 });
    assert_eq!(remaining, [Ok(vec![9, 9]), corrupt, Ok(vec![8, 9])]);
    assert_eq!(redis.writes(), 5, "a and b, a and other, and the corrupt");
}

#[test]
fn a_later_denial_keeps_charges_made_after_a_clock_step_back() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::TokenBucket, 10, 1000);
    redis.batch(
        &[one(limit("b", &bucket, 1))],
        Clock::Injected(NOW + 60_000),
    );
    let checks = [4, 4, 4].map(|cost| one(limit("b", &bucket, cost)));
    let reply = redis.batch(&checks, Clock::Injected(NOW));
    let remaining = reply.results.iter().map(|result| {
        let verdict = result.as_ref().unwrap();
        verdict.limits[0].decision.remaining
    });
    assert_eq!(remaining.collect::<Vec<_>>(), [5, 1, 1]);
    let reply = redis.batch(&[one(limit("b", &bucket, 0))], Clock::Injected(NOW));
    let verdict = reply.results[0].as_ref().unwrap();
    assert_eq!(verdict.limits[0].decision.remaining, 1);
}

/// The older count weighs by how far into the window the check is: of a state from later than now,
/// that depends on the window's length when it was written.
#[test]
fn a_sliding_window_ahead_of_the_clock_is_equal_in_one_call_and_in_many() {
    let (before, after) = (
        algorithm(Kind::SlidingWindow, 100, 1500),
        algorithm(Kind::SlidingWindow, 1000, 20_000),
    );
    let edited = || limit_with("w", &after, |part| part.generation = 2);
    let remaining = |calls: &[usize]| {
        let redis = LuaRedis::new();
        for (cost, ms) in [(40, 10_400), (1, 11_829)] {
            redis.batch(&[one(limit("w", &before, cost))], Clock::Injected(ms));
        }
        let mut remaining = Vec::new();
        for checks in calls {
            let checks: Vec<_> = (0..*checks).map(|_| one(edited())).collect();
            let reply = redis.batch(&checks, Clock::Injected(9639));
            for result in reply.results {
                remaining.push(result.unwrap().limits[0].decision.remaining);
            }
        }
        remaining
    };
    assert_eq!(remaining(&[3]), remaining(&[1, 1, 1]));
}

#[test]
fn an_observed_limit_denies_nothing_and_is_charged_with_the_others() {
    let redis = LuaRedis::new();
    let wide = algorithm(Kind::TokenBucket, 10, 1000);
    let narrow = algorithm(Kind::TokenBucket, 1, 60_000);
    let observed = limit_with("narrow", &narrow, |part| part.mode = Mode::Observe);
    let check = ScriptCheck {
        limits: vec![limit("wide", &wide, 1), observed],
        options: Options::default(),
    };
    let reply = redis.batch(&[check.clone(), check], Clock::Injected(NOW));
    let second = reply.results[1].as_ref().unwrap();
    assert!(second.allowed);
    assert!(!second.limits[1].decision.allowed);
    assert_eq!([second.limits[0].charged, second.limits[1].charged], [1, 0]);
}

#[test]
fn an_older_generation_is_stale_unless_it_was_just_confirmed() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::TokenBucket, 10, 1000);
    let newer = limit_with("k", &bucket, |part| part.generation = 7);
    redis.batch(&[one(newer)], Clock::Injected(NOW));
    let writes = redis.writes();
    let reply = redis.batch(&[one(limit("k", &bucket, 1))], Clock::Injected(0));
    assert_eq!(
        reply.results,
        [Err(ScriptError::Stale {
            limit: 0,
            generation: 7
        })]
    );
    assert_eq!(redis.writes(), writes, "not even the time base moves");

    let mut confirmed = one(limit("k", &bucket, 1));
    confirmed.options.force = true;
    let reply = redis.batch(
        &[confirmed, one(limit("k", &bucket, 1))],
        Clock::Injected(NOW),
    );
    assert_eq!(
        reply.results[1].as_ref().unwrap().limits[0]
            .decision
            .remaining,
        7
    );
}

#[test]
fn an_edit_of_the_algorithm_starts_afresh_and_stays_edited() {
    let kinds = [
        Kind::TokenBucket,
        Kind::SlidingWindowLog,
        Kind::SlidingWindow,
    ];
    for (old, new) in kinds.iter().flat_map(|old| kinds.map(|new| (*old, new))) {
        if old == new {
            continue;
        }
        let redis = LuaRedis::new();
        let (before, after) = (algorithm(old, 10, 1000), algorithm(new, 10, 1000));
        let edited = limit_with("k", &after, |part| part.generation = 2);
        let batch = [
            one(limit("k", &before, 3)),
            one(edited),
            one(limit("k", &before, 1)),
            one(edited),
        ];
        let reply = redis.batch(&batch, Clock::Injected(NOW));
        let remaining = |i: usize| {
            reply.results[i].as_ref().unwrap().limits[0]
                .decision
                .remaining
        };
        assert_eq!(
            [remaining(0), remaining(1), remaining(3)],
            [7, 9, 8],
            "{old} to {new}"
        );
        assert_eq!(
            reply.results[2],
            Err(ScriptError::Stale {
                limit: 0,
                generation: 2
            })
        );
    }
}

#[test]
fn a_foreign_key_is_an_error_of_its_check_only() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::TokenBucket, 10, 1000);
    redis.command::<i64>(&["RPUSH", "list", "x"]);
    for text in [
        "hello",
        "",
        "b",
        "b1:2:3",
        "b1:2:3:0",
        "b1:99999999999999999:3:4",
        "b1:2:3:-4",
    ] {
        redis.command::<mlua::Value>(&["SET", "text", text, "PX", "1000"]);
        let batch = ["list", "list", "text", "text", "fine"].map(|key| {
            let cost = u64::from(key != "fine");
            one(limit(key, &bucket, cost))
        });
        let reply = redis.batch(&batch, Clock::Injected(NOW));
        let [foreign @ .., fine] = reply.results.as_slice() else {
            panic!("no answer");
        };
        let corrupt = Err(ScriptError::Corrupt { limit: 0 });
        assert_eq!(foreign, vec![corrupt; 4], "{text:?}");
        assert!(fine.as_ref().unwrap().allowed);
    }
}

#[test]
fn a_log_names_its_newest_generation_once() {
    let redis = LuaRedis::new();
    let log = algorithm(Kind::SlidingWindowLog, 10, 1000);
    let of = |generation| limit_with("k", &log, |part| part.generation = generation);
    let entries = || redis.command::<Vec<String>>(&["LRANGE", "k", "0", "-1"]);
    for (at_ms, generation) in [(0, 7), (1, 7), (1, 8), (2, 9)] {
        redis.batch(&[one(of(generation))], Clock::Injected(at_ms));
    }
    assert_eq!(entries(), ["0:1:1", "1:2:3", "2:1:4:9"]);
    let stale = Err(ScriptError::Stale {
        limit: 0,
        generation: 9,
    });
    // Also once all is forgotten, and after a far step back, which moves the times along.
    for (at_ms, left) in [(2, 5), (5000, 9), (0, 8)] {
        let reply = redis.batch(&[one(of(8)), one(of(9))], Clock::Injected(at_ms));
        assert_eq!(reply.results[0], stale, "at {at_ms}");
        let decided = reply.results[1].as_ref().unwrap().limits[0].decision;
        assert_eq!(decided.remaining, left, "at {at_ms}");
    }
    assert_eq!(entries(), ["0:2:2:9"]);
}

#[test]
fn a_log_that_lost_its_end_is_corrupt() {
    let redis = LuaRedis::new();
    let log = algorithm(Kind::SlidingWindowLog, 10, 1000);
    for (i, newest) in [
        "5:1:2",
        "5:1:2:",
        "5:1:2:x",
        "5:1",
        "5:-1:2:3",
        "5:1:2:9999999999999999",
    ]
    .iter()
    .enumerate()
    {
        let key = i.to_string();
        redis.command::<i64>(&["RPUSH", &key, "4:1:1", newest]);
        let reply = redis.batch(&[one(limit(&key, &log, 1))], Clock::Injected(6));
        let corrupt = Err(ScriptError::Corrupt { limit: 0 });
        assert_eq!(reply.results[0], corrupt, "{newest}");
    }
}

#[test]
fn a_peek_and_a_cost_of_zero_write_nothing() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::Gcra, 10, 1000);
    let mut peek = one(limit("k", &bucket, 3));
    peek.options.peek = true;
    let reply = redis.batch(&[peek, one(limit("k", &bucket, 0))], Clock::Injected(NOW));
    for result in &reply.results {
        let verdict = result.as_ref().unwrap();
        assert!(verdict.allowed);
        assert_eq!(verdict.limits[0].charged, 0);
        assert_eq!(verdict.limits[0].decision.remaining, 10);
    }
    assert_eq!(redis.writes(), 0);
}

#[test]
fn a_debit_is_charged_even_on_a_denied_check() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::TokenBucket, 10, 1000);
    let debit = limit_with("k", &bucket, |part| part.debit = 50);
    let reply = redis.batch(
        &[one(debit), one(limit("k", &bucket, 1))],
        Clock::Injected(NOW),
    );
    for result in &reply.results {
        let verdict = result.as_ref().unwrap();
        assert!(!verdict.allowed);
        assert_eq!(
            verdict.limits[0].decision.retry_after,
            RetryAfter::Millis(100)
        );
        assert_eq!(verdict.limits[0].decision.reset_after_ms, 1000);
    }
}

#[test]
fn keys_live_a_little_longer_than_they_matter() {
    let redis = LuaRedis::new();
    redis.set_time(1_763_000_040, 999_999);
    for (kind, key) in [(Kind::TokenBucket, "token"), (Kind::Gcra, "gcra")] {
        let bucket = algorithm(kind, 10, 1000);
        let reply = redis.batch(&[one(limit(key, &bucket, 5))], Clock::Server);
        assert_eq!(reply.now_ms, 1_763_000_040_999);
        assert_eq!(redis.ttl(key), 500 + 1000);
    }
}

#[test]
fn a_batch_respects_the_stored_unit_of_each_bucket() {
    let redis = LuaRedis::new();
    let bucket = algorithm(Kind::TokenBucket, 10, 1000);
    redis.batch(&[one(limit("a", &bucket, 1))], Clock::Injected(NOW));
    // Five of ten units are used, in parts of another size.
    let halves = format!("b1:10:{NOW}:2");
    let (mine, other) = (
        format!("b1:100:{NOW}:100"),
        ["SET", "b", &halves, "PX", "9999"],
    );
    redis.command::<mlua::Value>(&other);
    let state = |key| redis.command::<String>(&["GET", key]);
    assert_eq!(state("a"), mine, "and so the units differ");
    let checks = ["a", "b"].map(|key| one(limit(key, &bucket, 1)));
    let reply = redis.batch(&checks, Clock::Injected(NOW));
    let left = reply
        .results
        .iter()
        .map(|result| result.as_ref().unwrap().limits[0].decision.remaining);
    assert_eq!(left.collect::<Vec<_>>(), [8, 4]);
}

//! What `lua/check.lua` guarantees beyond the algorithms: batches, all or nothing, refusals, TTLs.

use std::time::Instant;

use crate::support::{LuaRedis, Scripts, Subject, algorithm, script_check};
use algorithms::check::{Options, Part, Verdict};
use algorithms::{Algorithm, Kind, LeaseRequest, Parameters, RetryAfter, Settlement};
use store::script::{Bucket, Clock, ScriptCheck, ScriptError};
use store::scripts::CHECK;

const NOW: u64 = 1_763_000_040_000;
const CORRUPT: Result<Verdict, ScriptError> = Err(ScriptError::Corrupt { limit: 0 });

const fn stale(generation: u64) -> Result<Verdict, ScriptError> {
    let limit = 0;
    Err(ScriptError::Stale { limit, generation })
}

fn tens(kind: Kind) -> Algorithm {
    algorithm(kind, 10, 1000)
}

fn limit(key: &str, algorithm: Algorithm, cost: u64) -> Subject {
    Subject {
        cost,
        ..Subject::new(key, algorithm)
    }
}

fn edited(key: &str, algorithm: Algorithm, generation: u64) -> Subject {
    Subject {
        generation,
        ..Subject::new(key, algorithm)
    }
}

/// The results of checks in one call, each of several limits.
fn all_of<const N: usize>(
    redis: &mut LuaRedis,
    checks: &[[Subject; N]],
    now_ms: u64,
) -> Vec<Result<Verdict, ScriptError>> {
    let checks: Vec<_> = checks
        .iter()
        .map(|subjects| script_check(subjects, Options::default()))
        .collect();
    redis.batch(&checks, Clock::Injected(now_ms)).results
}

/// As [`all_of`], of one limit each.
fn each(
    redis: &mut LuaRedis,
    limits: impl IntoIterator<Item = Subject>,
    now_ms: u64,
) -> Vec<Result<Verdict, ScriptError>> {
    let checks: Vec<_> = limits.into_iter().map(|limit| [limit]).collect();
    all_of(redis, &checks, now_ms)
}

fn allowed(results: &[Result<Verdict, ScriptError>]) -> Vec<bool> {
    let verdicts = results.iter().map(|result| result.as_ref().unwrap());
    verdicts.map(|verdict| verdict.allowed).collect()
}

/// What each check leaves of its first limit.
fn left(results: &[Result<Verdict, ScriptError>]) -> Vec<u64> {
    let verdicts = results.iter().map(|result| result.as_ref().unwrap());
    verdicts.map(|of| of.limits[0].decision.remaining).collect()
}

#[test]
fn a_denied_check_charges_no_limit() {
    let mut redis = LuaRedis::new();
    let wide = limit("wide", tens(Kind::TokenBucket), 1);
    let narrow = limit("narrow", algorithm(Kind::Gcra, 1, 60_000), 1);
    let checks = [0; 3].map(|_| [wide.clone(), narrow.clone()]);
    let results = all_of(&mut redis, &checks, NOW);
    // Later checks of a batch see earlier ones.
    assert_eq!(allowed(&results), [true, false, false]);
    assert_eq!(left(&results), [9, 9, 9]);
    let decisions = results[2].as_ref().unwrap().limits.iter();
    let waits: Vec<_> = decisions.map(|limit| limit.decision.retry_after).collect();
    assert_eq!(waits, [RetryAfter::Now, RetryAfter::Millis(60_000)]);
    assert_eq!(redis.writes(), 2, "one per charged limit");
}

#[test]
fn a_bucket_that_many_checks_ask_for_is_read_once_and_written_once() {
    let mut redis = LuaRedis::new();
    let everybody = limit("all", algorithm(Kind::TokenBucket, 20, 1000), 1);
    let user = algorithm(Kind::FixedWindow, 3, 60_000);
    let checks = ["ann", "bob", "ann", "ann", "bob", "ann"]
        .map(|name| [everybody.clone(), limit(name, user, 1)]);
    let results = all_of(&mut redis, &checks, NOW);
    assert_eq!(allowed(&results), [true, true, true, true, true, false]);
    assert_eq!(left(&results)[5], 15);
    // Users take turns five times, and the last turn ends without a charge.
    let (everybodys, users) = (2, 2 * 5 - 1);
    assert_eq!(redis.calls(), everybodys + users);
}

#[test]
fn a_check_that_is_refused_leaves_nothing_to_the_next_one() {
    let mut redis = LuaRedis::new();
    redis.command::<lua_redis::mlua::Value>(&["SET", "corrupt", "b", "PX", "1000"]);
    let checks = [("a", "b"), ("corrupt", "b"), ("a", "other")].map(|(one, two)| {
        let second = limit(two, tens(Kind::Gcra), 1);
        [limit(one, tens(Kind::TokenBucket), 1), second]
    });
    let results = all_of(&mut redis, &checks, NOW);
    assert_eq!(results[1], CORRUPT);
    let limits = [0, 2].map(|nth: usize| &results[nth].as_ref().unwrap().limits);
    let remaining = limits.map(|of| [of[0].decision.remaining, of[1].decision.remaining]);
    assert_eq!(remaining, [[9, 9], [8, 9]]);
    assert_eq!(redis.writes(), 5, "a and b, a and other, and the corrupt");
}

#[test]
fn an_older_generation_is_stale_unless_it_was_just_confirmed() {
    let mut redis = LuaRedis::new();
    let of = |generation| edited("k", tens(Kind::TokenBucket), generation);
    each(&mut redis, [of(7)], NOW);
    let writes = redis.writes();
    assert_eq!(each(&mut redis, [of(1)], 0), [stale(7)]);
    assert_eq!(redis.writes(), writes, "not even the time base moves");
    let force = Options {
        force: true,
        ..Options::default()
    };
    let subjects = [of(1)];
    let checks = [force, Options::default()].map(|options| script_check(&subjects, options));
    let reply = redis.batch(&checks, Clock::Injected(NOW));
    assert_eq!(left(&reply.results), [8, 7]);
}

#[test]
fn a_foreign_key_is_an_error_of_its_check_only() {
    let mut redis = LuaRedis::new();
    redis.command::<i64>(&["RPUSH", "list", "x"]);
    let long = "b1:99999999999999999:3:4";
    for text in ["hello", "", "b", "b1:2:3", "b1:2:3:0", long, "b1:2:3:-4"] {
        redis.command::<lua_redis::mlua::Value>(&["SET", "text", text, "PX", "1000"]);
        let limits = ["list", "list", "text", "text", "fine"].map(|key| {
            let cost = u64::from(key != "fine");
            limit(key, tens(Kind::TokenBucket), cost)
        });
        let mut results = each(&mut redis, limits, NOW);
        assert_eq!(allowed(&results.split_off(4)), [true]);
        assert_eq!(results, vec![CORRUPT; 4], "{text:?}");
    }
}

#[test]
fn a_log_names_its_newest_generation_once() {
    let mut redis = LuaRedis::new();
    let of = |generation| edited("k", tens(Kind::SlidingWindowLog), generation);
    let entries = |redis: &LuaRedis| redis.command::<Vec<String>>(&["LRANGE", "k", "0", "-1"]);
    for (at_ms, generation) in [(0, 7), (1, 7), (1, 8), (2, 9)] {
        each(&mut redis, [of(generation)], at_ms);
    }
    assert_eq!(entries(&redis), ["0:1:1", "1:2:3", "2:1:4:9"]);
    // Also once all is forgotten, and after a far step back, which moves the times along.
    for (at_ms, remaining) in [(2, 5), (5000, 9), (0, 8)] {
        let results = each(&mut redis, [of(8), of(9)], at_ms);
        assert_eq!(results[0], stale(9), "at {at_ms}");
        assert_eq!(left(&results[1..]), [remaining], "at {at_ms}");
    }
    assert_eq!(entries(&redis), ["0:2:2:9"]);
}

#[test]
fn a_log_that_lost_its_end_is_corrupt() {
    let mut redis = LuaRedis::new();
    let large = "5:1:2:9999999999999999";
    for newest in ["5:1:2", "5:1:2:", "5:1:2:x", "5:1", "5:-1:2:3", large] {
        redis.command::<i64>(&["RPUSH", newest, "4:1:1", newest]);
        let log = limit(newest, tens(Kind::SlidingWindowLog), 1);
        assert_eq!(each(&mut redis, [log], 6), [CORRUPT], "{newest}");
    }
}

#[test]
fn a_peek_and_a_cost_of_zero_write_nothing() {
    let mut redis = LuaRedis::new();
    let [three, none] = [3, 0].map(|cost| [limit("k", tens(Kind::Gcra), cost)]);
    let peek = Options {
        peek: true,
        ..Options::default()
    };
    let checks = [
        script_check(&three, peek),
        script_check(&none, Options::default()),
    ];
    let results = redis.batch(&checks, Clock::Injected(NOW)).results;
    assert_eq!(
        (allowed(&results), left(&results)),
        (vec![true; 2], vec![10; 2])
    );
    assert!(results.iter().flatten().all(|of| of.limits[0].charged == 0));
    assert_eq!(redis.writes(), 0);
}

#[test]
fn keys_live_a_little_longer_than_they_matter() {
    let mut redis = LuaRedis::new();
    redis.set_time(1_763_000_040, 999_999);
    for (kind, key) in [(Kind::TokenBucket, "token"), (Kind::Gcra, "gcra")] {
        let subjects = [limit(key, tens(kind), 5)];
        let check = script_check(&subjects, Options::default());
        let reply = redis.batch(&[check], Clock::Server);
        assert_eq!(reply.now_ms, 1_763_000_040_999);
        // Up to an eighth longer, so that those that end together do not go together.
        assert!((1500..=1500 + 500 / 8).contains(&redis.ttl(key)));
    }
}

#[test]
fn a_batch_respects_the_stored_unit_of_each_bucket() {
    let mut redis = LuaRedis::new();
    let of = |key| limit(key, tens(Kind::TokenBucket), 1);
    each(&mut redis, [of("a")], NOW);
    // Five of ten units are used, in parts of another size.
    let halves = format!("b1:10:{NOW}:2");
    redis.command::<lua_redis::mlua::Value>(&["SET", "b", &halves, "PX", "9999"]);
    let state: String = redis.command(&["GET", "a"]);
    assert_eq!(
        state,
        format!("b1:100:{NOW}:100"),
        "and so the units differ"
    );
    assert_eq!(left(&each(&mut redis, ["a", "b"].map(of), NOW)), [8, 4]);
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

/// The server answers nobody else meanwhile. Each settlement looked through all sub-windows: 64 took eight times as long as one.
#[test]
fn many_settlements_of_many_sub_windows_take_little_longer_than_one() {
    let sub_windows = Parameters {
        sub_windows: Some(1000),
        ..Parameters::new(Kind::SlidingWindowBuckets, 1_000_000, 60_000_000)
    };
    let algorithm = Algorithm::new(&sub_windows).unwrap();
    let mut redis = LuaRedis::new();
    let mut now_ms = NOW;
    let mut ask = |now_ms, want, settle: &[Settlement]| {
        let lease = LeaseRequest {
            ttl_ms: 10_000,
            want,
            settle,
            ..LeaseRequest::default()
        };
        let part = Part {
            lease: Some(lease),
            ..Part::new(&algorithm, 1)
        };
        let check = ScriptCheck {
            limits: vec![Bucket::new("k", part)],
            options: Options::default(),
        };
        let began = Instant::now();
        let mut reply = redis.batch(&[check], Clock::Injected(now_ms));
        let took = began.elapsed();
        (took, reply.results.remove(0).unwrap().limits.remove(0))
    };
    for _ in 0..1000 {
        now_ms += 60_000;
        ask(now_ms, 0, &[]);
    }
    let lease = ask(now_ms, 1000, &[]).1.lease.unwrap();
    let mut fastest = |settlements| {
        let settled = Settlement {
            epoch: lease.epoch,
            spent: 0,
            returned: 1,
        };
        let settle = vec![settled; settlements];
        (0..7).map(|_| ask(now_ms, 0, &settle).0).min().unwrap()
    };
    let (one, many) = (fastest(1), fastest(64));
    assert!(many < 3 * one, "{one:?} for one, {many:?} for 64");
    let left = ask(now_ms, 0, &[]).1.leased;
    assert_eq!(left, lease.units - 7 - 7 * 64);
}

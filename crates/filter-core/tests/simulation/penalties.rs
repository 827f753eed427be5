//! Penalties: a proxy that has received one denies by it to its end, and denials are reported at most
//! once.

use std::collections::HashMap;

use crate::{
    decisions::seeds,
    faults::any,
    world::{CONFIG, Faults, Outcome, Sent, World},
};

const LIMIT: &str = "  - {name: per-user, per: [user], rate: 2/1s, algorithm: fixed_window, \
     on_failure: allow, penalty: {after: 20, within: 1m, for: 30s}}\n";
const WITHOUT: &str =
    "  - {name: per-user, per: [user], rate: 2/1s, algorithm: fixed_window, on_failure: allow}\n";
/// How long a worker may use its cache without reading shared data, in microseconds.
const FRESH_US: u64 = 1_000_000;
/// How long an edit or a reset may take, in microseconds.
const EDIT_US: u64 = 1_000_000;

/// When the penalty that denied a request ends, in microseconds. A window has two seconds at most.
fn penalized_until(sent: &Sent) -> Option<u64> {
    let Some(Outcome::Refused { at_us, reply }) = &sent.outcome else {
        return None;
    };
    let mut headers = reply.headers.iter();
    let (_, seconds) = headers.find(|(name, _)| *name == "retry-after")?;
    let seconds: u64 = seconds.parse().unwrap();
    // Seconds are rounded up.
    (seconds > 2).then(|| at_us + (seconds - 1) * 1_000_000)
}

fn world(seed: u64, envoys: usize, limits: &str) -> World {
    let mut world = World::new(seed, envoys, 2, CONFIG, limits);
    world.run_for_ms(500);
    world
}

/// A user sends requests to all workers of an Envoy; returns when a penalty first denied one.
fn hammer(world: &mut World, envoy: usize, user: &str, ms: u64) -> Option<u64> {
    let first = world.requests.len();
    for n in 0..ms / 10 {
        world.request(envoy, 1 + usize::try_from(n).unwrap() % 2, user, "/");
        world.run_for_ms(10);
    }
    let sent = &world.requests[first..];
    let met = sent.iter().find(|sent| penalized_until(sent).is_some())?;
    Some(met.at_us)
}

/// Of these users' requests since `since_us`, none passed at a worker that had received a penalty.
fn assert_known_penalties_hold(world: &World, since_us: u64) {
    // The end of each penalty, by worker and by Envoy, and when the Envoy received it.
    let mut by_worker: HashMap<_, u64> = HashMap::new();
    let mut by_envoy: HashMap<_, (u64, u64)> = HashMap::new();
    // In the order of decisions: a penalty that a worker receives applies to requests that arrive
    // later.
    let mut events = Vec::new();
    for sent in world.requests.iter().filter(|sent| sent.at_us >= since_us) {
        if let Some(Outcome::Refused { at_us, .. }) = &sent.outcome {
            events.push((*at_us, false, sent));
        }
        events.push((sent.at_us, true, sent));
    }
    events.sort_by_key(|(at_us, arrives, _)| (*at_us, !arrives));
    for (at_us, arrives, sent) in events {
        let (envoy, worker) = (
            (sent.envoy, &sent.user),
            (sent.envoy, sent.worker, &sent.user),
        );
        if !arrives {
            if let Some(until_us) = penalized_until(sent) {
                by_worker.insert(worker, until_us);
                let known = by_envoy.entry(envoy).or_insert((at_us, until_us));
                known.1 = until_us;
            }
            continue;
        }
        let passed = matches!(sent.outcome, Some(Outcome::Passed { .. }));
        let own = by_worker
            .get(&worker)
            .is_some_and(|until_us| at_us < *until_us);
        let shared = by_envoy
            .get(&envoy)
            .is_some_and(|(since_us, until_us)| (since_us + FRESH_US..*until_us).contains(&at_us));
        assert!(!passed || !(own || shared), "{sent:?}");
    }
}

/// Denials from caches that were no penalties.
fn cached_denials(world: &World) -> u64 {
    let cached = |sent: &&Sent| {
        matches!(&sent.outcome, Some(Outcome::Refused { reply, .. })
            if reply.details.ends_with(":deny_cache"))
            && penalized_until(sent).is_none()
    };
    u64::try_from(world.requests.iter().filter(cached).count()).unwrap()
}

#[test]
fn a_repeat_offender_is_penalized_within_two_seconds_and_later_passes() {
    for mut world in seeds().map(|seed| world(seed, 1, LIMIT)) {
        let started_us = world.now_us;
        let met_us = hammer(&mut world, 0, "alice", 3000).unwrap();
        // A hundred requests a second, of which two pass.
        assert!(met_us - started_us < 2_200_000, "{met_us}");
        assert_known_penalties_hold(&world, 0);
        let checks = world.checks_executed;
        for _ in 0..25 {
            let number = world.request(0, 1, "alice", "/");
            world.run_for_ms(1000);
            assert!(!world.passed(number));
        }
        assert!(world.checks_executed - checks < 5);
        let bob = world.request(0, 1, "bob", "/");
        world.run_for_ms(5000);
        assert!(world.passed(bob));
        let number = world.request(0, 1, "alice", "/");
        world.run_for_ms(100);
        assert!(world.passed(number), "it has ended");
        assert!(world.counted("rl_penalized") > 25);
    }
}

#[test]
fn other_proxies_apply_a_penalty_from_their_first_check_on() {
    for mut world in seeds().map(|seed| world(seed, 2, LIMIT)) {
        hammer(&mut world, 0, "alice", 3000).unwrap();
        let number = world.request(1, 1, "alice", "/");
        world.run_for_ms(50);
        assert!(penalized_until(&world.requests[number]).is_some());
        let checks = world.checks_executed;
        hammer(&mut world, 1, "alice", 500).unwrap();
        assert!(world.checks_executed <= checks + 1);
        assert_known_penalties_hold(&world, 0);
    }
}

#[test]
fn a_penalty_holds_while_no_limiter_answers() {
    for seed in seeds() {
        let mut world = world(seed, 1, LIMIT);
        hammer(&mut world, 0, "alice", 3000).unwrap();
        world.faults = [Faults::DOWN, Faults::BLACK_HOLE, Faults::NO_STORE][(seed % 3) as usize];
        let since_us = world.now_us;
        let bob = world.request(0, 2, "bob", "/");
        hammer(&mut world, 0, "alice", 5000).unwrap();
        assert!(world.passed(bob), "on_failure lets others pass");
        let after = |sent: &&Sent| sent.at_us >= since_us && sent.user == "alice";
        for sent in world.requests.iter().filter(after) {
            assert!(penalized_until(sent).is_some(), "{sent:?}");
        }
    }
}

#[test]
fn an_edit_and_a_reset_end_a_penalty_within_a_second() {
    for seed in seeds() {
        let mut world = world(seed, 1, LIMIT);
        hammer(&mut world, 0, "alice", 3000).unwrap();
        if seed % 2 == 0 {
            world.limiter.edit(WITHOUT);
        } else {
            world.limiter.reset(LIMIT);
        }
        world.run_until(world.now_us + EDIT_US);
        for worker in [1, 2] {
            let number = world.request(0, worker, "alice", "/");
            world.run_for_ms(50);
            assert!(world.passed(number));
        }
    }
}

#[test]
fn each_denial_from_a_cache_is_reported_once() {
    for mut world in seeds().map(|seed| world(seed, 2, &LIMIT.replace("after: 20", "after: 900"))) {
        for _ in 0..600 {
            let envoy = usize::try_from(world.chance.below(2)).unwrap();
            let worker = usize::try_from(1 + world.chance.below(2)).unwrap();
            let user = ["alice", "bob", "carol"][usize::try_from(world.chance.below(3)).unwrap()];
            world.request(envoy, worker, user, "/");
            world.run_for_ms(5);
        }
        world.run_for_ms(2500);
        let (cached, reported) = (cached_denials(&world), world.limiter.penalties.reported);
        assert!(cached > 200, "{cached}");
        assert_eq!(reported, cached);
    }
}

#[test]
fn call_faults_neither_duplicate_reported_denials_nor_lift_penalties() {
    let mut penalized = 0;
    for mut world in seeds().map(|seed| world(seed, 2, LIMIT)) {
        for round in 0..200 {
            if round % 20 == 0 {
                world.faults = any(&mut world);
            }
            for _ in 0..10 {
                let envoy = usize::try_from(world.chance.below(2)).unwrap();
                let worker = usize::try_from(1 + world.chance.below(2)).unwrap();
                let user = ["alice", "bob"][usize::try_from(world.chance.below(2)).unwrap()];
                world.request(envoy, worker, user, "/");
                let pause_us = world.chance.below(10_000);
                world.run_until(world.now_us + pause_us);
                if world.chance.percent(2) {
                    world.envoys[envoy].shared.lose_writes(2);
                }
            }
        }
        world.run_for_ms(2500);
        let (cached, reported) = (cached_denials(&world), world.limiter.penalties.reported);
        assert!(reported <= cached, "{reported} of {cached}");
        assert_known_penalties_hold(&world, 0);
        penalized += world.counted("rl_penalized");
    }
    assert!(penalized > 0);
}

#[test]
fn after_an_edit_denials_count_anew() {
    for mut world in seeds().map(|seed| world(seed, 1, LIMIT)) {
        hammer(&mut world, 0, "alice", 600);
        assert!(cached_denials(&world) > 30);
        world.limiter.reset(LIMIT);
        world.run_for_ms(2500);
        assert_eq!(world.limiter.penalties.reported, 0);
    }
}

const PRICED: &str = "  - {name: per-user, per: [user], rate: 2/1s, algorithm: fixed_window, \
     cost: {table: [{match: {path: /free}, units: 0}, {match: {path: /dear}, units: 3}], default: 1}, \
     penalty: {after: 20, within: 1m, for: 30s}}\n";

#[test]
fn a_penalty_denies_free_requests_and_ignores_ones_that_never_fit() {
    for mut world in seeds().map(|seed| world(seed, 1, PRICED)) {
        for n in 0..200 {
            world.request(0, 1 + n % 2, "bob", "/dear");
            world.run_for_ms(10);
        }
        world.run_for_ms(2500);
        assert!(cached_denials(&world) > 100);
        assert_eq!(world.limiter.penalties.reported, 0);
        let free = world.request(0, 1, "alice", "/free");
        hammer(&mut world, 0, "alice", 3000).unwrap();
        let denied = world.request(0, 1, "alice", "/free");
        world.run_for_ms(50);
        assert!(world.passed(free) && !world.passed(denied));
        assert!(world.details(denied).ends_with(":deny_cache"));
    }
}

/// The answer to a report does not end the denial that it counts.
#[test]
fn denial_reports_cost_one_check_a_second() {
    let limit = LIMIT
        .replace("2/1s", "2/1h")
        .replace("after: 20", "after: 100000");
    for mut world in seeds().map(|seed| world(seed, 1, &limit)) {
        let checks = world.checks_executed;
        for _ in 0..1000 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(10);
        }
        // Two requests that pass, and each second one denied request and one report.
        let asked = world.checks_executed - checks;
        assert!((15..=24).contains(&asked), "{asked}");
    }
}

/// A bucket of two units an hour, penalized for half a minute. The answer to a report of denials, which
/// costs nothing, names the end of the penalty only.
#[test]
fn a_penalty_does_not_shorten_the_retry_after_of_a_bucket_that_needs_longer() {
    let limit = LIMIT.replace("2/1s, algorithm: fixed_window", "2/1h");
    for mut world in seeds().map(|seed| world(seed, 1, &limit)) {
        for n in 0..800 {
            world.request(0, 1 + n % 2, "alice", "/");
            world.run_for_ms(10);
        }
        assert!(world.counted("rl_penalized") > 100);
        for sent in &world.requests {
            if let Some(Outcome::Refused { reply, .. }) = &sent.outcome {
                let mut headers = reply.headers.iter();
                let (_, seconds) = headers.find(|(name, _)| *name == "retry-after").unwrap();
                let seconds: u64 = seconds.parse().unwrap();
                assert!((1780..=1800).contains(&seconds), "{sent:?}");
            }
        }
    }
}

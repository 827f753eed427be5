//! Decisions with a limiter that answers.

use crate::world::{CONFIG, Outcome, World};

const PER_USER: &str = "  - {name: per-user, per: [user], rate: 10/s, burst: 20}\n";

/// The seeds of each property: ten, more with `SIMULATION_SEEDS=1000`, or the one that
/// `SIMULATION_SEED` names, which a failure prints.
pub fn seeds() -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("SIMULATION_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SIMULATION_SEEDS").unwrap_or(10),
    };
    // A test that fails shows what it printed: the last one is the seed.
    seeds.inspect(|seed| println!("seed {seed}"))
}

/// A world for each seed.
pub fn worlds(
    envoys: usize,
    workers: usize,
    config: &str,
    limits: &str,
) -> impl Iterator<Item = World> {
    seeds().map(move |seed| World::new(seed, envoys, workers, config, limits))
}

#[test]
fn the_first_request_needs_no_snapshot() {
    let mut world = World::new(1, 1, 1, CONFIG, PER_USER);
    let number = world.request(0, 1, "alice", "/");
    world.run_for_ms(10);
    assert!(world.passed(number));
    assert_eq!(world.limiter.charged.values().sum::<u64>(), 1);
}

#[test]
fn a_burst_is_admitted_to_the_unit_and_the_rest_denied_from_the_cache() {
    for mut world in worlds(3, 2, CONFIG, PER_USER) {
        world.run_for_ms(500);
        for n in 0..300 {
            let (envoy, worker) = (n % 3, 1 + n % 2);
            world.request(envoy, worker, "alice", "/");
            let pause_us = world.chance.below(300);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(100);
        world.assert_all_decided(10_000);
        let admitted = world.admitted("alice");
        assert!((20..=22).contains(&admitted), "{admitted}");
        let charged: u64 = world.limiter.charged.values().sum();
        assert_eq!(charged, admitted);
        let cached = world.counted("rl_decisions.denied.deny_cache.per-user");
        assert!(cached > 200, "{cached}");
        assert!(world.checks_executed < 60, "{}", world.checks_executed);
    }
}

#[test]
fn the_deny_cache_denies_only_what_the_limiter_would_deny() {
    for mut world in worlds(2, 2, CONFIG, PER_USER) {
        world.run_for_ms(500);
        for _ in 0..500 {
            let (envoy, worker) = (world.chance.below(2), 1 + world.chance.below(2));
            let user = ["alice", "bob"][usize::try_from(world.chance.below(2)).unwrap()];
            let denied = world.would_deny(user, "/");
            let number = world.request(
                usize::try_from(envoy).unwrap(),
                usize::try_from(worker).unwrap(),
                user,
                "/",
            );
            if world.details(number) == "rl_denied:per-user:deny_cache" {
                assert!(denied, "{number}");
            }
            let pause_us = world.chance.below(20_000);
            world.run_until(world.now_us + pause_us);
        }
        assert!(world.counted("rl_decisions.denied.deny_cache.per-user") > 0);
    }
}

/// Edits the limits so that no request passes, and checks a second later that the edit is in force at
/// each worker of an Envoy.
fn no_request_passes_a_second_later(world: &mut World, envoy: usize, workers: usize) {
    world.limiter.edit(NO_REQUESTS);
    world.run_for_ms(1000);
    no_request_passes(world, envoy, workers);
}

/// An edit after which no request passes.
pub const NO_REQUESTS: &str = "  - {name: nobody, rate: 1/1d, burst: 0}\n";

/// Checks that this edit is in force at each worker of an Envoy.
pub fn no_request_passes(world: &mut World, envoy: usize, workers: usize) {
    for worker in 1..=workers {
        let number = world.request(envoy, worker, "bob", "/");
        world.run_for_ms(5);
        let details = world.details(number);
        assert_eq!(details.split(':').nth(1), Some("nobody"), "worker {worker}");
    }
}

#[test]
fn an_edit_is_in_force_at_every_worker_within_a_second() {
    for mut world in worlds(3, 4, CONFIG, PER_USER) {
        world.run_for_ms(500);
        for _ in 0..40 {
            world.request(0, 1, "alice", "/");
        }
        world.run_for_ms(5);
        world
            .limiter
            .edit("  - {name: per-user, per: [user], rate: 10/s, burst: 100}\n");
        world.run_for_ms(995);
        for envoy in 0..3 {
            for worker in 1..=4 {
                // The cached denial belongs to the limit's generation before the edit.
                let number = world.request(envoy, worker, "alice", "/");
                world.run_for_ms(5);
                assert!(world.passed(number), "{}", world.details(number));
            }
        }
        no_request_passes_a_second_later(&mut world, 1, 4);
    }
}

#[test]
fn patterns_see_one_address_and_buckets_are_of_its_prefix() {
    let limits = "  - {name: per-address, per: [remote_address], rate: 2/1h}
  - {name: banned, match: {remote_address: 2001:db8:1:2::bad}, rate: 0/1h, algorithm: fixed_window}
exempt:
  - {name: monitor, match: {remote_address: 2001:db8:1:2::7}}
";
    for mut world in worlds(1, 1, CONFIG, limits) {
        let mut told = Vec::new();
        // The first snapshot arrives after some of them.
        for host in ["7", "1", "bad", "2", "3", "7"] {
            let number = world.request(0, 1, &format!("[2001:db8:1:2::{host}]:4711"), "/");
            world.run_for_ms(100);
            told.push(match world.details(number).split(':').nth(1) {
                None => format!("{host} passed"),
                Some(limit) => format!("{host} {limit}"),
            });
        }
        assert_eq!(
            told,
            [
                "7 passed",
                "1 passed",
                "bad banned",
                "2 passed",
                "3 per-address",
                "7 passed",
            ]
        );
        let charged = world.limiter.charged.iter();
        let charged: Vec<_> = charged.filter(|(_, units)| **units > 0).collect();
        let network = vec![Some(b"2001:db8:1:2::".to_vec())];
        assert_eq!(charged, [(&("per-address".parse().unwrap(), network), &2)]);
    }
}

#[test]
fn an_idle_proxy_rarely_wakes_and_misses_no_edit() {
    for mut world in worlds(1, 3, CONFIG, PER_USER) {
        world.run_for_ms(2000);
        world.ticks = 0;
        world.run_for_ms(10_000);
        // One worker has a long poll and needs no ticks; the others check whether it still polls.
        assert!(world.ticks < 3 * 10 * 2, "{}", world.ticks);
        no_request_passes_a_second_later(&mut world, 0, 3);
        // Workers with requests tick often again.
        world.ticks = 0;
        world.run_for_ms(500);
        assert!(world.ticks >= 3 * 9, "{}", world.ticks);
    }
}

#[test]
fn local_limits_are_taken_first_and_put_back_when_the_limiter_denies() {
    let limits = "  - {name: here, rate: 100/1h, scope: proxy}\n  - {name: there, rate: 5/1h}\n";
    for mut world in worlds(1, 2, CONFIG, limits) {
        world.run_for_ms(500);
        for n in 0..200 {
            world.request(0, 1 + n % 2, "alice", "/");
            let pause_us = world.chance.below(20_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(100);
        assert_eq!(world.admitted("alice"), 5);
        world.limiter.edit(
            "  - {name: here, rate: 100/1h, scope: proxy}\n  - {name: there, rate: 500/1h}\n",
        );
        // The edit gave both limits a new generation; only what the local one admits now counts.
        world.run_for_ms(1000);
        for _ in 0..150 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(5);
        }
        assert_eq!(world.admitted("alice"), 105);
        assert_eq!(world.details(349), "rl_denied:here:proxy");
    }
}

#[test]
fn requests_in_a_queue_are_held_for_their_turn() {
    let limits =
        "  - {name: slow, algorithm: leaky_bucket, rate: 10/s, burst: 5, over_limit: queue}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    let start_us = world.now_us;
    for _ in 0..7 {
        world.request(0, 1, "alice", "/");
    }
    world.run_for_ms(5);
    world.leave(3);
    world.run_for_ms(1000);
    let mut passed = Vec::new();
    for sent in &world.requests {
        match &sent.outcome {
            Some(Outcome::Passed { at_us, .. }) => passed.push((at_us - start_us) / 1000),
            Some(Outcome::Refused { reply, .. }) => assert_eq!(reply.status, 429),
            None => assert!(sent.gone),
        }
    }
    assert_eq!(passed.len(), 4);
    for (turn, at_ms) in [0, 100, 200, 400].iter().zip(&passed) {
        assert!((*turn..turn + 15).contains(at_ms), "{passed:?}");
    }
}

#[test]
fn requests_above_hold_max_are_denied() {
    let limits = "  - {name: slow, algorithm: leaky_bucket, rate: 10/s, burst: 50, over_limit: queue, max_delay: 5s}\n";
    let config = CONFIG.replace("\"descriptors\"", "\"hold\": {\"max\": 3}, \"descriptors\"");
    let mut world = World::new(1, 1, 1, &config, limits);
    world.run_for_ms(500);
    for _ in 0..10 {
        world.request(0, 1, "alice", "/");
    }
    world.run_for_ms(5000);
    world.assert_all_decided(400_000);
    // Until the answer says which of them are delayed, each holds a permit.
    assert_eq!(world.admitted("alice"), 3);
    assert_eq!(world.counted("rl_hold_full"), 7);
}

#[test]
fn limits_that_only_report_never_delay_nor_deny() {
    let limits = "  - {name: shadow, rate: 1/1h, enforce: 0%}\n  - {name: queue, algorithm: leaky_bucket, rate: 1/s, burst: 3, over_limit: queue, scope: proxy, enforce: 0%}\n  - {name: less, rate: 2/1h, over_limit: degrade, match: {path: /search}}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    for _ in 0..5 {
        let number = world.request(0, 1, "alice", "/");
        assert!(world.passed(number), "decided at once");
        world.run_for_ms(5);
    }
    let mut marks = Vec::new();
    for _ in 0..3 {
        let number = world.request(0, 1, "alice", "/search");
        world.run_for_ms(5);
        match &world.requests[number].outcome {
            Some(Outcome::Passed { degraded, .. }) => marks.push(degraded.clone()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(marks, [None, None, Some("less".to_owned())]);
    world.run_for_ms(100);
    assert_eq!(world.counted("rl_decisions.would_deny.limiter.shadow"), 7);
}

#[test]
fn a_request_without_an_entry_is_shared_skipped_or_refused() {
    let limits = "  - {name: strict, per: [api], if_missing: deny, rate: 9/s, match: {path: /api}}\n  - {name: lax, per: [api], if_missing: skip, rate: 1/1h}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    let lax = world.request(0, 1, "alice", "/");
    let lax_again = world.request(0, 1, "alice", "/");
    let strict = world.request(0, 1, "alice", "/api");
    world.run_for_ms(5);
    assert!(world.passed(lax) && world.passed(lax_again));
    assert_eq!(world.details(strict), "rl_denied:strict:missing");
    world.run_for_ms(3000);
    let denied = world.reports.iter().map(|report| report.requests.denied);
    assert_eq!(denied.sum::<u64>(), 1);
}

//! Fault injection: calls that are lost, late, garbled, truncated or refused, and clients that
//! leave.

use crate::{
    decisions::{seeds, worlds},
    world::{CONFIG, Faults, World, has_streams},
};

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 10/s, burst: 20}
  - {name: all, rate: 200/s}
  - {name: here, per: [user], rate: 50/s, scope: proxy}
";

/// The faults of a seed: any mixture.
pub fn any(world: &mut World) -> Faults {
    let mut share = || {
        if world.chance.percent(50) {
            world.chance.below(20)
        } else {
            0
        }
    };
    Faults {
        lost: share(),
        late: share(),
        garbled: share(),
        truncated: share(),
        refused: share(),
        undeliverable: share(),
        untouched: share(),
        ending: share(),
        ..Faults::NONE
    }
}

#[test]
fn every_request_is_decided_once_under_any_call_faults() {
    for mut world in worlds(2, 3, CONFIG, LIMITS) {
        for _ in 0..2000 {
            if world.chance.percent(1) {
                world.faults = any(&mut world);
            }
            if world.chance.percent(1) {
                let skew = i64::try_from(world.chance.below(20_000)).unwrap() - 10_000;
                world.wall_skew_ms += skew;
            }
            let envoy = usize::try_from(world.chance.below(2)).unwrap();
            let worker = usize::try_from(1 + world.chance.below(3)).unwrap();
            let user =
                ["alice", "bob", "\u{fffd}"][usize::try_from(world.chance.below(3)).unwrap()];
            let number = world.request(envoy, worker, user, "/");
            if world.chance.percent(5) {
                let pause_us = world.chance.below(3_000);
                world.run_until(world.now_us + pause_us);
                world.leave(number);
            }
            if world.chance.percent(5) {
                world.envoys[envoy].shared.lose_writes(2);
            }
            let pause_us = world.chance.below(4_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(200);
        // The timeout of a call, queued behind another one, plus jitter of the simulation.
        world.assert_all_decided(45_000);
    }
}

/// Each request has a bucket of its own, so that one that is charged twice is not hidden by another
/// that is not charged.
#[test]
fn no_request_is_charged_twice_at_the_limiter() {
    let limits = "  - {name: per-user, per: [user], rate: 1000000/1h}\n";
    for seed in seeds() {
        let mut world = World::new(seed, 1, 2, CONFIG, limits);
        world.run_for_ms(500);
        // Without lost checks, no charge is lost. A stream that breaks loses answers, also those that say that
        // nothing was charged.
        let certain = seed % 4 < 2;
        let untouched = !(certain && has_streams(seed));
        let users: Vec<String> = (0..400).map(|n| format!("user-{n}")).collect();
        for (n, user) in users.iter().enumerate() {
            if world.chance.percent(4) {
                let faults = any(&mut world);
                world.faults = Faults {
                    lost: if certain { 0 } else { faults.lost },
                    late: if certain { 0 } else { faults.late },
                    garbled: if certain { 0 } else { faults.garbled },
                    truncated: if certain { 0 } else { faults.truncated },
                    refused: faults.refused * 5,
                    untouched: if untouched { faults.untouched } else { 0 },
                    ..faults
                };
            }
            world.request(0, 1 + n % 2, user, "/");
            let pause_us = world.chance.below(4_000);
            world.run_until(world.now_us + pause_us);
        }
        world.faults = Faults::NONE;
        world.run_for_ms(3000);
        // A request closes the breaker if it is open.
        world.request(0, 1, "another", "/");
        world.run_for_ms(100);
        // Each user's next check charges the remaining debt.
        for user in &users {
            world.request(0, 1, user, "/");
            world.run_for_ms(2);
        }
        world.run_for_ms(100);
        for user in &users {
            assert_eq!(world.admitted(user), 2, "{user}");
            let charged = world.limiter.charged_in_all("per-user", user);
            let right = if certain {
                charged == 2
            } else {
                charged == 1 || charged == 2
            };
            assert!(right, "{user} was charged {charged} for 2");
        }
    }
}

#[test]
fn memory_is_bounded_for_any_keys() {
    let config = CONFIG.replace(
        "\"descriptors\"",
        "\"memory\": {\"buckets\": 64}, \"descriptors\"",
    );
    let mut world = World::new(3, 1, 2, &config, LIMITS);
    world.run_for_ms(500);
    let mut largest = 0;
    for n in 0..20_000 {
        if n == 10_000 {
            world.faults = Faults::DOWN;
        }
        world.request(0, 1 + n % 2, &format!("user-{n}"), "/");
        if n % 10 == 0 {
            world.run_for_ms(3);
        }
        largest = largest.max(world.envoys[0].shared.size().1);
    }
    let (keys, _) = world.envoys[0].shared.size();
    // 64 buckets are 16 sets; the other keys are identity, notice, snapshot, changes, poller, entries and
    // breaker.
    assert!(keys <= 16 + 7, "{keys} keys");
    assert!(largest <= 16 * 1000 + 4000, "{largest} bytes");
}

#[test]
fn an_evicted_bucket_comes_back_without_units() {
    let config = CONFIG.replace(
        "\"descriptors\"",
        "\"memory\": {\"buckets\": 4}, \"descriptors\"",
    );
    let limits = "  - {name: here, per: [user], rate: 5/1h, scope: proxy}\n";
    let mut world = World::new(3, 1, 1, &config, limits);
    world.run_for_ms(500);
    // All are used up, so eviction prefers none of them.
    let users: Vec<String> = (0..20).map(|n| format!("user-{n}")).collect();
    for _ in 0..20 {
        for user in &users {
            for _ in 0..6 {
                world.request(0, 1, user, "/");
            }
        }
        world.run_for_ms(10);
    }
    // Fresh bursts would admit a hundred.
    for user in &users {
        assert!(
            world.admitted(user) <= 5,
            "{user}: {}",
            world.admitted(user)
        );
    }
    let admitted: u64 = users.iter().map(|user| world.admitted(user)).sum();
    assert!(
        admitted >= 4 * 5,
        "those who came first had theirs: {admitted}"
    );
}

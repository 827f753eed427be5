//! With calls that are lost, late, garbled, cut short or refused, and clients that leave.

use crate::{
    rules::seeds,
    world::{CONFIG, Weather, World},
};

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 10/s, burst: 20}
  - {name: all, rate: 200/s}
  - {name: here, per: [user], rate: 50/s, scope: proxy}
";

/// The weather of a seed: any mixture.
pub fn any(world: &mut World) -> Weather {
    let mut share = || {
        if world.chance.percent(50) {
            world.chance.below(20)
        } else {
            0
        }
    };
    Weather {
        lost: share(),
        late: share(),
        garbled: share(),
        truncated: share(),
        refused: share(),
        undeliverable: share(),
        untouched: share(),
    }
}

#[test]
fn whatever_becomes_of_calls_every_request_is_decided_once() {
    for seed in seeds() {
        let mut world = World::new(seed, 2, 3, CONFIG, LIMITS);
        for _ in 0..2000 {
            if world.chance.percent(1) {
                world.weather = any(&mut world);
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
        // A call's timeout, behind another one's, and jitter of the simulation.
        world.assert_all_decided(45_000);
    }
}

#[test]
fn no_request_is_charged_twice_at_the_limiter() {
    for seed in seeds() {
        let mut world = World::new(seed, 1, 2, CONFIG, "  - {name: all, rate: 1000000/1h}\n");
        for n in 0..2000 {
            if world.chance.percent(2) {
                world.weather = any(&mut world);
            }
            world.request(0, 1 + n % 2, "alice", "/");
            let pause_us = world.chance.below(4_000);
            world.run_until(world.now_us + pause_us);
        }
        world.weather = Weather::FAIR;
        world.run_for_ms(3000);
        // A request closes the breaker, if it is open; the next brings whatever is still owed.
        for _ in 0..2 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(100);
        }
        let charged: u64 = world
            .limiter
            .charged
            .values()
            .chain(world.limiter.debited.values())
            .sum();
        assert!(charged <= 2002, "seed {seed}: {charged}");
        // Most of it comes; how much was lost on the way is the weather's.
        assert!(charged >= 500, "seed {seed}: {charged}");
    }
}

#[test]
fn memory_is_bounded_whatever_keys_come() {
    let config = CONFIG.replace(
        "\"descriptors\"",
        "\"memory\": {\"buckets\": 64}, \"descriptors\"",
    );
    let mut world = World::new(3, 1, 2, &config, LIMITS);
    world.run_for_ms(500);
    let mut largest = 0;
    for n in 0..20_000 {
        if n == 10_000 {
            world.weather = Weather::DOWN;
        }
        world.request(0, 1 + n % 2, &format!("user-{n}"), "/");
        if n % 10 == 0 {
            world.run_for_ms(3);
        }
        largest = largest.max(world.envoys[0].shared.size().1);
    }
    let (keys, _) = world.envoys[0].shared.size();
    // 64 buckets are 16 sets; beside them identity, notice, snapshot, poller and breaker.
    assert!(keys <= 16 + 5, "{keys} keys");
    assert!(largest <= 16 * 1000 + 4000, "{largest} bytes");
}

#[test]
fn a_bucket_that_was_pushed_out_comes_back_empty() {
    let config = CONFIG.replace(
        "\"descriptors\"",
        "\"memory\": {\"buckets\": 4}, \"descriptors\"",
    );
    let limits = "  - {name: here, per: [user], rate: 5/1h, scope: proxy}\n";
    let mut world = World::new(3, 1, 1, &config, limits);
    world.run_for_ms(500);
    // All use theirs up, so that none is worth keeping more than another.
    let users: Vec<String> = (0..20).map(|n| format!("user-{n}")).collect();
    for _ in 0..20 {
        for user in &users {
            for _ in 0..6 {
                world.request(0, 1, user, "/");
            }
        }
        world.run_for_ms(10);
    }
    // Fresh bursts would make it a hundred.
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

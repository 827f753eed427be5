//! End-of-turn batching.

use crate::{
    decisions::worlds,
    world::{CONFIG, Faults, World},
};

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 1000/s}\n";

#[test]
fn requests_that_come_together_share_a_call() {
    for mut world in worlds(1, 1, CONFIG, LIMITS) {
        world.run_for_ms(500);
        for round in 1..=20 {
            let together: Vec<usize> = (0..=world.chance.index(100))
                .map(|n| world.request(0, 1, &format!("user-{n}"), "/"))
                .collect();
            world.run_for_ms(10);
            assert_eq!(world.checks_executed, round);
            assert!(together.iter().all(|number| world.passed(*number)));
        }
    }
}

#[test]
fn a_client_that_leaves_before_the_turn_ends_is_not_charged() {
    let mut world = World::new(1, 1, 1, CONFIG, LIMITS);
    world.run_for_ms(500);
    let gone = world.request(0, 1, "alice", "/");
    world.leave(gone);
    world.run_for_ms(10);
    assert_eq!(world.checks_executed, 0);
    world.request(0, 1, "bob", "/");
    world.run_for_ms(10);
    assert_eq!(world.checks_executed, 1);
    assert!(world.passed(1));
}

#[test]
fn a_host_without_end_of_turn_callbacks_delays_only_the_first_check() {
    for mut world in worlds(1, 1, CONFIG, LIMITS) {
        world.reports_turn_ends = false;
        world.run_for_ms(500);
        let first = world.request(0, 1, "alice", "/");
        world.run_for_ms(100);
        // The wait until the next tick of a busy worker, and a round trip.
        let took_us = world.requests[first].took_us().unwrap();
        assert!(took_us <= 55_000, "{took_us} us");
        for n in 0..100 {
            let later = world.request(0, 1, &format!("user-{n}"), "/");
            world.run_for_ms(4);
            let took_us = world.requests[later].took_us().unwrap();
            assert!(took_us <= 4_000, "{took_us} us");
        }
    }
}

#[test]
fn while_the_breaker_is_open_no_request_waits_for_the_end_of_a_turn() {
    for mut world in worlds(1, 1, CONFIG, LIMITS) {
        world.run_for_ms(500);
        world.faults = Faults::DOWN;
        // Ten failures open the breaker for a quarter of a second at least.
        for _ in 0..10 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(1);
        }
        let (mut at_once, until_us) = (0, world.now_us + 100_000);
        while world.now_us < until_us {
            let number = world.request(0, 1, "alice", "/");
            at_once += usize::from(world.requests[number].outcome.is_some());
            world.run_for_ms(1);
        }
        assert!(at_once >= 99, "{at_once} of 100");
    }
}

/// All of a crowd is decided in a few events, and continues in many callbacks; the host counts how many
/// continue in each.
#[test]
fn each_request_of_a_crowd_is_decided_within_its_time() {
    // With callouts, and with streams.
    for seed in [1, 2] {
        for faults in [
            Faults::NONE,
            Faults::DOWN,
            Faults::BLACK_HOLE,
            Faults::NO_CLUSTER,
            Faults::NO_STORE,
        ] {
            // Without reports of turns, a few continue with each tick.
            for (reports_turn_ends, within_us) in [(true, 25_000), (false, 600_000)] {
                let mut world = World::new(seed, 1, 1, CONFIG, LIMITS);
                world.reports_turn_ends = reports_turn_ends;
                world.run_for_ms(500);
                world.faults = faults;
                for n in 0..3_000 {
                    world.request(0, 1, &format!("user-{n}"), "/");
                }
                world.run_for_ms(700);
                world.assert_all_decided(within_us);
            }
        }
    }
}

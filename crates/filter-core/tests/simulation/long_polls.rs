//! Long polls: the limiter holds them until there is a newer snapshot.

use crate::{
    decisions::{NO_REQUESTS, no_request_passes, seeds, worlds},
    world::{CONFIG, Faults, Gone, World},
};

const ALL_REQUESTS: &str = "  - {name: everybody, per: [user], rate: 1000/s}\n";
const WORKERS: usize = 3;

/// Envoys that have polled their limiter for a while, at a random point of a poll.
fn calm(seed: u64, envoys: usize) -> World {
    let mut world = World::new(seed, envoys, WORKERS, CONFIG, ALL_REQUESTS);
    let settled_us = 3_000_000 + world.chance.below(1_000_000);
    world.run_until(world.now_us + settled_us);
    world
}

/// Sends requests to each worker for this long.
fn traffic(world: &mut World, ms: u64) {
    let end_us = world.now_us + ms * 1000;
    while world.now_us < end_us {
        let worker = 1 + world.chance.index(WORKERS);
        world.request(0, worker, "alice", "/");
        let pause_us = 1 + world.chance.below(20_000);
        world.run_until(end_us.min(world.now_us + pause_us));
    }
}

#[test]
fn an_idle_envoy_polls_less_than_twice_a_second_and_loads_an_edit_at_once() {
    for mut world in seeds().map(|seed| calm(seed, 3)) {
        let before = world.polls;
        world.run_for_ms(10_000);
        let polls = world.polls - before;
        assert!((3 * 13..=3 * 20).contains(&polls), "{polls}");
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(10);
        for envoy in 0..3 {
            no_request_passes(&mut world, envoy, WORKERS);
        }
    }
}

#[test]
fn snapshots_loaded_by_idle_workers_are_counted() {
    for mut world in seeds().map(|seed| calm(seed, 1)) {
        let loaded = world.counted("rl_policy.loaded");
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(2_000);
        let workers = u64::try_from(WORKERS).unwrap() + 1;
        assert_eq!(world.counted("rl_policy.loaded"), loaded + workers);
    }
}

#[test]
fn a_fleet_that_loads_an_edit_at_once_does_not_poll_in_step() {
    for mut world in seeds().map(|seed| calm(seed, 40)) {
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(10_000);
        // There are about sixty polls a second, but never many in the same hundredth of a second.
        for _ in 0..100 {
            let before = world.polls;
            world.run_for_ms(10);
            assert!(world.polls - before <= 8);
        }
    }
}

#[test]
fn an_edit_is_in_force_within_a_second_if_the_polled_limiter_hangs() {
    for seed in seeds() {
        for busy in [false, true] {
            let mut world = calm(seed, 1);
            if busy {
                traffic(&mut world, 1_500);
            }
            // The limiter answers none of its calls; its replica does.
            world.silent_us = world.now_us;
            world.lost_polls = world.chance.below(3 - u64::from(busy));
            world.limiter.edit(NO_REQUESTS);
            world.run_for_ms(1_000);
            no_request_passes(&mut world, 0, WORKERS);
        }
    }
}

#[test]
fn an_edit_is_in_force_at_once_if_the_polled_limiter_dies() {
    for mut world in seeds().map(|seed| calm(seed, 1)) {
        world.faults = Faults::DOWN;
        world.run_for_ms(5);
        world.faults = Faults::NONE;
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(260);
        no_request_passes(&mut world, 0, WORKERS);
    }
}

#[test]
fn polls_do_not_become_frequent_while_no_limiter_answers() {
    for (faults, most) in [(Faults::DOWN, 75), (Faults::BLACK_HOLE, 30)] {
        for mut world in seeds().map(|seed| calm(seed, 1)) {
            world.faults = faults;
            let before = world.polls;
            world.run_for_ms(10_000);
            let polls = world.polls - before;
            assert!((5..=most).contains(&polls), "{polls}");
        }
    }
}

#[test]
fn a_limiter_that_holds_no_polls_is_polled_five_times_a_second() {
    for mut world in worlds(1, WORKERS, CONFIG, ALL_REQUESTS) {
        world.holds = false;
        world.run_for_ms(4_000);
        let before = world.polls;
        world.run_for_ms(10_000);
        let polls = world.polls - before;
        assert!((40..=60).contains(&polls), "{polls}");
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(310);
        no_request_passes(&mut world, 0, WORKERS);
    }
}

#[test]
fn a_domain_that_is_deleted_or_created_takes_effect_at_once() {
    for mut world in seeds().map(|seed| calm(seed, 1)) {
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(2_000);
        for gone in [Some(Gone::Deleted), None] {
            world.gone = gone;
            world.run_for_ms(10);
            let number = world.request(0, 1, "bob", "/");
            world.run_for_ms(5);
            assert_eq!(world.passed(number), gone.is_some());
            world.run_for_ms(3_000);
        }
    }
}

/// An edit must not multiply the calls of a poller that has one in flight.
#[test]
fn edits_in_quick_succession_are_polled_for_five_times_a_second() {
    for mut world in seeds().map(|seed| calm(seed, 1)) {
        let before = world.polls;
        for n in 0..200 {
            let limits = format!("  - {{name: edit-{n}, rate: 1000/s}}\n");
            world.limiter.edit(&limits);
            world.run_for_ms(10);
        }
        let polls = world.polls - before;
        assert!((8..=15).contains(&polls), "{polls}");
        world.limiter.edit(NO_REQUESTS);
        world.run_for_ms(300);
        no_request_passes(&mut world, 0, WORKERS);
    }
}

//! Slots whose worker is deleted with its plugin before it could free them.

use filter_core::Host;

use crate::{
    decisions::seeds,
    world::{CONFIG, Faults, Gone, World},
};

const TTL_MS: u64 = 1_500;
const LIMITS: &str =
    "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 12, slot_ttl: 1500ms}\n";

/// Requests ended while no limiter answered, and their worker was then deleted with its plugin.
fn left_behind(seed: u64) -> World {
    let mut world = World::new(seed, 1, 2, CONFIG, LIMITS);
    world.run_for_ms(500);
    let held: Vec<usize> = (0..4).map(|_| world.request(0, 1, "alice", "/")).collect();
    world.run_for_ms(50);
    world.faults = Faults::DOWN;
    for number in held {
        world.leave(number);
    }
    world.run_for_ms(20);
    world.replace_worker(0, 1, CONFIG);
    assert!(left(&world) > 0);
    world
}

/// How many bytes of frees the deleted workers left.
fn left(world: &World) -> usize {
    let value = world.envoys[0].shared.load(b"rl1:shop:freed");
    value.map_or(0, |value| value.bytes.len())
}

#[test]
fn frees_of_a_deleted_worker_are_sent_by_another() {
    for mut world in seeds().map(left_behind) {
        let slots = |world: &World| world.limiter.slots(world.limiter_ms());
        assert_eq!(slots(&world), 4);
        world.faults = Faults::NONE;
        world.run_for_ms(700);
        assert_eq!((slots(&world), left(&world)), (0, 0));
    }
}

#[test]
fn frees_of_a_deleted_worker_are_dropped_when_refused_or_expired() {
    for seed in seeds() {
        let mut refused = left_behind(seed);
        refused.gone = Some(Gone::Deleted);
        refused.faults = Faults::NONE;
        refused.run_for_ms(700);
        for _ in 0..60 {
            refused.run_for_ms(10);
            assert_eq!(left(&refused), 0, "refused");
        }
        let mut failing = left_behind(seed);
        failing.run_for_ms(TTL_MS + 700);
        for _ in 0..60 {
            failing.run_for_ms(10);
            assert_eq!(left(&failing), 0, "expired");
        }
    }
}

//! Calendar windows while no limiter answers: their edges are those of the limit's time zone.

use crate::{
    decisions::seeds,
    world::{CONFIG, EPOCH_MS, Faults, World},
};

/// The simulation starts at 02:13:20 UTC; midnight in Brasília, three hours behind, is at 03:00.
const LIMITS: &str =
    "  - {name: per-user, per: [user], rate: 10/day, time_zone: America/Sao_Paulo}\n";
const MIDNIGHT_MS: u64 = 1_763_002_800_000;

/// A world that has loaded the limits, `ms` milliseconds before midnight.
fn before_midnight(seed: u64, ms: u64) -> World {
    let mut world = World::new(seed, 1, 2, CONFIG, LIMITS);
    wait_until(&mut world, MIDNIGHT_MS - ms);
    world
}

/// This many requests within a second.
fn requests(world: &mut World, count: usize) {
    for n in 0..count {
        world.request(0, 1 + n % 2, "alice", "/");
        world.run_for_ms(1000 / count as u64);
    }
}

fn wait_until(world: &mut World, ms: u64) {
    world.run_for_ms(ms - EPOCH_MS - world.now_us / 1000);
}

#[test]
fn an_outage_over_midnight_gives_each_day_its_share() {
    for seed in seeds().take(3) {
        let mut world = before_midnight(seed, 10_000);
        requests(&mut world, 4);
        world.faults = Faults::DOWN;
        requests(&mut world, 20);
        let first = world.admitted("alice");
        assert_eq!(first, 10);
        wait_until(&mut world, MIDNIGHT_MS - 100);
        world.request(0, 1, "alice", "/");
        wait_until(&mut world, MIDNIGHT_MS);
        assert_eq!(world.admitted("alice"), first, "before midnight");
        requests(&mut world, 20);
        assert_eq!(world.admitted("alice"), 20, "after midnight");
        // Its debts belong to the new day.
        world.faults = Faults::NONE;
        for _ in 0..10 {
            requests(&mut world, 5);
        }
        assert_eq!(world.admitted("alice"), 20, "with the limiter");
    }
}

#[test]
fn local_admissions_of_yesterday_are_not_charged_today() {
    for seed in seeds().take(3) {
        let mut world = before_midnight(seed, 5000);
        requests(&mut world, 1);
        world.faults = Faults::DOWN;
        requests(&mut world, 20);
        assert_eq!(world.admitted("alice"), 10);
        wait_until(&mut world, MIDNIGHT_MS);
        world.faults = Faults::NONE;
        for _ in 0..10 {
            requests(&mut world, 5);
        }
        assert_eq!(world.admitted("alice"), 20);
    }
}

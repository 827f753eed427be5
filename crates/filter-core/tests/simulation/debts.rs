//! Debts: units admitted without the limiter are charged when it answers, once, and before anything
//! else.

use crate::{
    decisions::seeds,
    world::{CONFIG, Faults, Gone, World},
};

/// Two workers of an Envoy that has loaded the limits.
fn following(seed: u64, limits: &str) -> World {
    let mut world = World::new(seed, 1, 2, CONFIG, limits);
    world.run_for_ms(500);
    world
}

/// As [`following`], after one check of the bucket.
fn in_use(seed: u64, limits: &str) -> World {
    let mut world = following(seed, limits);
    requests(&mut world, 1, 100);
    world
}

/// This many requests, to the workers in turn.
fn requests(world: &mut World, count: usize, every_ms: u64) {
    for n in 0..count {
        world.request(0, 1 + n % 2, "alice", "/");
        world.run_for_ms(every_ms);
    }
}

/// The units that were charged as debts, and the sum with those that checks charged.
fn booked(world: &World) -> (u64, u64) {
    let debited: u64 = world.limiter.debited.values().sum();
    let charged: u64 = world.limiter.charged.values().sum();
    (debited, charged + debited)
}

#[test]
fn local_admissions_are_charged_once_when_the_limiter_is_back() {
    let limits = "  - {name: all, rate: 100/1h, burst: 100}\n";
    for (seed, away) in seeds().flat_map(|seed| [(seed, Faults::DOWN), (seed, Faults::NO_STORE)]) {
        let mut world = in_use(seed, limits);
        world.faults = away;
        requests(&mut world, 60, 20);
        assert_eq!(world.admitted("alice"), 61);
        world.faults = Faults::NONE;
        requests(&mut world, 60, 100);
        let (debited, booked) = booked(&world);
        assert!(debited >= 60, "{debited}");
        assert_eq!(booked, world.admitted("alice"), "{debited} debited");
        assert_eq!(world.admitted("alice"), 100);
    }
}

/// However many probes there are, answered or not, debts are charged before anything else is
/// admitted.
#[test]
fn probes_admit_no_extra_requests_and_lose_no_debt() {
    let limits = "  - {name: all, rate: 200/1d, burst: 200}\n";
    for mut world in seeds().map(|seed| following(seed, limits)) {
        for outage in 0..4 {
            requests(&mut world, 1, 100);
            // Calls are refused, so that all charges are certain before the breaker opens.
            world.faults = Faults::DOWN;
            // For a while the last answers count as another limiter's.
            requests(&mut world, 10, 50);
            // All of these calls are probes.
            world.faults = if outage % 2 == 0 {
                Faults::BLACK_HOLE
            } else {
                Faults {
                    late: 100,
                    ..Faults::NONE
                }
            };
            let failed = world.counted("rl_callouts.failed");
            requests(&mut world, 30, 100);
            assert!(
                world.counted("rl_callouts.failed") >= failed + 2,
                "no probe was lost"
            );
            world.faults = Faults::NONE;
            requests(&mut world, 30, 100);
            let (debited, booked) = booked(&world);
            let admitted = world.admitted("alice");
            assert_eq!(booked, admitted, "{outage}: {debited} debited");
            assert!(admitted <= 200, "{outage}: {admitted}");
        }
        assert_eq!(world.admitted("alice"), 200);
    }
}

#[test]
fn a_dead_replica_admits_at_most_one_unit_over_the_limit() {
    let limits = "  - {name: all, rate: 20/1h, burst: 20}\n";
    for mut world in seeds().map(|seed| in_use(seed, limits)) {
        // Every other call is refused, until the breaker opens.
        world.faults = Faults {
            refused: 50,
            ..Faults::NONE
        };
        requests(&mut world, 100, 20);
        let admitted = world.admitted("alice");
        // The shared table may receive the last status of a worker one tick later.
        assert!((20..=21).contains(&admitted), "{admitted}");
    }
}

#[test]
fn a_check_that_may_have_been_charged_is_not_charged_again() {
    let limits = "  - {name: all, rate: 100/1h, burst: 100}\n";
    for mut world in seeds().map(|seed| in_use(seed, limits)) {
        // Each check is charged, and no answer arrives in time.
        world.faults = Faults {
            late: 100,
            ..Faults::NONE
        };
        requests(&mut world, 40, 20);
        world.faults = Faults::NONE;
        requests(&mut world, 40, 100);
        let (debited, booked) = booked(&world);
        let admitted = world.admitted("alice");
        assert_eq!(booked, admitted, "{debited} debited");
    }
}

/// The store was emptied and the limiter restarted, without the domain. That must not make requests
/// unlimited.
#[test]
fn lost_limits_stay_in_force_and_deleted_ones_do_not() {
    let limits = "  - {name: all, rate: 40/1d, burst: 40}\n";
    for mut world in seeds().map(|seed| following(seed, limits)) {
        for (gone, count) in [(None, 10), (Some(Gone::Lost), 100), (None, 20)] {
            world.gone = gone;
            requests(&mut world, count, 40);
            // The other workers load the update one tick later.
            world.run_for_ms(100);
        }
        assert_eq!(world.admitted("alice"), 40);
        let (debited, booked) = booked(&world);
        assert_eq!(booked, 40, "{debited}");
        let said = world
            .logs
            .iter()
            .filter(|text| text.contains("nobody deleted"));
        assert!((1..=3).contains(&said.count()), "{:?}", world.logs);

        world.gone = Some(Gone::Deleted);
        world.run_for_ms(1000);
        for n in 0..100 {
            world.request(0, 1 + n % 2, "alice", "/");
        }
        assert_eq!(world.admitted("alice"), 140);
    }
}

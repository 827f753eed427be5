//! The invariants of a limit under faults of calls, writes and clocks.

use crate::{
    decisions::{seeds, worlds},
    faults,
    world::{CONFIG, Faults, Outcome, World},
};

/// The faults that a run injects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    None,
    /// Other workers write between a read and the write after it.
    Races,
    /// The wall clock steps back and forth.
    Clocks,
}

/// Sends requests of two users to three workers; returns the forward steps of the wall clock, in
/// milliseconds.
fn traffic(world: &mut World, disturbance: Disturbance, requests: u64, pause_us: u64) -> i64 {
    let mut ahead_ms = 0;
    for _ in 0..requests {
        if disturbance == Disturbance::Races && world.chance.percent(30) {
            let lost = u32::try_from(1 + world.chance.below(3)).unwrap();
            world.envoys[0].shared.lose_writes(lost);
        }
        if disturbance == Disturbance::Clocks && world.chance.percent(2) {
            let jump_ms = i64::try_from(world.chance.below(4_000)).unwrap() - 2_000;
            world.wall_skew_ms += jump_ms;
            ahead_ms += jump_ms.max(0);
        }
        let worker = usize::try_from(1 + world.chance.below(3)).unwrap();
        let user = ["alice", "bob"][usize::try_from(world.chance.below(2)).unwrap()];
        world.request(0, worker, user, "/");
        let pause_us = world.chance.below(pause_us);
        world.run_until(world.now_us + pause_us);
    }
    world.run_for_ms(100);
    ahead_ms
}

/// When a user's requests were admitted, in microseconds.
fn admissions(world: &World, user: &str) -> Vec<u64> {
    let mine = world.requests.iter().filter(|sent| sent.user == user);
    let mut at: Vec<u64> = mine
        .filter_map(|sent| match sent.outcome {
            Some(Outcome::Passed { at_us, .. }) => Some(at_us),
            _ => None,
        })
        .collect();
    at.sort_unstable();
    at
}

/// The most by which a bucket of this burst and rate would exceed its capacity with requests at these
/// times, in millionths of a unit.
fn excess(at: &[u64], burst: u64, per_second: u64) -> u64 {
    let (mut level, mut last, mut worst) = (0, 0, 0);
    for &now in at {
        level = u64::saturating_sub(level, (now - last) * per_second) + 1_000_000;
        worst = worst.max(level.saturating_sub(burst * 1_000_000));
        last = now;
    }
    worst
}

/// Three workers admit exactly the units in the proxy's own bucket, whichever algorithm it uses.
fn assert_admits_to_the_unit(disturbance: Disturbance) {
    for algorithm in [
        "token_bucket",
        "gcra",
        "leaky_bucket",
        "fixed_window",
        "sliding_window",
    ] {
        let limits = format!(
            "  - {{name: here, per: [user], algorithm: {algorithm}, rate: 30/1d, scope: proxy}}\n"
        );
        for mut world in worlds(1, 3, CONFIG, &limits) {
            world.run_for_ms(500);
            traffic(&mut world, disturbance, 200, 2_000);
            for user in ["alice", "bob"] {
                assert_eq!(world.admitted(user), 30, "{algorithm}");
            }
        }
    }
}

#[test]
fn a_proxy_bucket_admits_exactly_its_limit_across_workers() {
    assert_admits_to_the_unit(Disturbance::None);
}

#[test]
fn concurrent_writes_of_workers_admit_no_more_than_the_limit() {
    assert_admits_to_the_unit(Disturbance::Races);
}

#[test]
fn a_rate_holds_in_every_interval_whatever_the_clock_does() {
    let limits = "  - {name: here, per: [user], rate: 50/s, burst: 20, scope: proxy}\n";
    for seed in seeds() {
        for disturbance in [Disturbance::None, Disturbance::Races, Disturbance::Clocks] {
            let mut world = World::new(seed, 1, 3, CONFIG, limits);
            world.run_for_ms(500);
            let ahead_ms = traffic(&mut world, disturbance, 1_500, 8_000);
            let allowed_ms = u64::try_from(ahead_ms).unwrap() + 1;
            for user in ["alice", "bob"] {
                let over = excess(&admissions(&world, user), 20, 50);
                // The bucket counts only forward steps as elapsed time. Its clock has a resolution of
                // one millisecond.
                let most = allowed_ms * 50 * 1_000;
                assert!(over <= most, "{over} of {most} millionths");
            }
        }
    }
}

/// The limiter's bucket refills after each denial, so that cached denials keep no request from the
/// local bucket.
#[test]
fn a_denial_by_the_limiter_refunds_the_proxys_bucket() {
    let limits = "  - {name: here, rate: 60/1d, scope: proxy}\n  - {name: there, rate: 1/20ms}\n";
    for mut world in worlds(1, 3, CONFIG, limits) {
        world.run_for_ms(500);
        for _ in 0..1_000 {
            let worker = usize::try_from(1 + world.chance.below(3)).unwrap();
            world.request(0, worker, "alice", "/");
            let pause_us = world.chance.below(16_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(100);
        let denied = world.counted("rl_decisions.denied.limiter.there");
        assert!(denied >= 60, "too few denials to tell, {denied}");
        assert_eq!(world.admitted("alice"), 60);
    }
}

/// Each admitted request is either charged by the limiter or admitted by the proxy; and apart from
/// debits, the limiter's charges stay within the limit.
#[test]
fn the_limiter_never_admits_more_than_the_limit_under_faults() {
    let limits = "  - {name: all, per: [user], rate: 100/1d, on_failure: deny, fleet_size: 18446744073709551615}\n";
    for mut world in worlds(2, 3, CONFIG, limits) {
        for n in 0..1_500 {
            if world.chance.percent(2) {
                world.faults = faults::any(&mut world);
            }
            let worker = usize::try_from(1 + world.chance.below(3)).unwrap();
            let number = world.request(n % 2, worker, "alice", "/");
            if world.chance.percent(3) {
                world.leave(number);
            }
            let pause_us = world.chance.below(4_000);
            world.run_until(world.now_us + pause_us);
        }
        world.run_for_ms(200);
        world.assert_all_decided(45_000);
        let charged: u64 = world.limiter.charged.values().sum();
        let admitted = world.admitted("alice");
        assert!(charged <= 100, "{charged} charged");
        // The limit fails closed, so nothing passes without a charge, except at the start, when no
        // policy is loaded.
        let unlimited = world.counted("rl_unlimited_no_policy");
        assert!(
            admitted <= charged + unlimited,
            "{admitted} passed, {charged} were charged, {unlimited} unlimited"
        );
    }
}

#[test]
fn an_edit_is_in_force_at_every_worker_soon_after_any_faults() {
    for mut world in worlds(2, 3, CONFIG, " - {name: before, rate: 1000/s}\n") {
        world.run_for_ms(1_000);
        for edit in 0..5 {
            world.limiter.edit(&format!(
                "  - {{name: edit-{edit}, rate: 0/1d, algorithm: fixed_window, on_failure: allow}}\n"
            ));
            world.faults = faults::any(&mut world);
            world.run_for_ms(500);
            world.faults = Faults::NONE;
            // Failed polls are retried at growing intervals, but never rarely.
            world.run_for_ms(2_000);
            for (envoy, worker) in [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)] {
                let number = world.request(envoy, worker, "alice", "/");
                world.run_for_ms(60);
                let details = world.details(number).to_owned();
                let by = details.split(':').nth(1).unwrap_or("nobody");
                assert_eq!(by, format!("edit-{edit}"));
            }
        }
    }
}

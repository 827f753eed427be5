//! Leased limits.

use crate::{
    accounting::Accounting,
    decisions::{seeds, worlds},
    faults,
    world::{CONFIG, Chance, Faults, World},
};

/// A world whose parameters are all determined by a seed.
struct Random {
    world: World,
    /// Units a second.
    rate: u64,
    capacity: u64,
    /// 0 for a bucket.
    window_ms: u64,
    cost: u64,
}

impl Random {
    fn bucket(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let ttl_ms = [10, 20, 50, 100, 200][usize::try_from(chance.below(5)).unwrap()];
        let rate = 200 + chance.below(2000);
        let burst = (4 * rate * ttl_ms).div_ceil(1000) + chance.below(rate);
        let cost = 1 + chance.below(3);
        let limits = format!(
            "  - {{name: all, rate: {rate}/s, burst: {burst}, cost: {cost}, on_failure: deny, fleet_size: 18446744073709551615, lease: {{ttl: {ttl_ms}ms}}}}\n"
        );
        Self {
            world: Self::world(seed, &mut chance, &limits),
            rate,
            capacity: burst,
            window_ms: 0,
            cost,
        }
    }

    fn window(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let ttl_ms = [10, 20, 50, 100][usize::try_from(chance.below(4)).unwrap()];
        let window_ms = 4 * ttl_ms + chance.below(600);
        let units = 50 + chance.below(1000);
        let cost = 1 + chance.below(3);
        let limits = format!(
            "  - {{name: all, algorithm: fixed_window, rate: {units}/{window_ms}ms, cost: {cost}, on_failure: deny, fleet_size: 18446744073709551615, lease: {{ttl: {ttl_ms}ms}}}}\n"
        );
        Self {
            world: Self::world(seed, &mut chance, &limits),
            rate: units * 1000 / window_ms,
            capacity: units,
            window_ms,
            cost,
        }
    }

    fn world(seed: u64, chance: &mut Chance, limits: &str) -> World {
        let envoys = usize::try_from(1 + chance.below(4)).unwrap();
        let workers = usize::try_from(1 + chance.below(3)).unwrap();
        let mut world = World::new(seed, envoys, workers, CONFIG, limits);
        world.limiter.proxies = u64::try_from(envoys).unwrap();
        world.slowest_us = 300 + chance.below(19_000);
        world.run_for_ms(500);
        world
    }

    /// Sends requests for a while: each worker has its own demand, which changes now and then;
    /// calls are lost, clients leave, writes to shared data conflict.
    fn traffic(&mut self, for_ms: u64) {
        let world = &mut self.world;
        let end_us = world.now_us + for_ms * 1000;
        let workers = world.envoys[0].workers.len() - 1;
        let mut demand = vec![0; world.envoys.len() * workers];
        // At most about twice what the limit admits, sometimes in bursts.
        let mean_us = 1_000_000 / (2 * self.rate / self.cost).max(1);
        while world.now_us < end_us {
            if world.chance.percent(2) {
                let at = world.chance.index(demand.len());
                demand[at] = [0, 1, 10, 100][world.chance.index(4)];
            }
            if world.chance.percent(1) {
                world.faults = faults::any(world);
            }
            let Some(at) = chosen(&mut world.chance, &demand) else {
                let pause_us = world.chance.below(100_000);
                world.run_until(world.now_us + pause_us);
                demand[0] = 1;
                continue;
            };
            disturbed_request(world, at / workers, 1 + at % workers);
            if !world.chance.percent(20) {
                let pause_us = world.chance.below(5 * mean_us / 2);
                world.run_until(world.now_us + pause_us);
            }
        }
        world.faults = Faults::NONE;
        world.run_for_ms(100);
        world.assert_all_decided(60_000);
    }

    fn assert_kept(&self) {
        let accounting = Accounting::new(&self.world, self.cost);
        accounting.assert_used_in_time();
        accounting.assert_settled_once();
        if self.window_ms == 0 {
            accounting.assert_within_bucket(self.rate, self.capacity);
        } else {
            accounting.assert_within_windows(self.capacity, self.window_ms);
        }
    }
}

/// One of several, by their weights; `None`: all are 0.
fn chosen(chance: &mut Chance, shares: &[u64]) -> Option<usize> {
    let mut left = chance.below(shares.iter().sum());
    shares.iter().position(|share| {
        let found = left < *share;
        left = left.saturating_sub(*share);
        found
    })
}

/// A request whose worker may lose writes against others, and whose client may leave.
fn disturbed_request(world: &mut World, envoy: usize, worker: usize) {
    if world.chance.percent(2) {
        let collisions = 1 + u32::try_from(worker % 3).unwrap();
        world.envoys[envoy].shared.lose_writes(collisions);
    }
    let number = world.request(envoy, worker, "alice", "/");
    if world.chance.percent(2) {
        let pause_us = world.chance.below(2_000);
        world.run_until(world.now_us + pause_us);
        world.leave(number);
    }
}

#[test]
fn a_leased_bucket_admits_no_more_than_it_holds_and_refills() {
    for mut random in seeds().map(Random::bucket) {
        random.traffic(3000);
        random.assert_kept();
    }
}

#[test]
fn a_leased_window_admits_no_more_than_it_holds() {
    for mut random in seeds().map(Random::window) {
        random.traffic(3000);
        random.assert_kept();
    }
}

#[test]
fn unused_units_are_returned_and_spent_ones_settled() {
    for seed in seeds() {
        let limits = "  - {name: all, rate: 1000/s, lease: {ttl: 100ms}}\n";
        let mut world = World::new(seed, 2, 2, CONFIG, limits);
        world.limiter.proxies = 2;
        world.run_for_ms(500);
        for n in 0..400 {
            world.request(n % 2, 1 + n / 2 % 2, "alice", "/");
            world.run_until(world.now_us + 1500);
        }
        world.run_for_ms(150);
        let accounting = Accounting::new(&world, 1);
        let (granted, spent, returned) = accounting.totals();
        assert!(granted > 300, "{granted}");
        assert_eq!(granted, spent + returned);
        assert_eq!(spent, accounting.used());
        assert_eq!(world.admitted("alice"), 400);
        // About five calls in a lease time, for each of two proxies.
        assert!(world.checks_executed < 90, "{}", world.checks_executed);
    }
}

#[test]
fn units_are_put_back_into_their_grant_when_another_limit_denies() {
    let mut runs = Vec::new();
    for seed in seeds() {
        let limits = "  - {name: all, rate: 1000/s, on_failure: deny, fleet_size: 18446744073709551615, lease: {ttl: 20ms}}\n  - {name: other, rate: 300/s, burst: 20, on_failure: deny, fleet_size: 18446744073709551615}\n";
        let mut world = World::new(seed, 2, 2, CONFIG, limits);
        world.limiter.proxies = 2;
        world.slowest_us = 19_000;
        world.run_for_ms(500);
        for n in 0..3000 {
            if n % 500 == 0 {
                world.faults = faults::any(&mut world);
            }
            let user = format!("user-{n}");
            let number = world.request(n % 2, 1 + n / 2 % 2, &user, "/");
            let pause_us = world.chance.below(3000);
            world.run_until(world.now_us + pause_us);
            if world.chance.percent(5) {
                world.leave(number);
            }
        }
        world.faults = Faults::NONE;
        world.run_for_ms(100);
        world.assert_all_decided(60_000);
        let accounting = Accounting::new(&world, 1);
        accounting.assert_used_in_time();
        accounting.assert_settled_once();
        accounting.assert_within_bucket(1000, 1000);
        let (_, spent, returned) = accounting.totals();
        runs.push((spent, returned));
    }
    // Check that enough happened, with or without faults.
    let [spent, returned] = [
        runs.iter().map(|run| run.0).sum::<u64>(),
        runs.iter().map(|run| run.1).sum(),
    ];
    let least = 50 * u64::try_from(runs.len()).unwrap();
    assert!(spent > least && returned > least, "{spent} {returned}");
}

#[test]
fn most_leased_requests_make_no_shared_data_calls() {
    let limits = "  - {name: all, rate: 100000/s, lease: {ttl: 100ms}}\n";
    let mut world = World::new(1, 1, 2, CONFIG, limits);
    world.run_for_ms(500);
    let mut silent = 0;
    for n in 0..20_000 {
        let before = world.envoys[0].shared.calls();
        world.request(0, 1 + n % 2, "alice", "/");
        silent += u64::from(world.envoys[0].shared.calls() == before);
        world.run_until(world.now_us + 100);
    }
    // The breaker, the poll and the table are read for calls and at ticks.
    assert!(silent > 18_000, "{silent}");
    assert!(world.checks_executed < 150, "{}", world.checks_executed);
}

#[test]
fn a_bucket_is_leased_only_while_demand_exceeds_two_requests_per_ttl() {
    let limits = "  - {name: all, rate: 1000/s, lease: {ttl: 100ms}}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    let mut grants_in = |requests, pause_ms| {
        let before = world.limiter.lease_record.granted.len();
        for _ in 0..requests {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(pause_ms);
        }
        world.limiter.lease_record.granted.len() - before
    };
    assert_eq!(grants_in(40, 60), 0);
    assert!(grants_in(40, 20) > 5);
    // Queries shrink with the demand.
    grants_in(10, 60);
    assert_eq!(grants_in(40, 60), 0);
}

#[test]
fn an_edit_drops_units_granted_before_it() {
    let limits = "  - {name: all, rate: 1000/s, burst: 40000, lease: {ttl: 10s}}\n";
    for mut world in worlds(2, 2, CONFIG, limits) {
        world.run_for_ms(500);
        // Slow enough that a worker's units last long.
        for n in 0..40 {
            world.request(n % 2, 1 + n / 2 % 2, "alice", "/");
            world.run_for_ms(3);
        }
        let before = Accounting::new(&world, 1).used();
        assert!(before > 0);
        world.limiter.edit(limits);
        world.run_for_ms(1000);
        let executed = world.checks_executed;
        for envoy in 0..2 {
            for worker in 1..=2 {
                world.request(envoy, worker, "alice", "/");
            }
        }
        world.run_for_ms(20);
        assert_eq!(Accounting::new(&world, 1).used(), before);
        assert!(world.checks_executed > executed);
    }
}

/// A worker loads an edit a little later than the limiter. Units granted in between belong to a
/// generation that it does not have.
#[test]
fn units_granted_before_a_worker_loads_an_edit_are_returned() {
    let limits = "  - {name: all, algorithm: fixed_window, rate: 100000/1d, lease: {ttl: 2s}}\n";
    let (mut all, mut lost) = (0, 0);
    for mut world in worlds(2, 2, CONFIG, limits) {
        world.run_for_ms(500);
        world.limiter.edit(limits);
        for n in 0..2000 {
            world.request(n % 2, 1 + n / 2 % 2, "alice", "/");
            world.run_for_ms(1);
        }
        world.run_for_ms(5000);
        let (granted, spent, returned) = Accounting::new(&world, 1).totals();
        all += granted;
        lost += granted - spent - returned;
    }
    assert!(lost * 100 <= all, "{lost} of {all}");
}

#[test]
fn leased_units_are_used_during_an_outage_until_their_deadline() {
    let limits = "  - {name: all, rate: 1000/s, on_failure: deny, fleet_size: 18446744073709551615, lease: {ttl: 200ms}}\n";
    for mut world in worlds(1, 1, CONFIG, limits) {
        world.run_for_ms(500);
        for _ in 0..300 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(1);
        }
        world.faults = Faults::DOWN;
        let (before, away_us) = (world.admitted("alice"), world.now_us);
        for _ in 0..400 {
            world.request(0, 1, "alice", "/");
            world.run_for_ms(1);
        }
        let after = world.admitted("alice") - before;
        assert!(after > 20, "{after}");
        let late = world
            .requests
            .iter()
            .enumerate()
            .filter(|(number, sent)| sent.at_us > away_us + 200_000 && world.passed(*number));
        assert_eq!(late.count(), 0);
        Accounting::new(&world, 1).assert_used_in_time();
    }
}

#[test]
fn leased_units_are_not_charged_again_by_checks_of_other_limits() {
    let limits = "  - {name: all, rate: 1000/s, lease: {ttl: 100ms}}\n  - {name: shadow, rate: 1/s, enforce: 0%}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    for _ in 0..300 {
        world.request(0, 1, "alice", "/");
        world.run_for_ms(2);
    }
    world.run_for_ms(150);
    assert_eq!(world.admitted("alice"), 300);
    let by_lease = world.counted("rl_decisions.allowed.lease.all");
    let charged = world.limiter.lease_record.charged.iter();
    let charged: u64 = charged.map(|(.., units)| units).sum();
    assert!(by_lease > 200, "{by_lease}");
    assert_eq!(by_lease + charged, 300, "{by_lease} + {charged}");
}

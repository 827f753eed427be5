//! How many requests a leased limit admits, under different demands.

use crate::{
    decisions::seeds,
    world::{CONFIG, Chance, World},
};

/// When requests arrive, how many, and at which proxy.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// This many per second, at any proxy.
    Steady(u64),
    /// This many at once, every so many milliseconds, at any proxy.
    Bursts(u64, u64),
    /// This many per second, nine of ten at the first proxy.
    Skewed(u64),
    /// This many per second at one proxy for a while, then at the next.
    Wandering(u64),
}

impl Demand {
    /// Runs for a while; returns how many requests were admitted.
    fn admitted(self, world: &mut World, chance: &mut Chance, for_ms: u64) -> u64 {
        let (start_us, envoys) = (world.now_us, u64::try_from(world.envoys.len()).unwrap());
        while world.now_us < start_us + for_ms * 1000 {
            let (count, pause_us, envoy) = match self {
                Self::Bursts(count, every_ms) => (count, every_ms * 1000, envoys),
                Self::Skewed(rate) if chance.percent(90) => (1, 1_000_000 / rate, 0),
                Self::Steady(rate) | Self::Skewed(rate) => {
                    (1, 1_000_000 / rate, chance.below(envoys))
                }
                Self::Wandering(rate) => (1, 1_000_000 / rate, world.now_us / 250_000 % envoys),
            };
            let end_us = world.now_us + pause_us / 2 + chance.below(pause_us.max(1));
            for _ in 0..count {
                let envoy = if envoy == envoys {
                    chance.below(envoys)
                } else {
                    envoy
                };
                let worker =
                    1 + chance.below(u64::try_from(world.envoys[0].workers.len()).unwrap() - 1);
                world.request(
                    usize::try_from(envoy).unwrap(),
                    usize::try_from(worker).unwrap(),
                    "alice",
                    "/",
                );
                if count > 1 {
                    // A burst arrives over a few milliseconds.
                    world.run_until(world.now_us + 20);
                }
            }
            world.run_until(end_us.max(world.now_us));
        }
        world.run_for_ms(200);
        world.assert_all_decided(45_000);
        world.admitted("alice")
    }
}

/// Proxies, and workers of each.
type Fleet = (usize, usize);

/// Requests admitted, and calls made for them, with and without leases.
fn compare(seed: u64, fleet: Fleet, limit: &str, demand: Demand) -> [(u64, u64); 2] {
    let (envoys, workers) = fleet;
    ["", ", lease: {ttl: 100ms}"].map(|lease| {
        let limits = format!("  - {{name: all, {limit}{lease}}}\n");
        let mut world = World::new(seed, envoys, workers, CONFIG, &limits);
        world.limiter.proxies = u64::try_from(envoys).unwrap();
        world.run_for_ms(500);
        let admitted = demand.admitted(&mut world, &mut Chance(seed), 2000);
        (admitted, world.checks_executed)
    })
}

const BUCKET: &str = "rate: 1000/s";
const WINDOW: &str = "rate: 1000/s, algorithm: fixed_window";
const LIMITS: [&str; 4] = [
    BUCKET,
    WINDOW,
    "rate: 1000/s, algorithm: sliding_window",
    "rate: 1000/s, algorithm: sliding_window_buckets, sub_windows: 2",
];
const DEMANDS: [Demand; 10] = [
    Demand::Steady(900),
    Demand::Steady(1100),
    Demand::Steady(2000),
    Demand::Bursts(1000, 2000),
    Demand::Bursts(1100, 2000),
    Demand::Bursts(1500, 1000),
    Demand::Bursts(500, 500),
    Demand::Bursts(200, 150),
    Demand::Skewed(1200),
    Demand::Wandering(1200),
];
const FLEETS: [Fleet; 4] = [(2, 2), (1, 4), (4, 1), (5, 3)];

/// Of 10,000 runs 4 admitted less than 98 %, all of them bursts on windows, and the least seen is 97.4 %. It uses
/// one seed of twenty-five, because each is many runs.
#[test]
fn leases_admit_98_percent_of_what_checks_admit_in_nearly_every_run() {
    let (mut runs, mut fewer) = (0, 0);
    for (nth_limit, limit) in LIMITS.iter().enumerate() {
        for (nth_demand, demand) in DEMANDS.into_iter().enumerate() {
            for (nth, seed) in seeds().step_by(25).enumerate() {
                let fleet = FLEETS[(nth_limit + nth_demand + nth) % FLEETS.len()];
                let [(strict, _), (leased, _)] = compare(seed, fleet, limit, demand);
                assert!(
                    leased * 100 >= strict * 97,
                    "{limit}, {demand:?}, {fleet:?}, seed {seed}: {leased} of {strict}"
                );
                runs += 1;
                fewer += u64::from(leased * 100 < strict * 98);
            }
        }
    }
    assert!(
        fewer <= 1 + runs / 500,
        "{fewer} of {runs} runs admitted less than 98 %"
    );
}

/// Runs in which leases once admitted down to 92 %: units were returned after their bucket had
/// dropped them, units stranded on one worker were denied to others, or units ended with a
/// sub-window.
#[test]
fn the_worst_runs_admit_98_percent_too() {
    for (limit, demand, runs) in [
        (
            0,
            Demand::Bursts(200, 150),
            &[(5, (1, 4)), (13, (2, 2)), (41, (5, 3))][..],
        ),
        (0, Demand::Bursts(1000, 2000), &[(9, (1, 4)), (19, (1, 4))]),
        (0, Demand::Bursts(1100, 2000), &[(77, (1, 4)), (84, (2, 2))]),
        (0, Demand::Bursts(500, 500), &[(17, (5, 3))]),
        (0, Demand::Steady(2000), &[(12, (5, 3)), (15, (5, 3))]),
        (1, Demand::Bursts(1000, 2000), &[(83, (1, 4))]),
        (3, Demand::Bursts(1100, 2000), &[(22, (1, 4))]),
    ] {
        for (seed, fleet) in runs {
            let [(strict, _), (leased, _)] = compare(*seed, *fleet, LIMITS[limit], demand);
            assert!(
                leased * 100 >= strict * 98,
                "{}, {demand:?}, {fleet:?}, seed {seed}: {leased} of {strict}",
                LIMITS[limit]
            );
        }
    }
}

#[test]
fn busier_buckets_need_fewer_calls_per_request() {
    // Calls per thousand requests, at most.
    for (rate, most) in [(200, 380), (2000, 40), (10_000, 10)] {
        let limit = "rate: 100000/s";
        let [_, (admitted, calls)] = compare(1, (2, 2), limit, Demand::Steady(rate));
        println!("{rate}: {calls} calls of {admitted}");
        assert!(
            calls * 1000 <= admitted * most,
            "{rate}: {calls} of {admitted}"
        );
    }
}

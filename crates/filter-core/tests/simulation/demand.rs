//! How much of a leased limit can be had, under different demands.

use crate::world::{CONFIG, Chance, World};

/// When how many requests come, and to which proxy.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// So many a second, at any proxy.
    Steady(u64),
    /// So many at once every so many milliseconds, at any proxy.
    Bursts(u64, u64),
    /// So many a second, nine of ten at the first proxy.
    Skewed(u64),
    /// So many a second at one proxy for a while, then at the next.
    Wandering(u64),
}

impl Demand {
    /// Lets it go on for a while; returns how many requests were admitted.
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
                    // A burst comes over a few milliseconds.
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

/// Requests admitted, and calls made for them, with and without leases.
fn compare(seed: u64, limit: &str, demand: Demand) -> [(u64, u64); 2] {
    ["", ", lease: {ttl: 100ms}"].map(|lease| {
        let limits = format!("  - {{name: all, {limit}{lease}}}\n");
        let mut world = World::new(seed, 2, 2, CONFIG, &limits);
        world.limiter.proxies = 2;
        world.run_for_ms(500);
        let admitted = demand.admitted(&mut world, &mut Chance(seed), 2000);
        (admitted, world.checks_executed)
    })
}

const BUCKET: &str = "rate: 1000/s";
const WINDOW: &str = "rate: 1000/s, algorithm: fixed_window";

#[test]
fn of_what_checks_admit_leases_admit_at_least_98_percent() {
    for limit in [BUCKET, WINDOW] {
        for (demand, least) in [
            (Demand::Steady(900), 98),
            (Demand::Steady(1100), 98),
            (Demand::Steady(2000), 98),
            // Exactly what a window holds, over in 20 ms: what one worker has at hand then,
            // another one's last requests do not get.
            (Demand::Bursts(1000, 2000), 90),
            (Demand::Bursts(1500, 1000), 98),
            (Demand::Bursts(200, 150), 98),
            (Demand::Skewed(1200), 98),
            (Demand::Wandering(1200), 98),
        ] {
            let runs: Vec<_> = (1..=1).map(|seed| compare(seed, limit, demand)).collect();
            let sum = |n: usize| runs.iter().map(|run| run[n].0).sum::<u64>();
            let (strict, leased) = (sum(0), sum(1));
            println!("{limit}, {demand:?}: {leased} of {strict}");
            assert!(
                leased * 100 >= strict * least,
                "{limit}, {demand:?}: {leased} of {strict}"
            );
        }
    }
}

#[test]
fn the_busier_a_bucket_the_fewer_calls_for_a_request() {
    // Calls in a thousand requests, at most.
    for (rate, most) in [(200, 330), (2000, 40), (10_000, 10)] {
        let limit = "rate: 100000/s";
        let [_, (admitted, calls)] = compare(1, limit, Demand::Steady(rate));
        println!("{rate}: {calls} calls of {admitted}");
        assert!(
            calls * 1000 <= admitted * most,
            "{rate}: {calls} of {admitted}"
        );
    }
}

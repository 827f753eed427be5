//! Costs and savings of leases, by the demand of a bucket.

use crate::world::{CONFIG, Chance, World};

/// The lease time.
const TTL_MS: u64 = 100;
/// Requests to one bucket within ten lease times.
const DEMANDS: [u64; 10] = [5, 10, 15, 20, 30, 40, 60, 80, 200, 1000];

/// The cost of a load, for a thousand requests.
#[derive(Debug)]
struct Bill {
    callouts: u64,
    checks: u64,
    /// Reads and writes of shared data.
    shared: u64,
}

impl Bill {
    /// In hundredths of the cost of a check at its worker. By instructions, a read and a write of
    /// shared data cost 70 together; a call, in Envoy and the limiter, costs as much as ten checks.
    fn total(&self) -> u64 {
        self.callouts * 1000 + self.checks * 100 + self.shared * 35
    }
}

/// Sends requests to random buckets at one worker.
fn bill(lease: &str, buckets: u64, tenths: u64) -> Bill {
    let limits = format!("  - {{name: all, per: [user], rate: 100000/s{lease}}}\n");
    let mut world = World::new(1, 1, 1, CONFIG, &limits);
    let mut chance = Chance(7);
    world.run_for_ms(500);
    let mut load = |world: &mut World, requests: u64| {
        let pause_us = 10 * TTL_MS * 1000 / (tenths * buckets);
        for _ in 0..requests {
            let user = format!("user-{}", chance.below(buckets));
            world.request(0, 1, &user, "/");
            let pause_us = chance.below(2 * pause_us + 1);
            world.run_until(world.now_us + pause_us);
        }
        let shared = world.envoys[0].shared.calls();
        [world.checks_executed, world.limiter.entries, shared]
    };
    let requests = (buckets * tenths).max(1000);
    let before = load(&mut world, requests / 2);
    let after = load(&mut world, requests);
    let [callouts, checks, shared] =
        std::array::from_fn(|n| (after[n] - before[n]) * 1000 / requests);
    Bill {
        callouts,
        checks,
        shared,
    }
}

fn assert_never_dearer(buckets: u64, demands: &[u64]) {
    for tenths in demands {
        let checked = bill("", buckets, *tenths);
        let leased = bill(", lease: {ttl: 100ms}", buckets, *tenths);
        println!("{buckets} buckets, {tenths} tenths: {checked:?}, {leased:?}");
        assert!(
            leased.total() * 100 <= checked.total() * 105,
            "{buckets} buckets, {tenths} tenths: {leased:?} instead of {checked:?}"
        );
    }
}

#[test]
fn leases_of_one_bucket_cost_no_more_than_checks_at_any_demand() {
    assert_never_dearer(1, &DEMANDS);
}

#[test]
fn leases_of_many_buckets_cost_no_more_than_checks_at_any_demand() {
    assert_never_dearer(1000, &DEMANDS[..8]);
}

#[test]
fn a_bucket_that_becomes_hot_is_leased_after_a_few_requests() {
    let limits = "  - {name: all, rate: 100000/s, lease: {ttl: 100ms}}\n";
    let mut world = World::new(1, 1, 1, CONFIG, limits);
    world.run_for_ms(500);
    for _ in 0..20 {
        world.request(0, 1, "alice", "/");
        world.run_for_ms(70);
    }
    assert_eq!(world.limiter.lease_record.granted.len(), 0);
    for _ in 0..20 {
        world.request(0, 1, "alice", "/");
        world.run_for_ms(1);
    }
    let first = world.limiter.lease_record.granted.first().unwrap().2;
    let hot = &world.requests[20..];
    let before = hot.iter().filter(|sent| sent.at_us <= first).count();
    assert!(before <= 8, "{before}");
}

//! Leases never let a bucket admit more than C + r·Δ in any interval, for thousands of random
//! fleets; and each known mistake in the rules does, for some of them.
//!
//! `RL_LEASE_SEEDS` sets how many fleets each test runs.

mod acts;
mod audit;
mod bucket;
mod edits;
mod mistakes;
mod model;
mod promises;
mod proxy;
mod windows;
mod world;

use algorithms::{Algorithm, Kind, Parameters};

use bucket::{Bucket, Real};
use edits::Edits;
use world::{Lapses, World};

use crate::support::{Random, number};

const EVENTS: u64 = 400;

fn seeds() -> std::ops::Range<u64> {
    0..number("RL_LEASE_SEEDS", 3000)
}

/// A bucket that may lease, of everyday numbers.
fn algorithm(seed: u64, kind: Kind) -> Algorithm {
    let mut random = Random(seed ^ 0xa160);
    loop {
        let units = random.pick(&[1, 3, 7, 10, 100, 1000]);
        let period_ms = random.pick(&[7, 10, 100, 1000, 1500]);
        let parameters = Parameters {
            burst: Some(random.pick(&[4, 10, 20, 100, 1000])),
            ..Parameters::new(kind, units, period_ms)
        };
        let algorithm = Algorithm::new(&parameters).unwrap();
        // Neither a minute per unit nor no refill at all: something has to happen.
        if algorithm.lease_max_ms().is_some_and(|ms| ms <= 5000) {
            return algorithm;
        }
    }
}

/// The results of one fleet.
struct Outcome {
    /// By how many parts the bound was exceeded; kept if not above 0.
    worst: i128,
    granted: u64,
    spent: u64,
}

fn fleet(
    seed: u64,
    algorithm: &Algorithm,
    bucket: &mut dyn Bucket,
    lapses: Lapses,
    edits: Edits,
) -> Outcome {
    let mut world = World::new(seed, algorithm, bucket, lapses, edits);
    world.run(EVENTS);
    Outcome {
        worst: world.audit.worst,
        granted: world.granted,
        spent: world.spent,
    }
}

fn real_fleet(seed: u64, kind: Kind, lapses: Lapses, edits: Edits) -> Outcome {
    let algorithm = algorithm(seed, kind);
    let mut bucket = Real::new(algorithm);
    fleet(seed, &algorithm, &mut bucket, lapses, edits)
}

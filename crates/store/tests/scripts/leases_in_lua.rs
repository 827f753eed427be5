//! Runs the fleets of `crates/algorithms/tests/algorithms/leases` against the script: it keeps the same bound,
//! and its keys outlive their leases.

#[path = "../../../algorithms/tests/algorithms/leases/world.rs"]
mod world;

use crate::support::random::Random;
use crate::support::{LuaRedis, Scripts};
use algorithms::check::{Options, Part};
use algorithms::{Algorithm, Kind, LeaseRequest, Parameters};
use store::script::{Clock, ScriptCheck, ScriptLimit};
use world::{Bucket, Edits, Lapses, Question, Real, Reply, World};

const SEEDS: u64 = 150;
const KEY: &str = "bucket";

/// A bucket in the script, compared with the algorithm at every step.
struct Scripted {
    redis: LuaRedis,
    algorithm: Algorithm,
    real: Real,
}

impl Bucket for Scripted {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let lease = LeaseRequest {
            ttl_ms,
            want: question.want,
            proxy: question.proxy,
            settle: &question.settle,
        };
        let limit = ScriptLimit::new(
            KEY.as_bytes(),
            Part {
                cost: question.cost,
                lease: Some(lease),
                ..Part::new(&self.algorithm, 1)
            },
        );
        let check = ScriptCheck {
            limits: vec![limit],
            options: Options::default(),
        };
        let before = self.redis.writes();
        let mut reply = self.redis.batch(&[check], Clock::Injected(now_ms));
        let verdict = reply.results.remove(0).unwrap();
        let limit = verdict.limits[0];
        let reply = Reply {
            allowed: verdict.allowed,
            charged: limit.charged,
            lease: limit.lease,
            leased: limit.leased,
            remaining: limit.decision.remaining,
            reset_after_ms: limit.decision.reset_after_ms,
            wrote: self.redis.writes() > before,
        };
        assert_eq!(reply, self.real.ask(now_ms, ttl_ms, question));
        reply
    }

    fn edit(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
        self.real.edit(algorithm);
    }

    fn reset(&mut self) {
        self.expire();
    }

    fn expire(&mut self) {
        let _: i64 = self.redis.command(&["DEL", KEY]);
        self.real.expire();
    }
}

#[test]
fn a_fleet_never_gets_more_from_the_script_than_it_may() {
    let edits = Edits {
        ttl: true,
        switched_off: true,
        numbers: true,
        kind: true,
        ..Edits::default()
    };
    for kind in [Kind::TokenBucket, Kind::LeakyBucket, Kind::Gcra] {
        let mut spent = 0;
        for seed in 0..SEEDS {
            let parameters = Parameters {
                burst: Some([10, 40, 200][usize::try_from(seed % 3).unwrap()]),
                ..Parameters::new(
                    kind,
                    [1, 7, 10][usize::try_from(seed / 3 % 3).unwrap()],
                    100,
                )
            };
            let algorithm = Algorithm::new(&parameters).unwrap();
            let mut bucket = Scripted {
                redis: LuaRedis::new(),
                algorithm,
                real: Real::new(algorithm),
            };
            let lapses = Lapses::default();
            let mut world = World::new(seed, &algorithm, &mut bucket, lapses, edits);
            world.run(300);
            let worst = world.audit.worst;
            assert!(worst <= 0, "{kind} seed {seed}: {worst} parts");
            spent += world.spent;
        }
        assert!(spent > 10 * SEEDS, "otherwise nothing was shown: {spent}");
    }
}

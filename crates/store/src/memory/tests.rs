use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use algorithms::{SlotAct, SlotId, SlotOp};
use policy::{Compiled, Name};
use protocol::{Check, LimitRequest};

use super::MemoryStore;
use crate::{CheckError, Checks, Options, StoreError};

/// A store of at most `max` buckets, its clock, and one unit per second for each user.
struct Small {
    store: MemoryStore,
    clock: Arc<AtomicU64>,
    policy: Compiled,
}

impl Small {
    fn new(max: usize) -> Self {
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000));
        let options = Options {
            memory_buckets: max,
            ..Options::default()
        };
        let reading = Arc::clone(&clock);
        let read = Arc::new(move || reading.load(Ordering::Relaxed));
        let limits = b"domain: shop\nlimits: [{name: per-user, per: [user], rate: 1/1s}]";
        Self {
            store: MemoryStore::with_clock(&options, read),
            clock,
            policy: Compiled::new(limits_file::read("test", limits).unwrap()),
        }
    }

    async fn check(&self, user: u64) -> Result<bool, CheckError> {
        let key: Name = "user".parse().unwrap();
        let check = Check {
            descriptor: [(key, user.to_string().into_bytes())].into_iter().collect(),
            cost: 1,
            ..Check::default()
        };
        let mut results = self.store.check(&self.policy, &[check], false).await;
        results.pop().unwrap().map(|answer| answer.allowed)
    }

    fn sleep(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    fn held(&self) -> usize {
        super::lock(&self.store.buckets).len()
    }
}

#[tokio::test]
async fn a_full_store_refuses_new_buckets_and_serves_the_others() {
    let small = Small::new(3);
    for user in 0..3 {
        assert_eq!(small.check(user).await, Ok(true));
    }
    let refused = small.check(3).await;
    let Err(CheckError::Store(StoreError::Refused(refusal))) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal.code, "OOM");
    assert_eq!(
        small.check(0).await,
        Ok(false),
        "no bucket was given up for it"
    );
    small.sleep(1000);
    assert_eq!(
        small.check(3).await,
        Ok(true),
        "the others are unused by now"
    );
}

#[tokio::test]
async fn unused_buckets_are_forgotten_under_any_number_of_keys() {
    let small = Small::new(1_000_000);
    for user in 0..20_000 {
        assert_eq!(small.check(user).await, Ok(true));
        // Each bucket is unused after a second, in which 500 others come.
        small.sleep(2);
    }
    assert!(
        small.held() <= 2 * 1024,
        "{} buckets are held",
        small.held()
    );
}

#[tokio::test]
async fn a_bucket_in_use_is_never_forgotten() {
    let small = Small::new(2000);
    assert_eq!(small.check(0).await, Ok(true));
    for user in 1..1999 {
        assert_eq!(small.check(user).await, Ok(true));
    }
    small.sleep(999);
    assert_eq!(small.check(0).await, Ok(false));
    small.sleep(1);
    assert_eq!(small.check(0).await, Ok(true));
}

/// A limit of two requests in flight, of some generation, and when it was reset.
fn two_in_flight((generation, reset_generation): (u64, u64)) -> Compiled {
    let limits = b"domain: shop\nlimits: [{name: in-flight, algorithm: concurrency, limit: 2}]";
    let mut policy = limits_file::read("test", limits).unwrap();
    for limit in &mut policy.limits {
        limit.generation = generation;
        limit.reset_generation = reset_generation;
    }
    Compiled::new(policy)
}

#[tokio::test]
async fn a_slot_is_entered_again_under_later_generations_but_not_after_a_reset() {
    let store = || MemoryStore::new(&Options::default());
    let ask = async |store: &MemoryStore, generation, check: Check| {
        let policy = two_in_flight(generation);
        let mut results = store.check(&policy, &[check], false).await;
        results.pop().unwrap().unwrap().limits.swap_remove(0)
    };
    let take = Check {
        cost: 1,
        slot: Some(SlotId::new(1_700_000_000, 9, 77)),
        ..Check::default()
    };
    let taken = ask(&store(), (5, 5), take).await.verdict;
    let slot = taken.slot.unwrap();
    assert_eq!((slot.turn, taken.decision.remaining), (5, 1));
    // The slot is entered again in a store that has lost it.
    for (generations, remaining) in [((5, 5), 1), ((9, 5), 1), ((6, 6), 2), ((9, 6), 2)] {
        let enter = Check {
            limits: vec![LimitRequest {
                slots: vec![SlotOp {
                    slot,
                    act: SlotAct::Enter,
                }],
                ..LimitRequest::new("in-flight".parse().unwrap())
            }],
            ..Check::default()
        };
        let entered = ask(&store(), generations, enter).await;
        let left = entered.verdict.decision.remaining;
        assert_eq!(left, remaining, "{generations:?}");
    }
}

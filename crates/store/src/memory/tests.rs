use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use policy::{Compiled, Name, Policy};
use protocol::Check;

use super::MemoryStore;
use crate::{CheckError, Checks, Options, StoreError};

/// A store of at most `max` buckets, its clock, and one unit per second for each user.
struct Small {
    store: MemoryStore,
    clock: Arc<AtomicU64>,
    policy: Compiled,
}

impl Small {
    fn of(max: usize) -> Self {
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
            policy: Compiled::new(Policy::from_yaml("test", limits).unwrap()),
        }
    }

    async fn check(&self, user: u64) -> Result<bool, CheckError> {
        let key: Name = "user".parse().unwrap();
        let check = Check {
            descriptor: [(key, user.to_string().into_bytes())].into_iter().collect(),
            cost: 1,
            peek: false,
            only: Vec::new(),
            skip: Vec::new(),
            require_match: false,
            debits: Vec::new(),
            leases: Vec::new(),
            free: Vec::new(),
            max_delay_ms: None,
            proxy: 0,
            service: None,
            slot: None,
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
    let small = Small::of(3);
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
    let small = Small::of(1_000_000);
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
    let small = Small::of(2000);
    assert_eq!(small.check(0).await, Ok(true));
    for user in 1..1999 {
        assert_eq!(small.check(user).await, Ok(true));
    }
    small.sleep(999);
    assert_eq!(small.check(0).await, Ok(false));
    small.sleep(1);
    assert_eq!(small.check(0).await, Ok(true));
}

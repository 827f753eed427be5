//! A leased limit whose store fails over to a replica without the primary's last writes.
//!
//! Replication is asynchronous. What the primary admitted and granted after the replica's last write is
//! lost and can be admitted once more: a bucket may exceed its capacity by that amount and no more. The
//! test loses a known amount on purpose.

use harness::{Client, Request};

use crate::stage::{Stage, at_once, eventually, limits};

/// The capacity of the limit, which refills nothing during the test.
const CAPACITY: usize = 600;
/// Units that the primary granted are still valid after the promotion, and are settled at a bucket that
/// never granted them.
const LIMIT: &str = "{name: leased, per: [user], rate: 600/1d, on_failure: deny, lease: {ttl: 3s}}";

/// Sends requests at once, while a limiter decides; returns how many were admitted.
async fn storm(request: &Request) -> usize {
    let (admitted, denied) = at_once(request, 80).await;
    assert_eq!(admitted + denied, 80);
    admitted
}

/// The units of Alice's bucket that are used, and those that are leased, according to its store.
fn bucket(stage: &Stage) -> [usize; 2] {
    let found = stage.inspect("leased", &["user=alice"]);
    ["used", "leased"].map(|field| usize::try_from(found[field].as_u64().unwrap()).unwrap())
}

#[tokio::test]
async fn a_primary_that_a_sentinel_replaces_loses_no_more_than_its_replica_missed() {
    let mut stage = limits(&[LIMIT]).behind_a_sentinel().await;
    let alice = stage.get("/", "alice");
    let mut admitted = storm(&alice).await;
    stage.pair().in_sync().await.unwrap();
    stage.pair().cut().await.unwrap();
    let [known, _] = bucket(&stage);
    admitted += storm(&alice).await;
    let [used, leased] = bucket(&stage);
    assert!(
        leased > 0 && used > known,
        "{leased} leased, {used} of {known} used"
    );

    stage.pair().kill_primary().unwrap();

    // No configuration is changed, and nothing is restarted. A dozen new connections reach all workers.
    let url = stage.envoy().url("/");
    eventually("all workers have decisions again", async || {
        for _ in 0..12 {
            let fresh = Client::new().get(&url).header("x-user-id", "bob");
            (fresh.send().await.unwrap().status == 200).then_some(())?;
        }
        Some(())
    })
    .await;
    eventually("the bucket is used up", async || {
        let more = storm(&alice).await;
        admitted += more;
        (admitted >= CAPACITY && more == 0).then_some(())
    })
    .await;
    let most = CAPACITY + used - known;
    assert!(
        (CAPACITY..=most).contains(&admitted),
        "{admitted} of {most}"
    );
}

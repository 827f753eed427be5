//! Leased limits: the proxy decides most requests without a check, and the limit holds as if each
//! were checked.

use harness::{Client, until};
use tokio::task::JoinSet;

use crate::stage::{PATIENCE, Stage, eventually, limits, statuses};

/// Sends requests from several clients at once to all Envoys; returns how many were admitted.
async fn storm(stage: &Stage, envoys: usize, clients: usize, each: usize) -> usize {
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let request = stage.nth_envoy(client % envoys).get("/");
        tasks.spawn(async move { statuses(&request, each).await });
    }
    let all = tasks.join_all().await.concat();
    assert!(
        all.iter().all(|status| [200, 429].contains(status)),
        "{all:?}"
    );
    all.iter().filter(|&&status| status == 200).count()
}

/// A counter, summed over Envoys.
async fn sum(stage: &Stage, envoys: usize, stat: &str) -> u64 {
    let mut sum = 0;
    for n in 0..envoys {
        sum += stage.nth_envoy(n).stat(stat).await.unwrap();
    }
    sum
}

const BY_LEASE: &str = "wasmcustom.rl_decisions.allowed.lease.all";

#[tokio::test]
async fn a_leased_window_admits_exactly_its_limit() {
    let stage = limits(&[
        "{name: all, match: {path: /}, algorithm: fixed_window, rate: 800/1h, lease: {ttl: 100ms}}",
    ])
    .envoys(2)
    .await;

    let mut admitted = storm(&stage, 2, 16, 100).await;

    // Stranded units are returned, and other requests use them.
    eventually("the window is used up", async || {
        admitted += storm(&stage, 2, 4, 5).await;
        (admitted >= 800).then_some(())
    })
    .await;
    admitted += storm(&stage, 2, 8, 25).await;
    assert_eq!(admitted, 800);
    let by_lease = until("the workers have counted", PATIENCE, async || {
        let by_lease = sum(&stage, 2, BY_LEASE).await;
        (by_lease > 100).then_some(by_lease)
    });
    by_lease.await.unwrap();
}

#[tokio::test]
async fn a_busy_bucket_needs_few_calls_and_settles_its_units() {
    let stage =
        limits(&["{name: all, match: {path: /}, rate: 1000000/s, lease: {ttl: 200ms}}"]).await;
    storm(&stage, 1, 8, 20).await;
    let checks = || stage.limiter_counter("rl_checks_total");
    let before = checks().await;

    assert_eq!(storm(&stage, 1, 8, 200).await, 1600);

    let calls = checks().await - before;
    assert!(calls < 800, "{calls} checks for 1600 requests");
    eventually("all units are settled", async || {
        let count = async |name| sum(&stage, 1, &format!("wasmcustom.rl_lease.{name}")).await;
        let (granted, settled) = (count("granted").await, count("settled").await);
        (granted > 0 && granted == settled + count("returned").await).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reset_window_keeps_the_outstanding_units_of_a_dead_proxy() {
    let mut stage = limits(&[
        "{name: per-user, per: [user], match: {path: /}, algorithm: fixed_window, rate: 200/1d, on_failure: deny, lease: {ttl: 2s}}",
    ])
    .envoys(2)
    .await;
    let alice = |n: usize| stage.nth_envoy(n).get("/").header("x-user-id", "alice");
    assert_eq!(statuses(&alice(1), 40).await, [200; 40]);
    let survivor = alice(0);
    stage.kill_an_envoy();
    let bucket = || {
        let found = stage.inspect("per-user", &["user=alice"]);
        ["used", "leased"].map(|field| found[field].as_u64().unwrap())
    };
    let [used, leased] = bucket();
    assert!(
        leased > 0 && used > leased,
        "{leased} of {used} are outstanding"
    );

    stage.rlctl(&["reset", "per-user", "user=alice", "--yes"]);
    assert_eq!(bucket(), [leased; 2]);
    // A worker that has this later limit also has the edit before it, and drops no further grants.
    let new = [
        "set-limit",
        "new",
        "--match",
        "path=/new",
        "--rate",
        "1000/1s",
    ];
    stage.rlctl(&new);
    eventually("all workers follow", async || {
        for _ in 0..12 {
            let reply = Client::new().get(&stage.envoy().url("/new")).send().await;
            reply.ok()?.header("ratelimit-policy")?;
        }
        Some(())
    })
    .await;

    let mut admitted = 0;
    eventually("the window is used up", async || {
        let answers = statuses(&survivor, 20).await;
        let more = answers.iter().filter(|&&status| status == 200).count();
        admitted += u64::try_from(more).unwrap();
        println!(
            "{more} {admitted} {:?} leased {leased} used {used}",
            bucket()
        );
        // The worker settles its own units in time.
        (more == 0 && bucket() == [200, leased]).then_some(())
    })
    .await;
    assert_eq!(admitted, 200 - leased);
}

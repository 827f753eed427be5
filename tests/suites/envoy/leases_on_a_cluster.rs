//! Leased limits whose buckets are on the three nodes of a Cluster.

use std::time::{Duration, Instant};

use harness::{Cluster, until};
use tokio::task::JoinSet;

use crate::stage::{PATIENCE, Stage, eventually, limits, statuses};

const ENVOYS: usize = 2;

/// The admitted requests of each user.
type Admitted = [usize; 3];

/// A user whose bucket is on each node.
async fn users(cluster: &Cluster) -> [String; 3] {
    let mut users = [const { String::new() }; 3];
    for n in 0..1000 {
        let user = format!("u{n}");
        let slot = cluster.slot(&key(&user)).await.unwrap();
        let owner = cluster.owner(slot).unwrap();
        let node = cluster.ports().position(|port| port == owner).unwrap();
        if users[node].is_empty() {
            users[node] = user;
        }
        if users.iter().all(|user| !user.is_empty()) {
            return users;
        }
    }
    panic!("no users on some node");
}

fn key(user: &str) -> String {
    format!("rl:b:shop:per-user:{user}")
}

/// Sends requests of all users from several clients at once to all Envoys.
async fn storm(stage: &Stage, users: &[String; 3], clients: usize, each: usize) -> Admitted {
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        for (nth, user) in users.iter().enumerate() {
            let envoy = stage.nth_envoy((client + nth) % ENVOYS);
            let request = envoy.get("/").header("x-user-id", user);
            tasks.spawn(async move { (nth, statuses(&request, each).await) });
        }
    }
    let mut admitted = [0; 3];
    for (nth, all) in tasks.join_all().await {
        let known = |status: &u16| [200, 429].contains(status);
        assert!(all.iter().all(known), "{all:?}");
        admitted[nth] += all.iter().filter(|&&status| status == 200).count();
    }
    admitted
}

fn add(sum: &mut Admitted, more: Admitted) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// Sends requests until the workers have returned stranded units and all limits are used up.
async fn use_up(stage: &Stage, users: &[String; 3], admitted: &mut Admitted, limit: usize) {
    eventually("the windows are used up", async || {
        add(admitted, storm(stage, users, 4, 5).await);
        admitted.iter().all(|&of| of >= limit).then_some(())
    })
    .await;
    add(admitted, storm(stage, users, 4, 10).await);
}

async fn by_lease(stage: &Stage) -> u64 {
    let mut sum = 0;
    for n in 0..ENVOYS {
        let stat = "wasmcustom.rl_decisions.allowed.lease.per-user";
        sum += stage.nth_envoy(n).stat(stat).await.unwrap_or(0);
    }
    sum
}

const WINDOW: &str = "{name: per-user, per: [user], match: {path: /}, algorithm: fixed_window, rate: 400/1h, on_failure: deny, lease: {ttl: 100ms}}";

#[tokio::test]
async fn windows_on_every_node_admit_exactly_their_limit() {
    let stage = limits(&[WINDOW]).envoys(ENVOYS).on_a_cluster().await;
    let users = users(stage.cluster()).await;

    let mut admitted = storm(&stage, &users, 6, 60).await;
    use_up(&stage, &users, &mut admitted, 400).await;

    assert_eq!(admitted, [400; 3]);
    let counted = until("the workers have counted", PATIENCE, async || {
        Some(by_lease(&stage).await).filter(|by_lease| *by_lease > 100)
    });
    counted.await.unwrap();
}

#[tokio::test]
async fn buckets_on_every_node_admit_their_capacity_and_what_comes_back() {
    let bucket = "{name: per-user, per: [user], match: {path: /}, rate: 100/s, burst: 300, on_failure: deny, lease: {ttl: 100ms}}";
    let stage = limits(&[bucket]).envoys(ENVOYS).on_a_cluster().await;
    let users = users(stage.cluster()).await;

    let start = Instant::now();
    let mut admitted = [0; 3];
    let mut sent = 0;
    // Until each user has been denied some requests.
    while start.elapsed() < Duration::from_secs(1) || admitted.contains(&sent) {
        add(&mut admitted, storm(&stage, &users, 8, 30).await);
        sent += 8 * 30;
    }
    let refilled = usize::try_from(start.elapsed().as_millis() / 10).unwrap();

    for of in admitted {
        assert!(of <= 300 + refilled + 1, "{of} of 300 + {refilled}");
        assert!(of >= 300, "{of}");
    }
}

#[tokio::test]
async fn a_migrated_slot_keeps_its_outstanding_units() {
    let stage = limits(&[WINDOW]).envoys(ENVOYS).on_a_cluster().await;
    let (users, cluster) = (users(stage.cluster()).await, stage.cluster());
    let slot = cluster.slot(&key(&users[0])).await.unwrap();

    let mut admitted = storm(&stage, &users, 4, 20).await;
    let (during, moved) = tokio::join!(storm(&stage, &users, 4, 40), cluster.move_slot(slot));
    let [from, to] = moved.unwrap();
    assert_ne!(from, to);
    add(&mut admitted, during);
    use_up(&stage, &users, &mut admitted, 380).await;
    use_up(&stage, &users, &mut admitted, 380).await;

    assert_eq!(admitted[1..], [400; 2]);
    // Units in calls that failed meanwhile may be lost, but are never counted twice.
    assert!((380..=400).contains(&admitted[0]), "{admitted:?}");
}

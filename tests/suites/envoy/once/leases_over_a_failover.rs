//! Leased limits whose store fails over to a replica without the primary's last writes.
//!
//! Replication is asynchronous. What the primary admitted and granted after the replica's last write is
//! lost and can be admitted once more: a bucket may exceed its capacity by that amount and no more. These
//! tests lose a known amount on purpose.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use harness::{Client, Request};
use tokio::task::JoinSet;

use crate::stage::{Plan, Stage, eventually, limits};

const ENVOYS: usize = 2;
/// Concurrent requests to each Envoy.
const CLIENTS: usize = 4;

/// The capacity of the limits, which refill nothing during a test.
const CAPACITY: usize = 600;
/// A short ttl.
const SHORT: &str = "{name: short, per: [user], match: {path: /}, rate: 600/1d, on_failure: deny, lease: {ttl: 100ms}}";
/// A long ttl: units granted by the primary are still valid after the promotion, and are settled at a
/// bucket that never granted them.
const LONG: &str = "{name: long, per: [user], match: {path: /long}, rate: 600/1d, on_failure: deny, lease: {ttl: 3s}}";

#[tokio::test]
async fn a_primary_that_a_sentinel_replaces_loses_no_more_than_its_replica_missed() {
    outlives(limits(&[SHORT, LONG]).behind_a_sentinel()).await;
}

#[tokio::test]
async fn a_master_of_a_cluster_that_dies_loses_no_more_than_its_replica_missed() {
    outlives(limits(&[SHORT, LONG]).on_a_replicated_cluster()).await;
}

fn key(limit: &str, user: &str) -> String {
    format!("rl:b:shop:{limit}:{user}")
}

/// A user whose bucket is on the node that is killed; not the first node, which clients connect to.
async fn user_of(stage: &Stage, limit: &str) -> String {
    for n in 0..100 {
        let user = format!("u{n}");
        if matches!(stage.node_of(&key(limit, &user)).await, None | Some(1)) {
            return user;
        }
    }
    panic!("no user on that node");
}

/// Requests of one user for a path, one for every Envoy.
fn requests(stage: &Stage, path: &str, user: &str) -> Vec<Request> {
    let envoys = (0..ENVOYS).map(|n| stage.nth_envoy(n));
    envoys
        .map(|envoy| envoy.get(path).header("x-user-id", user))
        .collect()
}

/// Clients that each send one request after the other until they are stopped.
struct Crowd {
    clients: JoinSet<Vec<u16>>,
    admitted: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
}

impl Crowd {
    fn from_requests(requests: &[Request], most_each: usize) -> Self {
        let mut crowd = Self {
            clients: JoinSet::new(),
            admitted: Arc::default(),
            enough: Arc::default(),
        };
        for request in requests.iter().flat_map(|of| [of; CLIENTS]) {
            let (request, admitted) = (request.clone(), Arc::clone(&crowd.admitted));
            let enough = Arc::clone(&crowd.enough);
            crowd.clients.spawn(async move {
                let mut answers = Vec::new();
                while answers.len() < most_each && !enough.load(Ordering::Relaxed) {
                    // A request that hangs becomes an error after its timeout.
                    let status = request.send().await.unwrap().status.as_u16();
                    admitted.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                    answers.push(status);
                }
                answers
            });
        }
        crowd
    }

    fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Stops the clients; returns the statuses of all answers.
    async fn answers(self) -> Vec<u16> {
        self.enough.store(true, Ordering::Relaxed);
        self.clients.join_all().await.concat()
    }
}

/// Sends this many requests per client while the store is available; returns how many were
/// admitted.
async fn storm(requests: &[Request], each: usize) -> usize {
    let crowd = Crowd::from_requests(requests, each);
    let answers = crowd.clients.join_all().await.concat();
    let known = |status: &u16| [200, 429].contains(status);
    assert!(answers.iter().all(known), "{answers:?}");
    answers.iter().filter(|&&status| status == 200).count()
}

/// The units of a bucket that are used, and those that are leased, according to its store.
fn bucket(stage: &Stage, limit: &str, user: &str) -> [usize; 2] {
    let found = stage.inspect(limit, &[&format!("user={user}")]);
    ["used", "leased"].map(|field| usize::try_from(found[field].as_u64().unwrap()).unwrap())
}

/// Sends requests until a bucket is used up; returns how many were admitted in total.
async fn use_up(requests: &[Request], least: usize, mut admitted: usize) -> usize {
    let mut more = 0;
    eventually("the bucket is used up", async || {
        more = storm(requests, 10).await;
        admitted += more;
        (admitted >= least && more == 0).then_some(())
    })
    .await;
    admitted
}

/// Writes that the replica never receives.
struct Lost {
    short: usize,
    long: usize,
}

/// Kills the primary under load, after writes that its replica never received, and returns once the
/// replica is promoted. Adds the admissions of the long bucket.
async fn fail_over(stage: &mut Stage, users: &[String; 2], long: &mut usize) -> (Lost, Crowd) {
    let [short_user, long_user] = users;
    let short_key = key("short", short_user);
    let (short_requests, long_requests) = (
        requests(stage, "/", short_user),
        requests(stage, "/long", long_user),
    );
    let pair = stage.pair_of(&short_key).await;
    pair.in_sync().await.unwrap();
    pair.cut().await.unwrap();

    let [known, _] = bucket(stage, "long", long_user);
    *long += storm(&long_requests, 10).await;
    let [used, leased] = bucket(stage, "long", long_user);
    assert!(leased > 0, "units are leased");
    let crowd = Crowd::from_requests(&short_requests, usize::MAX);
    eventually("the primary admits some", async || {
        (crowd.admitted() > 50).then_some(())
    })
    .await;

    let pair = stage.pair_of(&short_key).await;
    pair.kill_primary().unwrap();
    let mut lost = Lost {
        short: 0,
        long: used - known,
    };
    eventually("the replica is promoted", async || {
        let so_far = crowd.admitted();
        let promoted = pair.is_promoted().await;
        // The old primary granted all of these: the new one has not written yet.
        if !promoted {
            lost.short = so_far;
        }
        promoted.then_some(())
    })
    .await;
    (lost, crowd)
}

async fn outlives(plan: Plan) {
    let mut stage = plan.envoys(ENVOYS).await;
    let users = [
        user_of(&stage, "short").await,
        user_of(&stage, "long").await,
    ];
    let short_requests = requests(&stage, "/", &users[0]);
    let long_requests = requests(&stage, "/long", &users[1]);
    let mut short = storm(&short_requests, 20).await;
    let mut long = storm(&long_requests, 10).await;
    eventually("all short leases are settled", async || {
        let [used, leased] = bucket(&stage, "short", &users[0]);
        // Units that a busy machine returns after their deadline stay used.
        (leased == 0).then(|| assert!((short..short + 20).contains(&used), "{used} of {short}"))
    })
    .await;

    let (lost, crowd) = fail_over(&mut stage, &users, &mut long).await;

    // No configuration is changed, and nothing is restarted.
    let mut failed = decides_everywhere(&stage).await;
    let answers = crowd.answers().await;
    let known = |status: &u16| [200, 429, 503].contains(status);
    assert!(answers.iter().all(known), "{answers:?}");
    let count = |wanted| answers.iter().filter(|&&status| status == wanted).count();
    short += count(200);
    failed += count(503);

    short = use_up(&short_requests, CAPACITY, short).await;
    long = use_up(&long_requests, CAPACITY, long).await;
    // Units in calls that failed meanwhile may be lost, but are never counted twice.
    let most = CAPACITY + lost.short;
    assert!((most - 20..=most).contains(&short), "{short} of {most}");
    let most = CAPACITY + lost.long;
    assert!((CAPACITY..=most).contains(&long), "{long} of {most}");
    eventually("on_failure explains each 503", async || {
        (failures(&stage).await == failed).then_some(())
    })
    .await;
}

/// How many requests were denied because no limiter decided them.
async fn failures(stage: &Stage) -> usize {
    let mut sum = 0;
    for n in 0..ENVOYS {
        let stat = "wasmcustom.rl_decisions.denied.failure.short";
        sum += stage.nth_envoy(n).stat(stat).await.unwrap_or(0);
    }
    usize::try_from(sum).unwrap()
}

/// Waits until every worker of every Envoy gets decisions from the limiter again: a dozen new
/// connections reach all workers. Returns how many requests got 503.
async fn decides_everywhere(stage: &Stage) -> usize {
    let mut failed = 0;
    let urls: Vec<String> = (0..ENVOYS).map(|n| stage.nth_envoy(n).url("/")).collect();
    eventually("all decide again", async || {
        for url in urls.iter().flat_map(|url| [url; 12]) {
            let fresh = Client::new().get(url).header("x-user-id", "somebody-else");
            let status = fresh.send().await.unwrap().status;
            failed += usize::from(status == 503);
            if status != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
    failed
}

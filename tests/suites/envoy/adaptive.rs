//! Limits on requests in flight that follow their service, and what clients can do to them.

use std::time::Duration;

use harness::{Client, HeldRequest};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::stage::{Stage, eventually, limits, statuses};

// --- A service that slows down and recovers.

const CHECKOUT: &str = "{name: checkout, algorithm: concurrency, limit: 8, deny_status: 503, \
                        adaptive: {min: 2, max: 40, latency: 600ms}}";

/// Waits for a limit; returns it.
async fn limit(stage: &Stage, what: &str, is: impl Fn(u64) -> bool) -> u64 {
    eventually(what, async || {
        let limit = stage.inspect("checkout", &[])["limit_units"].as_u64();
        limit.filter(|limit| is(*limit))
    })
    .await
}

/// Clients that send one request after another until they are dropped.
fn clients(stage: &Stage, count: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let get = stage.get("/checkout", "alice");
        all.spawn(async move {
            loop {
                if get.send().await.is_ok_and(|reply| reply.status != 200) {
                    sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    all
}

#[tokio::test]
async fn the_limit_falls_with_its_service_and_grows_again() {
    let stage = limits(&[CHECKOUT]).envoys(2).await;
    let (quick, slow) = (Duration::from_millis(5), Duration::from_millis(700));
    stage.upstream.answer_after(quick, 200).unwrap();
    let _clients = clients(&stage, 16);
    let high = limit(&stage, "it grows", |limit| limit >= 12).await;
    stage.upstream.answer_after(slow, 200).unwrap();
    let low = limit(&stage, "it falls", |limit| limit < high).await;
    limit(&stage, "it falls on", |limit| limit < low).await;
    let moved = stage.inspect("checkout", &[])["adaptive"]["moved_slow"].as_u64();
    assert!(moved > Some(500), "{moved:?}");
    let explained = stage.rlctl(&["explain", "path=/checkout"]);
    assert!(explained.contains(" of 2 to 40; fell from "), "{explained}");
    // Requests are shed on the proxy without load too, in the words of the limit.
    let get = stage.nth_envoy(1).get("/checkout");
    let shed = eventually("a request is shed", async || {
        let reply = get.send().await.ok()?;
        (reply.status != 200).then_some(reply)
    })
    .await;
    assert_eq!(
        (shed.status.as_u16(), &shed.json().unwrap()["status"]),
        (503, &json!(503))
    );
    assert!(stage.limiter_counter("rl_adaptive_slow_total").await > 0);
    stage.upstream.answer_after(quick, 200).unwrap();
    let low = limit(&stage, "it is read", |_| true).await;
    limit(&stage, "it grows again", |limit| limit > low + 1).await;
    let shown = stage.metric_of(0, "rl_adaptive_limit").await;
    assert!((2..=40).contains(&shown), "{shown}");
}

// --- What a client can make a request say of its service.

/// Anything that takes time is slow to the one and quick to the other, so no answer has to come by a certain time.
const BOTH: [&str; 2] = [
    "{name: strict, per: [user], algorithm: concurrency, limit: 8, adaptive: {min: 2, max: 40, latency: 10ms}}",
    "{name: loose, per: [user], algorithm: concurrency, limit: 8, adaptive: {min: 2, max: 40, latency: 1h}}",
];
/// More than `latency` of `strict`.
const WHILE: Duration = Duration::from_millis(20);
const FOREVER: Duration = Duration::from_hours(1);

/// How many answers a limit counted for a user, and how many of them were slow, once no request of theirs is in
/// flight.
async fn counted(stage: &Stage, limit: &str, user: &str) -> [u64; 2] {
    let found = eventually("all slots are free", async || {
        let found = stage.inspect(limit, &[&format!("user={user}")]);
        (found["used"] == 0).then_some(found)
    })
    .await;
    assert_eq!(found["limit_units"], 8, "nothing moved it");
    ["answers", "slow"].map(|field| found["adaptive"][field].as_u64().unwrap_or(0))
}

async fn both(stage: &Stage, user: &str) -> [[u64; 2]; 2] {
    [
        counted(stage, "strict", user).await,
        counted(stage, "loose", user).await,
    ]
}

async fn held(stage: &Stage, user: &str, count: usize) -> Vec<HeldRequest> {
    let mut held = Vec::new();
    for _ in 0..count {
        let request = HeldRequest::send(stage.envoy().port(), "/x", user).await;
        held.push(request.unwrap());
    }
    eventually("they are in flight", async || {
        let found = stage.inspect("loose", &[&format!("user={user}")]);
        (found["used"] == count).then_some(())
    })
    .await;
    held
}

#[tokio::test]
async fn slow_uploads_hang_ups_and_denials_say_nothing() {
    let stage = limits(&BOTH).await;
    // Eight upload slowly and leave; others are denied meanwhile.
    let uploads = held(&stage, "uploader", 8).await;
    sleep(WHILE).await;
    assert_eq!(statuses(&stage.get("/x", "uploader"), 5).await, [429; 5]);
    drop(uploads);
    assert_eq!(both(&stage, "uploader").await, [[0, 0], [0, 0]]);

    // Once the service has the request, a client that leaves has waited for less than half of the one latency and
    // for more than the other.
    stage.upstream.answer_after(FOREVER, 200).unwrap();
    let mut waiting = held(&stage, "leaver", 5).await;
    for request in &mut waiting {
        request.complete().await.unwrap();
    }
    eventually("the service has them", async || {
        (stage.upstream.requests() >= 5).then_some(())
    })
    .await;
    sleep(WHILE).await;
    drop(waiting);
    assert_eq!(both(&stage, "leaver").await, [[5, 5], [0, 0]]);
}

#[tokio::test]
async fn errors_that_clients_provoke_say_nothing_and_those_of_an_overload_do() {
    let stage = limits(&BOTH).await;
    let zero = Duration::ZERO;
    for (user, after, status, [strict, loose]) in [
        ("bug", zero, 500, [None, Some([0, 0])]),
        ("slow-bug", WHILE, 500, [Some([3, 3]), Some([0, 0])]),
        ("missing", zero, 404, [None, Some([3, 0])]),
        ("slow-missing", WHILE, 404, [Some([3, 3]), Some([3, 0])]),
        ("overload", zero, 503, [Some([3, 3]); 2]),
        ("timeout", zero, 504, [Some([3, 3]); 2]),
    ] {
        stage.upstream.answer_after(after, status).unwrap();
        assert_eq!(statuses(&stage.get("/x", user), 3).await, [status; 3]);
        let found = both(&stage, user).await;
        assert_eq!(strict.unwrap_or(found[0]), found[0], "{user}");
        assert_eq!(loose.unwrap_or(found[1]), found[1], "{user}");
    }
    // A client cannot have Envoy time out, nor forge the time that its service took.
    stage.upstream.answer_after(WHILE, 200).unwrap();
    let impatient = { stage.get("/x", "impatient") }
        .header("x-envoy-upstream-rq-timeout-ms", "1")
        .header("x-envoy-upstream-rq-per-try-timeout-ms", "1")
        .header("x-envoy-upstream-service-time", "0")
        .header("grpc-timeout", "1m");
    assert_eq!(statuses(&impatient, 3).await, [200; 3]);
    assert_eq!(both(&stage, "impatient").await, [[3, 3], [3, 0]]);
}

#[tokio::test]
async fn a_client_that_reads_slowly_makes_no_service_slow() {
    let latency = Duration::from_secs(1);
    let stage = limits(&[
        "{name: loose, per: [user], algorithm: concurrency, limit: 8, adaptive: {min: 2, max: 40, latency: 1s}}",
    ])
    .await;
    // More than all buffers on the way hold.
    stage.upstream.answer_body(vec![b'x'; 64 << 20]);
    let mut reader = held(&stage, "reader", 1).await.remove(0);
    reader.complete().await.unwrap();
    assert_eq!(reader.status().await.unwrap(), 200);
    sleep(latency).await;
    assert_eq!(stage.inspect("loose", &["user=reader"])["used"], 1);
    drop(reader);
    assert_eq!(counted(&stage, "loose", "reader").await, [1, 0]);
}

#[tokio::test]
async fn a_slot_that_nobody_has_says_nothing() {
    let stage = limits(&BOTH).await;
    let url = |call: &str| format!("{}/v1/{call}", stage.limiter(0).url());
    let post = async |call: &str, more: Value| -> Value {
        let mut body = json!({"domain": "shop", "descriptor": {"user": "alice"}});
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let post = Client::new().post(&url(call), body.to_string());
        let post = post.header("content-type", "application/json");
        post.send().await.unwrap().json().unwrap()
    };
    let answer = post("check", json!({})).await;
    let mut taken = json!({});
    for limit in answer["limits"].as_array().unwrap() {
        taken[limit["name"].as_str().unwrap()] = limit["slot"].clone();
    }
    let guessed = json!({"strict": "1.2.10000.1.1", "loose": "7340033.77.10000.3.1"});
    for (user, slots) in [("alice", &guessed), ("bob", &taken)] {
        let slow = json!({"descriptor": {"user": user}, "slots": slots, "slow": true});
        for _ in 0..25 {
            post("release", slow.clone()).await;
        }
    }
    assert_eq!(stage.inspect("strict", &["user=alice"])["used"], 1);
    assert_eq!(both(&stage, "bob").await, [[0, 0], [0, 0]]);
    for _ in 0..25 {
        post("release", json!({"slots": taken, "slow": true})).await;
    }
    assert_eq!(both(&stage, "alice").await, [[1, 1], [1, 1]]);
}

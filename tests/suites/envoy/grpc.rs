//! gRPC calls through Envoy: denied, held, reset, and many on one connection.

pub mod peers;

use harness::Gate;
use protocol::compact::Batch;
use serde_json::json;

use crate::reconfiguration::Delivered;
use crate::stage::{Plan, Stage, eventually, limits};
use peers::{Connection, Echo};

/// Envoy in front of this service.
pub fn before(echo: &Echo, items: &[&str]) -> Plan {
    let port = echo.port();
    limits(items).may_use(port).config(move |config| {
        config.edit(|tree| {
            let upstream = &mut tree["static_resources"]["clusters"][1];
            assert_eq!(upstream["name"], "upstream");
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            upstream.pointer_mut(endpoint).unwrap()["socket_address"]["port_value"] = json!(port);
            let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
            upstream["typed_extension_protocol_options"] = json!({options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": {"http2_protocol_options": {}},
            }});
        })
    })
}

pub async fn connection(stage: &Stage) -> Connection {
    Connection::open(stage.envoy().port()).await
}

#[tokio::test]
async fn a_denied_call_gets_a_trailers_only_response() {
    let echo = Echo::start().await;
    let limit = "{name: per-user, per: [user], rate: 2/1h}";
    let stage = before(&echo, &[limit]).await;
    let calls = echo.calls();
    let client = connection(&stage).await;
    for _ in 0..2 {
        let passed = client.unary("/shop.Orders/List", "alice").await;
        assert_eq!((passed.status, passed.grpc_status()), (200, "0"));
        assert!(passed.says("hello") && !passed.trailers_only, "{passed:?}");
        assert!(passed.header("ratelimit").contains("\"per-user\";r="));
    }
    // First from the limiter, then from the deny cache.
    for _ in 0..2 {
        let denied = client.unary("/shop.Orders/List", "alice").await;
        assert_eq!(denied.status, 200);
        assert!(denied.trailers_only, "{denied:?}");
        assert_eq!(denied.grpc_status(), "8", "RESOURCE_EXHAUSTED");
        assert_eq!(denied.header("content-type"), "application/grpc");
        let message = denied.header("grpc-message");
        assert!(message.contains("quota has been exceeded"), "{message}");
        assert_eq!(denied.header("x-envoy-ratelimited"), "true");
        let left = denied.header("ratelimit");
        assert!(left.starts_with("\"per-user\";r=0;t="), "{left}");
        assert!(denied.header("retry-after").parse::<u64>().is_ok());
    }
    assert_eq!(echo.calls(), calls + 2);
}

#[tokio::test]
async fn a_grpc_stream_is_one_request_however_many_messages_it_has() {
    let echo = Echo::start().await;
    let limit = "{name: per-user, per: [user], rate: 1/1h}";
    let stage = before(&echo, &[limit]).await;
    let client = connection(&stage).await;

    let mut call = client.begin("/shop.Orders/Watch", "alice").await;
    call.say("first", false);
    let mut stream = call.begun().await;
    stream.expect("first").await;
    for text in ["second", "third"] {
        stream.echoed(text).await;
    }
    assert_eq!(
        client
            .unary("/shop.Orders/Watch", "alice")
            .await
            .grpc_status(),
        "8"
    );
    stream.echoed("the stream goes on").await;
    assert_eq!(stream.end().await.grpc_status(), "0");
}

/// One request an hour: every later request is held for longer than the test.
const NEVER: &str = "{name: slow, match: {path: /shop.Orders/Export}, algorithm: leaky_bucket, \
                     rate: 1/1h, burst: 100, over_limit: queue, max_delay: 1000h}";

#[tokio::test]
async fn queued_calls_keep_their_messages_until_their_turn() {
    let echo = Echo::start().await;
    let queue = "{name: slow, algorithm: leaky_bucket, rate: 5/s, burst: 10, over_limit: queue}";
    let stage = before(&echo, &[queue]).await;
    let client = connection(&stage).await;
    let mut calls = Vec::new();
    for n in 0..4 {
        let mut call = client.begin("/shop.Orders/Export", "alice").await;
        call.say(&format!("{n}"), true);
        calls.push(call);
    }
    for (n, call) in calls.into_iter().enumerate() {
        let answer = call.answer().await;
        assert_eq!(answer.grpc_status(), "0");
        assert!(answer.says(&n.to_string()), "{answer:?}");
    }
}

#[tokio::test]
async fn a_held_call_that_is_reset_affects_no_other_call() {
    let echo = Echo::start().await;
    let stage = before(&echo, &[NEVER]).await;
    let client = connection(&stage).await;
    let first = client.unary("/shop.Orders/Export", "alice").await;
    assert_eq!(first.grpc_status(), "0", "its turn is at once");
    let calls = echo.calls();

    let mut staying = client.begin("/shop.Orders/Export", "alice").await;
    staying.say("said while held", true);
    let mut leaving = client.begin("/shop.Orders/Export", "alice").await;
    leaving.say("never echoed", false);
    used(&stage, 3).await;
    leaving.reset();
    eventually("one of two is gone", async || {
        (active(&stage).await == 1).then_some(())
    })
    .await;
    // Other calls on the connection are not affected.
    assert_eq!(client.unary("/other", "alice").await.grpc_status(), "0");
    assert_eq!(echo.calls(), calls + 1, "one is held and one is gone");
    // Its slot was the last one, and is free again.
    used(&stage, 2).await;
    staying.reset();
}

/// Waits until this many units of the queue's limit are used.
async fn used(stage: &Stage, units: u64) {
    eventually("it is charged", async || {
        (stage.inspect("slow", &[])["used"] == units).then_some(())
    })
    .await;
}

/// Many calls on one connection, some of which are reset while their checks are pending: each of the
/// others gets its own answer, and each is charged once.
#[tokio::test]
async fn calls_that_are_reset_while_they_are_checked_disturb_no_other() {
    const CALLS: usize = 40;
    let (echo, gate) = (Echo::start().await, Gate::start().await.unwrap());
    let limit = "{name: per-user, per: [user], match: {path: /shop.Orders/List}, rate: 20/1d}";
    let stage = before(&echo, &[limit])
        .filter(|config| config["limiter"]["timeout"] = json!("10s"))
        .behind(&gate)
        .await;
    let client = connection(&stage).await;
    let before = (echo.calls(), gate.checks().len());

    // Of each four calls: alice, alice who disconnects, bob, bob who disconnects. The first ten are
    // checked together, and the others wait for the answer.
    gate.hold();
    let mut calls = Vec::new();
    for n in 0..CALLS {
        if n == 10 {
            eventually("the limiter is asked", async || {
                (gate.checks().len() > before.1).then_some(())
            })
            .await;
        }
        let user = ["alice", "bob"][n / 2 % 2];
        let mut call = client.begin("/shop.Orders/List", user).await;
        call.say(&format!("{user} {n}"), true);
        calls.push((n, user, call));
    }
    let (leaving, staying): (Vec<_>, Vec<_>) = calls.into_iter().partition(|(n, ..)| n % 2 == 1);
    for (.., call) in leaving {
        call.reset();
    }
    eventually("they are gone", async || {
        (active(&stage).await == u64::try_from(staying.len()).unwrap()).then_some(())
    })
    .await;
    gate.open();

    // Neither has more than twenty calls, so all that remain pass; each receives its own echo.
    for (n, user, call) in staying {
        let answer = call.answer().await;
        assert_eq!(answer.grpc_status(), "0", "{user} {n}: {answer:?}");
        assert!(answer.says(&format!("{user} {n}")), "{answer:?}");
    }
    assert_eq!(echo.calls() - before.0, (CALLS / 2) as u64);
    // Calls reset during their check are charged, calls reset before it are not, none is charged
    // twice.
    let asked = checks_since(&gate, before.1);
    assert!((CALLS / 2..=CALLS).contains(&asked), "{asked}");
    let used = ["user=alice", "user=bob"].map(|bucket| {
        stage.inspect("per-user", &[bucket])["used"]
            .as_u64()
            .unwrap()
    });
    assert_eq!(used.iter().sum::<u64>(), asked as u64, "{used:?}");

    for (user, used) in ["alice", "bob"].into_iter().zip(used) {
        assert_eq!(passing(&client, user, 30).await, 20 - used, "{user}");
    }
}

/// The client writes all of them at once, so that Envoy reads them in one turn of its event loop.
#[tokio::test]
async fn calls_that_come_together_are_checked_together() {
    const CALLS: usize = 40;
    let (echo, gate) = (Echo::start().await, Gate::start().await.unwrap());
    let limit = "{name: per-user, per: [user], rate: 1000/1d}";
    let stage = before(&echo, &[limit]).behind(&gate).await;
    let client = connection(&stage).await;
    assert_eq!(passing(&client, "alice", 1).await, 1);
    let before = gate.checks().len();

    assert_eq!(passing(&client, "alice", CALLS).await, CALLS as u64);

    assert_eq!(gate.checks().len(), before + 1);
    assert_eq!(checks_since(&gate, before), CALLS);
}

/// The end-of-turn callback comes through a shared queue of the plugin, which its successor reuses.
#[tokio::test]
async fn calls_are_still_checked_together_after_configuration_changes() {
    const CALLS: usize = 40;
    let (echo, gate) = (Echo::start().await, Gate::start().await.unwrap());
    let limit = "{name: per-user, per: [user], rate: 1000/1d}";
    let delivered = Delivered::from_plan(before(&echo, &[limit]).behind(&gate)).await;
    for hold_max in 1..=4 {
        delivered
            .change("update_success", |config| {
                config["hold"] = json!({"max": hold_max});
            })
            .await;
        let client = Connection::open(delivered.port).await;
        assert_eq!(passing(&client, "alice", 1).await, 1);
        let before = gate.checks().len();
        assert_eq!(passing(&client, "alice", CALLS).await, CALLS as u64);
        assert_eq!(gate.checks().len(), before + 1, "change {hold_max}");
    }
}

/// Makes this many calls at once; returns how many pass. The others are denied.
async fn passing(client: &Connection, user: &str, count: usize) -> u64 {
    let mut calls = Vec::new();
    for _ in 0..count {
        let mut call = client.begin("/shop.Orders/List", user).await;
        call.say("more", true);
        calls.push(call);
    }
    let mut passed = 0;
    for call in calls {
        let answer = call.answer().await;
        assert!(["0", "8"].contains(&answer.grpc_status()), "{answer:?}");
        passed += u64::from(answer.grpc_status() == "0");
    }
    passed
}

/// The number of requests that clients wait for.
async fn active(stage: &Stage) -> u64 {
    let name = "http.ingress.downstream_rq_active";
    stage.envoy().stat(name).await.unwrap()
}

/// The number of checks in all calls after the first `calls`.
fn checks_since(gate: &Gate, calls: usize) -> usize {
    let calls = gate.checks().split_off(calls);
    let checks = calls
        .iter()
        .map(|call| Batch::decode(call).unwrap().checks.len());
    checks.sum()
}

//! A crowd: thousands of requests that wait for one event, which decides all of them, on routes that
//! answer at once. Envoy then calls the filter back in the middle of each resumption.

use harness::{Gate, RawReply, crowd};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::stage::{Stage, eventually, limits};

const CROWD: usize = 3_000;

/// Limits that no crowd uses up.
const LIMITS: [&str; 2] = [
    "{name: local, match: {path: /local/*}, rate: 1000000/s, on_failure: local}",
    "{name: deny, match: {path: /deny/*}, rate: 1000000/s, on_failure: deny}",
];

/// The paths whose routes answer within the resumption, and their statuses.
const ROUTES: [(&str, u16); 4] = [
    ("/local/direct", 200),
    ("/local/redirect", 301),
    ("/local/full", 503),
    ("/local/nobody", 503),
];

fn routes() -> Value {
    let here = json!({"status": 200, "body": {"inline_string": "here"}});
    json!([
        {"match": {"path": "/local/direct"}, "direct_response": here},
        {"match": {"path": "/local/redirect"}, "redirect": {"path_redirect": "/elsewhere"}},
        {"match": {"path": "/local/full"}, "route": {"cluster": "full"}},
        {"match": {"path": "/local/nobody"}, "route": {"cluster": "nobody"}},
        {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}},
    ])
}

/// One worker with one limiter behind a gate, whose calls time out long after a crowd has gathered.
async fn stage(gate: &Gate) -> Stage {
    let plan = limits(&LIMITS)
        .workers(1)
        .behind(gate)
        .filter(|config| config["limiter"]["timeout"] = json!("10s"))
        .config(|config| {
            let config = config.manager_edit(|manager| {
                manager["route_config"]["virtual_hosts"][0]["routes"] = routes();
            });
            config.unwrap().edit(|tree| {
                let clusters = tree["static_resources"]["clusters"].as_array_mut().unwrap();
                let mut full = clusters[1].clone();
                full["name"] = json!("full");
                full["load_assignment"]["cluster_name"] = json!("full");
                full["circuit_breakers"]["thresholds"] = json!([{"max_pending_requests": 0}]);
                clusters.push(full);
                clusters.push(json!({"name": "nobody", "type": "STATIC"}));
            })
        });
    plan.await
}

/// Sends a crowd, and returns once all of it waits.
async fn gathered(stage: &Stage, path: &str) -> JoinHandle<Vec<RawReply>> {
    let port = stage.envoy().port();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    let crowd = tokio::spawn(async move { crowd(port, CROWD, request.as_bytes()).await.unwrap() });
    eventually("all of them wait", async || {
        let active = stage
            .envoy()
            .stat("http.ingress.downstream_rq_active")
            .await;
        (active.unwrap() == CROWD as u64).then_some(())
    })
    .await;
    crowd
}

/// The statuses of a crowd, sorted, each with the number of its answers; `true` for the filter's own.
fn answers(replies: &[RawReply]) -> Vec<(u16, bool, usize)> {
    let mut counted = std::collections::BTreeMap::new();
    for reply in replies {
        let kind = reply.header("content-type");
        let own = kind.iter().any(|kind| kind == "application/problem+json");
        *counted.entry((reply.status, own)).or_default() += 1;
    }
    let counted = counted.into_iter();
    counted
        .map(|((status, own), count)| (status, own, count))
        .collect()
}

#[tokio::test]
async fn a_crowd_that_a_limiter_decides_is_resumed_bit_by_bit() {
    let gate = Gate::start().await.unwrap();
    let stage = stage(&gate).await;
    for (path, status) in ROUTES {
        gate.hold();
        let crowd = gathered(&stage, path).await;
        gate.open();
        let replies = crowd.await.unwrap();
        assert_eq!(answers(&replies), [(status, false, CROWD)], "{path}");
    }
}

/// The connection of the calls in flight breaks, and no new one is accepted: the circuit breaker opens
/// after some calls, and everything that waits is decided without a limiter.
#[tokio::test]
async fn a_crowd_whose_limiter_stops_is_resumed_bit_by_bit() {
    let gate = Gate::start().await.unwrap();
    let stage = stage(&gate).await;
    let denied = ("/deny/any", 503);
    for (path, status) in ROUTES[..3].iter().copied().chain([denied]) {
        gate.hold();
        let crowd = gathered(&stage, path).await;
        gate.shut().await;
        let replies = crowd.await.unwrap();
        let own = path == denied.0;
        assert_eq!(answers(&replies), [(status, own, CROWD)], "{path}");

        gate.open();
        gate.listen().await.unwrap();
        let before = gate.checks().len();
        eventually("a limiter decides again", async || {
            stage.get("/probe", "any").send().await.unwrap();
            // A probe, and a check after it.
            (gate.checks().len() >= before + 2).then_some(())
        })
        .await;
    }
}

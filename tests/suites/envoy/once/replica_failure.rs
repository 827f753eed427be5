//! One of two limiters fails: no request within its limit is denied, none is charged twice, and the
//! other limiter still decides nearly all.

use harness::{Client, FakeLimiter, Misbehaviour, answer, flood};
use serde_json::{Value, json};

use crate::stage::{Plan, Stage, eventually, limits};

/// Requests of a user: exactly the user's limit, so that one extra charge causes a denial.
const EACH: u64 = 3;
const USERS: u64 = 100;
const REQUESTS: u64 = EACH * USERS;
/// Connections that spread the requests over both workers.
const CONNECTIONS: u64 = 12;

/// One limit that is used up to the last unit, and one with a bucket for every request.
const PER_USER: &str = "{name: per-user, per: [user], algorithm: fixed_window, rate: 3/1d}";
const PER_REQUEST: &str = "{name: per-request, per: [tenant], algorithm: fixed_window, rate: 9/1d}";

fn two_limiters() -> Plan {
    limits(&[PER_USER, PER_REQUEST])
}

/// As in Istio without the `EnvoyFilter`: without retries and health checks.
pub fn as_in_istio() -> Plan {
    two_limiters().config(|config| {
        let care = ["typed_extension_protocol_options", "health_checks"];
        config.without(&care).unwrap()
    })
}

/// Without health checks, retries and outlier detection.
fn alone() -> Plan {
    as_in_istio().config(|config| config.without(&["outlier_detection"]).unwrap())
}

/// Sends the requests of a round; each round has its own users and requests.
async fn send(port: u16, round: u64) -> u64 {
    let request = move |n: u64| {
        let user = n % USERS;
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {round}-{user}\r\nx-tenant-id: {round}-{n}\r\n\r\n")
            .into_bytes()
    };
    flood(port, CONNECTIONS, REQUESTS, request).await.unwrap()
}

/// The units that the store has charged for each value of an entry, according to a working limiter.
async fn charged(stage: &Stage, limit: &str, key: &str, values: Vec<String>) -> Vec<u64> {
    let mut charged = Vec::new();
    for values in values.chunks(100) {
        let check =
            |value: &String| json!({"descriptor": {key: value}, "limits": [limit], "cost": 0});
        let checks: Vec<Value> = values.iter().map(check).collect();
        let url = format!("{}/v1/check", stage.limiter(0).url());
        let body = json!({"domain": "shop", "checks": checks}).to_string();
        let reply = Client::new().post(&url, body).send().await.unwrap();
        let reply = reply.json().unwrap();
        for result in reply["results"].as_array().unwrap() {
            let said = &result["limits"][0];
            charged.push(said["limit"].as_u64().unwrap() - said["remaining"].as_u64().unwrap());
        }
    }
    charged
}

/// Sends a round, of which nothing is denied or charged twice; returns how many were charged.
async fn round(stage: &Stage, round: u64) -> u64 {
    let passed = send(stage.envoy().port(), round).await;
    assert_eq!(
        passed, REQUESTS,
        "round {round}: requests within their limit were denied"
    );
    assert_charged_once(stage, round).await
}

async fn assert_charged_once(stage: &Stage, round: u64) -> u64 {
    let names = |count| (0..count).map(|n| format!("{round}-{n}")).collect();
    let requests = charged(stage, "per-request", "tenant", names(REQUESTS)).await;
    assert!(
        requests.iter().all(|units| *units <= 1),
        "round {round}: {requests:?}"
    );
    let users = charged(stage, "per-user", "user", names(USERS)).await;
    assert!(
        users.iter().all(|units| *units <= EACH),
        "round {round}: {users:?}"
    );
    requests.iter().sum()
}

/// No request is denied, even at first; once Envoy has detected which limiter failed, the other one
/// decides every request.
async fn assert_decided_by_the_other(stage: &Stage) {
    round(stage, 1).await;
    eventually("Envoy leaves it out", async || {
        let healthy = stage.envoy().stat("cluster.limiter.membership_healthy");
        (healthy.await.unwrap() == 1).then_some(())
    })
    .await;
    assert_eq!(round(stage, 2).await, REQUESTS);
}

/// A server that answers every call with an error that says nothing was charged.
async fn refusing_in_place_of_the_stopped(stage: &Stage) -> FakeLimiter {
    let error = br#"{"error":{"code":"store_unavailable","message":"gone","charged":false}}"#;
    let headers = ["x-rl-api: 1", "content-type: application/json"];
    let refusal = answer("503 Service Unavailable", &headers, error);
    let fake = FakeLimiter::start(stage.stopped_port(), Misbehaviour::Send(refusal));
    fake.await.unwrap()
}

#[tokio::test]
async fn a_replica_that_refuses_connections_affects_no_check() {
    let mut stage = two_limiters().await;
    stage.stop_one_limiter().await;
    assert_decided_by_the_other(&stage).await;
}

/// Envoy retries a call that was not sent at the other replica: no check is lost, even before
/// outlier detection reacts.
#[tokio::test]
async fn retries_alone_lose_no_check_where_connections_are_refused() {
    let mut stage = two_limiters()
        .config(|config| {
            config
                .without(&["health_checks", "outlier_detection"])
                .unwrap()
        })
        .await;
    stage.stop_one_limiter().await;
    assert_eq!(round(&stage, 1).await, REQUESTS);
}

#[tokio::test]
async fn a_replica_that_hangs_is_ejected() {
    let stage = two_limiters().await;
    stage.limiter(1).process().pause().unwrap();
    assert_decided_by_the_other(&stage).await;
    // The paused limiter decides the calls in its socket when it resumes: late, and not twice.
    stage.limiter(1).process().resume().unwrap();
    round(&stage, 4).await;
    for round in 1..=4 {
        assert_charged_once(&stage, round).await;
    }
}

#[tokio::test]
async fn a_replica_that_restarts_under_load_affects_no_check() {
    let mut stage = two_limiters().await;
    let port = stage.envoy().port();
    let load = tokio::spawn(send(port, 1));
    stage.kill_one_limiter().await;
    let again = tokio::spawn(send(port, 2));
    stage.start_limiters().await;
    assert_eq!(load.await.unwrap(), REQUESTS);
    assert_eq!(again.await.unwrap(), REQUESTS);
    for round in [1, 2] {
        assert_charged_once(&stage, round).await;
    }
    // The calls that the kill cut off may have opened the circuit breaker, until a probe is answered.
    let mut rounds = 3..;
    eventually("limiters decide nearly all again", async || {
        let charged = round(&stage, rounds.next()?).await;
        (charged * 10 >= REQUESTS * 9).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_answers_503_is_left_out() {
    let mut stage = two_limiters().await;
    stage.stop_one_limiter().await;
    let _fake = refusing_in_place_of_the_stopped(&stage).await;
    assert_decided_by_the_other(&stage).await;
}

/// Without the cluster's retries, the filter retries calls that were certainly not charged.
#[tokio::test]
async fn the_filter_retries_uncharged_errors() {
    let mut stage = as_in_istio().await;
    stage.stop_one_limiter().await;
    let _fake = refusing_in_place_of_the_stopped(&stage).await;
    assert_most_are_decided_by_the_other(&stage).await;
}

/// Envoy ejects the limiter for a second or more, then tries it again.
pub async fn assert_most_are_decided_by_the_other(stage: &Stage) {
    let decided = [
        round(stage, 1).await,
        round(stage, 2).await,
        round(stage, 3).await,
    ];
    eventually("retries are counted", async || {
        let retried = stage.envoy().stat("wasmcustom.rl_callouts.retried").await;
        (retried.unwrap() > 0).then_some(())
    })
    .await;
    let most = decided.iter().max().unwrap();
    assert!(most * 10 >= REQUESTS * 9, "{decided:?} of {REQUESTS}");
}

/// A call to a hanging limiter may have been charged, so it is not retried. No request within the
/// limit is denied for it, and none is charged twice.
#[tokio::test]
async fn nobody_is_denied_while_a_replica_hangs_without_health_checks() {
    let stage = alone()
        .filter(|config| config["limiter"]["timeout"] = json!("300ms"))
        .await;
    // No check was answered yet: only the policy shows that a limiter answers.
    stage.limiter(1).process().pause().unwrap();
    round(&stage, 1).await;
    round(&stage, 2).await;
    // The limiter charges the calls in its socket when it resumes: late, and only once.
    stage.limiter(1).process().resume().unwrap();
    round(&stage, 3).await;
    for round in 1..=3 {
        assert_charged_once(&stage, round).await;
    }
}

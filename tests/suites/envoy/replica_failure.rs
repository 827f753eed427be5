//! One of two limiters fails: no request within its limit is denied, none is charged twice, and
//! nearly all are still decided by the other.

use harness::{Client, FakeLimiter, Misbehaviour, answer, flood, until};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Plan, Stage, limits};

/// Requests of a user: as many as the limit has, so that a unit too many is a denial.
const EACH: u64 = 3;
const USERS: u64 = 100;
const REQUESTS: u64 = EACH * USERS;
/// Connections that bring them, to both workers.
const CONNECTIONS: u64 = 12;

/// One limit that is used up to the last unit, and one with a bucket for every request.
const PER_USER: &str = "{name: per-user, per: [user], algorithm: fixed_window, rate: 3/1d}";
const PER_REQUEST: &str = "{name: per-request, per: [tenant], algorithm: fixed_window, rate: 9/1d}";

fn two_limiters() -> Plan {
    limits(&[PER_USER, PER_REQUEST])
}

/// As in Istio without the `EnvoyFilter`: neither retries nor health checks.
fn as_in_istio() -> Plan {
    two_limiters().config(|config| {
        let care = ["typed_extension_protocol_options", "health_checks"];
        config.without(&care).unwrap()
    })
}

/// Without health checks, retries and outlier detection.
fn alone() -> Plan {
    as_in_istio().config(|config| config.without(&["outlier_detection"]).unwrap())
}

/// The requests of a round; users and requests of another have other names.
async fn send(port: u16, round: u64) -> u64 {
    let request = move |n: u64| {
        let user = n % USERS;
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {round}-{user}\r\nx-tenant-id: {round}-{n}\r\n\r\n")
            .into_bytes()
    };
    flood(port, CONNECTIONS, REQUESTS, request).await.unwrap()
}

/// What the store has charged for each value of an entry, asked of a limiter that answers.
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

/// Sends a round, of which nothing is denied and nothing charged twice; how many were charged.
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

/// From the first moment on nobody is denied; once Envoy has seen which one it is, the other decides
/// every single request.
async fn assert_decided_by_the_other(stage: &Stage) {
    round(stage, 1).await;
    until("Envoy leaves it out", PATIENCE, async || {
        let healthy = stage.envoy().stat("cluster.limiter.membership_healthy");
        (healthy.await.unwrap() == 1).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(round(stage, 2).await, REQUESTS);
}

/// A server that answers every call with an error that charged nothing.
async fn refusing_in_place_of_the_stopped(stage: &Stage) -> FakeLimiter {
    let error = br#"{"error":{"code":"store_unavailable","message":"gone","charged":false}}"#;
    let headers = ["x-rl-api: 1", "content-type: application/json"];
    let refusal = answer("503 Service Unavailable", &headers, error);
    let fake = FakeLimiter::start(stage.stopped_port(), Misbehaviour::Send(refusal));
    fake.await.unwrap()
}

#[tokio::test]
async fn a_replica_that_refuses_connections_affects_no_check() {
    let mut stage = two_limiters().start().await;
    stage.stop_one_limiter().await;
    assert_decided_by_the_other(&stage).await;
}

/// A call that was not sent is retried at the other replica: no check is lost, even before outlier
/// detection reacts.
#[tokio::test]
async fn retries_alone_lose_no_check_where_connections_are_refused() {
    let mut stage = two_limiters()
        .config(|config| {
            config
                .without(&["health_checks", "outlier_detection"])
                .unwrap()
        })
        .start()
        .await;
    stage.stop_one_limiter().await;
    assert_eq!(round(&stage, 1).await, REQUESTS);
}

#[tokio::test]
async fn a_replica_that_hangs_is_ejected() {
    let stage = two_limiters().start().await;
    stage.limiter(1).process().pause().unwrap();
    assert_decided_by_the_other(&stage).await;
    // Calls in its socket are decided when it resumes: late, and not twice.
    stage.limiter(1).process().resume().unwrap();
    round(&stage, 4).await;
    for round in 1..=4 {
        assert_charged_once(&stage, round).await;
    }
}

#[tokio::test]
async fn a_replica_that_restarts_under_load_affects_no_check() {
    let mut stage = two_limiters().start().await;
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
    let charged = round(&stage, 3).await;
    assert!(
        charged * 10 >= REQUESTS * 9,
        "charged: {charged} of {REQUESTS}"
    );
}

#[tokio::test]
async fn one_that_answers_503_is_left_out() {
    let mut stage = two_limiters().start().await;
    stage.stop_one_limiter().await;
    let _fake = refusing_in_place_of_the_stopped(&stage).await;
    assert_decided_by_the_other(&stage).await;
}

/// Without the cluster's retries, the filter retries calls that were certainly not charged.
#[tokio::test]
async fn the_filter_retries_refused_connections() {
    let mut stage = as_in_istio().start().await;
    stage.stop_one_limiter().await;
    assert_most_are_decided_by_the_other(&stage).await;
}

#[tokio::test]
async fn the_filter_retries_uncharged_errors() {
    let mut stage = as_in_istio().start().await;
    stage.stop_one_limiter().await;
    let _fake = refusing_in_place_of_the_stopped(&stage).await;
    assert_most_are_decided_by_the_other(&stage).await;
}

/// Envoy ejects it for a second or more, then tries again.
async fn assert_most_are_decided_by_the_other(stage: &Stage) {
    let decided = [
        round(stage, 1).await,
        round(stage, 2).await,
        round(stage, 3).await,
    ];
    until("retries are counted", PATIENCE, async || {
        let retried = stage.envoy().stat("wasmcustom.rl_callouts.retried").await;
        (retried.unwrap() > 0).then_some(())
    })
    .await
    .unwrap();
    let most = decided.iter().max().unwrap();
    assert!(most * 10 >= REQUESTS * 9, "{decided:?} of {REQUESTS}");
}

/// What was sent to a limiter that hangs may have been charged, so it is not sent again; but nobody
/// within the limit is denied for it, and nobody charged twice.
#[tokio::test]
async fn nobody_is_denied_while_a_replica_hangs_without_health_checks() {
    let stage = alone()
        .filter(|config| config["limiter"]["timeout"] = json!("300ms"))
        .start()
        .await;
    // No check was answered yet: the policy alone shows that one limiter answers.
    stage.limiter(1).process().pause().unwrap();
    round(&stage, 1).await;
    round(&stage, 2).await;
    // Calls in its socket are charged when it resumes: late, and only once.
    stage.limiter(1).process().resume().unwrap();
    round(&stage, 3).await;
    for round in 1..=3 {
        assert_charged_once(&stage, round).await;
    }
}

//! Concurrent checks share calls.

use crate::stage::{Stage, at_once, eventually, limits};

/// The most calls of one worker in flight.
const FLIGHTS: u64 = 8;
/// Workers of the Envoy.
const WORKERS: u64 = 2;
/// Requests that all wait for an answer.
const REQUESTS: usize = 600;

/// The number of checks that the limiters have decided, and of the calls that carried them.
async fn checks_and_calls(stage: &Stage) -> [u64; 2] {
    [
        stage.limiter_counter("rl_checks_total").await,
        stage
            .limiter_counter("rl_check_duration_seconds_count")
            .await,
    ]
}

/// No limiter answers before all requests have arrived, so the number of calls depends on the filter
/// and not on the speed of this machine.
#[tokio::test]
async fn requests_that_wait_together_are_checked_together() {
    let stage = limits(&["{name: per-user, per: [user], rate: 10000/1h}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(at_once(&alice, 20).await, (20, 0));
    let before = checks_and_calls(&stage).await;

    for n in 0..stage.limiters() {
        stage.limiter(n).process().pause().unwrap();
    }
    let requests = tokio::spawn(async move { at_once(&alice, REQUESTS).await });
    eventually("all of them wait", async || {
        let waiting = stage
            .envoy()
            .stat("http.ingress.downstream_rq_active")
            .await;
        (waiting.ok()? >= u64::try_from(REQUESTS).unwrap()).then_some(())
    })
    .await;
    for n in 0..stage.limiters() {
        stage.limiter(n).process().resume().unwrap();
    }
    assert_eq!(requests.await.unwrap(), (REQUESTS, 0));

    let after = checks_and_calls(&stage).await;
    let [checks, calls] = [after[0] - before[0], after[1] - before[1]];
    assert_eq!(checks, u64::try_from(REQUESTS).unwrap());
    // While requests arrive, each worker has few calls in flight; the first answer releases the rest.
    assert!(
        calls <= 2 * FLIGHTS * WORKERS,
        "{calls} calls for {checks} checks"
    );
}

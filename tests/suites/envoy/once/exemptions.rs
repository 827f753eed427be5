//! No limit applies to exempt requests, at every Envoy and without a call.

use harness::Request;

use crate::stage::{eventually, limits, statuses};

const NOTHING: &str = "{name: nothing, rate: 1/1h, burst: 0}";

#[tokio::test]
async fn an_exempt_health_check_passes_without_a_call_while_everything_else_is_denied() {
    let mut stage = limits(&[NOTHING]).envoys(2).await;
    let health = [0, 1].map(|n| stage.nth_envoy(n).get("/healthz"));
    let other = stage.envoy().get("/healthz/all");
    assert_eq!(statuses(&health[0], 2).await, [429, 429]);

    stage.rlctl(&["set-exemption", "health", "--match", "path=/healthz"]);
    let passes = async |request: &Request| {
        eventually("it is exempt", async || {
            (request.send().await.unwrap().status == 200).then_some(())
        })
        .await;
    };
    tokio::join!(passes(&health[0]), passes(&health[1]));
    // Workers read new limits one after the other.
    eventually("no worker asks", async || {
        let asked = stage.limiter_counter("rl_decisions_total").await;
        let all_ok = statuses(&health[0], 10).await == [200; 10];
        let asked_no_more = stage.limiter_counter("rl_decisions_total").await == asked;
        (all_ok && asked_no_more).then_some(())
    })
    .await;
    let exempt = health[0].send().await.unwrap();
    assert_eq!(exempt.header("ratelimit"), None, "{exempt:?}");
    assert_eq!(statuses(&other, 2).await, [429, 429]);

    stage.stop_limiters().await;
    assert_eq!(statuses(&health[0], 5).await, [200; 5]);
    stage.start_limiters().await;

    eventually("the proxy counts them", async || {
        let counted = stage.envoy().stat("wasmcustom.rl_exempt.health").await;
        (counted.unwrap() >= 17).then_some(())
    })
    .await;

    stage.rlctl(&["delete-exemption", "health", "--yes"]);
    eventually("limits apply again", async || {
        (health[1].send().await.unwrap().status == 429).then_some(())
    })
    .await;
}

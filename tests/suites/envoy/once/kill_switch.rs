//! `rlctl pause` takes limits out of force at every Envoy; `resume` or the end of the time restores
//! them.

use harness::Request;

use crate::stage::{eventually, limits, statuses};

const ONE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 1/1h}";
const IN_THE_PROXY: &str = "{name: here, match: {path: /here}, rate: 1/1h, scope: proxy}";

/// Waits for an answer with this status.
async fn answers(request: &Request, status: u16) {
    eventually(&format!("a {status}"), async || {
        (request.send().await.unwrap().status == status).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_paused_limit_lets_everybody_pass_until_it_is_resumed() {
    let stage = limits(&[ONE_AN_HOUR]).envoys(2).await;
    let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));
    let [first, second] = &requests;
    assert_eq!(statuses(first, 2).await, [200, 429]);

    stage.rlctl(&["pause", "--limit", "per-user"]);
    tokio::join!(answers(first, 200), answers(second, 200));
    let reply = first.send().await.unwrap();
    assert_eq!(
        reply.header("ratelimit"),
        None,
        "it is as absent: {reply:?}"
    );

    stage.rlctl(&["resume", "--limit", "per-user"]);
    tokio::join!(answers(first, 429), answers(second, 429));
}

#[tokio::test]
async fn a_paused_domain_has_no_limits_not_even_those_of_the_proxies() {
    let stage = limits(&[ONE_AN_HOUR, IN_THE_PROXY]).await;
    let (alice, here) = (stage.get("/", "alice"), stage.get("/here", "bob"));
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    assert_eq!(statuses(&here, 2).await, [200, 429]);

    stage.rlctl(&["pause", "--yes"]);
    answers(&alice, 200).await;
    answers(&here, 200).await;
    let asked = stage.limiter_counter("rl_checks_total").await;
    assert_eq!(statuses(&alice, 10).await, [200; 10]);
    assert_eq!(
        stage.limiter_counter("rl_checks_total").await,
        asked,
        "a paused domain asks nothing of the limiter"
    );

    stage.rlctl(&["resume"]);
    answers(&alice, 429).await;
    answers(&here, 429).await;
}

#[tokio::test]
async fn a_pause_with_an_end_ends_by_itself_even_without_a_limiter() {
    let mut stage = limits(&[ONE_AN_HOUR, IN_THE_PROXY]).await;
    let (alice, here) = (stage.get("/", "alice"), stage.get("/here", "bob"));
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    assert_eq!(statuses(&here, 2).await, [200, 429]);

    stage.rlctl(&["pause", "--limit", "per-user", "--for", "6s"]);
    stage.rlctl(&["pause", "--limit", "here", "--for", "9s"]);
    answers(&alice, 200).await;
    answers(&here, 200).await;

    answers(&alice, 429).await;
    stage.stop_limiters().await;
    answers(&here, 429).await;
}

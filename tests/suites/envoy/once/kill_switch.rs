//! `rlctl pause` takes limits out of force at every Envoy; `resume` or the end of the time restores
//! them.

use harness::Request;

use crate::stage::{eventually, limits, statuses};

/// Waits until a request of each is answered with this status.
async fn answers(requests: [&Request; 2], status: u16) {
    for request in requests {
        eventually(&format!("a {status}"), async || {
            (request.send().await.unwrap().status == status).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_pause_takes_limits_out_of_force_until_it_ends_even_without_a_limiter() {
    let mut stage = limits(&[
        "{name: per-user, per: [user], rate: 1/1h}",
        "{name: here, match: {path: /here}, rate: 1/1h, scope: proxy}",
    ])
    .await;
    let (alice, here) = (stage.get("/", "alice"), stage.get("/here", "bob"));
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    assert_eq!(statuses(&here, 2).await, [200, 429]);

    stage.rlctl(&["pause", "--yes"]);
    answers([&alice, &here], 200).await;
    let asked = stage.limiter_counter("rl_checks_total").await;
    let reply = alice.send().await.unwrap();
    assert_eq!(reply.header("ratelimit"), None, "{reply:?}");
    assert_eq!(statuses(&alice, 10).await, [200; 10]);
    let after = stage.limiter_counter("rl_checks_total").await;
    assert_eq!(after, asked, "a paused domain asks nothing of the limiter");
    stage.rlctl(&["resume"]);
    answers([&alice, &here], 429).await;

    for limit in ["per-user", "here"] {
        stage.rlctl(&["pause", "--limit", limit, "--for", "5s"]);
    }
    answers([&alice, &here], 200).await;
    stage.stop_limiters().await;
    answers([&here, &here], 429).await;
    stage.start_limiters().await;
    answers([&alice, &alice], 429).await;
}

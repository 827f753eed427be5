//! Edits take effect at every Envoy without restarts.

use harness::Request;

use crate::stage::{eventually, header, limits, statuses};

const ONE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 1/1h}";

#[tokio::test]
async fn a_raised_limit_lets_the_next_request_pass_at_every_envoy() {
    let stage = limits(&[ONE_AN_HOUR]).envoys(2).await;
    let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));
    let [first, second] = &requests;
    assert_eq!(statuses(first, 2).await, [200, 429]);
    assert_eq!(statuses(second, 1).await, [429]);

    stage.rlctl(&["set-limit", "per-user", "--burst", "10"]);

    let passes = async |request: &Request| {
        eventually("alice passes", async || {
            (request.send().await.unwrap().status == 200).then_some(())
        })
        .await;
    };
    tokio::join!(passes(first), passes(second));
}

#[tokio::test]
async fn a_new_limit_and_a_deleted_one_need_no_restart() {
    let stage = limits(&[]).await;
    let alice = stage.get("/new", "alice");
    assert_eq!(statuses(&alice, 3).await, [200; 3]);

    stage.rlctl(&["set-limit", "new", "--match", "path=/new", "--rate", "1/1h"]);
    eventually("the new limit denies", async || {
        (alice.send().await.unwrap().status == 429).then_some(())
    })
    .await;

    stage.rlctl(&["delete-limit", "new", "--yes"]);
    eventually("the deleted limit is gone", async || {
        (alice.send().await.unwrap().status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_override_is_for_one_bucket_only() {
    let stage = limits(&[ONE_AN_HOUR]).await;
    let (alice, bob) = (stage.get("/", "alice"), stage.get("/", "bob"));
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    assert_eq!(statuses(&bob, 2).await, [200, 429]);

    stage.rlctl(&[
        "set-limit",
        "per-user",
        "--for",
        "user=alice",
        "--rate",
        "10/1h",
    ]);

    eventually("alice passes", async || {
        (alice.send().await.unwrap().status == 200).then_some(())
    })
    .await;
    assert_eq!(bob.send().await.unwrap().status, 429);
}

#[tokio::test]
async fn a_reset_bucket_is_whole_again() {
    let stage = limits(&["{name: per-user, per: [user], rate: 5/1h}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 6).await[5], 429);

    stage.rlctl(&["reset", "per-user", "user=alice", "--yes"]);

    let reply = eventually("alice passes", async || {
        alice.send().await.ok().filter(|reply| reply.status == 200)
    })
    .await;
    assert!(
        header(&reply, "ratelimit").contains("\"per-user\";r=4"),
        "{reply:?}"
    );
}

#[tokio::test]
async fn units_given_back_pass_at_every_envoy() {
    for algorithm in ["token_bucket", "sliding_window_log"] {
        let limit = format!("{{name: per-user, per: [user], rate: 5/1h, algorithm: {algorithm}}}");
        let stage = limits(&[&limit]).envoys(2).await;
        let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));
        let [first, second] = &requests;
        assert_eq!(statuses(first, 6).await[5], 429);
        assert_eq!(statuses(second, 1).await, [429]);

        stage.rlctl(&["credit", "per-user", "user=alice", "--units", "2"]);

        // Two requests pass, one at each Envoy, once their cached denials have expired.
        let passes = async |request: &Request| {
            eventually("alice passes", async || {
                (request.send().await.unwrap().status == 200).then_some(())
            })
            .await;
        };
        tokio::join!(passes(first), passes(second));
        assert_eq!(statuses(first, 1).await, [429], "and no third");
    }
}

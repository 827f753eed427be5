//! Edits take effect at every Envoy without restarts.

use harness::{Request, until};

use crate::stage::{PATIENCE, header, limits, statuses};

const ONE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 1/1h}";

#[tokio::test]
async fn a_raised_limit_lets_the_next_request_pass_at_every_envoy() {
    let stage = limits(&[ONE_AN_HOUR]).envoys(2).start().await;
    let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));
    let [first, second] = &requests;
    assert_eq!(statuses(first, 2).await, [200, 429]);
    assert_eq!(statuses(second, 1).await, [429]);

    stage.rlctl(&["set-limit", "per-user", "--burst", "10"]);

    let passes = async |request: &Request| {
        until("alice passes", PATIENCE, async || {
            (request.send().await.unwrap().status == 200).then_some(())
        })
        .await
        .unwrap();
    };
    tokio::join!(passes(first), passes(second));
}

#[tokio::test]
async fn a_lowered_limit_denies_the_next_request() {
    let stage = limits(&["{name: per-user, per: [user], rate: 100/1h}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 3).await, [200; 3]);

    stage.rlctl(&["set-limit", "per-user", "--burst", "3"]);

    until("alice is denied", PATIENCE, async || {
        (alice.send().await.unwrap().status == 429).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_new_limit_and_a_deleted_one_need_no_restart() {
    let stage = limits(&[]).start().await;
    let alice = stage.get("/new", "alice");
    assert_eq!(statuses(&alice, 3).await, [200; 3]);

    stage.rlctl(&["set-limit", "new", "--match", "path=/new", "--rate", "1/1h"]);
    until("the new limit denies", PATIENCE, async || {
        (alice.send().await.unwrap().status == 429).then_some(())
    })
    .await
    .unwrap();

    stage.rlctl(&["delete-limit", "new", "--yes"]);
    until("the deleted limit is gone", PATIENCE, async || {
        (alice.send().await.unwrap().status == 200).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_override_is_for_one_bucket_only() {
    let stage = limits(&[ONE_AN_HOUR]).start().await;
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

    until("alice passes", PATIENCE, async || {
        (alice.send().await.unwrap().status == 200).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(bob.send().await.unwrap().status, 429);
}

#[tokio::test]
async fn a_reset_bucket_is_whole_again() {
    let stage = limits(&["{name: per-user, per: [user], rate: 5/1h}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 6).await[5], 429);

    stage.rlctl(&["reset", "per-user", "user=alice", "--yes"]);

    let reply = until("alice passes", PATIENCE, async || {
        alice.send().await.ok().filter(|reply| reply.status == 200)
    })
    .await
    .unwrap();
    assert!(
        header(&reply, "ratelimit").contains("\"per-user\";r=4"),
        "{reply:?}"
    );
}

#[tokio::test]
async fn units_given_back_pass_at_every_envoy() {
    for algorithm in ["token_bucket", "sliding_window_log"] {
        let limit = format!("{{name: per-user, per: [user], rate: 5/1h, algorithm: {algorithm}}}");
        let stage = limits(&[&limit]).envoys(2).start().await;
        let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));
        let [first, second] = &requests;
        assert_eq!(statuses(first, 6).await[5], 429);
        assert_eq!(statuses(second, 1).await, [429]);

        stage.rlctl(&["credit", "per-user", "user=alice", "--units", "2"]);

        // Two requests pass, one at each Envoy, once their cached denials have expired.
        let passes = async |request: &Request| {
            until("alice passes", PATIENCE, async || {
                (request.send().await.unwrap().status == 200).then_some(())
            })
            .await
            .unwrap();
        };
        tokio::join!(passes(first), passes(second));
        assert_eq!(statuses(first, 1).await, [429], "and no third");
    }
}

#[tokio::test]
async fn limiters_keep_limits_that_redis_lost() {
    let mut stage = limits(&[ONE_AN_HOUR]).start().await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);

    stage.restart_redis_empty().await;

    // The buckets are gone, so alice has her quota again; the limit still exists.
    until("alice has a fresh bucket", PATIENCE, async || {
        (alice.send().await.unwrap().status == 200).then_some(())
    })
    .await
    .unwrap();
    until("and is limited again", PATIENCE, async || {
        (alice.send().await.unwrap().status == 429).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_deleted_domain_limits_nothing() {
    let stage = limits(&["{name: per-user, per: [user], rate: 2/1d}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 3).await, [200, 200, 429]);

    stage.rlctl(&["delete-domain", "shop", "--yes"]);

    until("nothing is limited", PATIENCE, async || {
        (statuses(&alice, 12).await == [200; 12]).then_some(())
    })
    .await
    .unwrap();
}

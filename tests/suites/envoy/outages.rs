//! What a host says about calls that fail.

use serde_json::json;

use crate::{
    once::replica_failure::{as_in_istio, assert_most_are_decided_by_the_other},
    stage::{compiled, limits, statuses},
};

#[tokio::test]
async fn a_limiter_cluster_that_does_not_exist_lets_requests_pass() {
    let stage = limits(&[])
        .filter(|config| config["limiter"]["cluster"] = json!("no-such-cluster"))
        .start_unlimited()
        .await;

    assert_eq!(statuses(&stage.get("/", "alice"), 20).await, [200; 20]);
}

#[tokio::test]
async fn limits_in_the_configuration_hold_while_no_limiter_was_ever_reached() {
    let stage = limits(&[])
        .filter(|config| {
            config["limiter"]["cluster"] = json!("no-such-cluster");
            config["limits"] = json!(compiled("shop", &["{name: bootstrap, rate: 3/1h}"]));
        })
        .start_unlimited()
        .await;

    let answers = statuses(&stage.get("/", "alice"), 10).await;

    let allowed = answers.iter().filter(|&&status| status == 200).count();
    assert!((1..=3).contains(&allowed), "{answers:?}");
}

/// Without the cluster's retries, the filter retries calls that were certainly not charged.
#[tokio::test]
async fn the_filter_retries_refused_connections() {
    let mut stage = as_in_istio().await;
    stage.stop_one_limiter().await;
    assert_most_are_decided_by_the_other(&stage).await;
}

//! A denied bucket is not asked about again and again.

use crate::stage::{limits, statuses};

#[tokio::test]
async fn a_denied_client_in_a_loop_costs_the_limiter_nothing() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    let checks = stage.limiter_counter("rl_checks_total").await;
    let started = std::time::Instant::now();

    assert_eq!(statuses(&alice, 200).await, [429; 200]);

    // A denial is kept for at most a second.
    let seconds = started.elapsed().as_secs();
    let asked = stage.limiter_counter("rl_checks_total").await - checks;
    assert!(
        asked <= 2 + 2 * seconds,
        "{asked} checks for 200 denials in {seconds} s"
    );
}

#[tokio::test]
async fn a_denial_is_not_kept_longer_than_it_holds() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/300ms}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);

    let started = std::time::Instant::now();
    while alice.send().await.unwrap().status != 200 {}

    let waited = started.elapsed().as_millis();
    assert!(
        waited <= 600,
        "a token is back after 300 ms, but alice waited {waited} ms"
    );
}

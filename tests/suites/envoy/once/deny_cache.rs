//! Repeated denials come from the deny cache.

use harness::Client;

use crate::stage::{limits, statuses};

#[tokio::test]
async fn a_denied_client_in_a_loop_costs_the_limiter_nothing() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);
    let checks = stage.limiter_counter("rl_checks_total").await;
    let started = std::time::Instant::now();

    assert_eq!(statuses(&alice, 200).await, [429; 200]);

    // A denial is cached for at most a second.
    let seconds = started.elapsed().as_secs();
    let asked = stage.limiter_counter("rl_checks_total").await - checks;
    assert!(
        asked <= 2 + 2 * seconds,
        "{asked} checks for 200 denials in {seconds} s"
    );
}

/// Before each request, a peek at the limiter shows whether the unit has been refilled. The same loop
/// measures how long that takes, and how long the denial stays cached after it.
#[tokio::test]
async fn a_denial_is_not_kept_longer_than_it_holds() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/300ms}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);

    let peek = r#"{"domain":"shop","descriptor":{"user":"alice","path":"/"},"peek":true}"#;
    let url = format!("{}/v1/check", stage.limiter(0).url());
    let peek = Client::new().post(&url, peek);
    let (mut held, mut late) = (0, 0);
    loop {
        let answer = peek.send().await.unwrap().json().unwrap();
        if alice.send().await.unwrap().status == 200 {
            break;
        }
        if answer["allowed"] == true {
            late += 1;
        } else {
            held += 1;
        }
    }

    // A denial cached for a full second would be late more often than right.
    assert!(late <= 1 + held / 2, "late {late} times after {held}");
}

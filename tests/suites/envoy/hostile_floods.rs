//! Floods of requests, resets and users.

use harness::{Envoy, flood, rapid_resets};
use serde_json::json;

use crate::stage::{Plan, alone, at_once, limits, statuses};

const FIVE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 5/1h}";

/// The headers of the requests that mallory opens and resets.
fn mallory(path: &str) -> [(&str, &str); 5] {
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "shop.example"),
        ("x-user-id", "mallory"),
    ]
}

#[tokio::test]
async fn streams_that_are_reset_at_once_take_nothing_from_others() {
    let stage = limits(&[FIVE_AN_HOUR]).await;
    let port = stage.envoy().port();
    let attack = tokio::spawn(async move { rapid_resets(port, &mallory("/"), 5_000).await });
    let alice = stage.get("/", "alice");

    assert_eq!(at_once(&alice, 30).await, (5, 25));
    attack.await.unwrap().unwrap();

    // Some of her requests were decided before their reset: each is charged once, to her.
    let used = &stage.inspect("per-user", &["user=mallory"])["used"];
    assert!(used.as_u64().unwrap() <= 5, "{used}");
    let bob = stage.get("/", "bob");
    assert_eq!(statuses(&bob, 6).await, [200, 200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn held_requests_that_are_reset_make_room() {
    let queue = "{name: slow, match: {path: /slow}, per: [user], algorithm: leaky_bucket, \
                 rate: 1/s, burst: 100, over_limit: queue, max_delay: 60s}";
    let stage = alone(&[&queue.replace("per:", "scope: proxy, per:")])
        .filter(|config| config["hold"] = json!({"max": 5}))
        .await;
    // Many times as many requests as the queue may hold, all of them reset.
    let port = stage.envoy().port();
    rapid_resets(port, &mallory("/slow"), 500).await.unwrap();

    let alice = stage.get("/slow", "alice");

    // The first request passes at once; the second is held for a second and passes.
    assert_eq!(at_once(&alice, 2).await, (2, 0));
}

/// The number of random users; `RL_TEST_KEYS=10000000` for a long manual run.
fn keys() -> u64 {
    let count = std::env::var("RL_TEST_KEYS").ok();
    count.map_or(100_000, |text| text.parse().unwrap())
}

/// Buckets in the proxy, and denials of a limiter's bucket. Both kinds of memory reach their bound
/// long before the keys end.
fn many_keys(buckets: u64) -> Plan {
    let denied = "{name: nobody, match: {host: denied}, per: [user], algorithm: fixed_window, \
                  rate: 0/1h}";
    limits(&[
        "{name: here, match: {host: here}, per: [user], rate: 5/1h, scope: proxy}",
        denied,
        "{name: there, match: {host: there}, per: [user], rate: 5/1h}",
    ])
    .in_memory()
    .filter(move |config| config["memory"] = json!({"buckets": buckets}))
}

/// Requests of a different user each, except that every hundredth is the victim's.
fn request(host: &str, number: u64) -> Vec<u8> {
    let user = match number % 100 {
        0 => "victim".to_owned(),
        _ => format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    };
    format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-user-id: {user}\r\n\r\n").into_bytes()
}

async fn send(envoy: &Envoy, host: &'static str, total: u64) -> u64 {
    let allowed = flood(envoy.port(), 24, total, move |number| request(host, number));
    allowed.await.unwrap()
}

#[tokio::test]
async fn memory_is_bounded_whatever_users_come() {
    let stage = many_keys(4096).await;
    let envoy = stage.envoy();
    // Until everything has grown to its bound, the heap's slack included.
    for host in ["here", "denied", "there"] {
        send(envoy, host, 20_000).await;
    }
    let before = envoy.process().memory_bytes().unwrap();

    send(envoy, "here", keys()).await;
    for host in ["denied", "there"] {
        send(envoy, host, keys() / 10).await;
    }

    let after = envoy.process().memory_bytes().unwrap();
    let grown = after.saturating_sub(before);
    println!("{} keys: {before} bytes, then {after}", keys());
    assert!(grown < 3 << 20, "{grown} bytes more, after {before}");
}

/// The victim's bucket is evicted again and again, and returns without a new burst; each other user
/// is served once.
#[tokio::test]
async fn a_flood_of_users_gives_nobody_more() {
    let stage = many_keys(512).await;
    let total = 6_000;
    for host in ["here", "there"] {
        let allowed = send(stage.envoy(), host, total).await;
        let others = total - total / 100;
        assert!(allowed <= others + 5, "{host}: {allowed} of {others}");
        let again = stage.get("/", "victim").header("host", host);
        assert_eq!(statuses(&again, 3).await, [429; 3], "{host}");
    }
    // If the limiter keeps the buckets, all other users are served.
    let allowed = send(stage.envoy(), "there", 1_000).await;
    assert_eq!(allowed, 990);
}

//! Calendar limits: responses name the midnight of the limit's time zone, with and without a limiter.

use std::time::{SystemTime, UNIX_EPOCH};

use harness::{Reply, Request};

use crate::stage::{Stage, header, limits, statuses};

const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs()
}

/// The seconds to midnight in a zone with this constant offset from UTC.
fn to_midnight_s(ahead_s: u64) -> u64 {
    DAY_S - (now_s() + ahead_s) % DAY_S
}

/// Two zones without daylight saving time, with their offsets from UTC: of three zones, those whose
/// midnight is not near.
fn zones() -> [(&'static str, u64); 2] {
    let all = [
        ("Asia/Kathmandu", 5 * HOUR_S + 2700),
        ("Asia/Tokyo", 9 * HOUR_S),
        ("Pacific/Tahiti", 14 * HOUR_S),
    ];
    let mut usable = all.into_iter().filter(|zone| to_midnight_s(zone.1) > 600);
    [usable.next().unwrap(), usable.next().unwrap()]
}

/// Whether a number of seconds, rounded up, ends at the zone's midnight; tolerates a slow test.
fn assert_midnight(seconds: u64, ahead_s: u64, what: &str) {
    let expected = to_midnight_s(ahead_s);
    let near = expected.saturating_sub(2)..=expected + 5;
    assert!(near.contains(&seconds), "{what}: {seconds}, not {expected}");
}

fn parameter(reply: &Reply, name: &str, key: &str) -> u64 {
    let value = header(reply, name);
    let found = value.split(';').find_map(|part| part.strip_prefix(key));
    found
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("{name}: {value}"))
}

/// Uses up the rest of a bucket; every response names midnight.
async fn assert_denied_until_midnight(request: &Request, ahead_s: u64, what: &str) {
    let denied = loop {
        let reply = request.send().await.unwrap();
        if reply.status == 429 {
            break reply;
        }
        assert_eq!(reply.status, 200, "{what}");
        assert_midnight(parameter(&reply, "ratelimit", "t="), ahead_s, what);
    };
    let retry_after = header(&denied, "retry-after").parse().unwrap();
    assert_midnight(retry_after, ahead_s, what);
    let reset = header(&denied, "x-ratelimit-reset").parse().unwrap();
    assert_midnight(reset, ahead_s, what);
    assert_eq!(
        parameter(&denied, "ratelimit-policy", "w="),
        DAY_S,
        "{what}"
    );
}

async fn stage() -> (Stage, [(&'static str, u64); 2]) {
    let zones = zones();
    let [(zone, _), (customers, _)] = zones;
    let limit = format!(
        "{{name: per-user, per: [user], rate: 6/day, time_zone: {zone}, overrides: [\
         {{values: {{user: carol}}, time_zone: {customers}}}]}}"
    );
    (limits(&[&limit]).await, zones)
}

#[tokio::test]
async fn responses_name_the_zones_midnight() {
    let (stage, [(zone, ours), (_, customers)]) = stage().await;
    assert_denied_until_midnight(&stage.get("/", "alice"), ours, "alice").await;
    assert_denied_until_midnight(&stage.get("/", "carol"), customers, "carol").await;
    let shown = stage.inspect("per-user", &["user=alice"]);
    assert_eq!(shown["window"]["time_zone"], zone);
    let ends = shown["window"]["ends"].as_str().unwrap();
    assert!(
        ends.contains("T00:00:00+") || ends.contains("T00:00:00-"),
        "{ends}"
    );
    assert_eq!(shown["used"], 6);
}

#[tokio::test]
async fn without_a_limiter_the_same_midnight_holds() {
    let (mut stage, [(_, ours), (_, customers)]) = stage().await;
    let users = [("alice", ours), ("carol", customers)];
    for (user, _) in users {
        assert_eq!(statuses(&stage.get("/", user), 2).await, [200; 2]);
    }
    stage.stop_limiters().await;
    for (user, ahead_s) in users {
        assert_denied_until_midnight(&stage.get("/", user), ahead_s, user).await;
    }
    stage.start_limiters().await;
    for (user, ahead_s) in users {
        // All six units were used, by the limiter or the fallback.
        let request = stage.get("/", user);
        assert_eq!(statuses(&request, 3).await, [429; 3], "{user}");
        assert_denied_until_midnight(&request, ahead_s, user).await;
    }
}

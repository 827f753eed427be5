//! Checks that wait for permits (`wait_ms`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use harness::until;
use limiter::Settings;
use serde_json::json;

use crate::support::{PATIENCE, Service, quick, tuned};

/// One unit; the next comes two seconds later.
const SLOW: &str = "  - {name: per-user, per: [user], rate: 1/2s}\n";

/// Longer than any test: a check that is answered did not wait to the end.
const LONG: Duration = Duration::from_hours(1);

/// Settings that let checks wait that long.
fn patient() -> Settings {
    Settings {
        max_wait: LONG,
        ..quick()
    }
}

#[tokio::test]
async fn a_check_that_waits_is_allowed_when_its_turn_comes() -> Result<()> {
    let service = Service::with_settings(SLOW, patient()).await?;
    assert!(service.allows("a").await?);
    let wait = json!({"descriptor": {"user": "a"}, "wait_ms": LONG.as_millis()});
    let answer = service.ask(wait).await?.json()?;
    assert_eq!(answer["allowed"], true);
    assert!(answer.get("reason").is_none());
    Ok(())
}

#[tokio::test]
async fn a_check_that_cannot_pass_in_time_is_denied_at_once() -> Result<()> {
    let limits = "  - {name: per-user, per: [user], rate: 1/1d}\n";
    let service = Service::with_settings(limits, patient()).await?;
    assert!(service.allows("a").await?);
    for (cost, reason) in [(1, "wait_too_short"), (2, "exceeds_capacity")] {
        let wait = json!({"descriptor": {"user": "a"}, "cost": cost, "wait_ms": LONG.as_millis()});
        let answer = service.ask(wait).await?.json()?;
        assert_eq!(
            (&answer["allowed"], &answer["reason"]),
            (&json!(false), &json!(reason))
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_invalid_wait_is_refused() -> Result<()> {
    let service = Service::with(SLOW).await?;
    for wrong in [
        json!({"descriptor": {}, "wait_ms": 30_001}),
        json!({"descriptor": {}, "wait_ms": 100, "peek": true}),
        json!({"descriptor": {}, "wait_ms": 100, "cost": 0}),
        json!({"checks": [], "wait_ms": 100}),
    ] {
        let reply = service.ask(wrong.clone()).await?;
        assert_eq!(reply.status, 400, "{wrong}");
        assert_eq!(reply.json()?["error"]["field"], "wait_ms", "{wrong}");
    }
    Ok(())
}

#[tokio::test]
async fn waiting_checks_are_bounded_and_do_not_count_as_inflight() -> Result<()> {
    let one = tuned(|s| (s.max_waiters, s.max_inflight) = (1, 1));
    let service = Service::with_settings("  - {name: all, rate: 1/3s}\n", one).await?;
    let service = Arc::new(service);
    assert!(service.allows("a").await?);
    let wait = json!({"descriptor": {"user": "a"}, "wait_ms": 20_000});
    let waiter = {
        let (service, wait) = (Arc::clone(&service), wait.clone());
        tokio::spawn(async move { service.ask(wait).await })
    };
    until("it waits", PATIENCE, async || {
        (service.metric("rl_waiting_checks").await.ok()? == 1).then_some(())
    })
    .await?;
    let reply = service.ask(wait).await?;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()?["error"]["code"], "too_many_waiters");
    assert!(
        !service.allows("a").await?,
        "decided, though somebody waits"
    );
    assert_eq!(waiter.await??.json()?["allowed"], true);
    Ok(())
}

#[tokio::test]
async fn the_memory_of_a_waiting_check_is_counted() -> Result<()> {
    let service = Service::with("  - {name: all, rate: 1/3s}\n").await?;
    let service = Arc::new(service);
    assert!(service.allows("a").await?);
    let long = "x".repeat(60_000);
    let wait = json!({"descriptor": {"user": long}, "wait_ms": 20_000});
    let waiter = {
        let service = Arc::clone(&service);
        tokio::spawn(async move { service.ask(wait).await })
    };
    until("it waits", PATIENCE, async || {
        (service.metric("rl_waiting_checks").await.ok()? == 1).then_some(())
    })
    .await?;
    assert!(service.metric("rl_body_bytes").await? > 60_000);
    assert_eq!(waiter.await??.json()?["allowed"], true);
    assert_eq!(service.metric("rl_body_bytes").await?, 0);
    Ok(())
}

/// Eight requests that all fit ask again each time that another takes the unit: 28 denials, of which no
/// client sees one.
#[tokio::test]
async fn a_request_that_waits_counts_once_by_its_final_answer() -> Result<()> {
    let limits = "  - {name: per-user, per: [user], rate: 4/1s, burst: 1,
     penalty: {after: 20, within: 1m, for: 1h}}\n";
    let service = Arc::new(Service::with(limits).await?);
    let ask = |wait_ms: u64| {
        let service = Arc::clone(&service);
        let wait = json!({"descriptor": {"user": "a"}, "wait_ms": wait_ms});
        tokio::spawn(async move { service.ask(wait).await?.json() })
    };
    let waiting: Vec<_> = (0..8).map(|_| ask(20_000)).collect();
    for waiting in waiting {
        let answer = waiting.await??;
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    let checks = |decision: &str| {
        format!("rl_checks_total{{domain=\"shop\",limit=\"per-user\",decision=\"{decision}\"}}")
    };
    assert_eq!(service.metric(&checks("allowed")).await?, 8);
    assert_eq!(service.metric(&checks("denied")).await?, 0);
    // Those that cannot wait long enough are denied, and counted.
    let mut denied = 0;
    while denied < 3 {
        let answer = ask(1).await??;
        denied += u64::from(answer["allowed"] == false);
    }
    assert_eq!(service.metric(&checks("denied")).await?, denied);
    Ok(())
}

/// A slot that is held for an hour may be freed at any moment, however short the wait.
#[tokio::test]
async fn a_check_waits_for_a_slot_until_its_wait_ends() -> Result<()> {
    const ONE: &str =
        "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 1, slot_ttl: 1h}\n";
    let service = Arc::new(Service::with(ONE).await?);
    let first = service
        .ask(json!({"descriptor": {"user": "a"}}))
        .await?
        .json()?;
    let began = Instant::now();
    let wait = json!({"descriptor": {"user": "a"}, "wait_ms": 300});
    let answer = service.ask(wait).await?.json()?;
    assert_eq!(answer["reason"], "wait_too_short", "{answer}");
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "{:?}",
        began.elapsed()
    );
    let waiter = {
        let service = Arc::clone(&service);
        let wait = json!({"descriptor": {"user": "a"}, "wait_ms": 20_000});
        tokio::spawn(async move { service.ask(wait).await })
    };
    until("it waits", PATIENCE, async || {
        (service.metric("rl_waiting_checks").await.ok()? == 1).then_some(())
    })
    .await?;
    let slots = json!({"in-flight": first["limits"][0]["slot"]});
    let release = json!({"domain": "shop", "descriptor": {"user": "a"}, "slots": slots});
    let freed = Instant::now();
    service
        .post("/v1/release", release.to_string())
        .send()
        .await?;
    assert_eq!(waiter.await??.json()?["allowed"], true);
    assert!(
        freed.elapsed() < Duration::from_millis(900),
        "{:?}",
        freed.elapsed()
    );
    let checks = "rl_checks_total{domain=\"shop\",limit=\"in-flight\",decision=\"denied\"}";
    assert_eq!(service.metric(checks).await?, 1, "the one whose wait ended");
    Ok(())
}

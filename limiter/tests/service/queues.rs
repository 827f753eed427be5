//! Slots of queues, for programs that call the limiter themselves.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::support::{Scripted, Service, tuned};

/// Slots half a second apart.
const EXPORTS: &str = "  - {name: exports, algorithm: leaky_bucket, rate: 2/s, burst: 100, \
                       over_limit: queue, max_delay: 1h}\n";

/// The delay and the slot that a request is given.
async fn ask(service: &Service, fields: Value) -> Result<(u64, String)> {
    let mut fields = fields;
    fields["descriptor"] = json!({});
    let answer = service.ask(fields).await?.json()?;
    let delay_ms = answer["delay_ms"].as_u64();
    let slot = answer["limits"][0]["slot"].as_str().unwrap_or_default();
    Ok((
        delay_ms.with_context(|| answer.to_string())?,
        slot.to_owned(),
    ))
}

/// Whether a delay equals this many slots, however slow the test is.
fn behind(delay_ms: u64, slots: u64) -> bool {
    (slots * 500 - 400..=slots * 500).contains(&delay_ms)
}

#[tokio::test]
async fn a_program_frees_the_slot_of_a_request_that_does_not_start() -> Result<()> {
    let service = Service::with(EXPORTS).await?;
    let mut slots = Vec::new();
    for n in 0..20 {
        let (delay_ms, slot) = ask(&service, json!({})).await?;
        assert!(n == 0 || behind(delay_ms, n), "{n}: {delay_ms}");
        slots.push(slot);
    }
    let free = json!({"cost": 0, "free": {"exports": slots[10]}});
    ask(&service, free.clone()).await?;
    let (delay_ms, other) = ask(&service, json!({})).await?;
    assert!(behind(delay_ms, 10), "{delay_ms}");
    // A repeat changes nothing: the slot now belongs to another request.
    ask(&service, free).await?;
    let (delay_ms, _) = ask(&service, json!({})).await?;
    assert!(behind(delay_ms, 20), "{delay_ms}");
    // One check may both free a slot and take one.
    let (delay_ms, _) = ask(&service, json!({"free": {"exports": other}})).await?;
    assert!(behind(delay_ms, 10), "{delay_ms}");
    Ok(())
}

#[tokio::test]
async fn a_check_may_ask_for_a_shorter_delay_than_the_queue_has() -> Result<()> {
    let service = Service::with(EXPORTS).await?;
    for _ in 0..5 {
        ask(&service, json!({})).await?;
    }
    let fields = json!({"descriptor": {}, "max_delay_ms": 1000});
    let answer = service.ask(fields).await?.json()?;
    assert_eq!(answer["allowed"], false, "{answer}");
    assert_eq!(answer["limits"][0]["charged"], 0);
    Ok(())
}

#[tokio::test]
async fn an_invalid_slot_is_refused() -> Result<()> {
    let service = Service::with(EXPORTS).await?;
    for wrong in ["", "1.2.3", "soon", "-1.0.0.0.1"] {
        let fields = json!({"descriptor": {}, "free": {"exports": wrong}});
        let reply = service.ask(fields).await?;
        assert_eq!(reply.status, 400, "{wrong}");
        assert_eq!(reply.json()?["error"]["field"], "free.exports");
    }
    Ok(())
}

/// The store decides after the client has given up.
#[tokio::test]
async fn the_slot_of_a_client_that_gave_up_is_freed() -> Result<()> {
    let store = Scripted::with(EXPORTS, 1).await?;
    let settings = tuned(|s| s.store_timeout = Duration::from_secs(1));
    let service = Service::ready_on(store.clone(), settings).await?;
    ask(&service, json!({})).await?;
    let late = service.ask(json!({"descriptor": {}})).await?;
    assert_eq!(late.status, 503);
    store.let_through(1);
    // The call that frees the slot.
    store.entered(3).await?;
    store.let_through(2);
    let (delay_ms, _) = ask(&service, json!({})).await?;
    assert!(delay_ms <= 500, "{delay_ms}");
    Ok(())
}

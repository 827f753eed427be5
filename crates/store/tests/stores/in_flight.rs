//! Slots of requests in flight that the store has lost, while their limit is edited.

use std::{sync::Arc, time::Duration};

use algorithms::{Missing, Pace, SlotAct, SlotOp};
use anyhow::{Context, Result};
use harness::Engine;
use policy::{Compiled, SlotId};
use protocol::{Check, LimitRequest, Slot};
use store::{Change, CheckError, ResetScope, Store};

use crate::{
    given::{check, current, name, policy, publish, read, request, reset, units_left, write},
    on_every_store,
    servers::{Server, until},
};

type Shared = Arc<dyn Store>;

on_every_store!(
    a_lost_slot_is_entered_again_after_edits_but_not_after_a_reset,
    an_adaptive_limit_grows_is_cut_by_an_edit_and_starts_anew_after_a_reset,
);

const TWO_AT_ONCE: &str =
    "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 2, slot_ttl: 100ms}\n";

fn taking(secret: u64) -> Check {
    Check {
        slot: Some(SlotId::new(1_763_000_000, 9, secret)),
        ..request(&[("user", "alice")])
    }
}

fn acting(act: SlotAct, slot: Slot) -> Check {
    let entry = LimitRequest {
        slots: vec![SlotOp { slot, act }],
        ..LimitRequest::new(name("in-flight"))
    };
    Check {
        cost: 0,
        limits: vec![entry],
        ..request(&[("user", "alice")])
    }
}

async fn take(store: &Shared, policy: &Compiled, secret: u64) -> Result<Slot> {
    let answer = check(store, policy, &taking(secret)).await?;
    answer.limits[0].verdict.slot.context("a slot")
}

/// Renews a slot; returns whether it was gone.
async fn is_missing(store: &Shared, policy: &Compiled, slot: Slot) -> Result<bool> {
    let answer = check(store, policy, &acting(SlotAct::Renew, slot)).await?;
    let bits = answer.limits[0].verdict.slot;
    Ok(bits.is_some_and(|bits| Missing::new(bits.start_ms, bits.parts).contains(0)))
}

/// Enters a slot; returns how many of two are left then.
async fn left_after_entering(store: &Shared, policy: &Compiled, slot: Slot) -> Result<u64> {
    let answer = check(store, policy, &acting(SlotAct::Enter, slot)).await?;
    Ok(units_left(&answer))
}

/// Waits until the slots of one user are gone.
async fn lapse(store: &Shared, policy: &Compiled) -> Result<()> {
    let alice = [Some(b"alice".to_vec())];
    until("they expire", Duration::from_secs(10), async || {
        let seen = store.inspect(policy, &name("in-flight"), &alice, 1).await;
        (seen.ok()?.answer.verdict.decision.remaining == 2).then_some(())
    })
    .await?;
    Ok(())
}

const ADAPTIVE: &str = "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 2, \
                        adaptive: {min: 1, max: 9, latency: 2ms}}\n";

async fn an_adaptive_limit_grows_is_cut_by_an_edit_and_starts_anew_after_a_reset(
    store: Shared,
) -> Result<()> {
    let first = publish(&store, &policy(ADAPTIVE)).await?;
    let held = take(&store, &first, 0).await?;
    let mut secret = 0;
    until("a window ends", Duration::from_secs(20), async || {
        secret += 1;
        let slot = take(&store, &first, secret).await.ok()?;
        let freed = acting(SlotAct::Answered(Pace::InTime), slot);
        let answer = check(&store, &first, &freed).await.ok()?;
        (answer.limits[0].limit == Some(3)).then_some(())
    })
    .await?;
    let alice = [Some(b"alice".to_vec())];
    let inspected = store.inspect(&first, &name("in-flight"), &alice, 1).await?;
    let state = inspected.answer.verdict.adaptive.context("a state")?;
    assert_eq!((state.limit_milli, state.moved_from_milli), (3000, 2000));
    assert_eq!(inspected.answer.verdict.decision.remaining, 2);

    let narrow = publish(&store, &policy(&ADAPTIVE.replace("max: 9", "max: 2"))).await?;
    let renewed = check(&store, &narrow, &acting(SlotAct::Renew, held)).await?;
    assert_eq!(renewed.limits[0].limit, Some(2));

    let wide = publish(&store, &policy(ADAPTIVE)).await?;
    let renewed = check(&store, &wide, &acting(SlotAct::Renew, held)).await?;
    assert_eq!(
        renewed.limits[0].limit,
        Some(3),
        "no answer was counted meanwhile"
    );
    reset(&store, &wide.limits()[0], ResetScope::All).await?;
    let reset = current(&store).await?;
    let again = check(&store, &reset, &taking(0)).await?;
    assert_eq!((again.limits[0].limit, units_left(&again)), (Some(2), 1));
    Ok(())
}

async fn a_lost_slot_is_entered_again_after_edits_but_not_after_a_reset(
    store: Shared,
) -> Result<()> {
    let first = publish(&store, &policy(TWO_AT_ONCE)).await?;
    let slot = take(&store, &first, 1).await?;
    let base = read(&store).await?;
    let change = Change::Override {
        limit: &name("in-flight"),
        values: &[Some(b"bob".to_vec())],
        to: Some(&unlimited(&first)),
    };
    write(&store, &base, change).await?;
    let overridden = current(&store).await?;
    lapse(&store, &overridden).await?;
    assert!(is_missing(&store, &overridden, slot).await?);
    assert_eq!(left_after_entering(&store, &overridden, slot).await?, 1);
    let edited = TWO_AT_ONCE.replace("100ms", "200ms");
    let edited = publish(&store, &policy(&edited)).await?;
    lapse(&store, &edited).await?;
    assert_eq!(left_after_entering(&store, &edited, slot).await?, 1);

    reset(&store, &edited.limits()[0], ResetScope::All).await?;
    let reset = current(&store).await?;
    assert_eq!(left_after_entering(&store, &reset, slot).await?, 2);
    // Later edits do not end that, nor does a reset concern slots given after it.
    let again = publish(&store, &policy(TWO_AT_ONCE)).await?;
    assert_eq!(left_after_entering(&store, &again, slot).await?, 2);
    let later = take(&store, &again, 2).await?;
    lapse(&store, &again).await?;
    assert_eq!(left_after_entering(&store, &again, later).await?, 1);
    // A limit that is created again under the same name is another one.
    publish(&store, &policy("  - {name: other, rate: 1/s}\n")).await?;
    let anew = publish(&store, &policy(TWO_AT_ONCE)).await?;
    assert_eq!(anew.limits()[0].reset_generation, 0);
    Ok(())
}

fn unlimited(policy: &Compiled) -> policy::Override {
    let json = "{\"values\":{\"user\":\"bob\"},\"unlimited\":true}";
    let node = serde_json::from_str(json).expect("JSON");
    let limit = &policy.limits()[0];
    limits_file::override_from_node(limit, &node).expect("an override")
}

/// The bucket is emptied before the limits show the reset. Until a limiter has read them, it enters
/// no slots there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_bucket_that_was_reset_refuses_limiters_with_older_limits() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let before = publish(&store, &policy(TWO_AT_ONCE)).await?;
    let slot = take(&store, &before, 1).await?;
    let alice = [Some(b"alice".to_vec())];
    let limit = name("in-flight");
    let key = store.inspect(&before, &limit, &alice, 1).await?.key;
    let scope = ResetScope::Bucket(&alice);
    reset(&store, &before.limits()[0], scope).await?;
    let stored: Vec<String> = server.ask(&["ZRANGE", &key, "0", "-1"]).await?;
    assert_eq!(stored, ["t", "g"], "marks alone");
    let lives_ms: i64 = server.ask(&["PTTL", &key]).await?;
    assert!((30_000..=60_000).contains(&lives_ms), "{lives_ms}");
    let refused = check(&store, &before, &acting(SlotAct::Enter, slot)).await;
    assert_eq!(refused, Err(CheckError::Stale));
    let after = current(&store).await?;
    assert_eq!(left_after_entering(&store, &after, slot).await?, 2);
    take(&store, &after, 2).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn no_slot_is_entered_beyond_two_hundred_thousand() -> Result<()> {
    const HELD_MAX: usize = 200_000;
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let limits = TWO_AT_ONCE.replace("100ms", "1h");
    let limits = publish(&store, &policy(&limits)).await?;
    let [first, second] = [1, 2].map(|n| take(&store, &limits, n));
    let (first, second) = (first.await?, second.await?);
    check(&store, &limits, &acting(SlotAct::Free(1), second)).await?;
    let (limit, alice) = (name("in-flight"), [Some(b"alice".to_vec())]);
    let seen = store.inspect(&limits, &limit, &alice, 1).await?;
    let expiry = (seen.now_ms + 1_000_000).to_string();
    let names: Vec<String> = (1..HELD_MAX).map(|n| format!("9:{n}:3600000")).collect();
    for names in names.chunks(10_000) {
        let mut words = vec!["ZADD", &seen.key];
        words.extend(names.iter().flat_map(|name| [expiry.as_str(), name]));
        server.command(&words).await?;
    }
    let held = async || {
        let marked: usize = server.ask(&["ZCARD", &seen.key]).await?;
        anyhow::Ok(marked - 2)
    };
    assert_eq!(held().await?, HELD_MAX);
    // A slot that is there already is renewed, and one can be entered in the place of another.
    for slot in [second, first] {
        check(&store, &limits, &acting(SlotAct::Enter, slot)).await?;
        assert_eq!(held().await?, HELD_MAX);
    }
    assert!(is_missing(&store, &limits, second).await?);
    check(&store, &limits, &acting(SlotAct::Free(1), first)).await?;
    check(&store, &limits, &acting(SlotAct::Enter, second)).await?;
    assert_eq!(held().await?, HELD_MAX);
    Ok(())
}

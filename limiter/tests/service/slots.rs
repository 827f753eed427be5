//! Slots of requests in flight, for programs and for Envoy's rate limit service.

use std::io::Write as _;

use anyhow::{Context, Result};
use harness::until;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::{PATIENCE, Service, quick};

const TOKEN: &str = "9f0c2a7d41b85e63";

const TWO: &str = "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 2, slot_ttl: 1s}\n  \
                   - {name: total, rate: 1000/1d}\n";

/// The slot of a request that passes; an error if it is denied.
async fn take(service: &Service, user: &str) -> Result<String> {
    let fields = json!({"descriptor": {"user": user}, "cost": 7});
    let answer = service.ask(fields).await?.json()?;
    let slot = answer["limits"][0]["slot"].as_str().map(str::to_owned);
    assert_eq!(answer["allowed"], slot.is_some(), "{answer}");
    slot.with_context(|| answer.to_string())
}

async fn used(service: &Service, user: &str) -> Result<u64> {
    let fields = json!({"descriptor": {"user": user}, "peek": true});
    let answer = service.ask(fields).await?.json()?;
    let remaining = answer["limits"][0]["remaining"].as_u64();
    Ok(2 - remaining.context("no answer")?)
}

async fn post(
    service: &Service,
    path: &str,
    user: &str,
    slot: &str,
    more: &Value,
) -> Result<Value> {
    let mut body =
        json!({"domain": "shop", "descriptor": {"user": user}, "slots": {"in-flight": slot}});
    for (field, value) in more.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    service.post(path, body.to_string()).send().await?.json()
}

#[tokio::test]
async fn a_program_holds_and_frees_slots() -> Result<()> {
    let service = Service::with(TWO).await?;
    let (first, second) = (
        take(&service, "alice").await?,
        take(&service, "alice").await?,
    );
    let denied = take(&service, "alice").await.unwrap_err().to_string();
    let denied: Value = serde_json::from_str(&denied)?;
    let wait_ms = denied["retry_after_ms"].as_i64().unwrap();
    assert!((1..=1000).contains(&wait_ms), "{denied}");
    assert_eq!(denied["limits"][1]["charged"], 0, "all or nothing");
    take(&service, "bob").await?;

    // A slot is freed once, however often it is released, and only by its exact id.
    let guess = first.replacen('.', ".1", 1);
    assert_eq!(
        post(&service, "/v1/release", "alice", &guess, &json!({})).await?,
        json!({"missing": []})
    );
    assert_eq!(used(&service, "alice").await?, 2);
    for _ in 0..3 {
        post(&service, "/v1/release", "alice", &first, &json!({})).await?;
        assert_eq!(used(&service, "alice").await?, 1);
    }
    // The id is unknown in another bucket.
    post(&service, "/v1/release", "bob", &second, &json!({})).await?;
    assert_eq!(used(&service, "bob").await?, 1);
    assert_eq!(
        service
            .metric("rl_slots_taken_total{domain=\"shop\",limit=\"in-flight\"}")
            .await?,
        3
    );
    Ok(())
}

#[tokio::test]
async fn a_slot_lives_as_long_as_it_is_renewed_and_may_be_entered_again() -> Result<()> {
    let service = Service::with(TWO).await?;
    let slot = take(&service, "alice").await?;
    for _ in 0..2 {
        take(&service, "bob").await?;
        until("one that is not renewed lapses", PATIENCE, async || {
            let renewed = post(&service, "/v1/renew", "alice", &slot, &json!({})).await;
            assert_eq!(renewed.ok()?, json!({"missing": []}));
            (used(&service, "bob").await.ok()? == 0).then_some(())
        })
        .await?;
    }
    until("it lapses", PATIENCE, async || {
        (used(&service, "alice").await.ok()? == 0).then_some(())
    })
    .await?;
    let (other, another) = (
        take(&service, "alice").await?,
        take(&service, "alice").await?,
    );
    let answer = post(&service, "/v1/renew", "alice", &slot, &json!({})).await?;
    assert_eq!(answer, json!({"missing": ["in-flight"]}));
    assert_eq!(
        used(&service, "alice").await?,
        2,
        "a renewal enters nothing"
    );
    // The request still runs: three of two are in flight, and none is admitted until only one is.
    post(
        &service,
        "/v1/renew",
        "alice",
        &slot,
        &json!({"enter": true}),
    )
    .await?;
    post(&service, "/v1/release", "alice", &other, &json!({})).await?;
    assert!(take(&service, "alice").await.is_err());
    post(&service, "/v1/release", "alice", &another, &json!({})).await?;
    take(&service, "alice").await?;
    Ok(())
}

#[tokio::test]
async fn one_call_names_many_slots_and_invalid_ones_are_refused() -> Result<()> {
    let service = Service::with(
        "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 2}\n  \
           - {name: exports, match: {user: carol}, algorithm: leaky_bucket, rate: 1/s, over_limit: queue}\n",
    )
    .await?;
    let (first, second) = (take(&service, "alice").await?, take(&service, "bob").await?);
    let body = json!({"domain": "shop", "requests": [
        {"descriptor": {"user": "alice"}, "slots": {"in-flight": first}},
        {"descriptor": {"user": "bob"}, "slots": {"in-flight": second}},
        {"descriptor": {"user": "bob"}, "slots": {"none": second}},
    ]});
    let answer = service
        .post("/v1/release", body.to_string())
        .send()
        .await?
        .json()?;
    let results = &answer["results"];
    assert_eq!(
        (&results[0], &results[1]),
        (&json!({"missing": []}), &json!({"missing": []}))
    );
    assert_eq!(results[2]["error"]["code"], "unknown_limit", "{answer}");
    assert_eq!(
        (used(&service, "alice").await?, used(&service, "bob").await?),
        (0, 0)
    );
    for (path, body, status) in [
        (
            "/v1/renew",
            json!({"domain": "shop", "descriptor": {"user": "carol"}, "slots": {"exports": first}}),
            400,
        ),
        (
            "/v1/renew",
            json!({"domain": "shop", "descriptor": {}, "slots": {"in-flight": "x"}}),
            400,
        ),
        (
            "/v1/release",
            json!({"domain": "shop", "descriptor": {}, "slots": {}, "more": 1}),
            400,
        ),
        (
            "/v1/release",
            json!({"domain": "none", "descriptor": {}, "slots": {"in-flight": first}}),
            404,
        ),
    ] {
        let reply = service.post(path, body.to_string()).send().await?;
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
    }
    assert_eq!(service.get("/v1/renew").send().await?.status, 405);
    Ok(())
}

#[tokio::test]
async fn the_rate_limit_service_takes_and_frees_slots() -> Result<()> {
    let service = Service::with(
        "  - {name: in-flight, descriptor: [user], algorithm: concurrency, limit: 2, slot_ttl: 2s}\n",
    )
    .await?;
    let call = async |addend: Option<(u64, bool)>| -> Result<String> {
        let mut descriptor = json!({"entries": [{"key": "user", "value": "alice"}]});
        if let Some((units, negative)) = addend {
            descriptor["hitsAddend"] = json!(units.to_string());
            descriptor["isNegativeHits"] = json!(negative);
        }
        let body = json!({"domain": "shop", "descriptors": [descriptor]});
        let answer = service
            .post("/json", body.to_string())
            .send()
            .await?
            .json()?;
        Ok(answer["overallCode"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    assert_eq!(
        [call(None).await?, call(Some((1, false))).await?],
        ["OK", "OK"]
    );
    assert_eq!(call(None).await?, "OVER_LIMIT");
    call(Some((1, true))).await?;
    assert_eq!([call(None).await?, call(None).await?], ["OK", "OVER_LIMIT"]);
    // Nobody renews them: the ttl bounds a request.
    until("the ttl is over", PATIENCE, async || {
        (call(None).await.ok()? == "OK").then_some(())
    })
    .await
}

/// What a program says of its service counts by the limit's latency, and only for a slot that it holds.
#[tokio::test]
async fn a_release_says_how_long_the_service_took() -> Result<()> {
    let mut tokens = NamedTempFile::new()?;
    writeln!(tokens, "{TOKEN}")?;
    let mut settings = quick();
    settings.page_token_file = Some(tokens.path().to_owned());
    let limits = "  - {name: in-flight, per: [user], algorithm: concurrency, limit: 2, \
                  adaptive: {min: 1, max: 9, latency: 100ms}}\n";
    let service = Service::with_settings(limits, settings).await?;
    let limit = async |user: &str| -> Result<Option<u64>> {
        let fields = json!({"descriptor": {"user": user}, "peek": true});
        let answer = service.ask(fields).await?.json()?;
        Ok(answer["limits"][0]["limit"].as_u64())
    };
    for (user, says, expected) in [
        ("quick", json!({"took": 50}), 3),
        ("fine", json!({"slow": false}), 3),
        ("slow", json!({"took": 101}), 1),
        ("failing", json!({"slow": true}), 1),
    ] {
        let _held = take(&service, user).await?;
        until("a window ends", PATIENCE, async || {
            let slot = take(&service, user).await.ok()?;
            for _ in 0..2 {
                post(&service, "/v1/release", user, &slot, &says)
                    .await
                    .ok()?;
            }
            (limit(user).await.ok()? == Some(expected)).then_some(())
        })
        .await?;
    }
    let page = service.admin("/bucket?domain=shop&limit=in-flight&v.user=slow");
    let page = page.header("authorization", format!("Bearer {TOKEN}"));
    let shown = page.send().await?.text();
    assert!(shown.contains("1 of 1 to 9; fell from 2 at "), "{shown}");
    let unread = json!({"took": "1s"});
    let wrong = post(&service, "/v1/release", "quick", "1.1.1000.1.1", &unread).await?;
    assert_eq!(wrong["error"]["field"], "took");
    Ok(())
}

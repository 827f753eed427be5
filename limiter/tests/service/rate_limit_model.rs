//! The rate limit service against a model of its own: random calls, with everything that decides
//! what they charge, in the memory store and in Redis.

mod calls;
mod limits;
mod model;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use harness::Engine;
use serde_json::{Value, json};

use crate::support::{Server, Service, publish, quick};

use calls::Descriptor;
use limits::{LIMITS, Limit, document};
use model::Model;

const CALLS: usize = 1000;

/// The service's answer in the model's format.
fn shown(answer: &Value) -> String {
    let statuses = answer["statuses"].as_array().unwrap().iter().map(|status| {
        let code = status["code"].as_str().unwrap();
        let left = status["limitRemaining"].as_u64().unwrap_or(0);
        match status["currentLimit"]["name"].as_str() {
            Some(name) => {
                let units = &status["currentLimit"]["requestsPerUnit"];
                format!("{code} {left} of {units} {name:?}")
            }
            None => format!("{code} {left}"),
        }
    });
    let overall = answer["overallCode"].as_str().unwrap();
    format!("{overall}: {}", statuses.collect::<Vec<_>>().join(", "))
}

/// Sends random calls, and compares the answers; returns how many were denied, and after how many a
/// bucket owed.
async fn follow(
    service: &Service,
    limits: &[Limit],
    seed: u64,
    calls: usize,
) -> Result<(usize, usize)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Model::new(limits.to_vec());
    let (mut over, mut debts) = (0, 0);
    for call in 0..calls {
        let count = random.usize(1..=4);
        let descriptors: Vec<_> = (0..count)
            .map(|_| Descriptor::random(&mut random))
            .collect();
        let hits = random.i64(0..4);
        let sent: Value = descriptors.iter().map(Descriptor::json).collect();
        let body = json!({"domain": "shop", "hitsAddend": hits, "descriptors": sent});
        let reply = service.post("/json", body.to_string()).send().await?;
        let expected = model.call(&descriptors, hits);
        assert_eq!(
            shown(&reply.json()?),
            expected,
            "seed {seed}, call {call}: {hits} {descriptors:?}\n{}",
            document(limits)
        );
        over += usize::from(expected.starts_with("OVER"));
        debts += usize::from(model.used.values().any(|used| *used > 9));
    }
    Ok((over, debts))
}

async fn holds(service: &Service) -> Result<()> {
    let (over, debts) = follow(service, &LIMITS, 35, CALLS).await?;
    // The calls are chosen so that many are allowed, many are denied, and buckets owe.
    assert!((CALLS / 4..CALLS * 3 / 4).contains(&over), "{over}");
    assert!(debts > 0);
    Ok(())
}

#[tokio::test]
async fn random_calls_are_charged_as_a_model_charges_them() -> Result<()> {
    holds(&Service::with(&document(&LIMITS)).await?).await
}

#[tokio::test]
async fn random_calls_to_random_files_are_answered_as_by_the_original() -> Result<()> {
    for seed in 0..30 {
        let limits = limits::random(&mut fastrand::Rng::with_seed(seed));
        let service = Service::with(&document(&limits)).await?;
        follow(&service, &limits, seed, 50).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn random_calls_are_charged_as_a_model_charges_them_in_redis_and_valkey() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        let store = server.store()?;
        publish(&store, &document(&LIMITS)).await?;
        holds(&Service::ready_on(store, quick()).await?).await?;
    }
    Ok(())
}

fn wall_ms() -> Result<u128> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())
}

#[tokio::test]
async fn the_windows_of_a_descriptors_own_limit_begin_at_the_epoch() -> Result<()> {
    let service = Service::with(&document(&LIMITS)).await?;
    let day = 86_400;
    for (unit, seconds) in [
        ("SECOND", 1),
        ("MINUTE", 60),
        ("HOUR", 3600),
        ("DAY", day),
        ("WEEK", 7 * day),
        ("MONTH", 30 * day),
        ("YEAR", 365 * day),
    ] {
        let descriptor = json!({
            "entries": [{"key": "z", "value": unit}],
            "limit": {"requestsPerUnit": 5, "unit": unit}
        });
        let body = json!({"domain": "shop", "descriptors": [descriptor]}).to_string();
        let before = wall_ms()?;
        let answer = service.post("/json", body).send().await?.json()?;
        let after = wall_ms()?;
        let left = answer["statuses"][0]["durationUntilReset"].as_str();
        let left = left
            .and_then(|text| text.strip_suffix('s'))
            .context("a duration")?;
        let left = left.parse::<u128>()? * 1000;
        let period = seconds * 1000;
        let edge = (after + left) / period * period;
        assert!(
            edge + 1000 > before + left,
            "{unit}: {left} ms, rounded up to seconds, from {before} to {after}"
        );
    }
    Ok(())
}

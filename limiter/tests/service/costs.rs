//! Units that a program reserves and settles, over HTTP.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::support::Service;

const TOKENS: &str = "  - name: tokens
    per: [user]
    rate: 1000/1d
    cost: {from: {response_json: /usage/total_tokens}, reserve: {default: 100}, max: 5000}
";

async fn post(service: &Service, path: &str, body: Value) -> Result<Value> {
    let reply = service.post(path, body.to_string()).send().await?;
    Ok(serde_json::from_slice(&reply.body)?)
}

async fn reserve(service: &Service, costs: Value) -> Result<Value> {
    let body =
        json!({"domain": "shop", "descriptor": {"user": "alice"}, "reserve": true, "costs": costs});
    post(service, "/v1/check", body).await
}

fn token(answer: &Value) -> Result<&str> {
    answer["token"].as_str().context("a token")
}

#[tokio::test]
async fn unused_units_are_given_back_once() -> Result<()> {
    let service = Service::with(TOKENS).await?;
    let first = reserve(&service, json!({})).await?;
    assert_eq!(first["remaining"], 900, "{first}");
    let settle = json!({"token": token(&first)?, "cost": 30});
    for _ in 0..2 {
        let settled = post(&service, "/v1/settle", settle.clone()).await?;
        assert_eq!(settled["remaining"], 970, "{settled}");
    }
    // A cost above the reservation is charged whatever is left, up to `max`.
    let second = reserve(&service, json!({"tokens": 80})).await?;
    assert_eq!(second["remaining"], 890, "{second}");
    let settle = json!({"token": token(&second)?, "costs": {"tokens": 9000}});
    let settled = post(&service, "/v1/settle", settle).await?;
    assert_eq!(settled["remaining"], 0, "{settled}");
    let denied = reserve(&service, json!({})).await?;
    assert_eq!(
        (&denied["allowed"], &denied["token"]),
        (&json!(false), &Value::Null)
    );
    // The bucket owes 4030 beyond 1000 (30 + 5000), which drain in days.
    let days = denied["retry_after_ms"].as_f64().context("a time")? / 86_400_000.0;
    assert!((4.0..4.3).contains(&days), "{denied}");
    // The repeat is a settlement, and refunded nothing. 9000 count as `max`.
    for (what, count) in [
        ("reserved_units", 180),
        ("settlements", 3),
        ("settled_units", 30 + 30 + 5000),
        ("given_back_units", 70),
        ("excess_units", 4920),
        ("cut", 1),
    ] {
        let name = format!("rl_cost_{what}_total{{domain=\"shop\",limit=\"tokens\"}}");
        assert_eq!(service.metric(&name).await?, count, "{what}");
    }
    Ok(())
}

#[tokio::test]
async fn an_invalid_settlement_token_is_refused() -> Result<()> {
    let service = Service::with(TOKENS).await?;
    let refused = post(&service, "/v1/settle", json!({"token": "x", "cost": 1})).await?;
    assert_eq!(refused["error"]["field"], "token", "{refused}");
    Ok(())
}

//! Penalties that begin, in the metrics.

use anyhow::{Context, Result};
use protocol::{
    LimitRequest, LimitVerdict,
    compact::{Batch, BatchAnswer, BatchCheck},
};

use crate::support::{Service, name};

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 1/1d, algorithm: fixed_window,
     penalty: {after: 3, within: 1m, for: 5m}}
  - {name: watched, per: [user], rate: 1/1d, enforce: 0%,
     penalty: {after: 2, within: 1m, for: 5m}}
  - {name: other, per: [user], rate: 100/1d}
";

/// A proxy reports how often it denied a user's requests; returns the limit's verdict.
async fn report(service: &Service, user: &str, count: u64) -> Result<LimitVerdict> {
    let check = BatchCheck {
        values: vec![Some(user.into())],
        cost: 0,
        limits: vec![
            LimitRequest {
                skip: true,
                ..LimitRequest::new(name("watched"))
            },
            LimitRequest {
                skip: true,
                ..LimitRequest::new(name("other"))
            },
            LimitRequest {
                denied: count,
                ..LimitRequest::new(name("per-user"))
            },
        ],
        ..BatchCheck::default()
    };
    let batch = Batch {
        domain: name("shop"),
        proxy: "p1".to_owned(),
        revision: None,
        keys: vec![name("user")],
        checks: vec![check],
    };
    let request = service.post("/v1/check", batch.encode());
    let request = request.header("content-type", protocol::CHECK_CBOR);
    let reply = request.send().await?;
    let answer = BatchAnswer::decode(&reply.body)?.results.pop();
    let answer = answer
        .context("a result")?
        .map_err(|code| anyhow::anyhow!("{code:?}"))?;
    let limit = answer.limits.into_iter().next().context("a limit")?;
    Ok(limit.verdict)
}

async fn begun(service: &Service, limit: &str) -> Result<u64> {
    let name = format!("rl_penalties_total{{domain=\"shop\",limit=\"{limit}\"}}");
    service.metric(&name).await
}

#[tokio::test]
async fn each_penalty_is_counted_when_it_begins() -> Result<()> {
    let service = Service::with(LIMITS).await?;
    let mut counts = Vec::new();
    for _ in 0..6 {
        service.allows("alice").await?;
        counts.push((
            begun(&service, "per-user").await?,
            begun(&service, "watched").await?,
        ));
    }
    // The shadow limit also counts requests over it; it is charged if the other one allows.
    assert_eq!(counts, [(0, 0), (0, 0), (0, 1), (1, 1), (1, 1), (1, 1)]);
    let page = service.admin("/metrics").send().await?.text();
    assert!(!page.contains("rl_penalties_total{domain=\"shop\",limit=\"other\""));
    Ok(())
}

#[tokio::test]
async fn denials_reported_by_a_proxy_begin_a_penalty() -> Result<()> {
    let service = Service::with(LIMITS).await?;
    let verdict = report(&service, "bob", 2).await?;
    let left_ms = verdict.penalty.left_ms;
    assert!(verdict.decision.allowed && left_ms == 0, "{verdict:?}");
    let verdict = report(&service, "bob", 1).await?;
    let left_ms = verdict.penalty.left_ms;
    assert!(!verdict.decision.allowed, "{verdict:?}");
    assert!((299_000..=300_000).contains(&left_ms), "{verdict:?}");
    assert_eq!(begun(&service, "per-user").await?, 1);
    assert!(!service.allows("bob").await?);
    assert_eq!(begun(&service, "per-user").await?, 1);
    Ok(())
}

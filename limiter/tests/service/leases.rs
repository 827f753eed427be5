//! Units that a proxy takes in advance, over HTTP.

use anyhow::{Context, Result};
use protocol::{
    LeaseRequest, LimitRequest, LimitVerdict, Settlement,
    compact::{Batch, BatchAnswer, BatchCheck},
};

use crate::support::{Service, name};

const API: &str = "  - {name: api, rate: 100/1d, lease: {ttl: 1m}}\n";

/// The limit's answer to a check of this proxy.
async fn ask(
    service: &Service,
    proxy: &str,
    cost: u64,
    want: u64,
    settle: Vec<Settlement>,
) -> Result<LimitVerdict> {
    let check = BatchCheck {
        cost,
        limits: vec![LimitRequest {
            lease: Some(LeaseRequest { want, settle }),
            ..LimitRequest::new(name("api"))
        }],
        ..BatchCheck::default()
    };
    let batch = Batch {
        domain: name("shop"),
        proxy: proxy.to_owned(),
        revision: None,
        keys: Vec::new(),
        checks: vec![check],
    };
    let reply = service
        .post("/v1/check", batch.encode())
        .header("content-type", protocol::CHECK_CBOR)
        .send()
        .await?;
    let answer = BatchAnswer::decode(&reply.body)?.results.pop();
    let answer = answer
        .context("a result")?
        .map_err(|code| anyhow::anyhow!("{code:?}"))?;
    let limit = answer.limits.into_iter().next().context("a limit")?;
    Ok(limit.verdict)
}

#[tokio::test]
async fn a_proxy_leases_settles_and_is_counted() -> Result<()> {
    let service = Service::with(API).await?;
    let granted = ask(&service, "p1", 1, 10, Vec::new()).await?;
    let lease = granted.lease.context("a grant")?;
    assert_eq!(
        (lease.units, lease.ttl_ms, granted.decision.remaining),
        (10, 60_000, 89)
    );
    let settlement = Settlement {
        epoch: lease.epoch,
        spent: 4,
        returned: 5,
    };
    let settled = ask(&service, "p1", 0, 0, vec![settlement]).await?;
    assert_eq!((settled.lease, settled.decision.remaining), (None, 94));
    // Half of what is left for one proxy, a quarter for each of two.
    let first = ask(&service, "p1", 0, 1000, Vec::new()).await?;
    assert_eq!(first.lease.map(|lease| lease.units), Some(47));
    let second = ask(&service, "p2", 0, 1000, Vec::new()).await?;
    assert_eq!(second.lease.map(|lease| lease.units), Some(11));
    for (what, units) in [("granted", 68), ("spent", 4), ("returned", 5)] {
        let name = format!("rl_lease_{what}_units_total{{domain=\"shop\",limit=\"api\"}}");
        assert_eq!(service.metric(&name).await?, units, "{what}");
    }
    let checks = "rl_checks_total{domain=\"shop\",limit=\"api\",decision=\"allowed\"}";
    assert_eq!(service.metric(checks).await?, 1, "the rest took nothing");
    Ok(())
}

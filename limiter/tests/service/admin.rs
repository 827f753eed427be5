//! The admin port.

use anyhow::Result;

use crate::support::{PER_USER, Service, quick};

#[tokio::test]
async fn readyz_reports_the_store_and_the_domains() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let report = service.admin("/readyz").send().await?.json()?;
    assert_eq!(report["message"], "ready");
    assert_eq!(report["store"]["address"], "memory");
    assert_eq!(report["domains"][0]["domain"], "shop");
    assert_eq!(report["domains"][0]["revision"], 1);
    assert_eq!(report["domains"][0]["limits"], 1);
    assert_eq!(service.admin("/healthz").send().await?.status, 200);
    assert_eq!(service.admin("/").send().await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_limiter_without_limits_is_ready() -> Result<()> {
    let store = store::open(&store::StoreUrl::Memory, store::Options::default())?;
    let service = Service::start(store, quick())?;
    service.readiness(200, "no limits yet").await?;
    let reply = service.ask(serde_json::json!({"descriptor": {}})).await?;
    assert_eq!(reply.json()?["error"]["code"], "unknown_domain");
    Ok(())
}

#[tokio::test]
async fn the_metrics_have_their_names() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    service.allows("a").await?;
    let reply = service.admin("/metrics").send().await?;
    assert!(
        reply
            .header("content-type")
            .unwrap_or_default()
            .starts_with("application/openmetrics-text")
    );
    let page = reply.text();
    for name in [
        "rl_checks_total{",
        "rl_decisions_total{",
        "rl_check_duration_seconds_bucket{",
        "rl_store_duration_seconds_bucket{",
        "rl_store_batch_size_bucket{",
        "rl_store_up 1",
        "rl_policy_revision{domain=\"shop\"} 1",
        "rl_unmatched_total{domain=\"shop\"} 0",
    ] {
        assert!(page.contains(&format!("\n{name}")), "no {name} in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    Ok(())
}

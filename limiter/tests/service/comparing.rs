//! `--compare-with`: a comparison that changes no answer.

use std::time::Duration;

use anyhow::Result;
use harness::until;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpListener, time::timeout};

use crate::support::{PATIENCE, Service, tuned};

fn limits(requests: u32) -> String {
    format!("  - {{name: a, descriptor: [a], algorithm: fixed_window, rate: {requests}/365d}}\n")
}

async fn comparing(requests: u32, with: String) -> Result<Service> {
    let settings = tuned(|s| s.compare_with = Some(with));
    Service::with_settings(&limits(requests), settings).await
}

fn call(domain: &str, value: &str) -> Value {
    let entry = json!({"key": "a", "value": value});
    json!({"domain": domain, "descriptors": [{"entries": [entry]}]})
}

async fn status(service: &Service, domain: &str, value: &str) -> Result<u16> {
    let body = call(domain, value).to_string();
    Ok(service.post("/json", body).send().await?.status.as_u16())
}

/// Waits until this many calls had this outcome.
async fn compared(service: &Service, domain: &str, outcome: &str, count: u64) -> Result<()> {
    let name = format!("rl_compared_total{{domain=\"{domain}\",outcome=\"{outcome}\"}}");
    until(&format!("{name} {count}"), PATIENCE, async || {
        (service.metric(&name).await.ok()? == count).then_some(())
    })
    .await
}

#[tokio::test]
async fn different_decisions_of_the_other_service_are_counted() -> Result<()> {
    let other = Service::with(&limits(3)).await?;
    let service = comparing(2, format!("http://{}", other.data)).await?;
    let expected = [200, 200, 429, 429];
    for (before, expected) in (0..).zip(expected) {
        assert_eq!(status(&service, "shop", "x").await?, expected);
        // One after the other, so that both count the same.
        until("the call was compared", PATIENCE, async || {
            let page = service.admin("/metrics").send().await.ok()?.text();
            let lines = page
                .lines()
                .filter(|line| line.starts_with("rl_compared_total{"));
            let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            (counts.sum::<u64>() > before).then_some(())
        })
        .await?;
    }
    compared(&service, "shop", "same", 3).await?;
    compared(&service, "shop", "only_here", 1).await?;
    // Unknown domains are counted together.
    assert_eq!(status(&service, "other", "x").await?, 200);
    compared(&service, "", "same", 1).await?;
    other.end().await??;
    assert_eq!(status(&service, "shop", "y").await?, 200);
    compared(&service, "shop", "failed", 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_service_that_is_silent_delays_no_answer() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = silent.accept().await {
            let mut some = [0; 64];
            let _ = stream.read(&mut some).await;
            held.push(stream);
        }
    });
    let service = comparing(1_000_000, format!("http://{address}")).await?;
    // More than the queue and the calls in progress may hold.
    let calls = async {
        for _ in 0..1200 {
            assert_eq!(status(&service, "shop", "x").await?, 200);
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_mins(1), calls).await??;
    let dropped = "rl_compared_total{domain=\"shop\",outcome=\"dropped\"}";
    until("calls are dropped", PATIENCE, async || {
        status(&service, "shop", "x").await.ok()?;
        (service.metric(dropped).await.ok()? > 0).then_some(())
    })
    .await?;
    held.abort();
    Ok(())
}

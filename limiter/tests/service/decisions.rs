//! Decisions stay exact, however many clients check at once.

use std::sync::Arc;

use anyhow::Result;
use harness::Engine;
use protocol::compact::BatchAnswer;
use serde_json::json;

use crate::support::{PER_USER, Server, Service, compact, publish, quick};

const TWO: &str = "
  - {name: narrow, per: [user], rate: 3/1d}
  - {name: wide, rate: 100/1d}
";

/// Sends `times` checks on each of `clients` connections; returns how many were allowed.
async fn rush(service: &Arc<Service>, clients: usize, times: usize) -> Result<usize> {
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            let service = Arc::clone(service);
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..times {
                    allowed += usize::from(service.allows("alice").await?);
                }
                anyhow::Ok(allowed)
            })
        })
        .collect();
    let mut allowed = 0;
    for client in clients {
        allowed += client.await??;
    }
    Ok(allowed)
}

async fn exactly_the_limit(service: Service) -> Result<()> {
    let service = Arc::new(service);
    assert_eq!(rush(&service, 8, 20).await?, 10);
    assert!(service.allows("bob").await?);
    Ok(())
}

async fn all_or_nothing(service: Service) -> Result<()> {
    let service = Arc::new(service);
    assert_eq!(rush(&service, 8, 10).await?, 3);
    let peek = json!({"descriptor": {}, "limits": ["wide"], "peek": true});
    let wide = service.ask(peek).await?.json()?;
    assert_eq!(wide["remaining"], 97, "the denied were not charged");
    Ok(())
}

async fn on(server: &Server, limits: &str) -> Result<Service> {
    let store = server.store()?;
    publish(&store, limits).await?;
    Service::ready_on(store, quick()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_clients_get_exactly_the_limit() -> Result<()> {
    exactly_the_limit(Service::with(PER_USER).await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_limits_are_charged_both_or_neither() -> Result<()> {
    all_or_nothing(Service::with(TWO).await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn two_replicas_share_a_limit() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let first = Arc::new(on(&server, PER_USER).await?);
    let second = Service::ready_on(server.store()?, quick()).await?;
    let second = Arc::new(second);
    let (a, b) = tokio::join!(rush(&first, 4, 10), rush(&second, 4, 10));
    assert_eq!(a? + b?, 10);
    Ok(())
}

#[tokio::test]
async fn checks_of_a_batch_are_decided_in_order() -> Result<()> {
    let service = Service::with("  - {name: per-user, per: [user], rate: 2/1d}\n").await?;
    let check = |user: &str| json!({"descriptor": {"user": user}});
    let batch = json!({"checks": [check("a"), check("b"), check("a"), check("a")]});
    let answer = service.ask(batch).await?.json()?;
    let allowed: Vec<_> = answer["results"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|result| result["allowed"].as_bool())
        .collect();
    assert_eq!(allowed, [Some(true), Some(true), Some(true), Some(false)]);
    Ok(())
}

#[tokio::test]
async fn the_compact_encoding_says_the_same() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let users = ["a"; 12];
    let reply = service
        .post("/v1/check", compact("proxy-1", &users))
        .header("content-type", protocol::CHECK_CBOR)
        .send()
        .await?;
    assert_eq!(reply.header("content-type"), Some(protocol::CHECK_CBOR));
    let answer = BatchAnswer::decode(&reply.body)?;
    let allowed = |result: &Result<protocol::Answer, _>| result.as_ref().is_ok_and(|a| a.allowed);
    assert_eq!(answer.results.len(), 12);
    assert_eq!(answer.results.iter().filter(|r| allowed(r)).count(), 10);
    assert!(!service.allows("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_peek_charges_nothing_and_asks_for_its_cost() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    for (cost, allowed) in [(10, true), (11, false), (0, true)] {
        let peek = json!({"descriptor": {"user": "a"}, "cost": cost, "peek": true});
        let answer = service.ask(peek).await?.json()?;
        assert_eq!(
            (answer["allowed"] == true, &answer["remaining"]),
            (allowed, &json!(10))
        );
    }
    Ok(())
}

#[tokio::test]
async fn decisions_are_counted_by_limit_and_peeks_are_not() -> Result<()> {
    let service = Service::with(
        "  - {name: per-user, per: [user], rate: 1/1d}\n  - {name: trial, rate: 1/1d, enforce: 0%}\n",
    )
    .await?;
    for _ in 0..3 {
        service.allows("a").await?;
    }
    service
        .ask(json!({"descriptor": {"user": "b"}, "peek": true}))
        .await?;
    let of = |limit, decision| {
        format!("rl_checks_total{{domain=\"shop\",limit=\"{limit}\",decision=\"{decision}\"}}")
    };
    assert_eq!(service.metric(&of("per-user", "allowed")).await?, 1);
    assert_eq!(service.metric(&of("per-user", "denied")).await?, 2);
    assert_eq!(service.metric(&of("trial", "allowed")).await?, 1);
    assert_eq!(service.metric(&of("trial", "would_deny")).await?, 2);
    Ok(())
}

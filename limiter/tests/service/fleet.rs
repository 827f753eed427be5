//! How many proxies share a limit, and which requests are authorized.

use std::fs;

use anyhow::Result;
use harness::{Engine, until};
use protocol::compact::BatchAnswer;

use crate::support::{PATIENCE, PER_USER, Server, Service, compact, publish, quick, tuned};

async fn asks_as(service: &Service, proxy: &str) -> Result<BatchAnswer> {
    let reply = service
        .post("/v1/check", compact(proxy, &["a"]))
        .header("content-type", protocol::CHECK_CBOR)
        .send()
        .await?;
    Ok(BatchAnswer::decode(&reply.body)?)
}

#[tokio::test]
#[ignore = "needs a server"]
async fn proxies_are_counted_over_all_replicas() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    publish(&server.store()?, PER_USER).await?;
    let first = Service::ready_on(server.store()?, quick()).await?;
    let second = Service::ready_on(server.store()?, quick()).await?;
    asks_as(&first, "p1").await?;
    asks_as(&first, "p2").await?;
    asks_as(&first, "p2").await?;
    asks_as(&second, "p3").await?;
    for service in [&first, &second] {
        until("three proxies are counted", PATIENCE, async || {
            let reply = service
                .get("/v1/policy?domain=shop&proxy=p9")
                .send()
                .await
                .ok()?;
            (reply.header("x-rl-proxies") == Some("*=3, per-user=3")).then_some(())
        })
        .await?;
        let answer = asks_as(service, "p1").await?;
        assert_eq!(answer.proxies, [(crate::support::name("per-user"), 3)]);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn with_too_many_limits_proxies_are_counted_per_domain() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let one = |n: usize| {
        format!("  - {{name: limit-{n}, per: [user], rate: 10/1d, match: {{n: '{n}'}}}}\n")
    };
    let limits: String = (0..1500).map(one).collect();
    publish(&server.store()?, &format!("{limits}{PER_USER}")).await?;
    let service = Service::ready_on(server.store()?, quick()).await?;
    asks_as(&service, "p1").await?;
    asks_as(&service, "p2").await?;
    until("two proxies are counted", PATIENCE, async || {
        let answer = asks_as(&service, "p1").await.ok()?;
        (answer.proxies == [(crate::support::name("per-user"), 2)]).then_some(())
    })
    .await?;
    let reply = service.get("/v1/policy?domain=shop").send().await?;
    assert_eq!(reply.header("x-rl-proxies"), Some("*=2"));
    Ok(())
}

#[tokio::test]
async fn only_clients_with_a_current_token_are_answered() -> Result<()> {
    let tokens = tempfile::NamedTempFile::new()?;
    fs::write(tokens.path(), "first-token-0000\n")?;
    let settings = tuned(|s| s.token_file = Some(tokens.path().to_owned()));
    let service = Service::with_settings(PER_USER, settings).await?;
    let snapshot = service.get("/v1/policy?domain=shop");
    let with = |token: &str| {
        snapshot
            .clone()
            .header("authorization", format!("Bearer {token}"))
    };
    let refused = snapshot.send().await?;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused.json()?["error"]["code"], "unauthorized");
    assert_eq!(with("first-token-0001").send().await?.status, 401);
    assert_eq!(with("first-token-0000").send().await?.status, 200);
    assert_eq!(
        service.admin("/readyz").send().await?.status,
        200,
        "probes have none"
    );

    fs::write(tokens.path(), "second-token-0000\n")?;
    let second = with("second-token-0000");
    until("the new token is good", PATIENCE, async || {
        let reply = second.send().await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await?;
    assert_eq!(with("first-token-0000").send().await?.status, 401);
    Ok(())
}

//! A store that lost buckets or limits, and one from which limits were deleted.

use anyhow::Result;
use harness::{Engine, until};

use crate::store_states::{ask, decides, on};
use crate::support::{PATIENCE, Server, Service, publish, quick, write};

/// Evicted buckets count as unused; lost limits stay in force.
#[tokio::test]
#[ignore = "needs a server"]
async fn an_evicting_server_resets_buckets_and_is_reported() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        let service = on(&server).await?;
        for _ in 0..10 {
            assert!(service.allows("alice").await?);
        }
        assert!(!service.allows("alice").await?);
        server
            .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
            .await?;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
        until("all is gone", PATIENCE, async || {
            let count = server.command(&["DBSIZE"]).await.ok()?;
            (count == ":0\r\n").then_some(())
        })
        .await?;
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
        assert_eq!(decides(&service).await?, 10);
        let report = service.readiness(200, "gone from the store").await?;
        assert_eq!(report["ready"], true);
        let fault = service.metric("rl_policy_fault{domain=\"shop\"}").await?;
        assert_eq!(fault, 1);
        // A limiter that is started now never loaded the domain, and does not report it as deleted.
        let fresh = Service::ready_on(server.store()?, quick()).await?;
        let snapshot = fresh.get("/v1/policy?domain=shop").send().await?;
        assert_eq!(snapshot.status, 404);
        assert_eq!(snapshot.header("x-rl-revision"), None);
        assert_eq!(
            ask(&fresh).await?.json()?["error"]["code"],
            "unknown_domain"
        );
    }
    Ok(())
}

/// As after a failover to a replica that did not have the last edit.
#[tokio::test]
#[ignore = "needs a server"]
async fn edits_lost_by_the_store_are_reported() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    let lost = "rl_policy_lost_edits_total{domain=\"shop\"}";
    let in_force = async |revision| {
        let metric = "rl_policy_revision{domain=\"shop\"}";
        until("the revision is in force", PATIENCE, async || {
            let found = service.metric(metric).await.ok()?;
            (found == revision).then_some(())
        })
        .await
    };
    let record = "rl:{shop}:policy";
    server.command(&["COPY", record, "{shop}:replica"]).await?;
    publish(&service.store, "  - {name: new, rate: 1/s}\n").await?;
    in_force(2).await?;
    assert_eq!(service.metric(lost).await?, 0);
    server
        .command(&["COPY", "{shop}:replica", record, "REPLACE"])
        .await?;
    in_force(1).await?;
    assert_eq!(service.metric(lost).await?, 1);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn the_snapshot_of_a_deleted_domain_names_who_deleted_it() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    let deleted = write(
        &service.store,
        store::Change::Delete(&std::collections::BTreeMap::new()),
    )
    .await?;
    let fresh = Service::ready_on(server.store()?, quick()).await?;
    for service in [&service, &fresh] {
        let answer = until("it is gone", PATIENCE, async || {
            let reply = service.get("/v1/policy?domain=shop").send().await.ok()?;
            (reply.status == 404).then_some(reply)
        })
        .await?;
        assert_eq!(answer.json()?["error"]["code"], "unknown_domain");
        let revision = deleted.to_string();
        assert_eq!(answer.header("x-rl-revision"), Some(revision.as_str()));
    }
    Ok(())
}

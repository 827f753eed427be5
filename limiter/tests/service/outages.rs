//! Outages of the store.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, until};
use limiter::Settings;
use serde_json::json;

use crate::support::{PATIENCE, PER_USER, Scripted, Server, Service, publish, quick};

/// Enough units that every check that reaches the store is charged and can be counted.
const PLENTY: &str = "  - {name: per-user, per: [user], rate: 1000000/1d}\n";
const CLIENTS: u64 = 16;
/// Checks of each.
const EACH: u64 = 50;

/// Like the production default, but longer, because the test machine is busy.
const TIMEOUT: Duration = Duration::from_millis(100);

fn settings() -> Settings {
    Settings {
        store_timeout: TIMEOUT,
        ..quick()
    }
}

async fn on(server: &Server, limits: &str) -> Result<Arc<Service>> {
    publish(&server.store()?, limits).await?;
    let service = Service::ready_on(server.store_within(TIMEOUT)?, settings()).await?;
    recovers(&service).await?;
    Ok(Arc::new(service))
}

/// Waits until checks are decided.
async fn recovers(service: &Service) -> Result<()> {
    let peek = json!({"descriptor": {"user": "peek"}, "peek": true});
    until("checks are decided", PATIENCE, async || {
        let reply = service.ask(peek.clone()).await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await
}

/// Sends checks from many clients repeatedly; every answer is 503. Returns how many answers leave
/// open whether anything was charged.
async fn all_are_refused(service: &Arc<Service>) -> Result<u64> {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let service = Arc::clone(service);
        clients.spawn(async move {
            let mut doubtful = 0;
            for _ in 0..EACH {
                let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
                assert_eq!(reply.status, 503, "{}", reply.text());
                assert_eq!(reply.header("x-rl-api"), Some("1"));
                let error = reply.json()?["error"].take();
                assert_eq!(error["code"], "store_unavailable");
                doubtful += u64::from(error["charged"] != false);
            }
            anyhow::Ok(doubtful)
        });
    }
    let mut doubtful = 0;
    while let Some(client) = clients.join_next().await {
        doubtful += client??;
    }
    Ok(doubtful)
}

async fn rides_out_a_hang(server: &Server) -> Result<()> {
    let service = on(server, PLENTY).await?;
    server.pause()?;
    let doubtful = all_are_refused(&service).await?;
    assert!(
        (1..=CLIENTS).contains(&doubtful),
        "only the first of each client can have been sent: {doubtful}"
    );
    service.readiness(200, "checks get no decision").await?;
    let strict = service.admin("/readyz?strict").send().await?;
    assert_eq!(strict.status, 503);
    server.resume()?;
    recovers(&service).await?;
    // Only uncertain checks may have been charged when the server resumed.
    let peek = json!({"descriptor": {"user": "a"}, "peek": true});
    let left = service.ask(peek).await?.json()?["remaining"].as_u64();
    assert!(
        left >= Some(1_000_000 - doubtful),
        "{doubtful} were in doubt, {left:?} are left"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn a_redis_that_hangs_finds_no_backlog_when_it_wakes_up() -> Result<()> {
    rides_out_a_hang(&Server::start(Engine::Redis).await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn a_valkey_that_hangs_finds_no_backlog_when_it_wakes_up() -> Result<()> {
    rides_out_a_hang(&Server::start(Engine::Valkey).await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn the_limiter_reconnects_to_an_emptied_server_and_reports_the_loss() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server, PER_USER).await?;
    let _server = server.restart_empty().await?;
    // The scripts and the limits are gone with it: the last limits stay in force.
    recovers(&service).await?;
    assert!(service.allows("a").await?);
    service.readiness(200, "gone from the store").await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_store_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    publish(&server.store()?, PER_USER).await?;
    server.pause()?;
    let service = Service::start(server.store_within(TIMEOUT)?, settings())?;
    service.readiness(503, "").await?;
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503, "absent or not is not known");
    assert_eq!(service.admin("/healthz").send().await?.status, 200);
    server.resume()?;
    service.readiness(200, "ready").await?;
    recovers(&service).await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_store_without_any_check_yet_counts_as_up() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    publish(&server.store()?, PER_USER).await?;
    let service = Service::ready_on(server.store()?, quick()).await?;
    let strict = service.admin("/readyz?strict").send().await?;
    assert_eq!(strict.status, 200, "{}", strict.text());
    assert_eq!(service.metric("rl_store_up").await?, 1);
    Ok(())
}

/// The first check has no time to dial and to load a script of 60 KB.
#[tokio::test]
#[ignore = "needs a server"]
async fn a_ready_limiter_has_connections_and_loaded_scripts() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        publish(&server.store()?, PER_USER).await?;
        for _ in 0..3 {
            server.command(&["SCRIPT", "FLUSH"]).await?;
            let service = Service::ready_on(server.store()?, quick()).await?;
            let known = ["SCRIPT", "EXISTS", &store::scripts::CHECK.sha1];
            assert_eq!(server.command(&known).await?, "*1\r\n:1\r\n");
            assert!(service.store.is_warm() && service.store.fault().is_none());
        }
    }
    Ok(())
}

/// The store never answers this check, so only the limiter's own timeout can.
#[tokio::test]
async fn a_check_times_out_when_the_store_never_answers() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let service = Service::ready_on(store, settings()).await?;
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503);
    Ok(())
}

#[tokio::test]
async fn one_check_that_fails_does_not_fail_its_batch() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let checks = json!([{"descriptor": {"user": "a"}}, {"descriptor": {}, "limits": ["nope"]}]);
    let reply = service.ask(json!({"checks": checks})).await?;
    assert_eq!(reply.status, 200);
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    store.fail([store::StoreError::Timeout(TIMEOUT).into()]);
    let reply = service
        .ask(json!({"checks": [{"descriptor": {"user": "a"}}]}))
        .await?;
    assert_eq!(reply.status, 503, "no check got a decision");
    Ok(())
}

//! How edits come into force, and how invalid ones are kept out.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use harness::{Engine, until};
use limiter::{RunError, Settings};
use serde_json::json;
use store::{Change, CheckError, EditError, Options, OverrideEdits, StoreError, StoreUrl, open};

use crate::support::{PATIENCE, PER_USER, Scripted, Server, Service, publish, quick, tuned, write};

const TWENTY: &str = "  - {name: per-user, per: [user], rate: 20/1d}\n";
const BROKEN: &str = "domain: shop\nlimits:\n  - {name: per-user, rate: 10/fortnight}\n";

fn limits_file(path: &Path, limits: &str) -> Result<()> {
    Ok(fs::write(path, format!("domain: shop\nlimits:\n{limits}"))?)
}

/// A memory store whose policy is this file.
fn followed(path: &Path) -> Settings {
    Settings {
        limits: vec![path.to_owned()],
        limits_are_the_policy: true,
        ..quick()
    }
}

#[tokio::test]
#[ignore = "needs a server"]
async fn an_edit_comes_into_force_and_keeps_usage() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let service = Service::ready_on(server.store()?, quick()).await?;
    for _ in 0..4 {
        assert!(service.allows("a").await?);
    }
    publish(&store, TWENTY).await?;
    service.quota_becomes(20).await?;
    let peek = json!({"descriptor": {"user": "a"}, "peek": true});
    assert_eq!(service.ask(peek).await?.json()?["remaining"], 16);
    assert_eq!(
        service
            .metric("rl_policy_revision{domain=\"shop\"}")
            .await?,
        2
    );
    let snapshot = service.get("/v1/policy?domain=shop").send().await?;
    assert_eq!(snapshot.header("x-rl-revision"), Some("2"));
    Ok(())
}

#[tokio::test]
async fn a_deleted_domain_is_unknown_and_may_come_back() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    write(&service.store, Change::Delete(&OverrideEdits::new())).await?;
    let status = async |wanted: u16| {
        until("the status", PATIENCE, async || {
            let reply = service
                .ask(json!({"descriptor": {"user": "a"}}))
                .await
                .ok()?;
            (reply.status == wanted).then_some(())
        })
        .await
    };
    status(404).await?;
    let page = service.admin("/metrics").send().await?.text();
    assert!(
        !page.contains("domain=\"shop\""),
        "its counters are gone:\n{page}"
    );
    publish(&service.store, PER_USER).await?;
    status(200).await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_vanished_record_is_a_fault_and_the_last_limits_stay() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let service = Service::ready_on(store, quick()).await?;
    server.command(&["FLUSHALL"]).await?;
    let report = service.readiness(200, "gone from the store").await?;
    assert_eq!(report["last_policy_error"]["domain"], "shop");
    assert_eq!(service.metric("rl_policy_fault{domain=\"shop\"}").await?, 1);
    assert!(service.allows("a").await?);
    let snapshot = service.get("/v1/policy?domain=shop").send().await?;
    assert_eq!(snapshot.status, 200);
    publish(&service.store, TWENTY).await?;
    service.quota_becomes(20).await?;
    assert_eq!(service.metric("rl_policy_fault{domain=\"shop\"}").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_record_that_cannot_be_used_is_reported_and_the_last_limits_stay() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    store.fail_records(Some(StoreError::Corrupt("limits[0].rate: no".to_owned())));
    publish(store.inner(), TWENTY).await?;
    service.readiness(200, "limits[0].rate: no").await?;
    assert!(service.allows("a").await?);
    assert_eq!(service.metric("rl_policy_fault{domain=\"shop\"}").await?, 1);
    store.fail_records(None);
    service.quota_becomes(20).await?;
    service.readiness(200, "ready").await?;
    Ok(())
}

#[tokio::test]
async fn a_domain_that_never_loaded_is_unavailable_not_unknown() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    store.fail_records(Some(StoreError::Corrupt("no".to_owned())));
    let service = Service::start(store.clone(), quick())?;
    service.readiness(503, "no usable limits").await?;
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()?["error"]["code"], "policy_unavailable");
    Ok(())
}

#[tokio::test]
async fn a_stale_check_is_retried_with_the_new_policy() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    publish(&service.store, TWENTY).await?;
    service.quota_becomes(20).await?;
    let before = store.calls().len();
    store.fail([CheckError::Stale]);
    assert!(service.allows("a").await?);
    // A poll of the store confirmed the policy unchanged, so the second call is forced.
    assert_eq!(store.calls()[before..], [(1, false), (1, true)]);
    assert_eq!(service.metric("rl_stale_total").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_stale_check_is_not_forced_while_the_store_cannot_confirm() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    store.fail_heads(Some(StoreError::Unreachable("away".to_owned())));
    service.readiness(200, "away").await?;
    store.fail([CheckError::Stale]);
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()?["error"]["code"], "stale");
    assert_eq!(store.calls(), [(1, false)]);
    Ok(())
}

#[tokio::test]
async fn an_edit_of_the_limits_file_takes_effect_unless_it_is_broken() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("limits.yaml");
    limits_file(&path, PER_USER)?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::ready_on(store, followed(&path)).await?;
    service.quota_becomes(10).await?;
    fs::write(&path, BROKEN)?;
    until("the report names the field", PATIENCE, async || {
        let report = service.admin("/readyz").send().await.ok()?.json().ok()?;
        let error = report["limits_file_error"].as_str()?.to_owned();
        (error.contains("limits.yaml:3:") && report["ready"] == true).then_some(())
    })
    .await?;
    service.quota_becomes(10).await?;
    limits_file(&path, TWENTY)?;
    service.quota_becomes(20).await?;
    let report = service.admin("/readyz").send().await?.json()?;
    assert_eq!(report["limits_file_error"], json!(null));
    Ok(())
}

#[tokio::test]
async fn the_limiter_does_not_start_with_a_broken_limits_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("limits.yaml");
    fs::write(&path, BROKEN)?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::start(store, followed(&path))?;
    let error = service.end().await?.err().context("an error")?;
    assert!(matches!(error, RunError::Limits(_)));
    let text = error.to_string();
    for part in ["limits.yaml:3:", "fortnight", "^", "10/s"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_limits_file_fills_a_domain_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("limits.yaml");
    limits_file(&path, PER_USER)?;
    let server = Server::start(Engine::Valkey).await?;
    let filling = tuned(|s| s.limits = vec![path.clone()]);
    let first = Service::ready_on(server.store()?, filling.clone()).await?;
    assert!(first.allows("a").await?);
    limits_file(&path, TWENTY)?;
    let second = Service::ready_on(server.store()?, filling).await?;
    second.quota_becomes(10).await?;
    let domain = crate::support::name("shop");
    let history = second.store.history(&domain, 10).await?;
    assert_eq!(history.len(), 1, "the second file was ignored");
    Ok(())
}

/// An empty store whose first edits fail: no health check sends clients here, and a domain of the
/// files is not reported as unknown, which would make proxies drop its limits.
#[tokio::test]
async fn it_is_ready_only_once_the_store_is_filled_from_the_limits_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("limits.yaml");
    fs::write(&path, format!("domain: other\nlimits:\n{PER_USER}"))?;
    let settings = tuned(|s| s.limits = vec![path]);
    let store = Scripted::with(PER_USER, 1000).await?;
    store.fail_writes(Some(StoreError::Unreachable("away".to_owned())));
    let service = Service::start(store.clone(), settings)?;
    service
        .readiness(503, "the limits files are not in the store yet")
        .await?;
    assert_eq!(service.get("/v1/health").send().await?.status, 503);
    let check = json!({"domain": "other", "descriptor": {"user": "a"}}).to_string();
    let reply = service.post("/v1/check", check.clone()).send().await?;
    assert_eq!(reply.json()?["error"]["code"], "policy_unavailable");
    assert!(service.allows("a").await?, "domains that it has are served");

    store.fail_writes(None);
    service.readiness(200, "ready").await?;
    assert_eq!(service.get("/v1/health").send().await?.status, 200);
    let reply = service.post("/v1/check", check).send().await?;
    assert_eq!(reply.json()?["allowed"], true);
    Ok(())
}

/// One domain's fault is no reason to take the limiter from all others.
#[tokio::test]
async fn a_domain_that_the_store_refuses_to_be_filled_with_is_faulty_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |domain: &str| {
        let path = folder.path().join(domain);
        fs::write(&path, format!("domain: {domain}\nlimits:\n{PER_USER}"))?;
        anyhow::Ok(path)
    };
    let files = vec![file("other")?, file("more")?];
    let settings = tuned(|s| s.limits = files);
    let unreadable = StoreError::Corrupt("a record of format 2".to_owned());
    for (error, words) in [
        (unreadable.into(), "a record of format 2"),
        (EditError::TooManyDomains(4096), "4096 domains already"),
    ] {
        let store = Scripted::with(PER_USER, 1000).await?;
        store.refuse(Some((crate::support::name("other"), error)));
        let service = Service::start(store.clone(), settings.clone())?;
        let report = service.readiness(200, "with a fault in other: its").await?;
        let message = report["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{message}");
        assert_eq!(service.get("/v1/health").send().await?.status, 200);
        let ask = async |domain: &str| {
            let check = json!({"domain": domain, "descriptor": {"user": "a"}}).to_string();
            service.post("/v1/check", check).send().await?.json()
        };
        assert_eq!(ask("shop").await?["allowed"], true);
        assert_eq!(ask("more").await?["allowed"], true);
        // Proxies would drop the limits of an unknown domain.
        assert_eq!(ask("other").await?["error"]["code"], "policy_unavailable");
        let fault = "rl_policy_fault{domain=\"other\"}";
        until("the metric", PATIENCE, async || {
            (service.metric(fault).await.ok()? == 1).then_some(())
        })
        .await?;

        store.refuse(None);
        until("the domain is filled", PATIENCE, async || {
            (ask("other").await.ok()?["allowed"] == true).then_some(())
        })
        .await?;
        service.readiness(200, "ready").await?;
        assert_eq!(service.metric(fault).await?, 0);
    }
    Ok(())
}

#[tokio::test]
async fn it_is_not_ready_while_the_store_lists_limits_and_does_not_return_them() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    store.fail_records(Some(StoreError::Unreachable("cut off".to_owned())));
    let service = Service::start(store.clone(), quick())?;
    service.readiness(503, "did not return the limits").await?;
    store.fail_records(None);
    service.readiness(200, "ready").await?;
    assert!(service.allows("a").await?);
    Ok(())
}

#[tokio::test]
async fn two_files_about_one_domain_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let paths = ["a.yaml", "b.yaml"].map(|name| folder.path().join(name));
    for path in &paths {
        limits_file(path, PER_USER)?;
    }
    let settings = tuned(|s| s.limits = paths.to_vec());
    let store: Arc<dyn store::Store> = open(&StoreUrl::Memory, Options::default())?;
    let error = Service::start(store, settings)?.end().await?.err();
    let text = error.context("an error")?.to_string();
    assert!(
        text.contains("a.yaml and ") && text.contains("both about the domain `shop`"),
        "{text}"
    );
    Ok(())
}

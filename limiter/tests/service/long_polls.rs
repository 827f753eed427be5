//! Long polls.

use std::time::Duration;

use anyhow::{Context, Result};
use harness::{Engine, Reply, until};
use http_body_util::Empty;
use hyper::{Request, body::Bytes, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter::Settings;
use policy::Compiled;
use protocol::{CHANGES_CBOR, LIMITS_CBOR};
use store::{Change, HeadState, OverrideEdits, StoreError};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinHandle};

use crate::support::{PATIENCE, PER_USER, Scripted, Server, Service, publish, quick, tuned, write};

const TWENTY: &str = "  - {name: per-user, per: [user], rate: 20/1d}\n";

/// Longer than any test: a poll that is answered was not held to the end.
const WAIT: Duration = Duration::from_hours(1);

/// Settings that hold polls for as long as they request.
fn patient() -> Settings {
    Settings {
        max_poll_wait: WAIT,
        ..quick()
    }
}

async fn with(limits: &str) -> Result<Service> {
    Service::with_settings(limits, patient()).await
}

/// Polls as a proxy with this revision, or with none.
fn poll(service: &Service, has: Option<&str>, wait: Duration) -> JoinHandle<Result<Reply>> {
    let path = format!("/v1/policy?domain=shop&wait_ms={}", wait.as_millis());
    let mut request = service.get(&path);
    if let Some(tag) = has {
        request = request.header("if-none-match", format!("\"{tag}\""));
    }
    tokio::spawn(async move { request.send().await })
}

/// The revision in force, by a poll that need not wait.
async fn newest(service: &Service) -> Result<String> {
    let reply = service.get("/v1/policy?domain=shop").send().await?;
    let tag = reply.header("etag").context("a tag")?;
    Ok(tag.trim_matches('"').to_owned())
}

/// Waits until this many polls are held.
async fn held(service: &Service, polls: u64) -> Result<()> {
    until("so many are held", PATIENCE, async || {
        let now = service.metric("rl_held_polls").await.ok()?;
        (now == polls).then_some(())
    })
    .await
}

/// Waits until the store is there again.
async fn back(service: &Service) -> Result<()> {
    until("the store is back", PATIENCE, async || {
        let reply = service.admin("/readyz?strict").send().await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_poll_is_answered_on_an_edit_or_when_its_wait_ends() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    publish(&server.store()?, PER_USER).await?;
    let service = Service::ready_on(server.store()?, patient()).await?;
    let has = newest(&service).await?;

    let long = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    publish(&server.store()?, TWENTY).await?;
    let long = long.await??;
    assert_eq!(
        (long.status.as_u16(), long.header("x-rl-revision")),
        (200, Some("2"))
    );
    held(&service, 0).await?;

    let has = newest(&service).await?;
    let short = poll(&service, Some(&has), Duration::from_millis(200)).await??;
    assert_eq!(short.status, 304);
    Ok(())
}

/// A hundred limits, of which one has this rate.
fn hundred(rate: u64) -> String {
    let limit = |n| {
        let rate = if n == 50 { rate } else { 10 };
        format!("  - {{name: limit-{n}, match: {{path: /p{n}}}, rate: {rate}/1d}}\n")
    };
    (0..100).map(limit).collect()
}

#[tokio::test]
async fn a_filter_that_applies_changes_gets_those_since_its_snapshot() -> Result<()> {
    let service = with(&hundred(10)).await?;
    let polled = async |has: Option<&str>, changes: &str| {
        let path = format!("/v1/policy?domain=shop{changes}");
        let request = service.get(&path).header("accept", LIMITS_CBOR);
        let request = match has {
            Some(tag) => request.header("if-none-match", tag),
            None => request,
        };
        request.send().await
    };
    let first = polled(None, "&changes=1").await?;
    assert_eq!(first.header("content-type"), Some(LIMITS_CBOR));
    let has = first.header("etag").context("a tag")?.to_owned();
    let filter = Compiled::from_snapshot(&first.body)?;
    publish(&service.store, &hundred(20)).await?;
    publish(&service.store, &hundred(30)).await?;
    until("the edit is in force", PATIENCE, async || {
        let now = service.metric("rl_policy_revision{domain=\"shop\"}").await;
        (now.ok()? == 3).then_some(())
    })
    .await?;
    let changes = polled(Some(&has), "&changes=1").await?;
    assert_eq!(changes.header("content-type"), Some(CHANGES_CBOR));
    assert!(changes.body.len() < 200, "{} bytes", changes.body.len());
    let filter = filter.with_changes(&changes.body).context("they fit")?;
    // One of a version without changes, and one with a snapshot that nobody sent.
    for (has, parameter) in [(has.as_str(), ""), ("\"9-00ff\"", "&changes=1")] {
        let whole = polled(Some(has), parameter).await?;
        assert_eq!(whole.header("content-type"), Some(LIMITS_CBOR));
        assert_eq!(whole.header("etag"), changes.header("etag"));
        let whole = Compiled::from_snapshot(&whole.body)?;
        assert_eq!(whole.limits(), filter.limits());
        assert_eq!(whole.revision(), filter.revision());
    }
    Ok(())
}

#[tokio::test]
async fn no_poll_is_held_longer_than_max_poll_wait() -> Result<()> {
    let settings = tuned(|s| s.max_poll_wait = Duration::from_millis(200));
    let service = Service::with_settings(PER_USER, settings).await?;
    let has = newest(&service).await?;
    assert_eq!(poll(&service, Some(&has), WAIT).await??.status, 304);
    Ok(())
}

#[tokio::test]
async fn a_poll_with_another_revision_is_answered_at_once() -> Result<()> {
    let service = with(PER_USER).await?;
    for has in [None, Some("7-0000000000000007")] {
        let reply = poll(&service, has, WAIT).await??;
        assert_eq!(reply.status, 200, "{has:?}");
    }
    let bad = service
        .get("/v1/policy?domain=shop&wait_ms=soon")
        .send()
        .await?;
    assert_eq!(bad.status, 400);
    assert_eq!(bad.json()?["error"]["field"], "wait_ms");
    Ok(())
}

#[tokio::test]
async fn deleting_or_creating_a_domain_ends_a_long_poll() -> Result<()> {
    let service = with(PER_USER).await?;
    let has = newest(&service).await?;
    let deleted = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    write(&service.store, Change::Delete(&OverrideEdits::new())).await?;
    let deleted = deleted.await??;
    assert_eq!(deleted.status, 404);
    assert_eq!(deleted.header("x-rl-revision"), Some("2"));

    let created = poll(&service, None, WAIT);
    held(&service, 1).await?;
    publish(&service.store, TWENTY).await?;
    let mut created = created.await??;
    // On a busy machine the limits take long to load. Polls are answered meanwhile, as while the store is down.
    while created.status == 404 {
        created = poll(&service, None, WAIT).await??;
    }
    assert_eq!(created.status, 200);
    Ok(())
}

#[tokio::test]
async fn long_polls_are_not_inflight_and_bounded_by_max_connections() -> Result<()> {
    let narrow = Settings {
        max_inflight: 1,
        max_connections: 2,
        ..patient()
    };
    let service = Service::with_settings(PER_USER, narrow).await?;
    let has = newest(&service).await?;
    let stream = TcpStream::connect(service.data).await?;
    let (mut sender, connection) =
        conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut poll = || {
        let uri = "http://localhost/v1/policy?domain=shop&wait_ms=3600000";
        let tag = format!("\"{has}\"");
        let request = Request::get(uri).header("if-none-match", tag);
        let request = request.body(Empty::<Bytes>::new())?;
        anyhow::Ok(tokio::spawn(sender.send_request(request)))
    };
    let first = [poll()?, poll()?];
    held(&service, 2).await?;
    assert_eq!(poll()?.await??.status(), 304);
    let earlier = first.iter().filter(|poll| !poll.is_finished()).count();
    assert_eq!(earlier, 2, "one too many is answered at once");
    assert!(service.allows("a").await?, "they are no work");
    publish(&service.store, TWENTY).await?;
    for poll in first {
        assert_eq!(poll.await??.status(), 200);
    }
    Ok(())
}

#[tokio::test]
async fn a_long_poll_ends_when_its_client_leaves() -> Result<()> {
    let service = with(PER_USER).await?;
    let has = newest(&service).await?;
    let stayer = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    let mut leaver = TcpStream::connect(service.data).await?;
    let head = format!(
        "GET /v1/policy?domain=shop&wait_ms=3600000 HTTP/1.1\r\nhost: x\r\nif-none-match: \"{has}\"\r\n\r\n"
    );
    leaver.write_all(head.as_bytes()).await?;
    held(&service, 2).await?;
    drop(leaver);
    held(&service, 1).await?;
    assert!(!stayer.is_finished());
    Ok(())
}

#[tokio::test]
async fn a_stopping_limiter_holds_no_polls() -> Result<()> {
    let settings = Settings {
        drain: PATIENCE,
        ..patient()
    };
    let service = Service::with_settings(PER_USER, settings).await?;
    let has = newest(&service).await?;
    let before = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    let (url, client) = (
        format!(
            "http://{}/v1/policy?domain=shop&wait_ms=3600000",
            service.data
        ),
        service.client.clone(),
    );
    let ending = service.end();
    let after = client
        .get(&url)
        .header("if-none-match", format!("\"{has}\""));
    for reply in [before.await??, after.send().await?] {
        assert_eq!(
            (reply.status.as_u16(), reply.header("connection")),
            (304, Some("close"))
        );
    }
    ending.abort();
    Ok(())
}

/// A limiter that cannot see edits must not keep proxies from polling others that can.
#[tokio::test]
async fn a_limiter_that_cannot_reach_its_store_holds_no_polls() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), patient()).await?;
    let has = newest(&service).await?;
    let before = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    store.fail_heads(Some(StoreError::Unreachable("away".to_owned())));
    let after = async {
        service.readiness(200, "away").await?;
        poll(&service, Some(&has), WAIT).await?
    };
    for reply in [before.await??, after.await?] {
        assert_eq!(reply.status, 304);
    }
    store.fail_heads(None);
    back(&service).await?;
    let again = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    again.abort();
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_long_poll_ends_without_an_error_when_the_store_hangs() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    publish(&server.store()?, PER_USER).await?;
    let service = Service::ready_on(server.store()?, patient()).await?;
    let has = newest(&service).await?;
    let poll = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    server.pause()?;
    let reply = poll.await??;
    assert_eq!(reply.status, 304);
    server.resume()
}

/// A possibly stale limiter does not revert a proxy to limits that were replaced.
#[tokio::test]
async fn a_limiter_without_its_store_does_not_revert_a_newer_revision() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), patient()).await?;
    let has = "2-0000000000000007".to_owned();
    store.fail_heads(Some(StoreError::Unreachable("away".to_owned())));
    service.readiness(200, "away").await?;
    for wait in [Duration::ZERO, WAIT] {
        assert_eq!(poll(&service, Some(&has), wait).await??.status, 304);
    }
    store.fail_heads(None);
    back(&service).await?;
    // The store went back to an older revision, which is the one that counts.
    let reply = poll(&service, Some(&has), WAIT).await??;
    assert_eq!(
        (reply.status.as_u16(), reply.header("x-rl-revision")),
        (200, Some("1"))
    );
    Ok(())
}

/// The limiter sees that there is an edit, and cannot load it.
#[tokio::test]
async fn a_limiter_that_cannot_load_an_edit_holds_and_reverts_no_poll() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), patient()).await?;
    let has = newest(&service).await?;
    let before = poll(&service, Some(&has), WAIT);
    held(&service, 1).await?;
    store.fail_records(Some(StoreError::Unreachable("cut off".to_owned())));
    publish(store.inner(), TWENTY).await?;
    let before = before.await??;
    let after = poll(&service, Some(&has), WAIT).await??;
    for reply in [before, after] {
        assert_eq!(reply.status, 304);
    }
    let ahead = poll(&service, Some("2-0000000000000007"), WAIT).await??;
    assert_eq!(ahead.status, 304);
    store.fail_records(None);
    service.quota_becomes(20).await
}

/// A proxy that received an edit from one replica, and polls another a moment later.
#[tokio::test]
#[ignore = "needs a server"]
async fn a_poll_with_a_newer_revision_makes_the_limiter_read_the_store() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let service = Service::ready_on(server.store()?, patient()).await?;
    for limits in [TWENTY, PER_USER, TWENTY, PER_USER, TWENTY] {
        publish(&store, limits).await?;
        let heads = store.heads().await?;
        let HeadState::Live(revision) = &heads[0].state else {
            panic!("{heads:?}");
        };
        let has = format!("{}-{:016x}", revision.number, revision.digest);
        let reply = poll(&service, Some(&has), Duration::from_millis(100)).await??;
        assert_eq!(reply.status, 304, "{}", reply.text());
        assert_eq!(newest(&service).await?, has);
    }
    Ok(())
}

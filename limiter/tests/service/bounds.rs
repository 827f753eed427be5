//! What is too much is refused in words, and costs nobody else an answer.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use harness::until;
use limiter::Settings;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use crate::support::{PATIENCE, PER_USER, Scripted, Service, quick};

fn ask(service: &Arc<Service>) -> JoinHandle<Result<bool>> {
    let service = Arc::clone(service);
    tokio::spawn(async move { service.allows("busy").await })
}

/// Asks so often, each check in a call of its own that the store holds.
async fn hold(
    service: &Arc<Service>,
    store: &Scripted,
    calls: usize,
) -> Result<Vec<JoinHandle<Result<bool>>>> {
    let mut held = Vec::new();
    for call in 1..=calls {
        held.push(ask(service));
        store.entered(call).await?;
    }
    Ok(held)
}

/// Waits until so many requests are worked on.
async fn inflight(service: &Service, requests: u64) -> Result<()> {
    until("so many are worked on", PATIENCE, async || {
        let now = service.metric("rl_inflight_requests").await.ok()?;
        (now == requests).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_large_body_is_refused_announced_or_not() -> Result<()> {
    let small = Settings {
        max_body: 1000,
        ..quick()
    };
    let service = Service::with_settings(PER_USER, small).await?;
    let reply = service.post("/v1/check", vec![b' '; 1001]).send().await?;
    assert_eq!(reply.status, 413);
    assert_eq!(reply.json()?["error"]["code"], "too_large");
    let reply = service.post("/v1/check", vec![b' '; 1000]).send().await?;
    assert_eq!(reply.status, 400, "it is read, and is not JSON");

    let mut stream = TcpStream::connect(service.data).await?;
    stream
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    let chunk = [b"190\r\n".as_slice(), &[b' '; 0x190], b"\r\n"].concat();
    for _ in 0..3 {
        stream.write_all(&chunk).await?;
    }
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    assert_eq!(&head, b"HTTP/1.1 413");
    Ok(())
}

#[tokio::test]
async fn a_request_too_many_is_refused_and_the_others_are_answered() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let narrow = Settings {
        max_inflight: 2,
        ..quick()
    };
    let service = Arc::new(Service::ready_on(store.clone(), narrow).await?);
    let held = hold(&service, &store, 2).await?;
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()?["error"]["code"], "overloaded");
    assert_eq!(reply.header("retry-after"), Some("1"));
    store.let_through(100);
    for request in held {
        assert!(request.await??);
    }
    assert!(service.allows("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_connection_too_many_is_told_so() -> Result<()> {
    let one = Settings {
        max_connections: 1,
        ..quick()
    };
    let service = Service::with_settings(PER_USER, one).await?;
    let first = TcpStream::connect(service.data).await?;
    let mut second = TcpStream::connect(service.data).await?;
    second
        .write_all(b"GET /v1/policy?domain=shop HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    let mut answer = String::new();
    second.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\"overloaded\""), "{answer}");
    drop(first);
    until("the place is free again", PATIENCE, async || {
        let reply = service.get("/v1/policy?domain=shop").send().await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await
}

#[tokio::test]
async fn checks_gather_while_the_store_is_busy_and_leave_together() -> Result<()> {
    let store = Scripted::with("  - {name: per-user, per: [user], rate: 100/1d}\n", 0).await?;
    let service = Arc::new(Service::ready_on(store.clone(), quick()).await?);
    let mut asked = hold(&service, &store, 4).await?;
    asked.extend((0..10).map(|_| ask(&service)));
    inflight(&service, 14).await?;
    store.let_through(100);
    for request in asked {
        assert!(request.await??);
    }
    let mut sizes: Vec<usize> = store.calls().into_iter().map(|(size, _)| size).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 1, 1, 10]);
    Ok(())
}

#[tokio::test]
async fn whoever_leaves_is_not_charged_and_takes_no_answer_along() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let service = Arc::new(Service::ready_on(store.clone(), quick()).await?);
    let busy = hold(&service, &store, 4).await?;
    let body = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;
    let mut leaver = TcpStream::connect(service.data).await?;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    leaver.write_all(head.as_bytes()).await?;
    let stayer = {
        let service = Arc::clone(&service);
        tokio::spawn(async move { service.ask(json!({"descriptor": {"user": "a"}})).await })
    };
    inflight(&service, 6).await?;
    drop(leaver);
    inflight(&service, 5).await?;
    store.let_through(100);
    assert_eq!(stayer.await??.json()?["remaining"], 9);
    for request in busy {
        assert!(request.await??);
    }
    assert_eq!(store.calls().iter().map(|(size, _)| size).sum::<usize>(), 5);
    Ok(())
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed() -> Result<()> {
    let impatient = Settings {
        idle_timeout: Duration::from_millis(50),
        ..quick()
    };
    let service = Service::with_settings(PER_USER, impatient).await?;
    for started in ["", "GET /v1/pol", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(service.data).await?;
        stream.write_all(started.as_bytes()).await?;
        let closed = async { while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {} };
        let closed = tokio::time::timeout(PATIENCE, closed).await;
        assert!(closed.is_ok(), "{started:?}");
    }
    Ok(())
}

#[tokio::test]
async fn bodies_under_way_are_bounded_together() -> Result<()> {
    let roomy = Settings {
        max_body: 64 << 20,
        ..quick()
    };
    let service = Service::with_settings(PER_USER, roomy).await?;
    let mut slow = TcpStream::connect(service.data).await?;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        64 << 20
    );
    slow.write_all(head.as_bytes()).await?;
    until("its room is taken", PATIENCE, async || {
        (service.metric("rl_body_bytes").await.ok()? == 64 << 20).then_some(())
    })
    .await?;
    let reply = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()?["error"]["code"], "overloaded");
    drop(slow);
    until("the room is free again", PATIENCE, async || {
        service.allows("a").await.ok()
    })
    .await?;
    Ok(())
}

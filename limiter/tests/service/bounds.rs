//! Requests over a bound are refused with a message, and do not affect the answers of others.

use std::{future::poll_fn, sync::Arc, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use harness::until;
use hyper::Request;
use serde_json::json;
use store::CheckError;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use crate::support::{PATIENCE, PER_USER, Scripted, Service, quick, tuned};

fn ask(service: &Arc<Service>) -> JoinHandle<Result<bool>> {
    let service = Arc::clone(service);
    tokio::spawn(async move { service.allows("busy").await })
}

/// Sends this many checks, each in a store call of its own that the store holds back.
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

/// Waits until this many requests are in flight.
async fn inflight(service: &Service, requests: u64) -> Result<()> {
    until("so many are worked on", PATIENCE, async || {
        let now = service.metric("rl_inflight_requests").await.ok()?;
        (now == requests).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_large_body_is_refused_announced_or_not() -> Result<()> {
    let small = tuned(|s| s.max_body = 1000);
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
    let narrow = tuned(|s| s.max_inflight = 2);
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
async fn a_connection_over_the_limit_is_refused_with_503() -> Result<()> {
    let one = tuned(|s| s.max_connections = 1);
    let service = Service::with_settings(PER_USER, one).await?;
    let mut first = TcpStream::connect(service.data).await?;
    let request = b"GET /v1/policy?domain=shop HTTP/1.1\r\nhost: x\r\n\r\n";
    first.write_all(request).await?;
    first.read_exact(&mut [0; 12]).await?;
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
async fn a_client_that_leaves_is_not_charged_and_others_get_their_answers() -> Result<()> {
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
    let impatient = tuned(|s| s.idle_timeout = Duration::from_millis(50));
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

/// Announced bodies that are not sent take no memory, and only few may be slow.
#[tokio::test]
async fn slow_request_bodies_do_not_block_other_clients() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 262144\r\n\r\n ";
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(service.data).await?;
        stream.write_all(head.as_bytes()).await?;
        slow.push(stream);
    }
    until("what is too slow is refused", PATIENCE, async || {
        let refused = "rl_refused_total{code=\"overloaded\"}";
        (service.metric(refused).await.ok()? == 300 - 64).then_some(())
    })
    .await?;
    assert!(service.metric("rl_body_bytes").await? <= 64);
    assert!(service.allows("a").await?);
    Ok(())
}

/// All but the last byte of as many bodies as may be slow, which together would be all that requests may have.
#[tokio::test]
async fn slow_request_bodies_leave_half_of_the_memory_to_others() -> Result<()> {
    const LENGTH: usize = 256 << 10;
    let service = Service::with(PER_USER).await?;
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {LENGTH}\r\n\r\n");
    let part = vec![b' '; LENGTH - 1];
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(service.data).await?;
        stream.write_all(head.as_bytes()).await?;
        // What is refused is reset.
        let _ = stream.write_all(&part).await;
        slow.push(stream);
    }
    until(
        "what is beyond their part is refused",
        PATIENCE,
        async || {
            let refused = "rl_refused_total{code=\"overloaded\"}";
            (service.metric(refused).await.ok()? >= 32).then_some(())
        },
    )
    .await?;
    assert!(service.metric("rl_body_bytes").await? <= 8 << 20);
    assert!(service.allows("a").await?);
    Ok(())
}

/// Bytes that a connection has sent count until the answer, and are bounded per connection.
#[tokio::test]
async fn the_bytes_held_for_one_connection_are_bounded() -> Result<()> {
    const SHARE: u64 = 8 << 20;
    let large = tuned(|s| s.max_body = 3 << 20);
    let service = Service::with_settings(PER_USER, large).await?;
    let stream = TcpStream::connect(service.data).await?;
    let (mut client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    // Four incomplete bodies of 2.75 MiB.
    let mut bodies = Vec::new();
    for _ in 0..4 {
        let request = Request::post("http://localhost/v1/check").body(())?;
        let (answer, mut body) = client.send_request(request, false)?;
        for _ in 0..11 {
            send(&mut body, 256 << 10).await;
        }
        bodies.push((answer, body));
    }
    let refused = "rl_refused_total{code=\"overloaded\"}";
    until("one too many is refused", PATIENCE, async || {
        (service.metric(refused).await.ok()? >= 1).then_some(())
    })
    .await?;
    assert!(service.metric("rl_body_bytes").await? <= SHARE);
    assert!(service.allows("a").await?, "others have their room");
    Ok(())
}

/// What nobody has read yet, such as calls of a check stream whose answers are not read.
#[tokio::test]
async fn http2_lets_a_connection_send_few_bytes_that_nobody_reads() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut stream = TcpStream::connect(service.data).await?;
    let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await?;
    stream.write_all(&empty_settings).await?;
    let granted = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let [a, b, c, kind, ..] = head;
            let mut frame = vec![0; u32::from_be_bytes([0, a, b, c]).try_into()?];
            stream.read_exact(&mut frame).await?;
            // WINDOW_UPDATE of the connection, beyond the 65,535 bytes of every connection.
            if kind == 8 {
                let frame: [u8; 4] = frame.as_slice().try_into()?;
                return anyhow::Ok(65_535 + u32::from_be_bytes(frame));
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, granted).await??, 256 << 10);
    Ok(())
}

/// Sends this many bytes of a body, or stops when the limiter refuses more.
async fn send(body: &mut h2::SendStream<Bytes>, mut bytes: usize) {
    while bytes > 0 {
        body.reserve_capacity(bytes);
        let Some(Ok(part)) = poll_fn(|context| body.poll_capacity(context)).await else {
            return;
        };
        if body
            .send_data(Bytes::from(vec![b' '; part]), false)
            .is_err()
        {
            return;
        }
        bytes -= part.min(bytes);
    }
}

/// A request of 600 checks, each of a user of its own.
fn crowd(service: &Arc<Service>) -> JoinHandle<Result<Vec<serde_json::Value>>> {
    let service = Arc::clone(service);
    let checks = (0..600).map(|n| json!({"descriptor": {"user": format!("u{n}")}}));
    let batch = json!({"checks": checks.collect::<Vec<_>>()});
    tokio::spawn(async move {
        let answer = service.ask(batch).await?.json()?;
        Ok(answer["results"].as_array().cloned().unwrap_or_default())
    })
}

#[tokio::test]
async fn a_request_of_many_checks_goes_in_parts_and_lets_others_by() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let service = Arc::new(Service::ready_on(store.clone(), quick()).await?);
    let crowd = crowd(&service);
    store.entered(1).await?;
    let other = ask(&service);
    store.entered(2).await?;
    store.let_through(2);
    assert!(other.await??, "it does not wait for the rest of the crowd");
    store.entered(3).await?;
    store.let_through(2);
    let results = crowd.await??;
    assert_eq!(results.len(), 600);
    assert!(results.iter().all(|result| result["allowed"] == true));
    let sizes: Vec<_> = store.calls().iter().map(|(checks, _)| *checks).collect();
    assert_eq!(sizes, [256, 1, 256, 88]);
    Ok(())
}

#[tokio::test]
async fn what_a_request_of_many_checks_has_no_time_for_is_not_sent() -> Result<()> {
    let store = Scripted::with(PER_USER, 1).await?;
    let hasty = tuned(|s| s.store_timeout = Duration::from_millis(500));
    let service = Arc::new(Service::ready_on(store.clone(), hasty).await?);
    let results = crowd(&service).await??;
    let decided = results.iter().filter(|result| result["allowed"] == true);
    assert_eq!(decided.count(), 256);
    let untouched = |result: &&serde_json::Value| result["error"]["charged"] == false;
    assert_eq!(results.iter().filter(untouched).count(), 88);
    // The store may still charge the second part.
    let doubtful = |result: &&serde_json::Value| {
        let error = &result["error"];
        error["code"] == "store_unavailable" && error["charged"].is_null()
    };
    assert_eq!(results.iter().filter(doubtful).count(), 256);
    store.entered(2).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_between_the_parts_of_its_request_keeps_no_slot() -> Result<()> {
    let store = Scripted::with(SLOTS, 0).await?;
    leaves_before_the_second_call(store, 600).await
}

#[tokio::test]
async fn a_client_that_leaves_while_a_stale_check_is_repeated_keeps_no_slot() -> Result<()> {
    let store = Scripted::with(SLOTS, 0).await?;
    store.fail_some([None, Some(CheckError::Stale)]);
    leaves_before_the_second_call(store, 2).await
}

const SLOTS: &str = "  - {name: slots, algorithm: concurrency, limit: 1000}\n";

/// A request of so many checks, whose client leaves when some of them were given slots.
async fn leaves_before_the_second_call(store: Arc<Scripted>, checks: usize) -> Result<()> {
    let service = Arc::new(Service::ready_on(store.clone(), quick()).await?);
    let checks = vec![json!({"descriptor": {}}); checks];
    let body = json!({"domain": "shop", "checks": checks}).to_string();
    let mut leaver = TcpStream::connect(service.data).await?;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    leaver.write_all(head.as_bytes()).await?;
    store.entered(1).await?;
    store.let_through(1);
    store.entered(2).await?;
    drop(leaver);
    inflight(&service, 0).await?;
    store.let_through(100);
    until("all slots are free again", PATIENCE, async || {
        let peek = json!({"descriptor": {}, "peek": true});
        let answer = service.ask(peek).await.ok()?.json().ok()?;
        (answer["remaining"] == 1000).then_some(())
    })
    .await
}

//! Shutdown: every request that was sent gets its answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use harness::until;
use limiter::RunError;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::support::{PATIENCE, PER_USER, Scripted, Service, quick, tuned};

const CHECK: &str = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;

/// Sends one request on a connection; returns whether the connection stays open.
async fn exchange(stream: &mut BufReader<TcpStream>) -> Result<bool> {
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{CHECK}",
        CHECK.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let (mut length, mut goes_on, mut line) = (None, true, String::new());
    loop {
        line.clear();
        ensure!(
            stream.read_line(&mut line).await? > 0,
            "closed without an answer"
        );
        let field = line.trim_end();
        if field.is_empty() {
            break;
        }
        length = length.or(field.strip_prefix("content-length: ").map(str::to_owned));
        goes_on &= field != "connection: close";
    }
    let mut body = vec![0; length.context("a length")?.parse()?];
    stream.read_exact(&mut body).await?;
    ensure!(body.starts_with(b"{\"allowed\":"), "not an answer");
    Ok(goes_on)
}

/// Sends checks over one connection after another until none is accepted.
async fn ask_on(data: SocketAddr, answered: Arc<AtomicUsize>) -> Result<()> {
    while let Ok(stream) = TcpStream::connect(data).await {
        let mut stream = BufReader::new(stream);
        while exchange(&mut stream).await? {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_request_is_answered() -> Result<()> {
    let settings = tuned(|s| s.drain = Duration::from_millis(200));
    let service = Service::with_settings(PER_USER, settings).await?;
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..8)
        .map(|_| tokio::spawn(ask_on(service.data, Arc::clone(&answered))))
        .collect();
    until("the load is on", PATIENCE, async || {
        (answered.load(Ordering::Relaxed) > 200).then_some(())
    })
    .await?;
    service.end().await??;
    for client in clients {
        client.await??;
    }
    Ok(())
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_limiter_ends() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    let mut stream = BufReader::new(TcpStream::connect(service.data).await?);
    let asked = tokio::spawn(async move { exchange(&mut stream).await });
    store.entered(1).await?;
    let data = service.data;
    let ended = service.end();
    until("nothing new is accepted", PATIENCE, async || {
        TcpStream::connect(data).await.is_err().then_some(())
    })
    .await?;
    store.let_through(1);
    assert!(!asked.await??, "the answer closes the connection");
    ended.await??;
    Ok(())
}

#[tokio::test]
async fn while_leaving_it_is_not_ready_but_answers() -> Result<()> {
    let settings = tuned(|s| s.drain = PATIENCE);
    let service = Service::with_settings(PER_USER, settings).await?;
    let (client, data, admin) = (service.client.clone(), service.data, service.admin);
    let ending = service.end();
    until("it is leaving", PATIENCE, async || {
        let reply = client
            .get(&format!("http://{admin}/readyz"))
            .send()
            .await
            .ok()?;
        (reply.status == 503 && reply.text().contains("shutting down")).then_some(())
    })
    .await?;
    let reply = client
        .post(&format!("http://{data}/v1/check"), CHECK)
        .send()
        .await?;
    assert_eq!(
        (reply.status.as_u16(), reply.header("connection")),
        (200, Some("close"))
    );
    ending.abort();
    Ok(())
}

#[tokio::test]
async fn shutdown_sends_waiting_checks_elsewhere_and_ignores_idle_connections() -> Result<()> {
    let patient = tuned(|s| {
        (s.max_wait, s.last_answers) = (Duration::from_hours(2), Duration::from_hours(2));
    });
    let service = Service::with_settings("  - {name: all, rate: 1/1h}\n", patient).await?;
    assert!(service.allows("a").await?);
    let idle = TcpStream::connect(service.data).await?;
    let wait = json!({"domain": "shop", "descriptor": {}, "wait_ms": 7_000_000});
    let waiter = service.post("/v1/check", wait.to_string());
    let waiter = tokio::spawn(async move { waiter.send().await });
    until("it waits", PATIENCE, async || {
        (service.metric("rl_waiting_checks").await.ok()? == 1).then_some(())
    })
    .await?;
    timeout(PATIENCE, service.end()).await???;
    let reply = waiter.await??;
    let error = &reply.json()?["error"];
    assert_eq!(
        (reply.status.as_u16(), &error["code"]),
        (503, &json!("policy_unavailable"))
    );
    let message = error["message"].as_str().context("a message")?;
    assert!(message.contains("this limiter is ending"), "{message}");
    drop(idle);
    Ok(())
}

#[tokio::test]
async fn a_store_that_takes_no_report_does_not_hold_the_end_up() -> Result<()> {
    let store = Scripted::with(PER_USER, 1).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    assert!(service.allows("a").await?);
    store.take_no_report();
    timeout(PATIENCE, service.end()).await???;
    Ok(())
}

/// Without the task that polls the store limits would be frozen, and `/readyz` green.
#[tokio::test]
async fn it_ends_when_a_task_in_the_background_panics() -> Result<()> {
    for (call, task) in [("heads", "limits"), ("count_proxies", "fleet")] {
        let store = Scripted::with(PER_USER, 1000).await?;
        let service = Service::ready_on(store.clone(), quick()).await?;
        assert!(service.allows("a").await?);
        store.panic_in(call);
        let error = service.ended().await?.err().context("an error")?;
        assert!(matches!(error, RunError::Panicked(name) if name == task));
    }
    Ok(())
}

#[tokio::test]
async fn a_signal_after_a_panic_ends_the_drain() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let settings = tuned(|s| s.drain = Duration::from_hours(2));
    let service = Service::ready_on(store.clone(), settings).await?;
    store.panic_in("heads");
    until("it is leaving", PATIENCE, async || {
        let reply = service.admin("/readyz").send().await.ok()?;
        (reply.status == 503 && reply.text().contains("shutting down")).then_some(())
    })
    .await?;
    let ended = timeout(PATIENCE, service.end()).await??;
    assert!(matches!(ended, Err(RunError::Panicked("limits"))));
    Ok(())
}

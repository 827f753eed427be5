//! Calls of a limiter over HTTP/2, many at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::Limiter;
use tokio::task::JoinSet;

use crate::bench::h2c::{Call, H2c};
use crate::bench::load::{Sample, USER_COUNT};

/// Connections, and calls at once on each.
const CONNECTIONS: u64 = 4;
const AT_ONCE: u64 = 8;

/// `ShouldRateLimit` with one descriptor of one entry.
pub fn service(user: u64) -> Call {
    let user = format!("user-{user}");
    let entry = [field(1, b"user"), field(2, user.as_bytes())].concat();
    let message = [field(1, b"shop"), field(2, &field(1, &entry))].concat();
    let mut body = vec![0];
    body.extend(
        u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    body.extend(message);
    Call {
        path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        content_type: "application/grpc",
        body,
    }
}

/// `POST /v1/check` with one check.
pub fn check(user: u64) -> Call {
    let descriptor = serde_json::json!({"path": "/check", "user": format!("user-{user}")});
    let body = serde_json::json!({"domain": "shop", "descriptor": descriptor});
    Call {
        path: "/v1/check",
        content_type: "application/json",
        body: body.to_string().into_bytes(),
    }
}

/// A field of a message, of less than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    [&[number << 3 | 2, length], bytes].concat()
}

/// Calls for so many seconds.
pub async fn load(limiter: &Limiter, seconds: u64, call: fn(u64) -> Call) -> Result<Sample> {
    let (started, mut connections) = (Instant::now(), JoinSet::new());
    let end = started + Duration::from_secs(seconds);
    for connection in 0..CONNECTIONS {
        let to = H2c::connect(limiter).await?;
        let call = move |caller, made| {
            let user = connection * AT_ONCE + caller + made * CONNECTIONS * AT_ONCE;
            Ok((Instant::now() < end).then(|| call(user % USER_COUNT)))
        };
        connections.spawn(async move { to.each(AT_ONCE, call).await });
    }
    let mut latencies = Vec::new();
    while let Some(of_connection) = connections.join_next().await {
        latencies.extend(of_connection??);
    }
    let micros = u64::try_from(started.elapsed().as_micros())?.max(1);
    latencies.sort_unstable();
    let requests = u64::try_from(latencies.len())?;
    let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied();
    Ok(Sample {
        requests,
        per_second: requests.saturating_mul(1_000_000) / micros,
        p50_us: at(50).context("no answer")?,
        p99_us: at(99).context("no answer")?,
    })
}

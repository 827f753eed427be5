//! The rate limit service and the health service over gRPC, byte by byte.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, body::Bytes, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter::Settings;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::support::{Service, tuned};

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const LIMITS: &str = "  - {name: a, descriptor: [a], algorithm: fixed_window, rate: 1/365d}\n";

/// A field of bytes or text.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = value.len();
    while length > 127 {
        out.push(u8::try_from(length & 127).unwrap() | 128);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend(value);
    out
}

fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, key), field(2, value)].concat())
}

/// A call of one descriptor with one entry.
fn request(key: &[u8], value: &[u8]) -> Vec<u8> {
    [field(1, b"shop"), field(2, &entry(key, value))].concat()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// The gRPC status, its message, and the message of the answer.
async fn call(
    data: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> Result<(u16, String, Vec<u8>)> {
    let stream = TcpStream::connect(data).await?;
    let (mut sender, connection) =
        conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::<Bytes>::from(body))?;
    let answer = sender.send_request(request).await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/grpc");
    let headers = answer.headers().clone();
    let body = answer.into_body().collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let text = |headers: &HeaderMap, name| {
        let value = headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    let status = text(&trailers, "grpc-status").or_else(|| text(&headers, "grpc-status"));
    let message = text(&headers, "grpc-message").unwrap_or_default();
    let bytes = body.to_bytes();
    Ok((
        status.context("a status")?.parse()?,
        message,
        bytes.get(5..).unwrap_or_default().to_vec(),
    ))
}

#[tokio::test]
async fn a_call_is_answered_with_a_code() -> Result<()> {
    let service = Service::with(LIMITS).await?;
    let body = framed(&request(b"a", b"1"));
    for code in [1, 2] {
        let (status, message, answer) = call(service.data, RATE_LIMIT, None, body.clone()).await?;
        assert_eq!((status, message.as_str()), (0, ""));
        assert_eq!(answer.get(..2), Some(&[8, code][..]), "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn bad_calls_get_a_status() -> Result<()> {
    let service = Service::with(LIMITS).await?;
    let good = framed(&request(b"a", b"1"));
    let mut compressed = good.clone();
    compressed[0] = 1;
    let mut longer = good.clone();
    longer[1] = 255;
    let mut cut = good.clone();
    cut.pop();
    let long = Settings::default().max_body;
    let many = |count: usize| (0..count).map(|n| n.to_string());
    let entries: Vec<u8> = many(129).flat_map(|n| entry(n.as_bytes(), b"1")).collect();
    let heavy: Vec<u8> = many(129)
        .flat_map(|n| field(2, &entry(b"a", n.as_bytes())))
        .collect();
    let shop = field(1, b"shop");
    for (what, body, expected) in [
        ("nothing", Vec::new(), 3),
        ("no protobuf", framed(b"\xff\xff\xff"), 3),
        ("compressed", compressed, 12),
        ("a prefix that lies", longer, 3),
        ("a body that ends early", cut, 3),
        ("not UTF-8", framed(&request(b"a", b"\xff\xfe")), 3),
        ("a long key", framed(&request(&vec![b'k'; 65_536], b"1")), 3),
        ("a large body", framed(&request(b"a", &vec![b'v'; long])), 8),
        ("no descriptors", framed(&shop), 3),
        (
            "129 entries",
            framed(&[shop.clone(), field(2, &entries)].concat()),
            3,
        ),
        (
            "129 buckets at once",
            framed(&[shop.clone(), heavy].concat()),
            3,
        ),
    ] {
        let (status, message, _) = call(service.data, RATE_LIMIT, None, body).await?;
        assert_eq!(status, expected, "{what}: {message}");
        assert!(!message.is_empty(), "{what}");
    }
    let (status, ..) = call(service.data, "/x.Y/Z", None, good.clone()).await?;
    assert_eq!(status, 12);
    let (status, ..) = call(service.data, RATE_LIMIT, None, good).await?;
    assert_eq!(status, 0, "and it still answers");
    Ok(())
}

#[tokio::test]
async fn many_descriptors_leave_no_memory_in_use() -> Result<()> {
    let service = Service::with(LIMITS).await?;
    for n in 0..20 {
        let descriptors = (0..1000).map(|m| {
            let entry = [
                field(1, b"unknown"),
                field(2, format!("{n}-{m}").as_bytes()),
            ]
            .concat();
            field(2, &field(1, &entry))
        });
        let message = [field(1, b"shop"), descriptors.flatten().collect()].concat();
        let (status, ..) = call(service.data, RATE_LIMIT, None, framed(&message)).await?;
        assert_eq!(status, 0);
    }
    let counted = "rl_unmatched_descriptors_total{reason=\"limit\"}";
    assert_eq!(service.metric(counted).await?, 20_000);
    assert_eq!(service.metric("rl_body_bytes").await?, 0);
    Ok(())
}

#[tokio::test]
async fn every_call_except_health_requires_a_token() -> Result<()> {
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "a-token-of-the-rate-limit-service\n")?;
    let settings = tuned(|s| s.token_file = Some(tokens));
    let service = Service::with_settings(LIMITS, settings).await?;
    let body = framed(&request(b"a", b"1"));
    for token in [None, Some("wrong")] {
        let (status, ..) = call(service.data, RATE_LIMIT, token, body.clone()).await?;
        assert_eq!(status, 16);
    }
    let (status, ..) = call(
        service.data,
        RATE_LIMIT,
        Some("a-token-of-the-rate-limit-service"),
        body,
    )
    .await?;
    assert_eq!(status, 0);
    for (name, expected) in [("", 0), ("ratelimit", 0), ("other", 5)] {
        let body = framed(&field(1, name.as_bytes()));
        let (status, _, answer) = call(service.data, HEALTH, None, body).await?;
        assert_eq!(status, expected, "{name}");
        if status == 0 {
            assert_eq!(answer, [8, 1], "serving");
        }
    }
    Ok(())
}

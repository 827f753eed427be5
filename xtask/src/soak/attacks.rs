//! The attacks on the limiter, the thread that runs them, and what each attacker does, over and over.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::stream::unfold;
use harness::{
    Bytes, RawClient, control_frames, open_streams_without_window, rapid_resets,
    streams_without_window,
};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::compact::{BatchCheck, Report, RequestCounts, Tally};
use protocol::{
    CHECK_STREAM, CostSettlement, DecidedBy, LimitRequest, Outcome, REPORT_CBOR, Reservation,
    StreamCall,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::{TOKEN, post};
use crate::calls::{self, field, grpc, varint};

/// The priority of the attackers' thread: the lowest.
const NICE: i32 = 19;

/// The limiter's ports.
#[derive(Clone, Copy)]
pub struct To {
    /// Checks.
    pub data: u16,
    /// Health and metrics.
    pub admin: u16,
    /// Where the second limiter expects its management server.
    pub management: u16,
    /// The folder of the first limiter's `--rls-config`.
    pub files: &'static Path,
}

/// How often an attack struck.
type Count = Arc<AtomicU64>;
type Strikes = Pin<Box<dyn Future<Output = ()>>>;

/// One attack: its name, the number of its attackers, and what each repeats without end.
struct Attack {
    name: &'static str,
    attackers: u64,
    strikes: fn(To, u64, Count) -> Strikes,
}

/// A row an attack: its name, the number of its attackers, and what each does.
macro_rules! attacks {
    ($($name:literal, $attackers:literal: |$to:pat_param, $nth:pat_param, $count:ident| $strikes:expr;)*) => {
        &[$(Attack {
            name: $name,
            attackers: $attackers,
            strikes: |$to, $nth, $count| Box::pin($strikes),
        }),*]
    };
}

/// Requests have milliseconds between them.
const ATTACKS: &[Attack] = attacks! {
    "requests without a token, answers unread", 4: |to, _, count| unread_responses(to.data, "/v1/health", count);
    "metrics unread on the admin port", 2: |to, _, count| unread_responses(to.admin, "/metrics", count);
    "streams without a window", 50: |to, _, count| without_window(to.data, count);
    "bodies of 43,000 names", 8: |to, _, count| requests(to.data, 1000, count, same(many_names()));
    "bodies announced and not sent", 256: |to, _, count| unsent_bodies(to.data, count);
    "checks that wait with 60 KB each", 100: |to, _, count| requests(to.data, 1000, count, same(large_wait()));
    "check streams, answers unread", 8: |to, nth, count| check_streams(to.data, nth, count);
    "silent connections", 1: |to, _, count| silent_connections(to.data, 1500, count);
    "silent connections to the admin port", 1: |to, _, count| silent_connections(to.admin, 150, count);
    "reports of invented proxies", 1: |to, _, count| requests(to.data, 20, count, report_of_invented_proxy);
    "batches of 1,024 buckets of sub-windows", 1: |to, _, count| requests(to.data, 200, count, same(sub_windows()));
    "checks from a web page", 1: |to, _, count| requests(to.data, 50, count, same(from_web_page()));
    "calls of many descriptors", 3: |to, nth, count| requests(to.data, 20, count, many_descriptors(nth));
    "a management server that sends much", 1: |to, _, count| serve_too_much(to.management, count);
    "files that are large, wrong or none", 1: |to, _, count| rls_files(to.files, count);
    "forged costs", 1: |to, _, count| requests(to.data, 20, count, same(largest_cost()));
    "forged settlements", 1: |to, _, count| requests(to.data, 20, count, forged_settlement);
    "forged slots", 1: |to, _, count| requests(to.data, 20, count, |nth| Ok(forged_slot(nth)));
    "streams reset at once", 1: |to, _, count| resets(to.data, count);
    "PING and SETTINGS", 1: |to, _, count| frames(to.data, count);
};

/// Attackers, running on a thread of their own until the program ends.
pub struct Attackers(Vec<(&'static str, Count)>);

impl Attackers {
    /// Starts the attacks whose names contain one of `only`.
    pub fn start(to: To, only: &[String]) -> Result<Self> {
        let chosen = |attack: &&Attack| only.iter().any(|word| attack.name.contains(word));
        let attacks = ATTACKS.iter().filter(chosen);
        let chosen: Vec<_> = attacks.map(|attack| (attack, Count::default())).collect();
        let counts = { chosen.iter() }.map(|(attack, count)| (attack.name, Arc::clone(count)));
        let attackers = Self(counts.collect());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            // On Linux this sets the priority of the calling thread. If it fails, honest clients wait longer.
            let _ = rustix::process::setpriority_process(None, NICE);
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async {
                let mut all = JoinSet::new();
                for (attack, count) in chosen {
                    for nth in 0..attack.attackers {
                        all.spawn_local((attack.strikes)(to, nth, Arc::clone(&count)));
                    }
                }
                all.join_all().await;
            });
        });
        Ok(attackers)
    }

    /// A line for each attack: how often it struck.
    pub fn counts(&self) -> impl Iterator<Item = String> {
        let lines = self.0.iter();
        lines.map(|(name, count)| format!("{name}: {}", count.load(Ordering::Relaxed)))
    }
}

/// Repeats strikes, with so many milliseconds after each; a strike says how often it struck.
async fn repeat(pause_ms: u64, count: Count, mut strike: impl AsyncFnMut() -> Result<u64>) {
    loop {
        count.fetch_add(strike().await.unwrap_or(0), Ordering::Relaxed);
        sleep(Duration::from_millis(pause_ms)).await;
    }
}

async fn connect(port: u16) -> Result<TcpStream> {
    Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?)
}

// What is sent over one connection, request after request

/// Sends requests by their number.
async fn requests(
    port: u16,
    pause_ms: u64,
    count: Count,
    mut nth: impl FnMut(u64) -> Result<Vec<u8>>,
) {
    let (mut client, mut number) = (RawClient::new(port), 0);
    repeat(pause_ms, count, async || {
        number += 1;
        client.send(&nth(number)?).await.map(|_| 1)
    })
    .await;
}

fn same(request: Vec<u8>) -> impl FnMut(u64) -> Result<Vec<u8>> {
    move |_| Ok(request.clone())
}

fn post_json(path: &str, body: &Value) -> Vec<u8> {
    post(path, "application/json", body.to_string().as_bytes())
}

fn check(body: &Value) -> Vec<u8> {
    post_json("/v1/check", body)
}

fn many_names() -> Vec<u8> {
    let names: Vec<_> = (0..43_000).map(|n| format!("{n:x}")).collect();
    check(&json!({"domain": "soak", "descriptor": {}, "limits": names}))
}

fn large_wait() -> Vec<u8> {
    let descriptor = json!({"what": "slow", "user": "x".repeat(60_000)});
    check(&json!({"domain": "soak", "descriptor": descriptor, "wait_ms": 30_000}))
}

fn report_of_invented_proxy(nth: u64) -> Result<Vec<u8>> {
    let report = Report {
        domain: calls::name("soak")?,
        proxy: format!("{:016x}", nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        requests: RequestCounts::default(),
        tallies: vec![Tally {
            limit: calls::name("honest")?,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            count: 1,
        }],
        denied: Vec::new(),
    };
    Ok(post("/v1/report", REPORT_CBOR, &report.encode()))
}

/// Checks that are expensive in the store.
fn sub_windows() -> Vec<u8> {
    let of = |n| json!({"descriptor": {"what": "windows", "user": format!("u{n}")}});
    let checks: Vec<_> = (0..1024).map(of).collect();
    check(&json!({"domain": "soak", "checks": checks}))
}

fn from_web_page() -> Vec<u8> {
    let body = br#"{"domain":"soak","descriptor":{"what":"honest","user":"u0"}}"#;
    let kind = "text/plain\r\norigin: http://page.example";
    post("/v1/check", kind, body)
}

/// Calls of the rate limit service: as many descriptors as may be charged at once, more than may be, and
/// one of very many entries.
fn many_descriptors(attacker: u64) -> impl FnMut(u64) -> Result<Vec<u8>> {
    let entry = |n: u64| json!({"key": "service", "value": format!("{attacker}-{n}")});
    let many = |count| (0..count).map(|n| json!({"entries": [entry(n)]})).collect();
    let wide: Vec<Value> = (0..7000).map(entry).collect();
    let calls: [Vec<Value>; 3] = [many(128), many(1000), vec![json!({"entries": wide})]];
    let mut calls =
        calls.map(|of| post_json("/json", &json!({"domain": "soak", "descriptors": of})));
    move |_| {
        calls.rotate_left(1);
        Ok(calls[0].clone())
    }
}

fn largest_cost() -> Vec<u8> {
    let entries = json!([{"key": "service", "value": "debt"}]);
    let descriptor = json!({"entries": entries, "hitsAddend": u64::MAX.to_string()});
    post_json(
        "/json",
        &json!({"domain": "soak", "descriptors": [descriptor]}),
    )
}

/// A token that no limiter made, and a cost that no limit allows.
fn forged_settlement(number: u64) -> Result<Vec<u8>> {
    let reservation = Reservation {
        secret: number,
        number,
        units: 1,
        seal: number,
    };
    let limit = calls::name("tokens")?;
    let check = BatchCheck {
        limits: vec![LimitRequest {
            settle: vec![CostSettlement {
                reservation,
                units: 0,
            }],
            ..LimitRequest::new(limit)
        }],
        ..calls::check(&["tokens"], 0)
    };
    let batch = calls::batch("soak", &["what"], vec![check])?;
    let token = documents::to_base64(&batch.encode());
    let body = json!({"token": token, "cost": u64::MAX});
    Ok(post_json("/v1/settle", &body))
}

/// A slot that nobody gave.
fn forged_slot(number: u64) -> Vec<u8> {
    let slots = json!({"slots": format!("{number}.{number}.86400000.1.1")});
    let descriptor = json!({"what": "slots"});
    let body = json!({"domain": "soak", "descriptor": descriptor, "slots": slots, "enter": true});
    post_json("/v1/renew", &body)
}

// What abuses connections

/// Sends requests without reading a response, until the limiter accepts no more.
async fn unread_responses(port: u16, path: &str, count: Count) {
    let many = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").repeat(20);
    repeat(100, Arc::clone(&count), async || {
        let mut stream = connect(port).await?;
        while stream.write_all(many.as_bytes()).await.is_ok() {
            count.fetch_add(20, Ordering::Relaxed);
            sleep(Duration::from_millis(20)).await;
        }
        Ok(0)
    })
    .await;
}

/// Announces bodies and does not send them.
async fn unsent_bodies(port: u16, count: Count) {
    let whole = post("/v1/check", "application/json", &vec![b' '; 262_144]);
    repeat(3000, count, async || {
        let mut stream = connect(port).await?;
        let (head, _) = { whole.split_last_chunk::<262_144>() }.context("no head")?;
        stream.write_all(head).await?;
        let mut scratch = [0; 4096];
        while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
        Ok(1)
    })
    .await;
}

/// Keeps up to `most` connections open, half of them with the beginning of a request.
async fn silent_connections(port: u16, most: usize, count: Count) {
    let mut open = VecDeque::new();
    repeat(5, count, async || {
        let mut stream = connect(port).await?;
        if open.len() % 2 == 0 {
            let _ = stream.write_all(b"GET /healthz HTT").await;
        }
        open.push_back(stream);
        if open.len() > most {
            open.pop_front();
        }
        Ok(1)
    })
    .await;
}

/// The headers of a request in HTTP/2.
pub fn head<'h>(method: &'h str, path: &'h str) -> Vec<(&'h str, &'h str)> {
    let names = [":method", ":scheme", ":path", ":authority"];
    names.into_iter().zip([method, "http", path, "x"]).collect()
}

/// Opens streams whose responses have no window.
async fn without_window(port: u16, count: Count) {
    repeat(2000, count, async || {
        let headers = head("GET", "/v1/health");
        Ok(streams_without_window(port, &headers, 1024).await?.into())
    })
    .await;
}

async fn resets(port: u16, count: Count) {
    repeat(500, count, async || {
        rapid_resets(port, &head("GET", "/v1/policy?domain=soak"), 200).await?;
        Ok(200)
    })
    .await;
}

/// Sends frames that must be answered.
async fn frames(port: u16, count: Count) {
    repeat(500, count, async || control_frames(port, 20_000).await).await;
}

/// Opens check streams and sends calls on them without reading an answer. Every other attacker's last call is not
/// whole: it announces 200,000 bytes.
async fn check_streams(port: u16, nth: u64, count: Count) {
    const BYTES: usize = 15_000;
    let bearer = format!("Bearer {TOKEN}");
    let mut headers = head("POST", CHECK_STREAM);
    headers.extend([("content-type", "application/grpc"), ("te", "trailers")]);
    headers.push(("authorization", &bearer));
    let Ok(call) = call_of_64_checks() else {
        return;
    };
    let mut data = if nth.is_multiple_of(2) {
        call.repeat(BYTES / call.len())
    } else {
        let length = 200_000_u32.to_be_bytes();
        [&[0], length.as_slice(), call.get(5..).unwrap_or_default()].concat()
    };
    data.truncate(BYTES);
    repeat(200, count, async || {
        let sent = open_streams_without_window(port, &headers, 64, &data);
        Ok(sent.await?.into())
    })
    .await;
}

/// A message of a check stream.
fn call_of_64_checks() -> Result<Vec<u8>> {
    let check = |n| calls::check(&[&format!("stream-{n}"), "honest"], 1);
    let checks = (0..64).map(check).collect();
    let batch = calls::batch("soak", &["user", "what"], checks)?;
    let body = &batch.encode();
    grpc(&StreamCall { id: 1, body }.encode())
}

// What limits come from: files, and a management server, that hold more than a limiter may take

/// Replaces a file of `--rls-config`: by 9,900 limits, by as many wrong ones, and by a link to nothing.
async fn rls_files(folder: &Path, count: Count) {
    let (file, fresh) = (folder.join("flood.yaml"), folder.join(".fresh"));
    let mut nth: usize = 0;
    repeat(1000, count, async || {
        nth += 1;
        let unit = if nth.is_multiple_of(2) { "day" } else { "dya" };
        let limit = |n| {
            format!(
                "  - {{key: user, value: u{n:06}, rate_limit: {{unit: {unit}, requests_per_unit: {nth}}}}}\n"
            )
        };
        if nth.is_multiple_of(3) {
            std::os::unix::fs::symlink("nowhere", &fresh)?;
        } else {
            let limits: String = (0..9900).map(limit).collect();
            std::fs::write(&fresh, format!("domain: flood\ndescriptors:\n{limits}"))?;
        }
        std::fs::rename(&fresh, &file)?;
        Ok(1)
    })
    .await;
}

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Small responses in a row, each with another limit, before large ones.
const EDITS: usize = 200;

/// Answers every stream with response after response, without end.
async fn serve_too_much(port: u16, count: Count) {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        let count = Arc::clone(&count);
        let service = service_fn(move |request: Request<Incoming>| {
            // The limiter's answers stay unread.
            let start = (0, request.into_body(), Arc::clone(&count));
            let responses = unfold(start, async |(nth, unread, count)| {
                if nth % (EDITS + 3) == EDITS + 2 {
                    sleep(Duration::from_millis(500)).await;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let frame = Frame::data(Bytes::from(response(nth).ok()?));
                Some((Ok::<_, Infallible>(frame), (nth + 1, unread, count)))
            });
            let mut response = Response::new(StreamBody::new(responses));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(CONTENT_TYPE, grpc);
            async { Ok::<_, Infallible>(response) }
        });
        let serving = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(serving);
    }
}

/// The n-th response: a small one, or one with 9,900 limits, with descriptors of two bytes each, or with a long name.
fn response(nth: usize) -> Result<Vec<u8>> {
    let config = match (nth % (EDITS + 3)).checked_sub(EDITS) {
        None => limits(1, nth),
        Some(0) => limits(9900, nth),
        Some(1) => [0x1a, 0].repeat(1_500_000),
        Some(_) => field(1, &vec![b't'; 3 << 20]),
    };
    let resource = [field(1, TYPE_URL.as_bytes()), field(2, &config)].concat();
    let message = [field(1, b"v"), field(2, &resource), field(5, b"n")];
    grpc(&message.concat())
}

/// This many limits of so many requests a day, in the domain `xds`.
fn limits(many: usize, requests: usize) -> Vec<u8> {
    let mut policy = vec![8, 4, 16];
    varint(requests, &mut policy);
    let descriptor = |n: usize| {
        let value = field(2, format!("u{n}").as_bytes());
        field(3, &[field(1, b"user"), value, field(3, &policy)].concat())
    };
    let descriptors = (0..many).flat_map(descriptor);
    { field(2, b"xds").into_iter() }
        .chain(descriptors)
        .collect()
}

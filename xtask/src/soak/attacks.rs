//! The attacks on the limiter, the thread that runs them, and what each attacker does, over and over.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Result;
use harness::{
    RawClient, control_frames, open_streams_without_window, rapid_resets, streams_without_window,
};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::compact::{Batch, BatchCheck, Report, RequestCounts, Tally};
use protocol::{
    CHECK_STREAM, CostSettlement, DecidedBy, LimitRequest, Outcome, REPORT_CBOR, Reservation,
    StreamCall,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::{TOKEN, post};

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

const ATTACKS: &[Attack] = attacks! {
    "requests without a token, answers unread", 4: |to, _, count| unread_responses(to.data, "/v1/health", count);
    "metrics unread on the admin port", 2: |to, _, count| unread_responses(to.admin, "/metrics", count);
    "streams without a window", 50: |to, _, count| without_window(to.data, count);
    "bodies of 43,000 names", 8: |to, _, count| many_names(to.data, count);
    "bodies announced and not sent", 256: |to, _, count| unsent_bodies(to.data, count);
    "checks that wait with 60 KB each", 100: |to, _, count| large_waits(to.data, count);
    "check streams, answers unread", 8: |to, nth, count| check_streams(to.data, nth, count);
    "silent connections", 1: |to, _, count| silent_connections(to.data, 1500, count);
    "silent connections to the admin port", 1: |to, _, count| silent_connections(to.admin, 150, count);
    "reports of invented proxies", 1: |to, _, count| invented_proxies(to.data, count);
    "batches of 1,024 buckets of sub-windows", 1: |to, _, count| sub_windows(to.data, count);
    "checks from a web page", 1: |to, _, count| web_page(to.data, count);
    "calls of many descriptors", 3: |to, nth, count| many_descriptors(to.data, nth, count);
    "a management server that sends much", 1: |to, _, count| serve_too_much(to.management, count);
    "files that are large, wrong or none", 1: |to, _, count| rls_files(to.files, count);
    "forged settlements, costs and slots", 3: |to, nth, count| forged(to.data, nth, count);
    "streams reset at once, PING and SETTINGS", 2: |to, nth, count| frames(to.data, nth, count);
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

// What each attacker does

/// How often an attack struck.
type Count = Arc<AtomicU64>;

const JSON: &str = "application/json";

fn add(count: &Count, strikes: u64) {
    count.fetch_add(strikes, Ordering::Relaxed);
}

/// Repeats a strike, with a pause after each.
async fn repeat(pause: Duration, mut strike: impl AsyncFnMut()) {
    loop {
        strike().await;
        sleep(pause).await;
    }
}

/// Sends requests over one connection, with a pause after each.
async fn requests(port: u16, pause: Duration, count: Count, mut next: impl FnMut() -> Vec<u8>) {
    let mut client = RawClient::new(port);
    let strike = async || {
        if client.send(&next()).await.is_ok() {
            add(&count, 1);
        }
    };
    repeat(pause, strike).await;
}

/// Sends the same check over one connection, with a pause after each.
async fn checks(port: u16, pause: Duration, count: Count, kind: &str, body: &str) {
    let request = post("/v1/check", kind, body.as_bytes());
    requests(port, pause, count, || request.clone()).await;
}

async fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
}

/// Waits until the other side closes.
async fn drain(stream: &mut TcpStream) {
    let mut scratch = [0; 4096];
    while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
}

/// Sends requests without reading a response, until the limiter accepts no more.
async fn unread_responses(port: u16, path: &str, count: Count) {
    let many = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").repeat(20);
    let strike = async || {
        if let Ok(mut stream) = connect(port).await {
            while stream.write_all(many.as_bytes()).await.is_ok() {
                add(&count, 20);
                sleep(Duration::from_millis(20)).await;
            }
        }
    };
    repeat(Duration::from_millis(100), strike).await;
}

/// Opens streams whose responses have no window.
async fn without_window(port: u16, count: Count) {
    let headers = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/v1/health"),
        (":authority", "x"),
    ];
    let strike = async || {
        if let Ok(streams) = streams_without_window(port, &headers, 1024).await {
            add(&count, streams.into());
        }
    };
    repeat(Duration::from_secs(2), strike).await;
}

/// Sends checks that name 43,000 limits.
async fn many_names(port: u16, count: Count) {
    let names: Vec<_> = (0..43_000).map(|n| format!(r#""{n:x}""#)).collect();
    let names = names.join(",");
    let body = format!(r#"{{"domain":"soak","descriptor":{{}},"limits":[{names}]}}"#);
    checks(port, Duration::from_secs(1), count, JSON, &body).await;
}

/// Announces bodies and does not send them.
async fn unsent_bodies(port: u16, count: Count) {
    let head = post("/v1/check", JSON, &vec![b' '; 262_144]);
    let head = head.get(..head.len() - 262_144).unwrap_or_default();
    let strike = async || {
        if let Ok(mut stream) = connect(port).await
            && stream.write_all(head).await.is_ok()
        {
            add(&count, 1);
            drain(&mut stream).await;
        }
    };
    repeat(Duration::from_secs(3), strike).await;
}

/// Sends large checks that wait for units.
async fn large_waits(port: u16, count: Count) {
    let value = "x".repeat(60_000);
    let body = format!(
        r#"{{"domain":"soak","descriptor":{{"what":"slow","user":"{value}"}},"wait_ms":30000}}"#
    );
    checks(port, Duration::from_secs(1), count, JSON, &body).await;
}

/// Keeps up to `most` connections open, half of them with the beginning of a request.
async fn silent_connections(port: u16, most: usize, count: Count) {
    let mut open = VecDeque::new();
    let strike = async || {
        if let Ok(mut stream) = connect(port).await {
            add(&count, 1);
            if open.len() % 2 == 0 {
                let _ = stream.write_all(b"GET /healthz HTT").await;
            }
            open.push_back(stream);
        }
        if open.len() > most {
            open.pop_front();
        }
    };
    repeat(Duration::from_millis(5), strike).await;
}

/// Sends reports under a new proxy id each time.
async fn invented_proxies(port: u16, count: Count) {
    let (Ok(domain), Ok(limit)) = ("soak".parse(), "honest".parse()) else {
        return;
    };
    let mut report = Report {
        domain,
        proxy: String::new(),
        requests: RequestCounts::default(),
        tallies: vec![Tally {
            limit,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            count: 1,
        }],
        denied: Vec::new(),
    };
    let mut nth: u64 = 0;
    let next = || {
        nth += 1;
        report.proxy = format!("{:016x}", nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        post("/v1/report", REPORT_CBOR, &report.encode())
    };
    requests(port, Duration::from_millis(20), count, next).await;
}

/// Sends batches of checks that are expensive in the store.
async fn sub_windows(port: u16, count: Count) {
    let check = |n| format!(r#"{{"descriptor":{{"what":"windows","user":"u{n}"}}}}"#);
    let list: Vec<_> = (0..1024).map(check).collect();
    let body = format!(r#"{{"domain":"soak","checks":[{}]}}"#, list.join(","));
    checks(port, Duration::from_millis(200), count, JSON, &body).await;
}

/// Sends checks as a web page could.
async fn web_page(port: u16, count: Count) {
    let body = r#"{"domain":"soak","descriptor":{"what":"honest","user":"u0"}}"#;
    let kind = "text/plain\r\norigin: http://page.example";
    checks(port, Duration::from_millis(50), count, kind, body).await;
}

/// Opens check streams and sends calls on them without reading an answer. Every other attacker's last call is not
/// whole: it announces 200,000 bytes.
async fn check_streams(port: u16, nth: u64, count: Count) {
    const STREAMS: u32 = 64;
    const BYTES: usize = 15_000;
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHECK_STREAM),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", &bearer),
    ];
    let Some(call) = call_of_64_checks() else {
        return;
    };
    let mut data = if nth.is_multiple_of(2) {
        call.repeat(BYTES / call.len())
    } else {
        let length = 200_000_u32.to_be_bytes();
        [&[0], length.as_slice(), call.get(5..).unwrap_or_default()].concat()
    };
    data.truncate(BYTES);
    let strike = async || {
        let sent = open_streams_without_window(port, &headers, STREAMS, &data).await;
        add(&count, sent.map_or(0, u64::from));
    };
    repeat(Duration::from_millis(200), strike).await;
}

/// A message of a check stream.
fn call_of_64_checks() -> Option<Vec<u8>> {
    let check = |n| BatchCheck {
        values: [format!("stream-{n}"), "honest".to_owned()]
            .map(|value| Some(value.into_bytes()))
            .to_vec(),
        cost: 1,
        ..BatchCheck::default()
    };
    let batch = Batch {
        domain: "soak".parse().ok()?,
        proxy: "c".repeat(32),
        revision: None,
        keys: vec!["user".parse().ok()?, "what".parse().ok()?],
        checks: (0..64).map(check).collect(),
    };
    let body = &batch.encode();
    let message = StreamCall { id: 1, body }.encode();
    let length = u32::try_from(message.len()).ok()?.to_be_bytes();
    Some([&[0], length.as_slice(), &message].concat())
}

/// The first attacker resets streams, the others send frames that must be answered.
async fn frames(port: u16, nth: u64, count: Count) {
    let headers = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/v1/policy?domain=soak"),
        (":authority", "x"),
    ];
    let strike = async || {
        let sent = if nth == 0 {
            rapid_resets(port, &headers, 200).await.map(|()| 200)
        } else {
            control_frames(port, 20_000).await
        };
        add(&count, sent.unwrap_or(0));
    };
    repeat(Duration::from_millis(500), strike).await;
}

/// Sends calls of the rate limit service: as many descriptors as may be charged at once, more than may be, and
/// one of very many entries.
async fn many_descriptors(port: u16, nth: u64, count: Count) {
    let entry = |n: usize| format!(r#"{{"key":"service","value":"{nth}-{n}"}}"#);
    let descriptor = |entries: &str| format!(r#"{{"entries":[{entries}]}}"#);
    let call = |descriptors: &[String]| {
        let list = descriptors.join(",");
        let body = format!(r#"{{"domain":"soak","descriptors":[{list}]}}"#);
        post("/json", JSON, body.as_bytes())
    };
    let many = |count| {
        call(
            &(0..count)
                .map(|n| descriptor(&entry(n)))
                .collect::<Vec<_>>(),
        )
    };
    let entries: Vec<_> = (0..7000).map(entry).collect();
    let wide = call(&[descriptor(&entries.join(","))]);
    let calls = [many(128), many(1000), wide];
    let mut calls = calls.iter().cycle();
    let next = || calls.next().cloned().unwrap_or_default();
    requests(port, Duration::from_millis(20), count, next).await;
}

/// Replaces a file of `--rls-config`: by 9,900 limits, by as many wrong ones, and by a link to nothing.
async fn rls_files(folder: &Path, count: Count) {
    let (file, fresh) = (folder.join("flood.yaml"), folder.join(".fresh"));
    let mut nth: usize = 0;
    let strike = async || {
        nth += 1;
        let unit = if nth.is_multiple_of(2) { "day" } else { "dya" };
        let limit = |n| {
            format!(
                "  - {{key: user, value: u{n:06}, rate_limit: {{unit: {unit}, requests_per_unit: {nth}}}}}\n"
            )
        };
        let limits: String = (0..9900).map(limit).collect();
        let text = format!("domain: flood\ndescriptors:\n{limits}");
        let written = if nth.is_multiple_of(3) {
            std::os::unix::fs::symlink("nowhere", &fresh)
        } else {
            std::fs::write(&fresh, text)
        };
        if written
            .and_then(|()| std::fs::rename(&fresh, &file))
            .is_ok()
        {
            add(&count, 1);
        }
    };
    repeat(Duration::from_secs(1), strike).await;
}

/// Sends a cost of 2^64-1, settlements of reservations that nobody made, and slots that nobody gave.
async fn forged(port: u16, nth: u64, count: Count) {
    let mut number: u64 = 0;
    let next = || {
        number += 1;
        let (path, body) = match nth {
            0 => (
                "/json",
                format!(
                    r#"{{"domain":"soak","descriptors":[{{"entries":[{{"key":"service","value":"debt"}}],"hitsAddend":"{}"}}]}}"#,
                    u64::MAX
                ),
            ),
            1 => ("/v1/settle", settlement(number).unwrap_or_default()),
            _ => (
                "/v1/renew",
                format!(
                    r#"{{"domain":"soak","descriptor":{{"what":"slots"}},"slots":{{"slots":"{number}.{number}.86400000.1.1"}},"enter":true}}"#
                ),
            ),
        };
        post(path, JSON, body.as_bytes())
    };
    requests(port, Duration::from_millis(20), count, next).await;
}

/// A token that no limiter made, and a cost that no limit allows.
fn settlement(number: u64) -> Option<String> {
    let (secret, units, seal) = (number, 1, number);
    let reservation = Reservation {
        secret,
        number,
        units,
        seal,
    };
    let units = 0;
    let settled = CostSettlement { reservation, units };
    let batch = Batch {
        domain: "soak".parse().ok()?,
        proxy: String::new(),
        revision: None,
        keys: vec!["what".parse().ok()?],
        checks: vec![BatchCheck {
            values: vec![Some(b"tokens".to_vec())],
            limits: vec![LimitRequest {
                settle: vec![settled],
                ..LimitRequest::new("tokens".parse().ok()?)
            }],
            ..BatchCheck::default()
        }],
    };
    let token = documents::to_base64(&batch.encode());
    Some(format!(r#"{{"token":"{token}","cost":{}}}"#, u64::MAX))
}

// A management server that sends more than a limiter may take

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Small responses in a row, each with another limit.
const EDITS: usize = 200;

/// The responses of a stream, one after the other.
struct Responses(mpsc::Receiver<Bytes>);

impl Body for Responses {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Answers every stream with response after response, without end.
async fn serve_too_much(port: u16, count: Count) {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        let count = Arc::clone(&count);
        let service = service_fn(move |request: Request<Incoming>| {
            let (sender, responses) = mpsc::channel(1);
            // The limiter's answers are not read.
            tokio::spawn(send(sender, request.into_body(), Arc::clone(&count)));
            let mut response = Response::new(Responses(responses));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(CONTENT_TYPE, grpc);
            async { Ok::<_, Infallible>(response) }
        });
        let serving = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(serving);
    }
}

async fn send(responses: mpsc::Sender<Bytes>, _unread: Incoming, count: Count) {
    let mut nth = 0;
    loop {
        let edits = (0..EDITS).map(|edit| limits(1, nth + edit + 1));
        let large = [
            limits(9900, nth + 1),
            // Descriptors of two bytes each.
            response(&resource(&[0x1a, 0].repeat(1_500_000))),
            response(&field(1, &vec![b't'; 3 << 20])),
        ];
        for bytes in edits.chain(large) {
            if responses.send(bytes).await.is_err() {
                return;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
        nth += EDITS;
        sleep(Duration::from_millis(500)).await;
    }
}

/// A field of bytes, text or a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(value.len(), &mut out);
    out.extend(value);
    out
}

fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 127 {
        out.push(u8::try_from(number & 127).unwrap_or(0) | 128);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

/// This many limits of so many requests a day, in the domain `xds`.
fn limits(many: usize, requests: usize) -> Bytes {
    let mut policy = vec![8, 4, 16];
    varint(requests, &mut policy);
    let descriptor = |n: usize| {
        let value = field(2, format!("u{n}").as_bytes());
        field(3, &[field(1, b"user"), value, field(3, &policy)].concat())
    };
    let descriptors = (0..many).flat_map(descriptor);
    let config = field(2, b"xds").into_iter().chain(descriptors);
    response(&resource(&config.collect::<Vec<_>>()))
}

fn resource(config: &[u8]) -> Vec<u8> {
    [field(1, TYPE_URL.as_bytes()), field(2, config)].concat()
}

/// A response of one resource, as a message of gRPC.
fn response(resource: &[u8]) -> Bytes {
    let message = [field(1, b"v"), field(2, resource), field(5, b"n")].concat();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

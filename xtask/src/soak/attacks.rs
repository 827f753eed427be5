//! What clients do to a limiter that mean harm, or have gone wrong.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use harness::{RawClient, control_frames, rapid_resets, streams_without_window};
use protocol::compact::{Report, Tally};
use protocol::{DecidedBy, Outcome, REPORT_CBOR};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::TOKEN;

/// The priority of the attackers' thread, the lowest there is.
const NICE: i32 = 19;

/// The limiter's ports.
#[derive(Clone, Copy)]
pub struct To {
    /// Checks.
    pub data: u16,
    /// Health and metrics.
    pub admin: u16,
}

/// How often an attacker struck.
type Count = Arc<AtomicU64>;

type Strike = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One attack: its name, how many attackers there are, and what each does for ever.
struct Attack {
    name: &'static str,
    attackers: u64,
    strike: fn(To, u64, Count) -> Strike,
}

const ATTACKS: [Attack; 12] = [
    Attack {
        name: "requests without a token, answers unread",
        attackers: 4,
        strike: |to, _, count| Box::pin(unread(to.data, "/v1/health", count)),
    },
    Attack {
        name: "metrics unread on the admin port",
        attackers: 2,
        strike: |to, _, count| Box::pin(unread(to.admin, "/metrics", count)),
    },
    Attack {
        name: "streams without a window",
        attackers: 50,
        strike: |to, _, count| Box::pin(without_window(to.data, count)),
    },
    Attack {
        name: "bodies of 43,000 names",
        attackers: 2,
        strike: |to, _, count| Box::pin(names(to.data, count)),
    },
    Attack {
        name: "bodies announced and not sent",
        attackers: 256,
        strike: |to, _, count| Box::pin(announced(to.data, count)),
    },
    Attack {
        name: "checks that wait with 60 KB each",
        attackers: 100,
        strike: |to, _, count| Box::pin(waiting(to.data, count)),
    },
    Attack {
        name: "silent connections",
        attackers: 1,
        strike: |to, _, count| Box::pin(silent(to.data, 1500, count)),
    },
    Attack {
        name: "silent connections to the admin port",
        attackers: 1,
        strike: |to, _, count| Box::pin(silent(to.admin, 150, count)),
    },
    Attack {
        name: "reports of invented proxies",
        attackers: 1,
        strike: |to, _, count| Box::pin(invented(to.data, count)),
    },
    Attack {
        name: "batches of 64 buckets of sub-windows",
        attackers: 1,
        strike: |to, _, count| Box::pin(sub_windows(to.data, count)),
    },
    Attack {
        name: "checks from a web page",
        attackers: 1,
        strike: |to, _, count| Box::pin(web_page(to.data, count)),
    },
    Attack {
        name: "streams reset at once, PING and SETTINGS",
        attackers: 2,
        strike: |to, nth, count| Box::pin(frames(to.data, nth, count)),
    },
];

/// Attackers on a thread of their own, until the program ends.
pub struct Attackers(Vec<(&'static str, Count)>);

impl Attackers {
    /// Starts those whose names contain a word.
    pub fn start(to: To, only: &str) -> Result<Self> {
        let attacks = ATTACKS.iter().filter(|attack| attack.name.contains(only));
        let chosen: Vec<_> = attacks.map(|attack| (attack, Count::default())).collect();
        let counts = { chosen.iter() }.map(|(attack, count)| (attack.name, Arc::clone(count)));
        let attackers = Self(counts.collect());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            // On Linux a priority is that of the calling thread. Without it honest clients wait longer.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(async {
                let mut all = JoinSet::new();
                for (attack, count) in chosen {
                    for nth in 0..attack.attackers {
                        all.spawn((attack.strike)(to, nth, Arc::clone(&count)));
                    }
                }
                all.join_all().await;
            });
        });
        Ok(attackers)
    }

    /// How often each struck, in lines.
    pub fn counts(&self) -> impl Iterator<Item = String> {
        let lines = self.0.iter();
        lines.map(|(name, count)| format!("{name}: {}", count.load(Ordering::Relaxed)))
    }
}

/// The bytes of a POST with the token.
pub fn post(path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn struck(count: &Count, times: u64) {
    count.fetch_add(times, Ordering::Relaxed);
}

async fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
}

/// Waits until the other side closes.
async fn drain(stream: &mut TcpStream) {
    let mut scratch = [0; 4096];
    while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
}

/// Requests one after the other, no answer read, until they are not taken any more.
async fn unread(port: u16, path: &str, count: Count) {
    let many = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").repeat(20);
    loop {
        if let Ok(mut stream) = connect(port).await {
            while stream.write_all(many.as_bytes()).await.is_ok() {
                struck(&count, 20);
                sleep(Duration::from_millis(20)).await;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn without_window(port: u16, count: Count) {
    let headers = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/v1/health"),
        (":authority", "x"),
    ];
    loop {
        if let Ok(streams) = streams_without_window(port, &headers, 1024).await {
            struck(&count, streams.into());
        }
        sleep(Duration::from_secs(2)).await;
    }
}

/// Sends a request over and over, at a pace.
async fn again(port: u16, every: Duration, count: Count, mut request: impl FnMut() -> Vec<u8>) {
    let mut client = RawClient::new(port);
    loop {
        if client.send(&request()).await.is_ok() {
            struck(&count, 1);
        }
        sleep(every).await;
    }
}

async fn names(port: u16, count: Count) {
    let names: Vec<_> = (0..43_000).map(|n| format!(r#""{n:x}""#)).collect();
    let names = names.join(",");
    let body = format!(r#"{{"domain":"soak","descriptor":{{}},"limits":[{names}]}}"#);
    let request = post("/v1/check", "application/json", body.as_bytes());
    let request = move || request.clone();
    again(port, Duration::from_secs(1), count, request).await;
}

async fn announced(port: u16, count: Count) {
    let head = post("/v1/check", "application/json", &vec![b' '; 262_144]);
    let head = head.get(..head.len() - 262_144).unwrap_or_default();
    loop {
        if let Ok(mut stream) = connect(port).await
            && stream.write_all(head).await.is_ok()
        {
            struck(&count, 1);
            drain(&mut stream).await;
        }
        sleep(Duration::from_secs(3)).await;
    }
}

async fn waiting(port: u16, count: Count) {
    let value = "x".repeat(60_000);
    let body = format!(
        r#"{{"domain":"soak","descriptor":{{"what":"slow","user":"{value}"}},"wait_ms":30000}}"#
    );
    let request = post("/v1/check", "application/json", body.as_bytes());
    let request = move || request.clone();
    again(port, Duration::from_secs(1), count, request).await;
}

/// So many connections at once, half of them with the beginning of a request.
async fn silent(port: u16, most: usize, count: Count) {
    let mut open = VecDeque::new();
    loop {
        if let Ok(mut stream) = connect(port).await {
            struck(&count, 1);
            if open.len() % 2 == 0 {
                let _ = stream.write_all(b"GET /healthz HTT").await;
            }
            open.push_back(stream);
        }
        if open.len() > most {
            open.pop_front();
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn invented(port: u16, count: Count) {
    let (Ok(domain), Ok(limit)) = ("soak".parse(), "honest".parse()) else {
        return;
    };
    let mut report = Report {
        domain,
        proxy: String::new(),
        tallies: vec![Tally {
            limit,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            count: 1,
        }],
        denied: Vec::new(),
    };
    let mut nth: u64 = 0;
    let request = move || {
        nth += 1;
        report.proxy = format!("{:016x}", nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        post("/v1/report", REPORT_CBOR, &report.encode())
    };
    again(port, Duration::from_millis(20), count, request).await;
}

async fn sub_windows(port: u16, count: Count) {
    let check = |n| format!(r#"{{"descriptor":{{"what":"windows","user":"u{n}"}}}}"#);
    let checks: Vec<_> = (0..64).map(check).collect();
    let body = format!(r#"{{"domain":"soak","checks":[{}]}}"#, checks.join(","));
    let request = post("/v1/check", "application/json", body.as_bytes());
    let request = move || request.clone();
    again(port, Duration::from_millis(200), count, request).await;
}

async fn web_page(port: u16, count: Count) {
    let body = r#"{"domain":"soak","descriptor":{"what":"honest","user":"u0"}}"#;
    let kind = "text/plain\r\norigin: http://page.example";
    let request = post("/v1/check", kind, body.as_bytes());
    let request = move || request.clone();
    again(port, Duration::from_millis(50), count, request).await;
}

/// One attacker resets streams, the other sends what has to be answered.
async fn frames(port: u16, nth: u64, count: Count) {
    let headers = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/v1/policy?domain=soak"),
        (":authority", "x"),
    ];
    loop {
        let sent = if nth == 0 {
            rapid_resets(port, &headers, 200).await.map(|()| 200)
        } else {
            control_frames(port, 20_000).await
        };
        struck(&count, sent.unwrap_or(0));
        sleep(Duration::from_millis(500)).await;
    }
}

//! The limiter's throughput, as a share of Redis's.
//!
//! It compares the same script call from redis-benchmark, pipelined, and from the limiter for checks
//! that arrive in batches as the filter sends them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::{Client, Limiter};
use policy::Name;
use protocol::CHECK_CBOR;
use protocol::compact::{Batch, BatchCheck};
use tokio::process::Command;

use super::load::Load;

/// Checks in a batch: as many as gather while a few callouts are in flight.
const CHECKS: u64 = 32;
/// Script calls of one run of redis-benchmark.
const CALLS: &str = "20000";

/// The servers of both sides.
pub struct LimiterBench {
    benchmark: PathBuf,
    redis_port: u16,
    url: String,
    body: Vec<u8>,
    /// The script call that one batch becomes, as the limiter makes it.
    call: Vec<String>,
}

impl LimiterBench {
    /// Sends one batch and returns its script call.
    pub async fn prepare(benchmark: PathBuf, redis_port: u16, limiter: &Limiter) -> Result<Self> {
        let url = format!("{}/v1/check", limiter.url());
        let body = batch()?.encode();
        let mut monitor = Monitor::start(redis_port)?;
        let request = Client::new()
            .post(&url, body.clone())
            .header("content-type", CHECK_CBOR);
        let reply = request.send().await?;
        ensure!(
            reply.status == 200,
            "the limiter answers a batch with {}",
            reply.status
        );
        let call = monitor.script_call()?;
        Ok(Self {
            benchmark,
            redis_port,
            url,
            body,
            call,
        })
    }

    /// Checks per second by redis-benchmark.
    pub async fn redis(&self) -> Result<u64> {
        let output = Command::new(&self.benchmark)
            .args([
                "-p",
                &self.redis_port.to_string(),
                "-c",
                "4",
                "-P",
                "4",
                "-n",
                CALLS,
                "--csv",
            ])
            .args(&self.call)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot start redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let calls = text.lines().last().and_then(calls_per_second);
        let calls = calls.with_context(|| format!("redis-benchmark measured nothing: {text}"))?;
        Ok(calls.saturating_mul(CHECKS))
    }

    /// Checks per second through the limiter.
    pub async fn limiter(&self, load: &Load) -> Result<u64> {
        let sample = load.post(&self.url, CHECK_CBOR, &self.body).await?;
        Ok(sample.per_second.saturating_mul(CHECKS))
    }
}

/// Checks of different users, each of them matched by one limit.
fn batch() -> Result<Batch> {
    let name = |text: &str| {
        text.parse::<Name>()
            .with_context(|| format!("`{text}` is no name"))
    };
    let check = |n: u64| BatchCheck {
        values: vec![
            Some(b"/strict".to_vec()),
            Some(format!("batch-{n}").into_bytes()),
        ],
        cost: 1,
        skip: Vec::new(),
        debits: Vec::new(),
        leases: Vec::new(),
        free: Vec::new(),
        max_delay_ms: None,
        slot: None,
    };
    Ok(Batch {
        domain: name("shop")?,
        proxy: "bench".to_owned(),
        revision: None,
        keys: vec![name("path")?, name("user")?],
        checks: (0..CHECKS).map(check).collect(),
    })
}

/// A connection on which Redis prints every command (MONITOR).
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        ensure!(line.starts_with("+OK"), "Redis refuses MONITOR: {line}");
        Ok(Self(reader))
    }

    /// The next call of a script that names the batch's buckets.
    fn script_call(&mut self) -> Result<Vec<String>> {
        loop {
            let mut line = String::new();
            ensure!(
                self.0.read_line(&mut line)? > 0,
                "Redis ended the conversation"
            );
            if line.contains("\"EVALSHA\"") && line.contains("batch-0") {
                return words(&line);
            }
        }
    }
}

/// The quoted words of a line.
fn words(line: &str) -> Result<Vec<String>> {
    if line.contains('\\') {
        bail!("a script call with bytes that need escaping: {line}");
    }
    Ok(line
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect())
}

/// The second column, counted from the right as the first is the command
/// itself, commas and all; whole numbers are enough.
fn calls_per_second(line: &str) -> Option<u64> {
    let column = line.rsplit(',').nth(6)?;
    column.trim_matches('"').split('.').next()?.parse().ok()
}

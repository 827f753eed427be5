//! The limiter's throughput, as a share of Redis's.
//!
//! It compares the same script call, pipelined to Redis over a few connections, and from the limiter for
//! checks that arrive in batches as the filter sends them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Client, Limiter};
use policy::Name;
use protocol::CHECK_CBOR;
use protocol::compact::{Batch, BatchCheck};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncReader};

use super::load::Load;

/// Checks in a batch: as many as gather while a few callouts are in flight.
const CHECKS: u64 = 32;
/// Connections that call Redis without a limiter, calls at once on each, and how often.
const CONNECTIONS: u64 = 4;
const PIPELINED: usize = 4;
const ROUNDS: u64 = 1250;

/// The servers of both sides.
pub struct LimiterBench {
    redis_port: u16,
    url: String,
    body: Vec<u8>,
    /// The script call that one batch becomes, as the limiter makes it, as often as is sent at once.
    calls: Vec<u8>,
}

impl LimiterBench {
    /// Sends one batch and keeps its script call.
    pub async fn prepare(redis_port: u16, limiter: &Limiter) -> Result<Self> {
        let url = format!("{}/v1/check", limiter.url());
        let body = batch(0, CHECKS)?.encode();
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
        let words = monitor.script_call()?;
        let mut call = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            call.extend(format!("${}\r\n", word.len()).into_bytes());
            call.extend(word);
            call.extend(b"\r\n");
        }
        Ok(Self {
            redis_port,
            url,
            body,
            calls: call.repeat(PIPELINED),
        })
    }

    /// Checks per second by Redis alone.
    pub async fn redis(&self) -> Result<u64> {
        let started = Instant::now();
        tokio::try_join!(self.call(), self.call(), self.call(), self.call())?;
        let calls = CONNECTIONS * ROUNDS * u64::try_from(PIPELINED)?;
        let micros = u64::try_from(started.elapsed().as_micros())?.max(1);
        Ok(calls.saturating_mul(CHECKS).saturating_mul(1_000_000) / micros)
    }

    /// One connection's calls.
    async fn call(&self) -> Result<()> {
        let address = (Ipv4Addr::LOCALHOST, self.redis_port);
        let mut redis = AsyncReader::new(tokio::net::TcpStream::connect(address).await?);
        let (mut line, mut answer) = (String::new(), Vec::new());
        for _ in 0..ROUNDS {
            redis.write_all(&self.calls).await?;
            for _ in 0..PIPELINED {
                line.clear();
                redis.read_line(&mut line).await?;
                let length = line.trim_end().strip_prefix('$');
                let length = length.with_context(|| format!("Redis answers {line}"))?;
                answer.resize(length.parse::<usize>()? + 2, 0);
                redis.read_exact(&mut answer).await?;
            }
        }
        Ok(())
    }

    /// Checks per second through the limiter.
    pub async fn limiter(&self, load: &Load) -> Result<u64> {
        let sample = load.post(&self.url, CHECK_CBOR, &self.body).await?;
        Ok(sample.per_second.saturating_mul(CHECKS))
    }
}

/// So many checks of different users from this one on, each of them matched by one limit.
pub fn batch(first: u64, checks: u64) -> Result<Batch> {
    let check = |n| check("/strict", &format!("batch-{n}"), 1);
    batch_of((first..first + checks).map(check).collect())
}

/// Checks that [`check`] made, as a proxy sends them.
pub fn batch_of(checks: Vec<BatchCheck>) -> Result<Batch> {
    Ok(Batch {
        domain: name("shop")?,
        proxy: "b".repeat(32),
        revision: None,
        keys: vec![name("path")?, name("user")?],
        checks,
    })
}

/// A check of a user's request for a path.
pub fn check(path: &str, user: &str, cost: u64) -> BatchCheck {
    let values = [path, user].map(|value| Some(value.as_bytes().to_vec()));
    BatchCheck {
        values: values.to_vec(),
        cost,
        ..BatchCheck::default()
    }
}

/// A name of a domain, an entry or a limit.
pub fn name(text: &str) -> Result<Name> {
    text.parse().with_context(|| format!("`{text}` is no name"))
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
    fn script_call(&mut self) -> Result<Vec<Vec<u8>>> {
        loop {
            let mut line = String::new();
            ensure!(
                self.0.read_line(&mut line)? > 0,
                "Redis ended the conversation"
            );
            if line.contains("\"EVALSHA\"") && line.contains("batch-0") {
                return Ok(words(&line));
            }
        }
    }
}

/// The quoted words of a line, without what escapes their bytes.
fn words(line: &str) -> Vec<Vec<u8>> {
    let (mut words, mut quoted) = (Vec::new(), false);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'"' => {
                quoted = !quoted;
                if quoted {
                    words.push(Vec::new());
                }
                continue;
            }
            b'\\' => escaped(&mut bytes),
            byte => byte,
        };
        if let (true, Some(word)) = (quoted, words.last_mut()) {
            word.push(byte);
        }
    }
    words
}

/// The byte that a backslash and what follows it are in Redis.
fn escaped(bytes: &mut std::str::Bytes<'_>) -> u8 {
    match bytes.next() {
        Some(b'x') => {
            let digits: String = bytes.by_ref().take(2).map(char::from).collect();
            u8::from_str_radix(&digits, 16).unwrap_or_default()
        }
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'a') => 7,
        Some(b'b') => 8,
        Some(other) => other,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_sent() {
        let line = r#"+1.5 [0 127.0.0.1:1] "EVALSHA" "a\"b\\" "" "\x00\xf0?\n\a""#;
        let sent: [&[u8]; 4] = [b"EVALSHA", b"a\"b\\", b"", b"\x00\xf0?\n\x07"];
        assert_eq!(words(line), sent);
    }
}

//! Calls straight to a limiter over cleartext HTTP/2, as Envoy sends them, and the script calls that they
//! become, straight to Redis.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Client, Limiter};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use policy::Name;
use protocol::CHECK_CBOR;
use protocol::compact::{Batch, BatchCheck};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncReader};
use tokio::task::JoinSet;

use super::report::median;
use super::setups::USER_COUNT;

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

/// A call: its path, the type of its body, and the body.
pub struct Call(&'static str, &'static str, Vec<u8>);

/// A call with so many checks, in the form that the filter sends.
pub fn batched(nth: u64, checks: u64) -> Result<Call> {
    let user = nth * checks % USER_COUNT;
    Ok(Call("/v1/check", CHECK_CBOR, batch(user, checks)?.encode()))
}

/// `POST /v1/check` with one check.
#[expect(clippy::unnecessary_wraps, reason = "all calls are made alike")]
pub fn posted(nth: u64) -> Result<Call> {
    let user = format!("user-{}", nth % USER_COUNT);
    let descriptor = serde_json::json!({"path": "/check", "user": user});
    let body = serde_json::json!({"domain": "shop", "descriptor": descriptor});
    Ok(Call(
        "/v1/check",
        "application/json",
        body.to_string().into_bytes(),
    ))
}

/// `ShouldRateLimit` with one descriptor of one entry.
pub fn of_the_service(nth: u64) -> Result<Call> {
    const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // A field of less than 128 bytes.
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        [&[number << 3 | 2, length], bytes].concat()
    };
    let user = format!("user-{}", nth % USER_COUNT);
    let entry = [field(1, b"user"), field(2, user.as_bytes())].concat();
    let message = [field(1, b"shop"), field(2, &field(1, &entry))].concat();
    let length = u32::try_from(message.len())?.to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    Ok(Call(PATH, "application/grpc", body))
}

/// The results of calls for a while.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    pub per_second: u64,
    /// Half of the answers came within this many microseconds.
    pub p50_us: u64,
    /// CPU time of the limiter per call, in nanoseconds.
    pub cpu_ns: u64,
}

/// Calls a limiter for a while over some connections, so many at once on each.
pub async fn measure(
    limiter: &Limiter,
    connections: u64,
    at_once: u64,
    lasts: Duration,
    call: impl Fn(u64) -> Result<Call> + Copy + Send + 'static,
) -> Result<Calls> {
    let (before, started) = (limiter.process().cpu_us()?, Instant::now());
    let until = started + lasts;
    let call = move |nth| (Instant::now() < until).then(|| call(nth)).transpose();
    let took_us = each(limiter, connections, at_once, call).await?;
    let lasted = u64::try_from(started.elapsed().as_micros())?.max(1);
    let cpu_us = limiter.process().cpu_us()? - before;
    let calls = u64::try_from(took_us.len())?.max(1);
    Ok(Calls {
        per_second: calls.saturating_mul(1_000_000) / lasted,
        p50_us: median(took_us),
        cpu_ns: cpu_us.saturating_mul(1000) / calls,
    })
}

/// Makes calls over some connections, so many at once on each: `call` is given their number, and its `None`
/// ends them. Returns how many microseconds each took.
pub async fn each(
    limiter: &Limiter,
    connections: u64,
    at_once: u64,
    call: impl Fn(u64) -> Result<Option<Call>> + Copy + Send + 'static,
) -> Result<Vec<u64>> {
    let (mut callers, url) = (JoinSet::new(), limiter.url());
    let address = url.strip_prefix("http://").context("a URL of a limiter")?;
    for connection in 0..connections {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(driver);
        for caller in 0..at_once {
            let (mut sender, url) = (sender.clone(), url.clone());
            callers.spawn(async move {
                let mut took_us = Vec::new();
                for made in 0.. {
                    let nth = connection * at_once + caller + made * connections * at_once;
                    let Some(call) = call(nth)? else {
                        break;
                    };
                    took_us.push(send(&mut sender, &url, call).await?);
                }
                Ok::<_, anyhow::Error>(took_us)
            });
        }
    }
    let mut all = Vec::new();
    while let Some(took_us) = callers.join_next().await {
        all.append(&mut took_us??);
    }
    Ok(all)
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, url: &str, call: Call) -> Result<u64> {
    let Call(path, content_type, body) = call;
    let request = Request::post(format!("{url}{path}"))
        .header("content-type", content_type)
        .header("te", "trailers")
        .body(Full::from(body))?;
    let started = Instant::now();
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let answer = response.into_body().collect().await?;
    let took_us = u64::try_from(started.elapsed().as_micros())?;
    ensure!(status == StatusCode::OK, "a call is answered {status}");
    let trailer = answer.trailers().and_then(|all| all.get("grpc-status"));
    ensure!(
        trailer.is_none_or(|status| status == "0"),
        "a call ends with status {trailer:?}"
    );
    // An error of gRPC has no message, whose head is five bytes.
    ensure!(answer.to_bytes().len() > 5, "a call is answered nothing");
    Ok(took_us)
}

/// Calls that a connection sends at once.
const PIPELINED: u64 = 4;
/// Connections that call Redis without a limiter.
const CONNECTIONS: u64 = 4;

/// The script call that a batch becomes, as a limiter makes it.
pub struct ScriptCall {
    redis_port: u16,
    /// The call, as often as is sent at once.
    calls: Vec<u8>,
}

impl ScriptCall {
    /// Sends a batch to a limiter and keeps the script call that it becomes. A user of it is `batch-0`.
    pub async fn of_batch(redis_port: u16, limiter: &Limiter, batch: &Batch) -> Result<Self> {
        let mut monitor = connect(redis_port)?;
        monitor
            .get_ref()
            .set_read_timeout(Some(Duration::from_secs(5)))?;
        monitor.get_mut().write_all(b"MONITOR\r\n")?;
        let url = format!("{}/v1/check", limiter.url());
        let request = Client::new().post(&url, batch.encode());
        let reply = request.header("content-type", CHECK_CBOR).send().await?;
        let status = reply.status;
        ensure!(status == 200, "the limiter answers a batch with {status}");
        let mut line = String::new();
        while !(line.contains("\"EVALSHA\"") && line.contains("batch-0")) {
            line.clear();
            ensure!(
                monitor.read_line(&mut line)? > 0,
                "Redis ended the conversation"
            );
        }
        let words = words(&line);
        let mut call = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            call.extend(format!("${}\r\n", word.len()).into_bytes());
            call.extend(word);
            call.extend(b"\r\n");
        }
        let calls = call.repeat(usize::try_from(PIPELINED)?);
        Ok(Self { redis_port, calls })
    }

    /// Makes some calls at once, `rounds` times, on a connection of its own.
    pub async fn repeat(&self, rounds: u64) -> Result<()> {
        let address = (Ipv4Addr::LOCALHOST, self.redis_port);
        let mut redis = AsyncReader::new(tokio::net::TcpStream::connect(address).await?);
        let (mut line, mut answer) = (String::new(), Vec::new());
        for _ in 0..rounds {
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

    /// Calls per second by Redis alone, over several connections.
    pub async fn per_second(&self, rounds: u64) -> Result<u64> {
        let started = Instant::now();
        let call = || self.repeat(rounds);
        tokio::try_join!(call(), call(), call(), call())?;
        let micros = u64::try_from(started.elapsed().as_micros())?.max(1);
        Ok(CONNECTIONS * rounds * PIPELINED * 1_000_000 / micros)
    }
}

fn connect(redis_port: u16) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, redis_port))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// The median duration of a PING, one at a time, in microseconds: what a round trip between two processes of
/// this machine takes where both do nothing.
pub fn ping_us(redis_port: u16) -> Result<u64> {
    let mut redis = connect(redis_port)?;
    let (mut took_us, mut line) = (Vec::new(), String::new());
    for _ in 0..5000 {
        let started = Instant::now();
        redis.get_mut().write_all(b"PING\r\n")?;
        line.clear();
        redis.read_line(&mut line)?;
        took_us.push(u64::try_from(started.elapsed().as_micros())?);
    }
    ensure!(line == "+PONG\r\n", "Redis answers PING with {line}");
    Ok(median(took_us))
}

/// The quoted words of a line of MONITOR, without what escapes their bytes.
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
            b'\\' => match bytes.next().unwrap_or(0) {
                b'x' => {
                    let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                    u8::from_str_radix(&digits, 16).unwrap_or_default()
                }
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                other => other,
            },
            byte => byte,
        };
        if let (true, Some(word)) = (quoted, words.last_mut()) {
            word.push(byte);
        }
    }
    words
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

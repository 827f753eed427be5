//! The script call that a batch becomes, repeated to Redis without a limiter.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Client, Limiter};
use protocol::CHECK_CBOR;
use protocol::compact::Batch;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncReader};

/// Calls that a connection sends at once.
pub const PIPELINED: usize = 4;
/// Round trips of [`ping_us`].
const PINGS: usize = 5000;

/// A script call, as a limiter makes it.
pub struct ScriptCall {
    redis_port: u16,
    /// The call, as often as is sent at once.
    calls: Vec<u8>,
}

impl ScriptCall {
    /// Sends a batch to a limiter and keeps the script call that it becomes. A user of it is `batch-0`.
    pub async fn of_batch(redis_port: u16, limiter: &Limiter, batch: &Batch) -> Result<Self> {
        let mut monitor = Monitor::start(redis_port)?;
        let request = Client::new()
            .post(&format!("{}/v1/check", limiter.url()), batch.encode())
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
            calls: call.repeat(PIPELINED),
        })
    }

    /// Makes [`PIPELINED`] calls at once, `rounds` times, on a connection of its own.
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
}

/// The median duration of a PING, one at a time, in microseconds: what a round trip between two processes of
/// this machine takes where both do nothing.
pub fn ping_us(redis_port: u16) -> Result<u64> {
    let mut redis = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, redis_port))?);
    redis.get_ref().set_nodelay(true)?;
    let (mut took_us, mut line) = (Vec::with_capacity(PINGS), String::new());
    for _ in 0..PINGS {
        let started = Instant::now();
        redis.get_mut().write_all(b"PING\r\n")?;
        line.clear();
        redis.read_line(&mut line)?;
        took_us.push(u64::try_from(started.elapsed().as_micros())?);
    }
    ensure!(line == "+PONG\r\n", "Redis answers PING with {line}");
    Ok(super::report::median(took_us))
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

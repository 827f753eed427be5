//! Without Envoy: calls straight to a limiter over cleartext HTTP/2, and the script
//! calls that they become, straight to Redis; the time of Redis for slots of requests in flight,
//! instructions, and the module alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Client, Limiter, Programs};
use policy::{Name, SlotId};
use protocol::compact::{Batch, BatchCheck};
use protocol::{CHECK_CBOR, LimitRequest, Slot, SlotAct, SlotOp};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncReader};
use tokio::task::JoinSet;

use super::setups::{Plan, USER_COUNT, since};
use super::{Goal, Report, Unit};
use crate::calls::{self, field, grpc, name};
use crate::command;
use crate::fleet::{Fleet, micros, millis, quantile};
use crate::tools::{on_path, write_executable};

/// So many checks of different users from this one on, each of them matched by one limit.
pub fn batch(first: u64, checks: u64) -> Result<Batch> {
    let check = |n| check("/strict", &format!("batch-{n}"), 1);
    batch_of((first..first + checks).map(check).collect())
}

/// Checks that [`check`] made.
fn batch_of(checks: Vec<BatchCheck>) -> Result<Batch> {
    calls::batch("shop", &["path", "user"], checks)
}

/// A check of a user's request for a path.
fn check(path: &str, user: &str, cost: u64) -> BatchCheck {
    calls::check(&[path, user], cost)
}

/// Posts a batch to a limiter.
async fn post(fleet: &Fleet, batch: &Batch) -> Result<()> {
    let url = format!("{}/v1/check", fleet.limiter()?.url());
    let request = Client::new().post(&url, batch.encode());
    let reply = request.header("content-type", CHECK_CBOR).send().await?;
    let status = reply.status;
    ensure!(status == 200, "the limiter answers a batch with {status}");
    Ok(())
}

/// A call: its path, the type of its body, and the body.
pub struct Call(&'static str, &'static str, Vec<u8>);

/// A call with so many checks, in the form that the filter sends.
pub fn batched(nth: u64, checks: u64) -> Result<Call> {
    Ok(checking(&batch(nth * checks % USER_COUNT, checks)?))
}

/// A call with these checks.
pub fn checking(batch: &Batch) -> Call {
    Call("/v1/check", CHECK_CBOR, batch.encode())
}

/// A call with one check of a request for a path.
pub fn of_path(path: &str) -> Result<Call> {
    Ok(checking(&batch_of(vec![check(path, "nobody", 1)])?))
}

/// `POST /v1/check` with one check.
#[expect(clippy::unnecessary_wraps, reason = "all calls are made alike")]
pub fn posted(nth: u64) -> Result<Call> {
    let user = format!("user-{}", nth % USER_COUNT);
    let descriptor = serde_json::json!({"path": "/check", "user": user});
    let body = serde_json::json!({"domain": "shop", "descriptor": descriptor});
    let body = body.to_string().into_bytes();
    Ok(Call("/v1/check", "application/json", body))
}

/// `ShouldRateLimit` with one descriptor of one entry.
pub fn of_the_service(nth: u64) -> Result<Call> {
    const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let user = format!("user-{}", nth % USER_COUNT);
    let entry = [field(1, b"user"), field(2, user.as_bytes())].concat();
    let message = [field(1, b"shop"), field(2, &field(1, &entry))].concat();
    let body = grpc(&message)?;
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
    let lasted = micros(started.elapsed()).max(1);
    let cpu_us = limiter.process().cpu_us()? - before;
    let calls = u64::try_from(took_us.len())?.max(1);
    Ok(Calls {
        per_second: calls.saturating_mul(1_000_000) / lasted,
        p50_us: quantile(took_us, 500),
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
    let mut callers = JoinSet::new();
    for connection in 0..connections {
        let client = Client::http2();
        for caller in 0..at_once {
            let (client, url) = (client.clone(), limiter.url());
            callers.spawn(async move {
                let mut took_us = Vec::new();
                for made in 0.. {
                    let nth = connection * at_once + caller + made * connections * at_once;
                    let Some(call) = call(nth)? else { break };
                    took_us.push(send(&client, &url, call).await?);
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

async fn send(client: &Client, url: &str, call: Call) -> Result<u64> {
    let Call(path, content_type, body) = call;
    let request = client.post(&format!("{url}{path}"), body);
    let request = request.header("content-type", content_type);
    let reply = request.header("te", "trailers").send().await?;
    let status = reply.status;
    ensure!(status == 200, "a call is answered {status}");
    let trailer = reply.trailers.get("grpc-status");
    let well = trailer.is_none_or(|status| status == "0");
    ensure!(well, "a call ends with status {trailer:?}");
    // An error of gRPC has no message, whose head is five bytes.
    ensure!(reply.body.len() > 5, "a call is answered nothing");
    Ok(micros(reply.took))
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
    /// Sends so many checks to a limiter and keeps the script call that they become.
    pub async fn of_checks(fleet: &Fleet, checks: u64) -> Result<Self> {
        let redis_port = fleet.redis()?.port();
        let mut monitor = connect(redis_port)?;
        monitor
            .get_ref()
            .set_read_timeout(Some(Duration::from_secs(5)))?;
        monitor.get_mut().write_all(b"MONITOR\r\n")?;
        post(fleet, &batch(0, checks)?).await?;
        let mut line = String::new();
        while !(line.contains("\"EVALSHA\"") && line.contains("batch-0")) {
            line.clear();
            let read = monitor.read_line(&mut line)?;
            ensure!(read > 0, "Redis ended the conversation");
        }
        let words = words(&line)?;
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
        let lasted_us = micros(started.elapsed()).max(1);
        Ok(CONNECTIONS * rounds * PIPELINED * 1_000_000 / lasted_us)
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
        took_us.push(micros(started.elapsed()));
    }
    ensure!(line == "+PONG\r\n", "Redis answers PING with {line}");
    Ok(quantile(took_us, 500))
}

/// The quoted words of a line of MONITOR. YAML has its escapes, too, of which one stands for a byte.
fn words(line: &str) -> Result<Vec<Vec<u8>>> {
    let (_, quoted) = line.trim_end().split_once("] ").context("no words")?;
    let list = format!("[{}]", quoted.replace("\" \"", "\", \""));
    let words: Vec<String> = serde_saphyr::from_str(&list)?;
    let bytes = |word: &String| word.chars().map(u8::try_from).collect();
    Ok(words.iter().map(bytes).collect::<Result<_, _>>()?)
}

// ---- What does not depend on a load

const SLOT_LIMITS: &str = "\
domain: shop
limits:
  - {name: plain, match: {path: /plain}, per: [user], rate: 1000000/1s}
  - {name: in-flight, match: {path: /stream}, per: [user], algorithm: concurrency, limit: 100000, slot_ttl: 10m}
";
const TTL_MS: u64 = 600_000;
/// Checks of a round, and of a batch.
const CHECKS: u64 = 1000;
const TOGETHER: usize = 50;
/// Streams that are renewed, and how many of them one check names, as a proxy's does.
const STREAMS: u64 = 10_000;
const RENEWED: usize = 64;

/// What slots of requests in flight cost Redis, beside plain checks. The figures are the time of its script
/// calls (`INFO commandstats`) for each check, in rounds that alternate.
pub async fn in_flight(programs: &Programs, rounds: u64) -> Result<Report> {
    let fleet = Fleet::start(programs, SLOT_LIMITS, 1).await?;
    let (limit, mut report) = (name("in-flight")?, Report::default());
    for buckets in [1, 1000] {
        for round in 0..=rounds {
            let user = |n: u64| format!("user-{}", n % buckets);
            let (mut plain, mut take, mut free) = (Vec::new(), Vec::new(), Vec::new());
            for n in 0..CHECKS {
                plain.push(check("/plain", &user(n), 1));
                take.push(taking(n, &user(n)));
                free.push(naming(&limit, &[n], SlotAct::Free(1), &user(n)));
            }
            let plain = redis_ns(&fleet, &plain).await? / CHECKS;
            let take = redis_ns(&fleet, &take).await? / CHECKS;
            let free = redis_ns(&fleet, &free).await? / CHECKS;
            // In the first round, buckets are made.
            if round > 0 {
                let of = |what: &str| format!("{what}, {buckets} buckets");
                report.figure(&of("plain check"), Unit::Nanos, plain);
                report.figure(&of("take a slot"), Unit::Nanos, take);
                report.figure(&of("free a slot"), Unit::Nanos, free);
                let name = of("take and free, of plain");
                report.ratio(&name, Goal::None, take + free, plain);
            }
        }
    }
    // Many streams of one bucket, which proxies renew three times in a slot's ttl.
    let streams: Vec<u64> = (0..STREAMS).collect();
    let taken: Vec<_> = { streams.iter() }.map(|n| taking(*n, "user-0")).collect();
    redis_ns(&fleet, &taken).await?;
    let renewals = streams.chunks(RENEWED);
    let renewals = renewals.map(|slots| naming(&limit, slots, SlotAct::Renew, "user-0"));
    let renewals: Vec<_> = renewals.collect();
    for _ in 0..rounds {
        let started = Instant::now();
        let redis = redis_ns(&fleet, &renewals).await?;
        let whole = millis(started.elapsed());
        report.figure("renew a slot of 10,000", Unit::Nanos, redis / STREAMS);
        let all = "renew 10,000 slots, in Redis";
        report.figure(all, Unit::Millis, redis / 1_000_000);
        report.figure("until the last is answered", Unit::Millis, whole);
    }
    Ok(report)
}

/// The time of Redis for checks, which go to a limiter in batches, in nanoseconds.
async fn redis_ns(fleet: &Fleet, checks: &[BatchCheck]) -> Result<u64> {
    let before = fleet.calls_of("evalsha").await?;
    for together in checks.chunks(TOGETHER) {
        post(fleet, &batch_of(together.to_vec())?).await?;
    }
    let [_, us] = since(fleet.calls_of("evalsha").await?, before);
    Ok(us.saturating_mul(1000))
}

/// A check that takes a slot.
fn taking(n: u64, user: &str) -> BatchCheck {
    BatchCheck {
        slot: Some(id(n)),
        ..check("/stream", user, 1)
    }
}

/// A check that names slots as their holder does.
fn naming(limit: &Name, slots: &[u64], act: SlotAct, user: &str) -> BatchCheck {
    let named = |n: &u64| {
        let SlotId { stamp, secret } = id(*n);
        let slot = Slot {
            start_ms: stamp,
            parts: secret,
            since_ms: TTL_MS,
            turn: 1,
        };
        SlotOp { slot, act }
    };
    BatchCheck {
        limits: vec![LimitRequest {
            slots: slots.iter().map(named).collect(),
            ..LimitRequest::new(limit.clone())
        }],
        ..check("/stream", user, 0)
    }
}

fn id(n: u64) -> SlotId {
    SlotId::new(1_763_000_000, 9, n)
}

/// Calls that are counted, and as many before that are not.
const CALLS: u64 = 640;
/// The shapes of load: their name, calls at once, and checks a call.
const SHAPES: [(&str, u64, u64); 3] = [
    ("one check at a time", 1, 1),
    ("32 calls at once", 32, 1),
    ("batches of eight", 1, 8),
];

/// Instructions per check, which the load of the machine does not change: each server is run in turn under
/// valgrind's callgrind, which counts those of the process but not those of the kernel.
pub async fn instructions(programs: &Programs) -> Result<Report> {
    let mut report = Report::default();
    if on_path("valgrind").is_none() {
        println!("instructions: not counted: no valgrind on PATH");
        return Ok(report);
    }
    let Plan { limits, .. } = Plan::named("filters")?;
    for server in ["limiter", "Redis"] {
        let (mut programs, dir) = (programs.clone(), tempfile::tempdir()?);
        let program = match server {
            "limiter" => &mut programs.limiter,
            _ => &mut programs.redis,
        };
        // A script that runs it under callgrind.
        let script = dir.path().join("counted");
        let text = format!(
            "#!/bin/sh\nexec valgrind --tool=callgrind --trace-children=yes --instr-atstart=no \
             '--callgrind-out-file={}' '{}' \"$@\"\n",
            dir.path().join("counts").display(),
            program.display()
        );
        write_executable(&script, &text)?;
        *program = script;
        let fleet = Fleet::start(&programs, &limits, 1).await?;
        let process = match server {
            "limiter" => fleet.limiter()?.process(),
            _ => fleet.redis()?.process(),
        };
        let control = |order: &[&str]| {
            let mut control = Command::new("callgrind_control");
            command::output(control.args(order).arg(process.id().to_string())).map(drop)
        };
        control(&["-i", "on"])?;
        for (number, (shape, at_once, checks)) in (1..).zip(SHAPES) {
            let call = move |nth| (nth < CALLS).then(|| batched(nth, checks)).transpose();
            each(fleet.limiter()?, 1, at_once, call).await?;
            control(&["-z"])?;
            each(fleet.limiter()?, 1, at_once, call).await?;
            control(&["--dump"])?;
            let dump = std::fs::read_to_string(dir.path().join(format!("counts.{number}")));
            let dump = dump.context("callgrind wrote no counts")?;
            let mut counts = dump.lines().filter_map(|line| {
                let count = { line.strip_prefix("summary: ") }.or(line.strip_prefix("totals: "));
                count?.trim().parse::<u64>().ok()
            });
            let count = counts.find(|count| *count > 0);
            let count = count.context("callgrind counted nothing")?;
            let name = format!("instructions of {server}, {shape}");
            report.figure(&name, Unit::Count, count / (CALLS * checks));
        }
    }
    Ok(report)
}

/// Rounds of the module alone, of some milliseconds each.
const MODULE_ROUNDS: u64 = 200;

/// Compares modules, the filter's last: their own time per request, and their host calls.
///
/// They run in Node, which has Envoy's engine, with a host that does next to nothing (see `module.mjs`).
/// That resolves one per cent, also on a busy machine. In Envoy the same code takes two to three times as
/// long, because Envoy's own code evicts it from the caches in between.
pub async fn module(programs: &Programs, node: &Path, others: &[PathBuf]) -> Result<()> {
    let Plan { limits, .. } = Plan::named("filters")?;
    let fleet = Fleet::start(programs, &limits, 1).await?;
    let [port, ..] = fleet.ports.limiters;
    // Envoy, too, compiles with all optimisations from the start.
    let status = tokio::process::Command::new(node)
        .arg("--no-liftoff")
        .arg(programs.root.join("xtask/src/bench/module.mjs"))
        .args([port.to_string(), MODULE_ROUNDS.to_string()])
        .args(others)
        .arg(&programs.filter)
        .kill_on_drop(true)
        .status()
        .await?;
    ensure!(status.success(), "node ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_sent() {
        let line = r#"+1.5 [0 127.0.0.1:1] "EVALSHA" "a\"b\\" "" "\x00\xf0?\n\a""#;
        let sent: [&[u8]; 4] = [b"EVALSHA", b"a\"b\\", b"", b"\x00\xf0?\n\x07"];
        assert_eq!(words(line).unwrap(), sent);
    }
}

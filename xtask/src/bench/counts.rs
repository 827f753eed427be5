//! What does not depend on a load: the time of Redis for slots of requests in flight, instructions, and
//! the module alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::{Client, Process, Programs, free_port};
use policy::{Name, SlotId};
use protocol::compact::BatchCheck;
use protocol::{CHECK_CBOR, LimitRequest, Slot, SlotAct, SlotOp};
use tempfile::TempDir;

use super::direct::{batch_of, batched, check, each, name};
use super::report::{Goal, Report, Unit};
use super::setups::{LIMITS, Servers};
use crate::command;
use crate::tools::{make_executable, on_path};

const SLOT_LIMITS: &str = "\
domain: shop
limits:
  - {name: plain, match: {path: /plain}, per: [user], rate: 1000000/1s}
  - {name: in-flight, match: {path: /stream}, per: [user], algorithm: concurrency, limit: 100000, slot_ttl: 10m}
";
const TTL_MS: u64 = 600_000;
/// Checks of a round, and of a batch.
const CHECKS: u64 = 1000;
const TOGETHER: u64 = 50;
/// Streams that are renewed, and how many of them one check names, as a proxy's does.
const STREAMS: u64 = 10_000;
const RENEWED: u64 = 64;

/// A limiter and its Redis, to which checks with slots go in batches.
struct Slots {
    servers: Servers,
    limit: Name,
}

/// What slots of requests in flight cost Redis, beside plain checks. The figures are the time of its script
/// calls (`INFO commandstats`) for each check, in rounds that alternate.
pub async fn in_flight(programs: &Programs, rounds: u64) -> Result<Report> {
    let slots = Slots {
        servers: Servers::start(programs, SLOT_LIMITS, &[free_port()?]).await?,
        limit: name("in-flight")?,
    };
    let mut report = Report::default();
    let mut add = |name: &str, unit, value| report.figure(name, unit, Goal::None, value);
    for buckets in [1, 1000] {
        for round in 0..=rounds {
            let user = |n: u64| n % buckets;
            let plain = |n: u64| check_of("/plain", user(n), 1);
            let take = |n: u64| BatchCheck {
                slot: Some(id(n)),
                ..check_of("/stream", user(n), 1)
            };
            let free = |n: u64| slots.naming(n..=n, SlotAct::Free(1), user(n));
            let plain = slots.measured(CHECKS, plain).await?;
            let take = slots.measured(CHECKS, take).await?;
            let free = slots.measured(CHECKS, free).await?;
            // In the first round, buckets are made.
            if round > 0 {
                let of = |what: &str| format!("{what}, {buckets} buckets");
                add(&of("plain check"), Unit::Nanos, plain);
                add(&of("take a slot"), Unit::Nanos, take);
                add(&of("free a slot"), Unit::Nanos, free);
                let share = (take + free) * 1000 / plain.max(1);
                add(&of("take and free, of plain"), Unit::Thousandths, share);
            }
        }
    }
    // Many streams of one bucket, which proxies renew three times in a slot's ttl.
    let take = |n: u64| BatchCheck {
        slot: Some(id(n)),
        ..check_of("/stream", 0, 1)
    };
    slots.send(STREAMS, take).await?;
    let checks = STREAMS.div_ceil(RENEWED);
    for _ in 0..rounds {
        let started = Instant::now();
        let renew = |nth: u64| {
            let last = STREAMS.min((nth + 1) * RENEWED) - 1;
            slots.naming(nth * RENEWED..=last, SlotAct::Renew, 0)
        };
        let redis = slots.measured(checks, renew).await?.saturating_mul(checks);
        let whole = u64::try_from(started.elapsed().as_millis())?;
        add("renew a slot of 10,000", Unit::Nanos, redis / STREAMS);
        add(
            "renew 10,000 slots, in Redis",
            Unit::Millis,
            redis / 1_000_000,
        );
        add("until the last is answered", Unit::Millis, whole);
    }
    Ok(report)
}

impl Slots {
    /// The time of Redis for each of some checks, in nanoseconds.
    async fn measured(&self, count: u64, check: impl Fn(u64) -> BatchCheck) -> Result<u64> {
        let before = self.servers.of_scripts("usec").await?;
        self.send(count, check).await?;
        let us = self.servers.of_scripts("usec").await? - before;
        Ok(us.saturating_mul(1000) / count)
    }

    async fn send(&self, count: u64, check: impl Fn(u64) -> BatchCheck) -> Result<()> {
        let url = format!("{}/v1/check", self.servers.limiter()?.url());
        for first in (0..count).step_by(usize::try_from(TOGETHER)?) {
            let checks = (first..count.min(first + TOGETHER)).map(&check);
            let batch = batch_of(checks.collect())?;
            let post = Client::new().post(&url, batch.encode());
            let reply = post.header("content-type", CHECK_CBOR).send().await?;
            ensure!(reply.status == 200, "the limiter answers {}", reply.status);
        }
        Ok(())
    }

    /// A check that names slots as their holder does.
    fn naming(&self, slots: std::ops::RangeInclusive<u64>, act: SlotAct, user: u64) -> BatchCheck {
        let named = |n| {
            let SlotId { stamp, secret } = id(n);
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
                slots: slots.map(named).collect(),
                ..LimitRequest::new(self.limit.clone())
            }],
            ..check_of("/stream", user, 0)
        }
    }
}

fn check_of(path: &str, user: u64, cost: u64) -> BatchCheck {
    check(path, &format!("user-{user}"), cost)
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
    let Some(valgrind) = on_path("valgrind") else {
        println!("instructions: not counted: no valgrind on PATH");
        return Ok(report);
    };
    for server in ["limiter", "Redis"] {
        let (mut programs, dir) = (programs.clone(), tempfile::tempdir()?);
        let program = match server {
            "limiter" => &mut programs.limiter,
            _ => &mut programs.redis,
        };
        *program = under_callgrind(&valgrind, &dir, program)?;
        let servers = Servers::start(&programs, LIMITS, &[free_port()?]).await?;
        let process = match server {
            "limiter" => servers.limiter()?.process(),
            _ => servers.redis.process(),
        };
        count(&mut report, server, &servers, process, &dir).await?;
    }
    Ok(report)
}

/// A script that runs a program under callgrind.
fn under_callgrind(valgrind: &Path, dir: &TempDir, program: &Path) -> Result<PathBuf> {
    let script = dir.path().join("counted");
    let text = format!(
        "#!/bin/sh\nexec '{}' --tool=callgrind --trace-children=yes --instr-atstart=no '--callgrind-out-file={}' '{}' \"$@\"\n",
        valgrind.display(),
        dir.path().join("counts").display(),
        program.display()
    );
    std::fs::write(&script, text)?;
    make_executable(&script)?;
    Ok(script)
}

async fn count(
    report: &mut Report,
    server: &str,
    servers: &Servers,
    process: &Process,
    dir: &TempDir,
) -> Result<()> {
    let limiter = servers.limiter()?;
    let control = |order: &[&str]| {
        let mut control = Command::new("callgrind_control");
        command::output(control.args(order).arg(process.id().to_string())).map(drop)
    };
    control(&["-i", "on"])?;
    for (number, (shape, at_once, checks)) in SHAPES.into_iter().enumerate() {
        let call = move |nth| (nth < CALLS).then(|| batched(nth, checks)).transpose();
        each(limiter, 1, at_once, call).await?;
        control(&["-z"])?;
        each(limiter, 1, at_once, call).await?;
        control(&["--dump"])?;
        let dump = dir.path().join(format!("counts.{}", number + 1));
        let text = std::fs::read_to_string(&dump)
            .with_context(|| format!("callgrind wrote no {}", dump.display()))?;
        let mut counts = text.lines().filter_map(|line| {
            let count = line
                .strip_prefix("summary: ")
                .or(line.strip_prefix("totals: "))?;
            count.trim().parse::<u64>().ok()
        });
        let counted = counts.next().filter(|count| *count > 0);
        let counted = counted.context("callgrind counted nothing")? / (CALLS * checks);
        let name = format!("instructions of {server}, {shape}");
        report.figure(&name, Unit::Count, Goal::None, counted);
    }
    Ok(())
}

/// Rounds of the module alone, of some milliseconds each.
const MODULE_ROUNDS: u64 = 200;

/// Compares modules, the filter's last: their own time per request, and their host calls.
///
/// They run in Node, which has Envoy's engine, with a host that does next to nothing (see `module.mjs`).
/// That resolves one per cent, also on a busy machine. In Envoy the same code takes two to three times as
/// long, because Envoy's own code evicts it from the caches in between.
pub async fn module(programs: &Programs, node: &Path, others: &[PathBuf]) -> Result<()> {
    let port = free_port()?;
    let _servers = Servers::start(programs, LIMITS, &[port]).await?;
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

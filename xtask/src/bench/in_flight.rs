//! `cargo xtask bench --in-flight`: what slots of requests in flight cost Redis, beside plain checks.
//!
//! Checks go through a limiter, in batches. The figures are Redis's own: the time of its script calls
//! (`INFO commandstats`) for each check, in rounds that alternate, of which the medians are printed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Client, Programs, free_port};
use policy::{Name, SlotId};
use protocol::compact::BatchCheck;
use protocol::{CHECK_CBOR, Free, Slot};

use super::limiter::{batch_of, check, name};
use super::ready::Servers;
use super::report::median;

const LIMITS: &str = "\
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
/// How a slot is named to be freed and to be renewed.
const FREE: u64 = 1;
const RENEW: u64 = 2;

/// What checks of one round took Redis, in nanoseconds each.
struct Round {
    plain: u64,
    take: u64,
    free: u64,
}

/// A limiter and its Redis.
struct Stage {
    servers: Servers,
    limit: Name,
}

/// Runs the rounds; returns the comparison.
pub async fn run(programs: Programs, rounds: u64) -> Result<String> {
    let stage = Stage::start(programs).await?;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "ns of Redis's script calls, medians of {rounds} rounds"
    );
    let _ = writeln!(
        text,
        "{:>8} {:>8} {:>8} {:>8} {:>24}",
        "buckets", "plain", "take", "free", "take and free, of plain"
    );
    for buckets in [1, 1000] {
        let mut all = Vec::new();
        stage.round(buckets).await?;
        for _ in 0..rounds {
            all.push(stage.round(buckets).await?);
        }
        let of = |figure: fn(&Round) -> u64| median(all.iter().map(figure).collect());
        let [plain, take, free] = [of(|r| r.plain), of(|r| r.take), of(|r| r.free)];
        let ratio = (take + free) * 100 / plain.max(1);
        let _ = writeln!(
            text,
            "{buckets:>8} {plain:>8} {take:>8} {free:>8} {ratio:>23}%"
        );
    }
    text.push_str(&stage.renewals(rounds).await?);
    Ok(text)
}

impl Stage {
    async fn start(programs: Programs) -> Result<Self> {
        Ok(Self {
            servers: Servers::start(&programs, LIMITS, &[free_port()?]).await?,
            limit: name("in-flight")?,
        })
    }

    /// Plain checks, takes and frees, each for so many buckets in turn.
    async fn round(&self, buckets: u64) -> Result<Round> {
        let user = |n: u64| n % buckets;
        let plain = self
            .measured(CHECKS, |n| check_of("/plain", user(n), 1))
            .await?;
        let take = |n: u64| BatchCheck {
            slot: Some(id(n)),
            ..check_of("/stream", user(n), 1)
        };
        let take = self.measured(CHECKS, take).await?;
        let free = |n: u64| BatchCheck {
            free: vec![named(&self.limit, n, FREE)],
            ..check_of("/stream", user(n), 0)
        };
        let free = self.measured(CHECKS, free).await?;
        Ok(Round { plain, take, free })
    }

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

    /// Many streams of one bucket, which proxies renew three times in a slot's ttl.
    async fn renewals(&self, rounds: u64) -> Result<String> {
        let take = |n: u64| BatchCheck {
            slot: Some(id(n)),
            ..check_of("/stream", 0, 1)
        };
        self.send(STREAMS, take).await?;
        let renew = |nth: u64| {
            let first = nth * RENEWED;
            let slots = first..STREAMS.min(first + RENEWED);
            BatchCheck {
                free: slots.map(|n| named(&self.limit, n, RENEW)).collect(),
                ..check_of("/stream", 0, 0)
            }
        };
        let (checks, mut redis, mut whole) = (STREAMS.div_ceil(RENEWED), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let started = Instant::now();
            redis.push(self.measured(checks, renew).await?.saturating_mul(checks));
            whole.push(u64::try_from(started.elapsed().as_micros())?);
        }
        let (redis, whole) = (median(redis), Duration::from_micros(median(whole)));
        Ok(format!(
            "{STREAMS} streams renewed: {} ns of Redis each, {} ms in all, {} ms until the last was answered\n",
            redis / STREAMS,
            redis / 1_000_000,
            whole.as_millis()
        ))
    }
}

fn check_of(path: &str, user: u64, cost: u64) -> BatchCheck {
    check(path, &format!("user-{user}"), cost)
}

fn id(n: u64) -> SlotId {
    SlotId::new(1_763_000_000, 9, n)
}

/// A slot as its holder names it.
fn named(limit: &Name, n: u64, units: u64) -> Free {
    let SlotId { stamp, secret } = id(n);
    Free {
        limit: limit.clone(),
        slot: Slot {
            start_ms: stamp,
            parts: secret,
            since_ms: TTL_MS,
            turn: 1,
        },
        units,
    }
}

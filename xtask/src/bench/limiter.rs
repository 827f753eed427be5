//! The limiter's throughput, as a share of Redis's.
//!
//! It compares the same script call, pipelined to Redis over a few connections, and from the limiter for
//! checks that arrive in batches as the filter sends them.

use std::time::Instant;

use anyhow::{Context, Result};
use harness::Limiter;
use policy::Name;
use protocol::CHECK_CBOR;
use protocol::compact::{Batch, BatchCheck};

use super::load::Load;
use super::script::{PIPELINED, ScriptCall};

/// Checks in a batch: as many as gather while a few callouts are in flight.
const CHECKS: u64 = 32;
/// Connections that call Redis without a limiter, and how often each does.
const CONNECTIONS: u64 = 4;
const ROUNDS: u64 = 1250;

/// The servers of both sides.
pub struct LimiterBench {
    url: String,
    body: Vec<u8>,
    call: ScriptCall,
}

impl LimiterBench {
    /// Sends one batch and keeps its script call.
    pub async fn prepare(redis_port: u16, limiter: &Limiter) -> Result<Self> {
        let batch = batch(0, CHECKS)?;
        Ok(Self {
            url: format!("{}/v1/check", limiter.url()),
            body: batch.encode(),
            call: ScriptCall::of_batch(redis_port, limiter, &batch).await?,
        })
    }

    /// Checks per second by Redis alone.
    pub async fn redis(&self) -> Result<u64> {
        let call = || self.call.repeat(ROUNDS);
        let started = Instant::now();
        tokio::try_join!(call(), call(), call(), call())?;
        let calls = CONNECTIONS * ROUNDS * u64::try_from(PIPELINED)?;
        let micros = u64::try_from(started.elapsed().as_micros())?.max(1);
        Ok(calls.saturating_mul(CHECKS).saturating_mul(1_000_000) / micros)
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

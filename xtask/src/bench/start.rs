//! Envoy's start time, with the filter and without.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Ports, Programs};

/// One start of Envoy.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Until it serves, in milliseconds.
    pub took_ms: u64,
    /// CPU time until then, in milliseconds.
    pub cpu_ms: u64,
}

/// Starts of one round.
#[derive(Debug, Clone, Copy)]
pub struct Starts {
    /// Without any wasm.
    pub without: Start,
    /// With the no-op filter.
    pub noop: Start,
    /// With ours.
    pub ours: Start,
}

impl Starts {
    /// In that order.
    pub fn each(&self) -> [Start; 3] {
        [self.without, self.noop, self.ours]
    }
}

/// Starts Envoy three times, one after the other.
pub async fn measure(programs: &Programs, noop: &Path) -> Result<Starts> {
    let shipped = || EnvoyConfig::shipped(&programs.root);
    let without = shipped()?.http_filters(|filters| drop(filters.remove(0)))?;
    Ok(Starts {
        without: start(programs, without).await?,
        noop: start(programs, shipped()?.filter_code(noop)?).await?,
        ours: start(programs, shipped()?.filter_code(&programs.filter)?).await?,
    })
}

async fn start(programs: &Programs, config: EnvoyConfig) -> Result<Start> {
    let dir = tempfile::tempdir()?;
    let ports = Ports::free()?;
    let started = Instant::now();
    let envoy = Envoy::start(programs, config, ports, 1, dir.path()).await?;
    Ok(Start {
        took_ms: u64::try_from(started.elapsed().as_millis())?,
        cpu_ms: envoy.process().cpu_us()? / 1000,
    })
}

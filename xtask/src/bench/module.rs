//! `cargo xtask bench --module`: the module's own time per request, and its host calls.
//!
//! It runs in Node, which has Envoy's engine, with a host that does next to nothing (see
//! `module.mjs`), and resolves one per cent, also on a busy machine. In Envoy the same code takes two
//! to three times as long, because Envoy's own code evicts it from the caches in between.

use std::path::{Path, PathBuf};

use anyhow::Result;
use harness::{Programs, free_port};
use tokio::process::Command;

use super::ready::Servers;
use super::setups::LIMITS;

/// Compares modules, the filter's last.
pub async fn run(programs: &Programs, node: &Path, others: &[PathBuf], rounds: u64) -> Result<()> {
    let port = free_port()?;
    let _servers = Servers::start(programs, LIMITS, &[port]).await?;
    // Envoy, too, compiles with all optimisations from the start.
    let status = Command::new(node)
        .arg("--no-liftoff")
        .arg(programs.root.join("xtask/src/bench/module.mjs"))
        .args([port.to_string(), rounds.to_string()])
        .args(others)
        .arg(&programs.filter)
        .kill_on_drop(true)
        .status()
        .await?;
    anyhow::ensure!(status.success(), "node ended with {status}");
    Ok(())
}

//! Waiting for something to become true, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two probes.
const POLL: Duration = Duration::from_millis(10);

/// Repeats `probe` until it returns something; fails after `limit`, naming `what`.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if started.elapsed() >= limit {
            bail!("{what}: still not so after {} ms", limit.as_millis());
        }
        tokio::time::sleep(POLL).await;
    }
}

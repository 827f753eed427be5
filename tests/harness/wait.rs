//! Waiting for something to become true, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two looks.
const POLL: Duration = Duration::from_millis(10);

/// Looks until `probe` finds something; fails, naming `what`, after `limit`.
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

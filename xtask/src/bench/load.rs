//! Load by wrk, and what it measured.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;
use tokio::process::Command;

use super::setups::Setup;

/// Requests come from this many users in turn, so that no single bucket and no
/// single cache line makes the figures.
const SCRIPT: &str = r#"
local users, next_user = {}, 0
init = function(args)
  for n = 1, 1000 do
    users[n] = wrk.format("GET", nil, {["x-user-id"] = "user-" .. n})
  end
end
request = function()
  next_user = next_user % #users + 1
  return users[next_user]
end
done = function(summary, latency, requests)
  local errors = summary.errors
  print(string.format("figures %d %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"#;

/// A load generator.
pub struct Load {
    wrk: PathBuf,
    script: NamedTempFile,
    duration: Duration,
    connections: u64,
}

/// What one run of it saw.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Answers per second.
    pub per_second: u64,
    /// Half of the answers came within this many microseconds.
    pub p50_us: u64,
    /// 99 of 100 answers came within this many microseconds.
    pub p99_us: u64,
}

impl Load {
    /// Nothing runs yet.
    pub fn new(wrk: PathBuf, duration: Duration, connections: u64) -> Result<Self> {
        let script = tempfile::Builder::new().suffix(".lua").tempfile()?;
        std::fs::write(script.path(), SCRIPT)?;
        Ok(Self {
            wrk,
            script,
            duration,
            connections,
        })
    }

    /// A second of load that does not count: buckets, caches and pools fill.
    pub async fn warm_up(&self, setup: &Setup) -> Result<()> {
        self.wrk(setup, Duration::from_secs(1)).await.map(drop)
    }

    /// One run. Every answer must be what the setup promises; else the figures
    /// would be of something else.
    pub async fn run(&self, setup: &Setup) -> Result<Sample> {
        let [requests, micros, p50_us, p99_us, refused, broken] =
            self.wrk(setup, self.duration).await?;
        let expected = if setup.status >= 400 { requests } else { 0 };
        ensure!(
            refused.abs_diff(expected) <= requests / 1000 && broken <= requests / 1000,
            "of {requests} answers {refused} had an error status ({expected} expected), {broken} failed"
        );
        let per_second = requests
            .saturating_mul(1_000_000)
            .checked_div(micros)
            .context("no time passed")?;
        Ok(Sample {
            per_second,
            p50_us,
            p99_us,
        })
    }

    async fn wrk(&self, setup: &Setup, duration: Duration) -> Result<[u64; 6]> {
        let output = Command::new(&self.wrk)
            .args([
                "--threads",
                "1",
                "--timeout",
                "2s",
                "--connections",
                &self.connections.to_string(),
            ])
            .args(["--duration", &format!("{}s", duration.as_secs())])
            .arg("--script")
            .arg(self.script.path())
            .arg(&setup.url)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot start {}", self.wrk.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        figures(&text).with_context(|| {
            format!(
                "wrk measured nothing: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }
}

fn figures(text: &str) -> Option<[u64; 6]> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("figures "))?;
    let numbers: Vec<u64> = line
        .split(' ')
        .map_while(|number| number.parse().ok())
        .collect();
    numbers.try_into().ok()
}

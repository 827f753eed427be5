//! Load by wrk, and its measurements.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;

use super::setups::Setup;

/// The users that requests come from.
pub const USER_COUNT: u64 = 1000;

/// Requests come from this many users in turn, so that no single bucket and no
/// single cache line makes the figures.
const USERS: &str = r#"
local users, next_user = {}, 0
init = function(args)
  for n = 1, tonumber(args[1]) do
    users[n] = wrk.format("GET", nil, {["x-user-id"] = "user-" .. n})
  end
end
request = function()
  next_user = next_user % #users + 1
  return users[next_user]
end
"#;

/// One body, from a file, over and over: `wrk -s SCRIPT URL -- FILE TYPE`.
const BODY: &str = r#"
local whole
init = function(args)
  local file = io.open(args[1], "rb")
  whole = wrk.format("POST", nil, {["content-type"] = args[2]}, file:read("*a"))
end
request = function() return whole end
"#;

/// The end of both scripts.
const DONE: &str = r#"
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
    dir: TempDir,
    duration: Duration,
    connections: u64,
}

/// The results of one run.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Answers.
    pub requests: u64,
    /// Answers per second.
    pub per_second: u64,
    /// Half of the answers came within this many microseconds.
    pub p50_us: u64,
    /// 99 of 100 answers came within this many microseconds.
    pub p99_us: u64,
}

impl Load {
    /// A generator that has not started.
    pub fn new(wrk: PathBuf, duration: Duration, connections: u64) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("users.lua"), format!("{USERS}{DONE}"))?;
        std::fs::write(dir.path().join("body.lua"), format!("{BODY}{DONE}"))?;
        Ok(Self {
            wrk,
            dir,
            duration,
            connections,
        })
    }

    /// The duration of a run.
    pub fn seconds(&self) -> u64 {
        self.duration.as_secs()
    }

    /// Loads for a second without measuring: buckets, caches and pools fill.
    pub async fn warm_up(&self, setup: &Setup) -> Result<()> {
        let second = Duration::from_secs(1);
        self.wrk(
            "users.lua",
            self.connections,
            second,
            &[&setup.url, "--", &USER_COUNT.to_string()],
        )
        .await
        .map(drop)
    }

    /// One run. Every response must be the setup's expected one; otherwise the figures are invalid.
    pub async fn run(&self, setup: &Setup) -> Result<Sample> {
        let all = self
            .wrk(
                "users.lua",
                self.connections,
                self.duration,
                &[&setup.url, "--", &USER_COUNT.to_string()],
            )
            .await?;
        all.sample(setup.status >= 400)
    }

    /// The number of requests of a run.
    pub fn requests(&self, sample: &Sample) -> u64 {
        let millis = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX);
        sample.per_second.saturating_mul(millis) / 1000
    }

    /// Posts one body over and over, on few connections.
    pub async fn post(&self, url: &str, content_type: &str, body: &[u8]) -> Result<Sample> {
        let file = self.dir.path().join("body");
        std::fs::write(&file, body)?;
        let file = file
            .to_str()
            .context("a temporary folder that is not UTF-8")?;
        let arguments = [url, "--", file, content_type];
        self.wrk("body.lua", 8, self.duration, &arguments)
            .await?
            .sample(false)
    }

    async fn wrk(
        &self,
        script: &str,
        connections: u64,
        duration: Duration,
        arguments: &[&str],
    ) -> Result<Figures> {
        let output = Command::new(&self.wrk)
            .args([
                "--threads",
                "1",
                "--timeout",
                "2s",
                "--connections",
                &connections.to_string(),
            ])
            .args([
                "--duration",
                &format!("{}s", duration.as_secs()),
                "--script",
            ])
            .arg(self.dir.path().join(script))
            .args(arguments)
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

/// What the script reports at the end.
struct Figures {
    requests: u64,
    micros: u64,
    p50_us: u64,
    p99_us: u64,
    refused: u64,
    broken: u64,
}

impl Figures {
    /// Fails unless all but one in a thousand answers were refusals, or none.
    fn sample(&self, refused: bool) -> Result<Sample> {
        let expected = if refused { self.requests } else { 0 };
        let tolerated = self.requests / 1000;
        ensure!(
            self.refused.abs_diff(expected) <= tolerated && self.broken <= tolerated,
            "of {} answers {} had an error status ({expected} expected), {} failed",
            self.requests,
            self.refused,
            self.broken
        );
        let per_second = self
            .requests
            .saturating_mul(1_000_000)
            .checked_div(self.micros);
        let per_second = per_second.context("no time passed")?;
        Ok(Sample {
            requests: self.requests,
            per_second,
            p50_us: self.p50_us,
            p99_us: self.p99_us,
        })
    }
}

fn figures(text: &str) -> Option<Figures> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("figures "))?;
    let numbers: Vec<u64> = line
        .split(' ')
        .map_while(|number| number.parse().ok())
        .collect();
    let [requests, micros, p50_us, p99_us, refused, broken] = numbers.try_into().ok()?;
    Some(Figures {
        requests,
        micros,
        p50_us,
        p99_us,
        refused,
        broken,
    })
}

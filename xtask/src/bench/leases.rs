//! What leases save: Envoy's CPU and Redis's calls for a request, with one
//! worker and with two, as the demand grows.
//!
//! CPU is what each Envoy's process used, which other processes on the machine
//! disturb less than they do rates; setups are loaded one after the other in
//! every round and compared round by round.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Limiter, Ports, Programs, Redis, free_port};
use tempfile::TempDir;

use super::load::{Load, Sample};
use super::ready::{limits_are_known, load_limits, start_limiters};
use super::report::median;
use super::setups::{Setup, answer_at_once};

/// One busy bucket, leased and not, and a bucket for each of a thousand users.
const LIMITS: &str = "\
domain: shop
limits:
  - {name: leased, match: {path: /leased}, rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: users, match: {path: /users}, per: [user], rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: checked, match: {path: /checked}, rate: 1000000/1s}
";

/// Connections, from little demand to as much as there can be.
const CONNECTIONS: [u64; 3] = [1, 4, 32];
/// The paths that are loaded, by what the report calls them.
const PATHS: [(&str, &str); 4] = [
    ("no-op filter", "/leased"),
    ("leased, one bucket", "/leased"),
    ("leased, 1000 buckets", "/users"),
    ("every request checked", "/checked"),
];

/// Everything that runs.
struct Stage {
    redis: Redis,
    _limiters: Vec<Limiter>,
    /// With one worker and with two: the no-op filter's, and ours.
    envoys: Vec<[Envoy; 2]>,
    _dir: TempDir,
}

/// One setup under one load.
#[derive(Debug, Clone, Copy)]
struct Figures {
    sample: Sample,
    /// Envoy's, for a thousand requests.
    cpu_us: u64,
    /// Redis's script calls, for a million requests.
    calls: u64,
}

/// Runs the rounds; returns the comparison.
pub async fn run(
    programs: Programs,
    noop: &Path,
    wrk: &Path,
    rounds: u64,
    seconds: u64,
) -> Result<String> {
    let stage = Stage::start(&programs, noop).await?;
    let mut table = String::new();
    for (workers, envoys) in (1..).zip(&stage.envoys) {
        for connections in CONNECTIONS {
            let load = Load::new(wrk.to_owned(), Duration::from_secs(seconds), connections)?;
            let figures = stage.compare(envoys, &load, rounds).await?;
            write_block(&mut table, workers, connections, &figures);
        }
    }
    Ok(table)
}

impl Stage {
    async fn start(programs: &Programs, noop: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let redis = Redis::start(&programs.redis, free_port()?, dir.path()).await?;
        load_limits(programs, &redis, dir.path(), LIMITS)?;
        let ports = Ports::free()?;
        let limiters = start_limiters(programs, &redis, &ports.limiters, dir.path()).await?;
        let mut envoys = Vec::new();
        for workers in [1, 2] {
            let start = async |code: &Path| {
                let own = Ports {
                    envoy: free_port()?,
                    envoy_admin: free_port()?,
                    ..ports
                };
                let config = EnvoyConfig::shipped(&programs.root)?
                    .http_filters(answer_at_once)?
                    .filter_code(code)?
                    .limiter_timeout("1s")?;
                Envoy::start(programs, config, own, workers, dir.path()).await
            };
            envoys.push([start(noop).await?, start(&programs.filter).await?]);
        }
        for [_, ours] in &envoys {
            limits_are_known(ours, "/checked").await?;
        }
        Ok(Self {
            redis,
            _limiters: limiters,
            envoys,
            _dir: dir,
        })
    }

    /// The figures of each path, a round each.
    async fn compare(
        &self,
        [noop, ours]: &[Envoy; 2],
        load: &Load,
        rounds: u64,
    ) -> Result<Vec<Vec<Figures>>> {
        let mut all = vec![Vec::new(); PATHS.len()];
        for round in 0..=rounds {
            for ((name, path), figures) in PATHS.iter().zip(&mut all) {
                let envoy = if *name == "no-op filter" { noop } else { ours };
                let setup = Setup {
                    name,
                    url: envoy.url(path),
                    status: 200,
                    reference: "no-op filter",
                    checked: None,
                    envoy: 0,
                };
                let before = (envoy.process().cpu_us()?, self.calls()?);
                let sample = load.run(&setup).await?;
                let after = (envoy.process().cpu_us()?, self.calls()?);
                let requests = load.requests(&sample).max(1);
                // The first round only warms up: code is compiled, pools fill.
                if round > 0 {
                    figures.push(Figures {
                        sample,
                        cpu_us: (after.0 - before.0) * 1000 / requests,
                        calls: (after.1 - before.1) * 1_000_000 / requests,
                    });
                }
            }
        }
        Ok(all)
    }

    /// Script calls that Redis has executed.
    fn calls(&self) -> Result<u64> {
        let client = redis_cli(&self.redis)?;
        let line = client
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = line.and_then(|line| line.split(',').next()?.parse().ok());
        Ok(calls.unwrap_or(0))
    }
}

/// `INFO commandstats`, by hand: there may be no redis-cli.
fn redis_cli(redis: &Redis) -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, redis.port()))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"INFO commandstats\r\nQUIT\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn write_block(table: &mut String, workers: u64, connections: u64, all: &[Vec<Figures>]) {
    // Writing to a String cannot fail.
    let _ = writeln!(
        table,
        "\n{workers} worker{}, {connections} connection{}\n{:<24}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        if workers == 1 { "" } else { "s" },
        if connections == 1 { "" } else { "s" },
        "",
        "requests/s",
        "of no-op",
        "CPU us",
        "of no-op",
        "calls/k",
        "p50 us",
        "p99 us"
    );
    let reference = all.first().map_or(&[][..], Vec::as_slice);
    for ((name, _), own) in PATHS.iter().zip(all) {
        let each = |of: fn(&Figures) -> u64| own.iter().map(of).collect::<Vec<u64>>();
        let ratio = |of: fn(&Figures) -> u64| {
            let pairs = own.iter().zip(reference);
            median(pairs.map(|(a, b)| of(a) * 100 / of(b).max(1)).collect())
        };
        let hundredths = |value: u64| format!("{}.{:02}", value / 100, value % 100);
        let cpu = median(each(|f| f.cpu_us));
        let calls = median(each(|f| f.calls));
        let _ = writeln!(
            table,
            "{name:<24}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            median(each(|f| f.sample.per_second)),
            hundredths(ratio(|f| f.sample.per_second)),
            format!("{}.{}", cpu / 1000, cpu % 1000 / 100),
            hundredths(ratio(|f| f.cpu_us)),
            format!("{}.{}", calls / 1000, calls % 1000 / 100),
            median(each(|f| f.sample.p50_us)),
            median(each(|f| f.sample.p99_us)),
        );
    }
}

//! What leases save: Envoy's CPU and Redis's calls per request, with one worker and with two, as the
//! demand grows; with a service behind Envoy, and where Envoy answers by itself.
//!
//! CPU is the time of each Envoy process, which other processes disturb less than rates. Every round
//! loads the setups one after the other, and they are compared round by round.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Ports, Programs};
use serde_json::{Value, json};

use super::load::{Load, Sample};
use super::ready::{Servers, limits_are_known, start_envoy};
use super::report::median;
use super::setups::{NOOP, Noops, Setup, answer_alone, answer_at_once, headers_alone};

/// One busy bucket, leased and not, and a bucket for each of a thousand users.
const LIMITS: &str = "\
domain: shop
limits:
  - {name: leased, match: {path: /leased}, rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: users, match: {path: /users}, per: [user], rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: checked, match: {path: /checked}, rate: 1000000/1s}
";

/// Connections, from little demand to saturation.
const CONNECTIONS: [u64; 3] = [1, 4, 32];
/// One of a [`Group`].
type Which = fn(&Group) -> &Envoy;
/// A load: its name in the report, its Envoy, and the path.
const LOADS: [(&str, Which, &str); 6] = [
    (NOOP, |of| &of.noop, "/leased"),
    ("headers alone", |of| &of.headers, "/leased"),
    ("leased, one bucket", |of| &of.ours, "/leased"),
    ("leased, no headers", |of| &of.silent, "/leased"),
    ("leased, 1000 buckets", |of| &of.ours, "/users"),
    ("every request checked", |of| &of.ours, "/checked"),
];

/// What answers requests that pass.
#[derive(Debug, Clone, Copy)]
enum Answers {
    Service,
    Envoy,
}

impl Answers {
    fn words(self) -> &'static str {
        match self {
            Self::Service => "a service behind Envoy",
            Self::Envoy => "Envoy answers itself",
        }
    }
}

/// Everything that runs.
struct Stage {
    _service: Envoy,
    groups: Vec<Group>,
    servers: Servers,
}

/// Envoys that differ only in the filter.
struct Group {
    answers: Answers,
    workers: u32,
    noop: Envoy,
    /// It reads and writes headers, and decides nothing.
    headers: Envoy,
    ours: Envoy,
    /// Ours, without response headers.
    silent: Envoy,
}

/// One setup under one load.
#[derive(Debug, Clone, Copy)]
struct Figures {
    sample: Sample,
    /// Envoy's CPU time for a thousand requests.
    cpu_us: u64,
    /// Redis's script calls, for a million requests.
    calls: u64,
}

/// Runs the rounds; returns the comparison.
pub async fn run(
    programs: Programs,
    noops: &Noops,
    wrk: &Path,
    rounds: u64,
    seconds: u64,
) -> Result<String> {
    let stage = Stage::start(&programs, noops).await?;
    let mut table = String::new();
    for group in &stage.groups {
        for connections in CONNECTIONS {
            let load = Load::new(wrk.to_owned(), Duration::from_secs(seconds), connections)?;
            let figures = stage.compare(group, &load, rounds).await?;
            write_block(&mut table, group, connections, &figures);
        }
    }
    Ok(table)
}

impl Stage {
    async fn start(programs: &Programs, noops: &Noops) -> Result<Self> {
        let ports = Ports::free()?;
        let servers = Servers::start(programs, LIMITS, &ports.limiters).await?;
        let shipped = || EnvoyConfig::shipped(&programs.root);
        let start = async |config: EnvoyConfig, upstream, workers| {
            let ports = Ports { upstream, ..ports };
            start_envoy(programs, config, ports, workers, servers.dir.path()).await
        };
        let service = shipped()?.http_filters(answer_alone)?;
        let (service, behind) = start(service, ports.upstream, 2).await?;
        let mut groups = Vec::new();
        for (answers, workers) in [
            (Answers::Service, 1),
            (Answers::Service, 2),
            (Answers::Envoy, 1),
            (Answers::Envoy, 2),
        ] {
            let with = async |code: &Path, edit: fn(&mut Value)| {
                let config = shipped()?.filter_code(code)?.limiter_timeout("1s")?;
                let mut config = config.filter_config(edit)?;
                if let Answers::Envoy = answers {
                    config = config.http_filters(answer_at_once)?;
                }
                anyhow::Ok(start(config, behind, workers).await?.0)
            };
            groups.push(Group {
                answers,
                workers,
                noop: with(&noops.lean, |_| ()).await?,
                headers: with(&noops.sdk, headers_alone).await?,
                ours: with(&programs.filter, |_| ()).await?,
                silent: with(&programs.filter, |config| config["headers"] = json!([])).await?,
            });
        }
        for group in &groups {
            // An Envoy without response headers does not show that it is ready; the warm-up round gives it time.
            limits_are_known(&group.ours, "/checked").await?;
        }
        Ok(Self {
            _service: service,
            groups,
            servers,
        })
    }

    /// The figures of each path, a round each.
    async fn compare(&self, group: &Group, load: &Load, rounds: u64) -> Result<Vec<Vec<Figures>>> {
        let mut all = vec![Vec::new(); LOADS.len()];
        for round in 0..=rounds {
            for ((name, which, path), figures) in LOADS.iter().zip(&mut all) {
                let envoy = which(group);
                let setup = Setup {
                    name,
                    url: envoy.url(path),
                    status: 200,
                    reference: NOOP,
                    checked: None,
                    envoy: 0,
                };
                let before = (
                    envoy.process().cpu_us()?,
                    self.servers.of_scripts("calls").await?,
                );
                let sample = load.run(&setup).await?;
                let after = (
                    envoy.process().cpu_us()?,
                    self.servers.of_scripts("calls").await?,
                );
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
}

fn write_block(table: &mut String, group: &Group, connections: u64, all: &[Vec<Figures>]) {
    let Group {
        answers, workers, ..
    } = group;
    // Writing to a String cannot fail.
    let _ = writeln!(
        table,
        "\n{}, {workers} worker{}, {connections} connection{}\n{:<24}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        answers.words(),
        if *workers == 1 { "" } else { "s" },
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
    for ((name, ..), own) in LOADS.iter().zip(all) {
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

//! Figures of all rounds, compared.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

mod budgets;
mod lone;

use super::h2c::Calls;
use super::load::Sample;
use super::start::Starts;

/// One run of a setup.
pub struct Run {
    /// The clients' measurements.
    pub sample: Sample,
    /// CPU time per request of Envoy, the limiters and Redis, in nanoseconds.
    pub cpu_ns: [u64; 3],
}

/// The samples of one setup, one per round; of a reference, one beside each other setup.
pub struct Series {
    name: &'static str,
    reference: &'static str,
    samples: Vec<Run>,
    /// The reference's requests per second right before or after each sample.
    beside: Vec<u64>,
}

impl Series {
    /// No round yet.
    pub fn new(name: &'static str, reference: &'static str) -> Self {
        Self {
            name,
            reference,
            samples: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Adds a sample, with the reference's requests per second right before or after it.
    fn push_beside(&mut self, reference: u64, run: Run) {
        self.samples.push(run);
        self.beside.push(reference);
    }

    /// Its requests per request of the reference, pair by pair.
    fn ratio(&self) -> Ratio {
        let pairs = self.samples.iter().zip(&self.beside);
        Ratio::of(pairs.map(|(own, reference)| (own.sample.per_second, *reference)))
    }

    fn each(&self, figure: fn(&Sample) -> u64) -> Vec<u64> {
        self.samples.iter().map(|run| figure(&run.sample)).collect()
    }

    /// CPU time per request in nanoseconds, of one process.
    fn cpu_ns(&self, process: usize) -> Vec<u64> {
        let used = self.samples.iter();
        used.filter_map(|run| run.cpu_ns.get(process).copied())
            .collect()
    }
}

/// All of a run.
pub struct Report {
    seconds: u64,
    connections: u64,
    size: u64,
    /// Starts of Envoy, by round.
    pub starts: Vec<Starts>,
    /// Requests through Envoy, by setup.
    pub series: Vec<Series>,
    /// Checks per second by Redis alone and through the limiter, by round.
    pub limiter: Vec<(u64, u64)>,
    /// The time of Redis for each check of a script call, in nanoseconds, with how many it has, by round.
    pub scripts: Vec<(u64, u64)>,
    /// The duration of a PING of Redis, in microseconds, by round.
    pub pings_us: Vec<u64>,
    /// Calls of one check each that a limiter gets over HTTP/2, with how many there are at once, by round.
    pub calls: Vec<(u64, Calls)>,
    /// Requests one at a time through Envoy, with their setup, by round.
    pub lone: Vec<(&'static str, Run)>,
}

impl Report {
    /// `seconds` of load per setup and round.
    pub fn new(seconds: u64, connections: u64, filter: &Path) -> Result<Self> {
        Ok(Self {
            seconds,
            connections,
            size: std::fs::metadata(filter)?.len(),
            starts: Vec::new(),
            series: Vec::new(),
            limiter: Vec::new(),
            scripts: Vec::new(),
            pings_us: Vec::new(),
            calls: Vec::new(),
            lone: Vec::new(),
        })
    }

    /// Adds a round of a setup, and of the one beside it.
    pub fn push(&mut self, name: &str, own: Run, reference: Run) {
        let beside = reference.sample.per_second;
        let mut series = self.series.iter_mut();
        let Some(of) = series.find(|series| series.name == name) else {
            return;
        };
        of.push_beside(beside, own);
        let against = of.reference;
        let mut series = self.series.iter_mut();
        if let Some(reference_of) = series.find(|series| series.name == against) {
            reference_of.push_beside(beside, reference);
        }
    }

    /// As text of 80 columns.
    pub fn table(&self) -> String {
        let mut table = row([
            "one Envoy worker",
            "requests/s",
            "p50",
            "p99",
            "of no-op",
            "spread",
        ]);
        for series in &self.series {
            let ratio = series.ratio();
            table += &row([
                series.name,
                &median(series.each(|sample| sample.per_second)).to_string(),
                &millis(median(series.each(|sample| sample.p50_us))),
                &millis(median(series.each(|sample| sample.p99_us))),
                &thousandths(ratio.median),
                &ratio.spread(),
            ]);
        }
        table += &self.cpu_table();
        let ratio = self.limiter_ratio();
        let (redis, limiter): (Vec<u64>, Vec<u64>) = self.limiter.iter().copied().unzip();
        let [redis, limiter] = [redis, limiter].map(|rounds| median(rounds).to_string());
        let of_redis = (thousandths(ratio.median), ratio.spread());
        table += "\n";
        table += &row([
            "the limiter alone",
            "checks/s",
            "",
            "",
            "of Redis",
            "spread",
        ]);
        table += &row(["Redis alone", &redis, "", "", "", ""]);
        table += &row([
            "limiter, same script",
            &limiter,
            "",
            "",
            &of_redis.0,
            &of_redis.1,
        ]);
        table += &self.script_table();
        table += &self.lone_tables();
        table += &self.budgets();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "\nMedians; ratios are of pairs of runs right after one another. {} connections, {} s a\n\
             run; {cores} cores, shared with wrk, the limiters and Redis.",
            self.connections, self.seconds
        );
        table
    }

    /// As JSON.
    pub fn json(&self) -> String {
        let setup = |series: &Series| {
            json!({
                "name": series.name,
                "requests_per_second": series.each(|sample| sample.per_second),
                "p50_us": series.each(|sample| sample.p50_us),
                "p99_us": series.each(|sample| sample.p99_us),
                "of_noop_permille": series.ratio().json(),
                "reference": series.reference,
                "cpu_ns_per_request": {
                    "envoy": series.cpu_ns(0),
                    "limiters": series.cpu_ns(1),
                    "redis": series.cpu_ns(2),
                },
            })
        };
        let (redis, limiter): (Vec<u64>, Vec<u64>) = self.limiter.iter().copied().unzip();
        let report = json!({
            "seconds": self.seconds,
            "connections": self.connections,
            "filter_bytes": self.size,
            "start_ms": {
                "without": self.started(|starts| starts.without.took_ms),
                "noop": self.started(|starts| starts.noop.took_ms),
                "ours": self.started(|starts| starts.ours.took_ms),
            },
            "setups": self.series.iter().map(setup).collect::<Vec<_>>(),
            "limiter": {
                "redis_checks_per_second": redis,
                "limiter_checks_per_second": limiter,
                "of_redis_permille": self.limiter_ratio().json(),
            },
            "script_ns_per_check": self.script_times(),
            "ping_us": self.pings_us,
            "single_checks": self.single_checks(),
            "lone_requests": self.lone_requests(),
        });
        format!("{report:#}\n")
    }

    fn limiter_ratio(&self) -> Ratio {
        Ratio::of(
            self.limiter
                .iter()
                .map(|&(redis, limiter)| (limiter, redis)),
        )
    }
}

/// A ratio in thousandths: its median and extremes over the rounds.
struct Ratio {
    median: u64,
    least: u64,
    most: u64,
}

impl Ratio {
    fn of(pairs: impl Iterator<Item = (u64, u64)>) -> Self {
        let ratios: Vec<u64> = pairs
            .filter_map(|(own, other)| (own * 1000).checked_div(other))
            .collect();
        let least = ratios.iter().copied().min().unwrap_or(0);
        let most = ratios.iter().copied().max().unwrap_or(0);
        Self {
            median: median(ratios),
            least,
            most,
        }
    }

    fn spread(&self) -> String {
        format!("{}–{}", thousandths(self.least), thousandths(self.most))
    }

    fn json(&self) -> Value {
        json!({"median": self.median, "least": self.least, "most": self.most})
    }
}

fn row([name, rate, p50, p99, ratio, spread]: [&str; 6]) -> String {
    let row = format!("{name:<24}{rate:>11}{p50:>11}{p99:>11}{ratio:>10}{spread:>13}");
    format!("{}\n", row.trim_end())
}

pub(super) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Microseconds as `1.2 ms`.
fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

/// Nanoseconds as `40.3 us`.
fn micros(nanos: u64) -> String {
    format!("{}.{} us", nanos / 1000, nanos % 1000 / 100)
}

/// Thousandths as `0.87`.
fn thousandths(value: u64) -> String {
    format!("{}.{:02}", value / 1000, value % 1000 / 10)
}

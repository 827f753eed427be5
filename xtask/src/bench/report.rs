//! Figures of all rounds, compared.

use std::fmt::Write as _;

use serde_json::json;

use super::load::Sample;

/// The setup that others are measured against.
const REFERENCE: &str = "no-op filter";

/// The samples of one setup, a round each.
pub struct Series {
    name: &'static str,
    samples: Vec<Sample>,
}

impl Series {
    /// No round yet.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            samples: Vec::new(),
        }
    }

    /// Adds a round.
    pub fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    fn median(&self, figure: fn(&Sample) -> u64) -> u64 {
        median(self.samples.iter().map(figure).collect())
    }
}

/// All of a run.
pub struct Report {
    seconds: u64,
    connections: u64,
    series: Vec<Series>,
}

/// A ratio in thousandths: its median and extremes over the rounds.
struct Ratio {
    median: u64,
    least: u64,
    most: u64,
}

impl Report {
    /// `seconds` of load per setup and round.
    pub fn new(seconds: u64, connections: u64, series: Vec<Series>) -> Self {
        Self {
            seconds,
            connections,
            series,
        }
    }

    /// Requests of a setup per request of the reference, round by round.
    fn ratio(&self, series: &Series) -> Ratio {
        let reference = self.series.iter().find(|other| other.name == REFERENCE);
        let pairs = series
            .samples
            .iter()
            .zip(reference.map_or(&[][..], |other| &other.samples));
        let ratios: Vec<u64> = pairs
            .filter_map(|(own, other)| (own.per_second * 1000).checked_div(other.per_second))
            .collect();
        let least = ratios.iter().copied().min().unwrap_or(0);
        let most = ratios.iter().copied().max().unwrap_or(0);
        Ratio {
            median: median(ratios),
            least,
            most,
        }
    }

    /// For people: 80 columns.
    pub fn table(&self) -> String {
        let mut table = format!(
            "\n{:<24}{:>11}{:>11}{:>11}{:>10}{:>13}\n",
            "one Envoy worker", "requests/s", "p50", "p99", "of no-op", "spread"
        );
        for series in &self.series {
            let ratio = self.ratio(series);
            // Writing to a String cannot fail.
            let _ = writeln!(
                table,
                "{:<24}{:>11}{:>11}{:>11}{:>10}{:>13}",
                series.name,
                series.median(|sample| sample.per_second),
                millis(series.median(|sample| sample.p50_us)),
                millis(series.median(|sample| sample.p99_us)),
                thousandths(ratio.median),
                format!("{}–{}", thousandths(ratio.least), thousandths(ratio.most)),
            );
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let _ = writeln!(
            table,
            "\nMedians. Ratios are of rounds, not of medians. {} connections, {} s per setup and\n\
             round; {cores} cores, shared with wrk, the limiters and Redis.",
            self.connections, self.seconds
        );
        table
    }

    /// For programs.
    pub fn json(&self) -> String {
        let setups: Vec<_> = self
            .series
            .iter()
            .map(|series| {
                let each = |figure: fn(&Sample) -> u64| -> Vec<u64> {
                    series.samples.iter().map(figure).collect()
                };
                let ratio = self.ratio(series);
                json!({
                    "name": series.name,
                    "requests_per_second": each(|sample| sample.per_second),
                    "p50_us": each(|sample| sample.p50_us),
                    "p99_us": each(|sample| sample.p99_us),
                    "of_noop_permille": {
                        "median": ratio.median, "least": ratio.least, "most": ratio.most
                    },
                })
            })
            .collect();
        let report = json!({
            "seconds": self.seconds, "connections": self.connections, "setups": setups
        });
        format!("{report:#}\n")
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Microseconds as `1.2 ms`.
fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

/// Thousandths as `0.87`.
fn thousandths(value: u64) -> String {
    format!("{}.{:02}", value / 1000, value % 1000 / 10)
}

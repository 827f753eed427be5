//! Envoy's metrics: defined while the configuration is made, with labels where they are of one limit.
//!
//! Envoy's functions are called without a lock, so the state machine writes to a list first.

use filter_core::{Metrics, Worker};

use crate::abi::{Config, MetricKind};

/// Panics that were caught; each cost a worker its state.
const PANICS: &str = "rl_panics";

/// Gauges and histograms of the state machine; it says itself which counters it has.
const OTHERS: [(MetricKind, &str); 2] = [
    (MetricKind::Gauge, "rl_breaker_open"),
    (MetricKind::Histogram, "rl_callout_duration_us"),
];

/// The metrics of a configuration, by name.
#[derive(Debug)]
pub struct Defined(Vec<(&'static str, MetricKind, usize)>);

impl Defined {
    /// Defines all metrics. One that Envoy does not define is not written; nothing else depends on it.
    pub fn new(config: &mut Config<'_>) -> Self {
        let mut all = Definitions::default();
        Worker::define_metrics(&mut all);
        let counters = all.0.into_iter();
        let counters = counters.map(|(name, labels)| (MetricKind::Counter, name, labels));
        let others = OTHERS.map(|(kind, name)| (kind, name, Vec::new()));
        let own = (MetricKind::Counter, PANICS, Vec::new());
        let all = counters.chain(others).chain([own]);
        let mut defined: Vec<_> = all
            .filter_map(|(kind, name, labels)| {
                let id = config.define(kind, name, &labels)?;
                Some((name, kind, id))
            })
            .collect();
        defined.sort_unstable_by_key(|(name, ..)| *name);
        Self(defined)
    }

    /// Writes what was recorded.
    pub fn write(&self, config: &mut Config<'_>, recorded: Recorded) {
        for Record {
            name,
            labels,
            value,
        } in recorded.0
        {
            let at = self
                .0
                .binary_search_by_key(&name.as_str(), |(name, ..)| name);
            if let Some((_, kind, id)) = at.ok().and_then(|at| self.0.get(at)) {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                config.record(*kind, *id, &labels, value);
            }
        }
    }
}

/// The counters of the state machine, and their labels.
#[derive(Default)]
struct Definitions(Vec<(&'static str, Vec<&'static str>)>);

impl Metrics for Definitions {
    fn count(&mut self, _name: &str, _by: u64) {}

    fn gauge(&mut self, _name: &str, _value: u64) {}

    fn sample(&mut self, _name: &str, _value: u64) {}

    fn family(&mut self, family: &'static str, labels: &[&'static str]) {
        self.0.push((family, labels.to_vec()));
    }
}

/// What the state machine wrote.
#[derive(Debug, Default)]
pub struct Recorded(Vec<Record>);

#[derive(Debug)]
struct Record {
    name: String,
    labels: Vec<String>,
    value: u64,
}

impl Recorded {
    fn add(&mut self, name: &str, labels: &[&str], value: u64) {
        self.0.push(Record {
            name: name.to_owned(),
            labels: labels.iter().copied().map(str::to_owned).collect(),
            value,
        });
    }

    /// Panics that were caught.
    pub fn panics(count: u64) -> Self {
        let mut recorded = Self::default();
        recorded.count(PANICS, count);
        recorded
    }
}

impl Metrics for Recorded {
    fn count(&mut self, name: &str, by: u64) {
        if by > 0 {
            self.add(name, &[], by);
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.add(name, &[], value);
    }

    fn sample(&mut self, name: &str, value: u64) {
        self.add(name, &[], value);
    }

    fn count_of(&mut self, family: &'static str, labels: &[&str], by: u64) {
        self.add(family, labels, by);
    }
}

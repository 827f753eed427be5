//! Envoy's stats as the state machine sees them: `wasmcustom.<name>`.
//!
//! Failures to write a metric are ignored: they must not affect anything else. Envoy frees no names;
//! the state machine bounds how many there are.

use filter_core::Metrics;
use proxy_wasm::{hostcalls, types::MetricType};

/// The metrics defined so far, sorted by name.
#[derive(Debug, Default)]
pub struct Stats {
    ids: Vec<(Box<str>, u32)>,
}

impl Stats {
    fn id(&mut self, kind: MetricType, name: &str) -> Option<u32> {
        let found = self.ids.binary_search_by(|(known, _)| (**known).cmp(name));
        match found {
            Ok(at) => self.ids.get(at).map(|(_, id)| *id),
            Err(at) => {
                let id = hostcalls::define_metric(kind, name).ok()?;
                self.ids.insert(at, (name.into(), id));
                Some(id)
            }
        }
    }

    fn record(&mut self, kind: MetricType, name: &str, value: u64) {
        if let Some(id) = self.id(kind, name) {
            let _ = hostcalls::record_metric(id, value);
        }
    }
}

impl Metrics for Stats {
    fn count(&mut self, name: &str, by: u64) {
        // Defined even at 0, which Envoy refuses to add.
        if let Some(id) = self.id(MetricType::Counter, name)
            && by > 0
        {
            let _ = hostcalls::increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.record(MetricType::Gauge, name, value);
    }

    fn sample(&mut self, name: &str, value: u64) {
        self.record(MetricType::Histogram, name, value);
    }
}

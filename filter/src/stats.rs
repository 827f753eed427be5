//! Envoy's stats as the state machine sees them.

use filter_core::Metrics;

use crate::host::metrics::{self, Kind, MetricId};

/// The metrics defined so far, in the order of their names.
#[derive(Debug, Default)]
pub struct Stats {
    ids: Vec<(Box<str>, MetricId)>,
}

impl Stats {
    fn id(&mut self, kind: Kind, name: &str) -> Option<MetricId> {
        let found = self.ids.binary_search_by(|(known, _)| (**known).cmp(name));
        match found {
            Ok(at) => self.ids.get(at).map(|(_, id)| *id),
            Err(at) => {
                let id = metrics::define(kind, name).ok()?;
                self.ids.insert(at, (name.into(), id));
                Some(id)
            }
        }
    }
}

impl Metrics for Stats {
    fn count(&mut self, name: &str, by: u64) {
        if let Some(id) = self.id(Kind::Counter, name) {
            // A metric that cannot be counted is no reason to do anything else.
            let _ = metrics::increment(id, by);
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        if let Some(id) = self.id(Kind::Gauge, name) {
            let _ = metrics::record(id, value);
        }
    }

    fn sample(&mut self, name: &str, value: u64) {
        if let Some(id) = self.id(Kind::Histogram, name) {
            let _ = metrics::record(id, value);
        }
    }
}

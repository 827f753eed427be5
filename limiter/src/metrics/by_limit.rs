//! Metrics with a counter for each limit.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::LimitLabels;

/// N metrics, each a counter by limit. They are separate metrics rather than one with a label,
/// because no sum over them has a meaning.
#[derive(Debug)]
pub(super) struct ByLimit<const N: usize> {
    /// Names and help.
    metrics: [(&'static str, &'static str); N],
    families: [Family<LimitLabels, Counter>; N],
}

impl<const N: usize> ByLimit<N> {
    pub(super) fn new(metrics: [(&'static str, &'static str); N]) -> Self {
        Self {
            metrics,
            families: std::array::from_fn(|_| Family::default()),
        }
    }

    pub(super) fn register(&self, all: &mut Registry) {
        for ((name, help), family) in self.metrics.iter().zip(&self.families) {
            all.register(*name, *help, family.clone());
        }
    }

    /// The counters of a limit, in the order of the metrics.
    pub(super) fn of(&self, domain: &str, limit: &str) -> [Counter; N] {
        let labels = LimitLabels::new(domain, limit);
        self.families
            .each_ref()
            .map(|family| family.get_or_create_owned(&labels))
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        let labels = LimitLabels::new(domain, limit);
        for family in &self.families {
            family.remove(&labels);
        }
    }
}

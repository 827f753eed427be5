//! Slots of requests in flight.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::LimitLabels;

/// The counters of every limit on requests in flight.
#[derive(Debug, Default)]
pub(super) struct Slots {
    taken: Family<LimitLabels, Counter>,
    freed: Family<LimitLabels, Counter>,
    lapsed: Family<LimitLabels, Counter>,
}

/// The counters of one limit. What was taken, and neither freed nor lapsed, is in use, or its holder died.
#[derive(Debug)]
pub(super) struct SlotCounters {
    pub(super) taken: Counter,
    pub(super) freed: Counter,
    pub(super) lapsed: Counter,
}

impl Slots {
    pub(super) fn register(&self, all: &mut Registry) {
        for (name, help, family) in [
            (
                "slots_taken",
                "Slots that requests in flight got",
                &self.taken,
            ),
            (
                "slots_freed",
                "Slots of requests in flight that their holders gave back",
                &self.freed,
            ),
            (
                "slots_lapsed",
                "Slots of requests in flight that were gone when their holders renewed them",
                &self.lapsed,
            ),
        ] {
            all.register(name, help, family.clone());
        }
    }

    pub(super) fn of(&self, domain: &str, limit: &str) -> SlotCounters {
        let labels = LimitLabels::new(domain, limit);
        let counter = |family: &Family<LimitLabels, Counter>| family.get_or_create_owned(&labels);
        SlotCounters {
            taken: counter(&self.taken),
            freed: counter(&self.freed),
            lapsed: counter(&self.lapsed),
        }
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        let labels = LimitLabels::new(domain, limit);
        for family in [&self.taken, &self.freed, &self.lapsed] {
            family.remove(&labels);
        }
    }
}

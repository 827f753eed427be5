//! Leased units: granted to proxies in advance.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::LimitLabels;

/// The counters of every limit. Three metrics: no sum over them would mean anything.
#[derive(Debug, Default)]
pub(super) struct Leases {
    granted: Family<LimitLabels, Counter>,
    spent: Family<LimitLabels, Counter>,
    returned: Family<LimitLabels, Counter>,
}

/// The counters of one limit. Units that are neither reported as spent nor returned were lost, with a proxy or a call.
#[derive(Debug)]
pub(super) struct LeaseCounters {
    pub(super) granted: Counter,
    pub(super) spent: Counter,
    pub(super) returned: Counter,
}

impl Leases {
    pub(super) fn register(&self, all: &mut Registry) {
        for (name, help, family) in [
            (
                "lease_granted_units",
                "Leased units granted to proxies",
                &self.granted,
            ),
            (
                "lease_spent_units",
                "Leased units that proxies reported as spent",
                &self.spent,
            ),
            (
                "lease_returned_units",
                "Leased units that proxies returned unused",
                &self.returned,
            ),
        ] {
            all.register(name, help, family.clone());
        }
    }

    pub(super) fn of(&self, domain: &str, limit: &str) -> LeaseCounters {
        let labels = LimitLabels::new(domain, limit);
        let counter = |family: &Family<LimitLabels, Counter>| family.get_or_create_owned(&labels);
        LeaseCounters {
            granted: counter(&self.granted),
            spent: counter(&self.spent),
            returned: counter(&self.returned),
        }
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        let labels = LimitLabels::new(domain, limit);
        for family in [&self.granted, &self.spent, &self.returned] {
            family.remove(&labels);
        }
    }
}

//! Units reserved for requests whose responses say what they cost.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::LimitLabels;

/// The counters of every limit whose responses say their cost.
#[derive(Debug, Default)]
pub(super) struct Costs {
    reserved: Family<LimitLabels, Counter>,
    given_back: Family<LimitLabels, Counter>,
    excess: Family<LimitLabels, Counter>,
}

/// The counters of one limit.
#[derive(Debug)]
pub(super) struct CostCounters {
    pub(super) reserved: Counter,
    pub(super) given_back: Counter,
    pub(super) excess: Counter,
}

impl Costs {
    pub(super) fn register(&self, all: &mut Registry) {
        for (name, help, family) in [
            (
                "cost_reserved_units",
                "Units that checks reserved until the response says the cost",
                &self.reserved,
            ),
            (
                "cost_given_back_units",
                "Reserved units that settlements gave back",
                &self.given_back,
            ),
            (
                "cost_excess_units",
                "Units that settlements charged beyond what was reserved",
                &self.excess,
            ),
        ] {
            all.register(name, help, family.clone());
        }
    }

    pub(super) fn of(&self, domain: &str, limit: &str) -> CostCounters {
        let labels = LimitLabels::new(domain, limit);
        let counter = |family: &Family<LimitLabels, Counter>| family.get_or_create_owned(&labels);
        CostCounters {
            reserved: counter(&self.reserved),
            given_back: counter(&self.given_back),
            excess: counter(&self.excess),
        }
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        let labels = LimitLabels::new(domain, limit);
        for family in [&self.reserved, &self.given_back, &self.excess] {
            family.remove(&labels);
        }
    }
}

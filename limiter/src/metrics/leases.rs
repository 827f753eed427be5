//! Units that proxies took in advance.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// The counters of every limit.
#[derive(Debug, Default)]
pub(super) struct Leases {
    units: Family<Labels, Counter>,
}

/// The counters of one limit. What is granted and never told of expired unused, or with its proxy.
#[derive(Debug)]
pub(super) struct LeaseCounters {
    pub(super) granted: Counter,
    pub(super) spent: Counter,
    pub(super) returned: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    domain: String,
    limit: String,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's values, as they are read")]
enum What {
    granted,
    spent,
    returned,
}

fn labels(domain: &str, limit: &str, what: What) -> Labels {
    Labels {
        domain: domain.to_owned(),
        limit: limit.to_owned(),
        what,
    }
}

impl Leases {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register(
            "leased_units",
            "Units granted to proxies in advance, and what they told became of them",
            self.units.clone(),
        );
    }

    pub(super) fn of(&self, domain: &str, limit: &str) -> LeaseCounters {
        let counter = |what| self.units.get_or_create_owned(&labels(domain, limit, what));
        LeaseCounters {
            granted: counter(What::granted),
            spent: counter(What::spent),
            returned: counter(What::returned),
        }
    }

    pub(super) fn forget(&self, domain: &str, limit: &str) {
        for what in [What::granted, What::spent, What::returned] {
            self.units.remove(&labels(domain, limit, what));
        }
    }
}

//! Leased units: granted to proxies in advance.

use prometheus_client::metrics::counter::Counter;

use super::by_limit::ByLimit;

/// For every limit.
pub(super) fn metrics() -> ByLimit<3> {
    ByLimit::new([
        ("lease_granted_units", "Leased units granted to proxies"),
        (
            "lease_spent_units",
            "Leased units that proxies reported as spent",
        ),
        (
            "lease_returned_units",
            "Leased units that proxies returned unused",
        ),
    ])
}

/// The counters of one limit. Units neither reported as spent nor returned were lost with a proxy
/// or a call.
#[derive(Debug)]
pub(super) struct LeaseCounters {
    pub(super) granted: Counter,
    pub(super) spent: Counter,
    pub(super) returned: Counter,
}

impl From<[Counter; 3]> for LeaseCounters {
    fn from([granted, spent, returned]: [Counter; 3]) -> Self {
        Self {
            granted,
            spent,
            returned,
        }
    }
}

//! Units reserved for requests whose responses say what they cost.

use prometheus_client::metrics::counter::Counter;

use super::by_limit::ByLimit;

/// Of every limit whose responses say their cost.
pub(super) fn metrics() -> ByLimit<3> {
    ByLimit::new([
        (
            "cost_reserved_units",
            "Units that checks reserved until the response says the cost",
        ),
        (
            "cost_given_back_units",
            "Reserved units that settlements gave back",
        ),
        (
            "cost_excess_units",
            "Units that settlements charged beyond what was reserved",
        ),
    ])
}

/// The counters of one limit.
#[derive(Debug)]
pub(super) struct CostCounters {
    pub(super) reserved: Counter,
    pub(super) given_back: Counter,
    pub(super) excess: Counter,
}

impl From<[Counter; 3]> for CostCounters {
    fn from([reserved, given_back, excess]: [Counter; 3]) -> Self {
        Self {
            reserved,
            given_back,
            excess,
        }
    }
}

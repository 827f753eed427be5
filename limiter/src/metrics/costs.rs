//! Units reserved for requests whose responses say what they cost.

use prometheus_client::metrics::counter::Counter;

use super::by_limit::ByLimit;

/// For every limit whose responses say their cost.
pub(super) fn metrics() -> ByLimit<5> {
    ByLimit::new([
        (
            "cost_reserved_units",
            "Units that checks reserved until the response says the cost",
        ),
        (
            "cost_settlements",
            "True costs of responses that arrived, repeats included; where they fall behind the checks that \
             reserved, proxies lose them and what they reserved stays charged",
        ),
        (
            "cost_settled_units",
            "Units of these true costs; far below the units reserved, the reserve is too high",
        ),
        (
            "cost_given_back_units",
            "Reserved units that settlements gave back; what is not given back had drained, was settled too late, \
             or was reserved before a reset",
        ),
        (
            "cost_excess_units",
            "Units that settlements charged beyond what was reserved: buckets owe them, and deny until they drained",
        ),
    ])
}

/// The counters of one limit.
#[derive(Debug)]
pub(super) struct CostCounters {
    pub(super) reserved: Counter,
    pub(super) settlements: Counter,
    pub(super) settled: Counter,
    pub(super) given_back: Counter,
    pub(super) excess: Counter,
}

impl From<[Counter; 5]> for CostCounters {
    fn from([reserved, settlements, settled, given_back, excess]: [Counter; 5]) -> Self {
        Self {
            reserved,
            settlements,
            settled,
            given_back,
            excess,
        }
    }
}

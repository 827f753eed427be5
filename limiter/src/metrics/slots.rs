//! Slots of requests in flight.

use prometheus_client::metrics::counter::Counter;

use super::by_limit::ByLimit;

/// For every limit on requests in flight.
pub(super) fn metrics() -> ByLimit<3> {
    ByLimit::new([
        ("slots_taken", "Slots that requests in flight got"),
        (
            "slots_freed",
            "Slots of requests in flight that their holders gave back",
        ),
        (
            "slots_lapsed",
            "Slots of requests in flight that were gone when their holders renewed them",
        ),
    ])
}

/// The counters of one limit. A slot that was taken and neither freed nor lapsed is in use, or its
/// holder died.
#[derive(Debug)]
pub(super) struct SlotCounters {
    pub(super) taken: Counter,
    pub(super) freed: Counter,
    pub(super) lapsed: Counter,
}

impl From<[Counter; 3]> for SlotCounters {
    fn from([taken, freed, lapsed]: [Counter; 3]) -> Self {
        Self {
            taken,
            freed,
            lapsed,
        }
    }
}

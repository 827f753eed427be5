//! The leases of a check.

use algorithms::{Algorithm, Settlement};
use policy::Limit;

/// The part of a check that is about leases, for one bucket.
#[derive(Debug)]
pub(super) struct Lease {
    ttl_ms: u64,
    want: u64,
    proxy: u8,
    settle: Vec<Settlement>,
}

impl Lease {
    /// `None` if nothing is wanted and nothing settled: then the bucket's plain form is enough,
    /// because its state shows what is outstanding.
    pub(super) fn from_request(
        request: &protocol::LeaseRequest,
        proxy: u8,
        limit: &Limit,
        algorithm: &Algorithm,
    ) -> Option<Self> {
        let ttl_ms = ttl_ms(limit, algorithm);
        let wants = request.want > 0 && ttl_ms > 0;
        (wants || !request.settle.is_empty()).then(|| Self {
            ttl_ms,
            want: request.want,
            proxy,
            settle: request.settle.clone(),
        })
    }

    /// For a peek, whose reply includes outstanding units.
    pub(super) fn question(limit: &Limit, algorithm: &Algorithm) -> Self {
        Self {
            ttl_ms: ttl_ms(limit, algorithm),
            want: 0,
            proxy: 0,
            settle: Vec::new(),
        }
    }

    /// The arguments for the algorithms.
    pub(super) fn request(&self) -> algorithms::LeaseRequest<'_> {
        algorithms::LeaseRequest {
            ttl_ms: self.ttl_ms,
            want: self.want,
            proxy: self.proxy,
            settle: &self.settle,
        }
    }
}

/// 0 if the bucket is not leased: with an override, it may fill too fast for the limit's ttl.
fn ttl_ms(limit: &Limit, algorithm: &Algorithm) -> u64 {
    let longest = algorithm.lease_max_ms().unwrap_or(0);
    limit
        .lease_ttl_ms
        .filter(|ttl_ms| *ttl_ms <= longest)
        .unwrap_or(0)
}

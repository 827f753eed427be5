//! Warnings about limits that are expensive for the store.

use algorithms::Kind;
use policy::{Dear, Limit};

/// A check is costly if it weighs as much as this many checks of a token bucket.
const WEIGHT: usize = 8;
/// A log is costly with this many entries; and the bytes of each.
const LONG_LOG: u64 = 10_000;
const LOG_ENTRY_BYTES: u64 = 25;

/// The warning about a limit whose checks or buckets are expensive.
pub fn cost_warning(limit: &Limit) -> Option<Dear> {
    let (algorithm, leased) = (limit.quota.algorithm(), limit.lease_ttl_ms.is_some());
    let weight = store::script::weight(algorithm, leased);
    let units = limit.quota.parameters().rate.units;
    match algorithm.kind() {
        Kind::SlidingWindowBuckets if weight >= WEIGHT => Some(Dear {
            field: "sub_windows",
            message: format!(
                "a check may cost the store as much as {} checks of a token bucket",
                5 * weight
            ),
            hint: "fewer sub_windows cost less",
        }),
        Kind::SlidingWindowLog if units >= LONG_LOG => Some(Dear {
            field: "algorithm",
            message: format!(
                "a bucket in full use takes about {} MB in the store",
                units.saturating_mul(LOG_ENTRY_BYTES).div_ceil(1_000_000)
            ),
            hint: "sliding_window_buckets takes some kilobytes",
        }),
        _ => None,
    }
}

//! Penalties of buckets that were denied too often.

use super::by_limit::ByLimit;

/// For every limit with `penalty`.
pub(super) fn metrics() -> ByLimit<1> {
    ByLimit::new([(
        "penalties",
        "Penalties that began, of buckets that were denied too often",
    )])
}

//! The monotonic clock. The SDK has only the wall clock, and `std::time` panics on this target.

#![expect(unsafe_code, reason = "calls the host with a pointer to a local")]

use super::{
    raw,
    status::{HostError, check},
};

/// Nanoseconds on a clock that never steps back, the same for all workers of a process.
pub fn monotonic_ns() -> Result<u64, HostError> {
    const MONOTONIC: u32 = 1;
    let mut ns = 0;
    // SAFETY: the out pointer is valid for writes.
    check(unsafe { raw::clock_time_get(MONOTONIC, 0, &raw mut ns) })?;
    Ok(ns)
}

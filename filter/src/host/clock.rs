//! Time. `std::time` panics on this target; Envoy's clocks are asked instead.

#![expect(unsafe_code, reason = "calls the host with pointers to locals")]

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

/// Nanoseconds since the epoch.
pub fn wall_ns() -> Result<u64, HostError> {
    let mut ns = 0;
    // SAFETY: the out pointer is valid for writes.
    check(unsafe { raw::proxy_get_current_time_nanoseconds(&raw mut ns) })?;
    Ok(ns)
}

/// Asks for `on_tick` every so many milliseconds; 0 stops it.
pub fn set_tick_period_ms(period_ms: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_set_tick_period_milliseconds(period_ms) })
}

//! Envoy stats, shown as `wasmcustom.<name>`. Names are never freed, so their number is bounded by the caller.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

use super::{
    raw,
    status::{HostError, check},
};

/// What a metric does with what it is told.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Adds it up.
    Counter = 0,
    /// Shows the last.
    Gauge = 1,
    /// Shows how it is spread.
    Histogram = 2,
}

/// A defined metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricId(u32);

/// Defines a metric, or finds it.
pub fn define(kind: Kind, name: &str) -> Result<MetricId, HostError> {
    let mut id = 0;
    // SAFETY: `name` outlives the call, and the out pointer is valid for writes.
    check(unsafe {
        raw::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id)
    })?;
    Ok(MetricId(id))
}

/// Adds to a counter. The host refuses 0.
pub fn increment(id: MetricId, by: u64) -> Result<(), HostError> {
    if by == 0 {
        return Ok(());
    }
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_increment_metric(id.0, i64::try_from(by).unwrap_or(i64::MAX)) })
}

/// Sets a gauge, or adds a sample to a histogram.
pub fn record(id: MetricId, value: u64) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_record_metric(id.0, value) })
}

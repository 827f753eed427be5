//! The snapshot that a limiter makes of its compiled limits for filters, with the edges of calendar windows.

use algorithms::Parameters;
use documents::to_base64;
use policy::{Compiled, Scope, Snapshot};

/// The snapshot with the edges of calendar windows around a time in milliseconds since the epoch.
pub fn snapshot_at(compiled: &Compiled, now_ms: u64) -> Vec<u8> {
    compiled.to_snapshot(&|parameters| calendar::edges_of(parameters, now_ms))
}

/// As [`snapshot_at`], after the snapshots that this process made before.
pub fn snapshot_after(compiled: &Compiled, now_ms: u64, before: Option<&Snapshot>) -> Snapshot {
    let edges = |parameters: &Parameters| calendar::edges_of(parameters, now_ms);
    let timed = snapshot_until_ms(compiled, now_ms).is_some();
    Snapshot::new(compiled, &edges, timed, before)
}

/// The snapshot as the filter's configuration has it: `limits`.
pub fn snapshot_text(compiled: &Compiled, now_ms: u64) -> String {
    to_base64(&snapshot_at(compiled, now_ms))
}

/// When the edges in a snapshot of this time no longer cover the current time, in milliseconds
/// since the epoch; `None`: it has no edges.
pub fn snapshot_until_ms(compiled: &Compiled, now_ms: u64) -> Option<u64> {
    let own = compiled.limits().iter().map(|limit| limit.quota);
    let of_proxies = compiled.limits().iter().enumerate();
    let of_proxies = of_proxies.filter(|(_, limit)| limit.scope == Scope::Proxy);
    let overrides = of_proxies.flat_map(|(at, limit)| {
        let overrides = compiled.overrides(at);
        overrides.filter_map(|found| found.quota.of(&limit.quota))
    });
    let quotas = own.chain(overrides);
    let ends = quotas.filter_map(|quota| {
        let (window, _) = calendar::window_of(&quota, now_ms)?;
        Some(window.end_ms)
    });
    ends.min()
}

//! One limit of a check that goes through several slots.

use algorithms::check::{Mode, Verdict};

use crate::script::ScriptLimit;

/// The same limit, of which no surplus is wanted yet.
pub(super) fn without_surplus(mut limit: ScriptLimit<'_>) -> ScriptLimit<'_> {
    if let Some(lease) = &mut limit.lease {
        lease.want = 0;
    }
    limit
}

/// Nothing but the surplus: all else was done.
pub(super) fn surplus_alone(mut limit: ScriptLimit<'_>) -> ScriptLimit<'_> {
    (limit.cost, limit.debit, limit.free) = (0, 0, &[]);
    (limit.costs, limit.penalty) = (None, None);
    if let Some(lease) = &mut limit.lease {
        lease.settle = &[];
    }
    limit
}

pub(super) fn add_surplus(verdict: &mut Verdict, granted: Verdict) {
    for (limit, granted) in verdict.limits.iter_mut().zip(granted.limits) {
        limit.lease = granted.lease;
        limit.leased = granted.leased;
        limit.decision.remaining = granted.decision.remaining;
        limit.decision.reset_after_ms = granted.decision.reset_after_ms;
    }
}

/// The rank of what never denies: it is charged when no limit can deny any more.
pub(super) const OBSERVED: u8 = 2;

/// In which order slots are charged. A queue comes late: what others were given after a charge that
/// is refunded is behind it.
pub(super) fn rank(limit: &ScriptLimit<'_>) -> u8 {
    let is_queue = limit.algorithm.parameters().max_delay_ms.is_some();
    match limit.mode {
        Mode::Observe => OBSERVED,
        Mode::Enforce => u8::from(is_queue),
    }
}

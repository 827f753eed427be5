//! One limit of a check that goes through several slots.

use algorithms::check::{Mode, Verdict};

use crate::script::ScriptLimit;

/// The same limit, without its query for lease units.
pub(super) fn without_surplus(mut limit: ScriptLimit<'_>) -> ScriptLimit<'_> {
    if let Some(lease) = &mut limit.lease {
        lease.want = 0;
    }
    limit
}

/// The same limit for a slot that has not all of those that deny together.
pub(super) fn apart(mut limit: ScriptLimit<'_>) -> ScriptLimit<'_> {
    if limit.mode == Mode::Together {
        limit.mode = Mode::Observe;
    }
    limit
}

/// Only its query for lease units: all else was done.
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

/// The rank of limits that never deny: they are charged when no other limit can deny any more.
pub(super) const OBSERVED: u8 = 2;

/// The order in which slots are charged. A queue comes late: when its charge is refunded, requests
/// that were queued after it stay where they are.
pub(super) fn rank(limit: &ScriptLimit<'_>) -> u8 {
    let is_queue = limit.algorithm.parameters().max_delay_ms.is_some();
    match limit.mode {
        Mode::Observe | Mode::Together => OBSERVED,
        Mode::Enforce => u8::from(is_queue),
    }
}

//! The charges of a check that is denied in the end, or failed.

use super::{CrossSlotCheck, part::State};
use crate::script::{Charge, Refunded};

impl<'a, E: Clone> CrossSlotCheck<'a, E> {
    /// The charges to refund, with their limits' indices and slots. Returned only once: the caller
    /// must not retry, because the outcome of a failed try is not known.
    pub fn refund(&mut self) -> Vec<(usize, u16, Charge<'a>)> {
        if self.refunded || !(self.is_denied() || self.failed().is_some()) {
            return Vec::new();
        }
        self.refunded = true;
        let limits = &self.check.limits;
        let charges = self.parts.iter().flat_map(|part| {
            let (now_ms, verdicts) = match &part.state {
                State::Answered(now_ms, verdict) => (*now_ms, verdict.limits.as_slice()),
                _ => (0, &[][..]),
            };
            let charged = part.limits.iter().zip(verdicts);
            charged.filter_map(move |(index, verdict)| {
                let limit = limits.get(*index)?;
                let charge = Charge {
                    key: limit.key,
                    algorithm: limit.algorithm,
                    generation: limit.generation,
                    units: verdict.charged,
                    lease_ttl_ms: limit.lease.map_or(0, |lease| lease.ttl_ms),
                    at_ms: now_ms,
                    slot: verdict.slot,
                };
                (charge.units > 0).then_some((*index, part.slot, charge))
            })
        });
        charges.collect()
    }

    /// Records that a charge was refunded.
    pub fn refunded(&mut self, limit: usize, now: Refunded) {
        for part in &mut self.parts {
            let at = part.limits.iter().position(|index| *index == limit);
            let (State::Answered(_, verdict), Some(at)) = (&mut part.state, at) else {
                continue;
            };
            if let Some(verdict) = verdict.limits.get_mut(at) {
                verdict.decision.remaining = now.remaining;
                verdict.decision.reset_after_ms = now.reset_after_ms;
                if now.taken {
                    (verdict.charged, verdict.slot) = (0, None);
                }
            }
        }
    }
}

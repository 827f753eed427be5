//! Buckets that a proxy decides locally: one at a time, with a state of fixed size and without
//! leases.
//!
//! The decisions are those of [`Algorithm::evaluate`], [`Algorithm::evaluate_with_debit`] and
//! [`Algorithm::refund`]. A program that makes no other decisions contains no code for logs,
//! sub-windows and leases.

use super::Algorithm;
use super::engine::{Engine, refund};
use crate::evaluated::Evaluated;
use crate::integers::TIME_MAX_MS;
use crate::{Charged, Outcome, State};

/// The same expression for whichever algorithm it is; `None` for those whose state has no
/// [fixed size](State::to_bytes).
macro_rules! of_fixed_size {
    ($algorithm:expr, $quota:ident => $body:expr) => {
        Some(match &$algorithm.engine {
            Engine::TokenBucket($quota) => $body,
            Engine::Gcra($quota) => $body,
            Engine::LeakyBucket($quota) => $body,
            Engine::FixedWindow($quota) => $body,
            Engine::CalendarWindow($quota) => $body,
            Engine::SlidingWindow($quota) => $body,
            Engine::SlidingWindowLog(_)
            | Engine::SlidingWindowBuckets(_)
            | Engine::Concurrency(_) => return None,
        })
    };
}

impl Algorithm {
    /// Takes `cost` units at `now_ms` if they fit. `None` where the state has no fixed size.
    pub fn charge_here(&self, state: Option<&State>, now_ms: u64, cost: u64) -> Option<Outcome> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        of_fixed_size!(self, quota => Evaluated::here(quota, state, now_ms, cost, 0).charge_here())
    }

    /// Tests `cost` units at `now_ms`, after adding `debit` units as far as they fit. `None` where
    /// the state has no fixed size.
    pub fn peek_here(
        &self,
        state: Option<&State>,
        now_ms: u64,
        cost: u64,
        debit: u64,
    ) -> Option<Outcome> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        of_fixed_size!(self, quota => Evaluated::here(quota, state, now_ms, cost, debit).leave())
    }

    /// As [`Algorithm::refund`]. `None` where the state has no fixed size.
    #[must_use]
    pub fn refund_here(&self, state: &State, now_ms: u64, charge: &Charged) -> Option<State> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        if now_ms < charge.at_ms {
            return Some(state.clone());
        }
        let changed = of_fixed_size!(self, quota => refund(quota, state, now_ms, charge))?;
        Some(changed.unwrap_or_else(|| state.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Parameters};

    fn algorithm(kind: Kind) -> Algorithm {
        Algorithm::new(&Parameters {
            sub_windows: (kind == Kind::SlidingWindowBuckets).then_some(10),
            max_delay_ms: (kind == Kind::LeakyBucket).then_some(500),
            ..Parameters::new(kind, 10, 1000)
        })
        .unwrap()
    }

    #[test]
    fn a_proxy_decides_as_a_limiter_does() {
        for kind in [
            Kind::TokenBucket,
            Kind::Gcra,
            Kind::LeakyBucket,
            Kind::FixedWindow,
            Kind::SlidingWindow,
        ] {
            let algorithm = algorithm(kind);
            let mut state: Option<State> = None;
            for step in 0..400_u64 {
                // Times that step back now and then, costs from 0 to more than fits.
                let now_ms = 5_000 + step * 37 - (step % 7) * 50;
                let (cost, debit) = (step % 12, step % 5);
                let old = state.as_ref();
                let asked = algorithm.evaluate_with_debit(old, now_ms, cost, debit);
                let here = algorithm.peek_here(old, now_ms, cost, debit);
                assert_eq!(here, Some(asked.leave()), "{kind:?} {step}");
                let charged = algorithm.evaluate(old, now_ms, cost).charge();
                let here = algorithm.charge_here(old, now_ms, cost);
                assert_eq!(here.as_ref(), Some(&charged), "{kind:?} {step}");
                let units = charged.charged;
                state = charged.write.or(state);
                if let (Some(now), 0) = (&state, step % 3) {
                    let charge = Charged {
                        at_ms: now_ms,
                        units,
                        lease_ttl_ms: 0,
                        slot: charged.slot,
                    };
                    let back = algorithm.refund(now, now_ms + 20, &charge);
                    let here = algorithm.refund_here(now, now_ms + 20, &charge);
                    assert_eq!(here.as_ref(), Some(&back), "{kind:?} {step}");
                    state = here;
                }
            }
        }
    }

    #[test]
    fn states_without_a_fixed_size_are_not_decided_locally() {
        for kind in [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets] {
            assert_eq!(algorithm(kind).charge_here(None, 1, 1), None);
            assert_eq!(algorithm(kind).peek_here(None, 1, 1, 0), None);
        }
    }
}

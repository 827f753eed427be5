//! Requests that are admitted by units granted in advance.
//!
//! `draw` takes them, first from what this worker has at hand and then from what all of them share;
//! `granted` takes in what the limiter grants, `tend` looks after what is left over.

mod draw;
mod granted;
mod look;
mod tend;

use std::rc::Rc;

use policy::Limit;

use super::{
    Worker,
    active::Active,
    case::{Leased, Mode, Part},
};
use crate::{client::Standing, descriptor::Extracted, lease::Terms, time::Now};

/// A request by which the limiter can be told of a bucket after it has gone.
#[derive(Debug)]
pub(super) struct Origin {
    policy: Rc<Active>,
    /// The limit's position.
    at: usize,
    entries: Extracted,
}

impl Worker {
    /// What was taken for a request that is admitted was used.
    pub(super) fn spend(&mut self, policy: &Active, parts: &mut [Part]) {
        for part in parts {
            if let (Leased::Held(token), Some(limit)) = (part.lease, policy.compiled.limit(part.at))
            {
                part.lease = Leased::Used;
                if let Some(hand) = self.hands.find(part.place, limit.generation) {
                    hand.spend(token, limit.cost);
                }
            }
        }
    }

    /// What was taken for a request that is not admitted was not used.
    pub(super) fn put_back_units(&mut self, policy: &Active, parts: &[Part]) {
        for part in parts {
            if let (Leased::Held(token), Some(limit)) = (part.lease, policy.compiled.limit(part.at))
                && let Some(hand) = self.hands.find(part.place, limit.generation)
            {
                hand.put_back(token, limit.cost);
            }
        }
    }

    /// How a client stands with a limit whose units were granted in advance: what the limiter said
    /// was left, and what of the grants this worker knows of.
    pub(super) fn leased_standing(
        &mut self,
        part: &Part,
        limit: &Limit,
        now: Now,
    ) -> Option<Standing> {
        let hand = self.hands.find(part.place, limit.generation)?;
        let told = hand.told.filter(|_| !limit.hidden)?;
        let known = told.remaining.saturating_add(hand.shared);
        let quota = told.limit?;
        let elapsed_ms = now.mono_us.saturating_sub(told.at_us) / 1000;
        Some(Standing {
            limit: limit.name.clone(),
            quota,
            window_ms: told.window_ms,
            remaining: known.saturating_add(hand.lot.units).min(quota),
            reset_after_ms: told.reset_after_ms.saturating_sub(elapsed_ms),
            cost: limit.cost,
        })
    }

    /// The numbers that the leases of the limit at a position follow; `None`: it has none.
    fn terms(&self, policy: &Active, at: usize) -> Option<Terms> {
        let limit = policy.compiled.limit(at)?;
        let ttl_ms = limit.lease_ttl_ms?;
        Some(Terms {
            cost: limit.cost.max(1),
            ttl_us: ttl_ms.saturating_mul(1000),
            patience_us: self.config.limiter.timeout_ms.saturating_mul(2000),
            proxies: policy.proxies(at),
        })
    }
}

/// The limit of a part that may be settled by units granted in advance, and is not yet.
fn leased<'p>(policy: &'p Active, part: &Part) -> Option<&'p Limit> {
    let limit = policy.compiled.limit(part.at)?;
    (limit.lease_ttl_ms.is_some() && part.is_global() && part.mode == Mode::Enforce)
        .then_some(limit)
}

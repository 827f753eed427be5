//! From checks to decisions: through the batcher, and once more where the policy was out of date.

use std::sync::Arc;

use policy::Name;
use protocol::{ApiError, Check};
use store::CheckError;
use tokio::time::{Instant, timeout_at};

use super::{Api, refusal};
use crate::{batch::Decisions, domains::Active};

/// The checks of one request, decided.
pub(super) struct Decided {
    /// The policy that decided; where the limits changed meanwhile, the newer one.
    pub(super) policy: Arc<Active>,
    /// One for each check, in order.
    pub(super) decisions: Decisions,
}

impl Api {
    /// Decides the checks of one request before `deadline`.
    pub(super) async fn decide(
        &self,
        domain: &Name,
        checks: Vec<Check>,
        deadline: Instant,
    ) -> Result<Decided, ApiError> {
        let started = Instant::now();
        let policy = self.active(domain)?;
        let charging: Vec<bool> = checks.iter().map(|c| c.cost > 0 && !c.peek).collect();
        let asked = self.batcher.decide(&policy, checks, false, deadline).await;
        let outcome = asked.map_err(|error| {
            policy.counters.undecided(charging.len());
            refusal::of_undecided(error, self.bounds.store_timeout)
        })?;
        let mut decided = Decided {
            policy,
            decisions: outcome.decisions,
        };
        if !outcome.stale.is_empty() {
            self.ask_again(domain, outcome.stale, &mut decided, deadline)
                .await;
        }
        decided.count(&charging);
        self.metrics.checked(started.elapsed());
        Ok(decided)
    }

    /// Asks stale checks again with the policy read anew; then, if it is not newer, by force: the
    /// buckets remember an edit that the store has forgotten.
    async fn ask_again(
        &self,
        domain: &Name,
        mut stale: Vec<(usize, Check)>,
        decided: &mut Decided,
        deadline: Instant,
    ) {
        self.metrics.stale.inc();
        if timeout_at(deadline, self.domains.refreshed()).await != Ok(true) {
            return;
        }
        let Ok(policy) = self.active(domain) else {
            return;
        };
        let unchanged = Arc::ptr_eq(&policy, &decided.policy);
        decided.policy = policy;
        for force in [false, true] {
            if stale.is_empty() || (unchanged && !force) {
                continue;
            }
            let (places, checks): (Vec<_>, Vec<_>) = stale.into_iter().unzip();
            let asked = self
                .batcher
                .decide(&decided.policy, checks, force, deadline);
            let Ok(outcome) = asked.await else {
                return;
            };
            for (place, decision) in places.iter().zip(outcome.decisions) {
                if let Some(slot) = decided.decisions.get_mut(*place) {
                    *slot = decision;
                }
            }
            stale = outcome
                .stale
                .into_iter()
                .filter_map(|(at, check)| Some((*places.get(at)?, check)))
                .collect();
        }
    }
}

impl Decided {
    /// Counts what was decided; peeks are no decisions.
    fn count(&self, charging: &[bool]) {
        let counters = &self.policy.counters;
        for (decision, charging) in self.decisions.iter().zip(charging) {
            match decision {
                Ok(answer) if *charging => {
                    if answer.limits.is_empty() {
                        counters.unmatched();
                    }
                    for limit in &answer.limits {
                        counters.decided(limit);
                    }
                }
                Err(CheckError::NoMatch) => counters.unmatched(),
                Err(CheckError::Store(_) | CheckError::Stale) => counters.undecided(1),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Whether nothing was decided, for a reason that lies with us; which, if so.
    pub(super) fn all_failed(&self) -> Option<ApiError> {
        let ours = |decision: &Result<_, CheckError>| {
            let error = refusal::of_check(decision.as_ref().err()?);
            (error.code.http_status() == 503).then_some(error)
        };
        let mut errors = self.decisions.iter().map(ours);
        let first = errors.next()??;
        errors.all(|error| error.is_some()).then_some(first)
    }
}

//! What a check asks of one limit.

use algorithms::{Algorithm, Freed, QueueSlot};
use policy::{Limit, Name};
use protocol::Check;

use super::lease::Lease;

/// What is asked of a limit.
#[derive(Clone, Copy)]
pub(super) enum Query<'c> {
    /// Its part in a check.
    By(&'c Check),
    /// Whether so many requests would pass.
    Alone(u64),
}

/// Whether a check settles leases of a limit, wants some, or frees its slots.
pub(super) fn reports_on(check: &Check, limit: &Name) -> bool {
    let frees = || check.free.iter().any(|free| free.limit == *limit);
    check.leases.iter().any(|lease| lease.limit == *limit) || frees()
}

impl Query<'_> {
    /// Of so many requests; none of a limit that was settled by the proxy.
    pub(super) fn cost(self, limit: &Name) -> u64 {
        match self {
            Self::By(check) if check.skip.contains(limit) => 0,
            Self::By(check) => check.cost,
            Self::Alone(cost) => cost,
        }
    }

    pub(super) fn debit(self, limit: &Name) -> u64 {
        let Self::By(check) = self else { return 0 };
        let debits = check.debits.iter().filter(|debit| debit.limit == *limit);
        debits.fold(0, |sum, debit| sum.saturating_add(debit.units))
    }

    pub(super) fn free(self, limit: &Name) -> Vec<Freed> {
        let Self::By(check) = self else {
            return Vec::new();
        };
        let free = check.free.iter().filter(|free| free.limit == *limit);
        let freed = free.map(|free| Freed {
            slot: QueueSlot {
                start_ms: free.slot.start_ms,
                parts: free.slot.parts,
                since_ms: free.slot.since_ms,
                turn: free.slot.turn,
            },
            units: free.units,
        });
        freed.collect()
    }

    /// The limit's, or one with a shorter longest delay.
    pub(super) fn algorithm(self, algorithm: &Algorithm) -> Algorithm {
        match self {
            Self::By(Check {
                max_delay_ms: Some(ms),
                ..
            }) => algorithm.within_delay(*ms),
            _ => *algorithm,
        }
    }

    pub(super) fn lease(self, limit: &Limit, algorithm: &Algorithm) -> Option<Box<Lease>> {
        let lease = match self {
            Self::By(check) => Lease::of(check, limit, algorithm),
            Self::Alone(_) => Some(Lease::question(limit, algorithm)),
        };
        lease.map(Box::new)
    }
}

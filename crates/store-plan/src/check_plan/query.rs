//! What a check asks of one limit.

use algorithms::{Algorithm, Freed, Kind, QueueSlot};
use policy::{Limit, Name};
use protocol::{Check, OwnUnits, ServicePart};

use super::{lease::Lease, service::units};

/// What is asked of a limit.
#[derive(Clone, Copy)]
pub(super) enum Query<'c> {
    /// Its part in a check.
    By(&'c Check),
    /// Whether so many requests would pass.
    Alone(u64),
    /// Its part in a check of one descriptor.
    Part(&'c ServicePart, Option<OwnUnits>),
}

/// Whether a check settles leases of a limit, wants some, or frees its slots.
pub(super) fn reports_on(check: &Check, limit: &Name) -> bool {
    let frees = || check.free.iter().any(|free| free.limit == *limit);
    check.leases.iter().any(|lease| lease.limit == *limit) || frees()
}

impl Query<'_> {
    /// Of so many requests; none of a limit that was settled by the proxy.
    pub(super) fn cost(self, limit: &Name, kind: Kind) -> u64 {
        match self {
            Self::By(check) if check.skip.contains(limit) => 0,
            Self::By(check) => check.cost,
            Self::Alone(cost) => cost,
            Self::Part(part, own) => units(part, own, kind).0,
        }
    }

    /// Units admitted earlier, and the calendar window that they were admitted in.
    pub(super) fn debit(self, limit: &Limit, kind: Kind) -> (u64, Option<u64>) {
        let check = match self {
            Self::By(check) => check,
            Self::Alone(_) => return (0, None),
            Self::Part(part, own) => {
                let (_, units) = units(part, own, kind);
                return (units.saturating_mul(limit.cost), None);
            }
        };
        let debits = { check.debits.iter() }.filter(|debit| debit.limit == limit.name);
        let serial = debits.clone().filter_map(|debit| debit.serial).max();
        // Of several windows the last counts: the others are past.
        let debits = debits.filter(|debit| debit.serial.is_none() || debit.serial == serial);
        let units = debits.fold(0, |sum: u64, debit| sum.saturating_add(debit.units));
        (units, serial)
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
            // That service cannot hold a request.
            Self::Part(..) => algorithm.within_delay(0),
            _ => *algorithm,
        }
    }

    pub(super) fn lease(self, limit: &Limit, algorithm: &Algorithm) -> Option<Box<Lease>> {
        let lease = match self {
            Self::By(check) => Lease::of(check, limit, algorithm),
            Self::Alone(_) => Some(Lease::question(limit, algorithm)),
            Self::Part(..) => None,
        };
        lease.map(Box::new)
    }
}

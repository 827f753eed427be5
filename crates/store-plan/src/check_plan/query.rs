//! What a check asks of one limit.

use algorithms::{Algorithm, Freed, InFlightSlot, Kind, QueueSlot, SlotAct, SlotId};
use policy::{Limit, Name};
use protocol::{Check, Free, OwnUnits, ServicePart};

use super::{costs::Seal, lease::Lease};

/// A query to a limit.
#[derive(Clone, Copy)]
pub(super) enum Query<'c> {
    /// Its part in a check, and what seals its reservations.
    By(&'c Check, Option<&'c Seal>),
    /// Whether so many requests would pass.
    Alone(u64),
    /// Its part in a check of one descriptor.
    Part(&'c ServicePart, Option<OwnUnits>, Option<SlotId>),
}

/// Whether a check settles leases of a limit, wants some, frees its slots, or reports its denials.
pub(super) fn reports_on(check: &Check, limit: &Name) -> bool {
    let frees = || check.free.iter().any(|free| free.limit == *limit);
    let settles = || check.settle.iter().any(|settled| settled.limit == *limit);
    let denied = || check.denied.iter().any(|denied| denied.limit == *limit);
    check.leases.iter().any(|lease| lease.limit == *limit) || frees() || settles() || denied()
}

impl Query<'_> {
    /// The number of requests; 0 at a limit that the check skips.
    pub(super) fn cost(self, limit: &Name, kind: Kind) -> u64 {
        match self {
            Self::By(check, _) if check.skip.contains(limit) => 0,
            Self::By(check, _) => check.cost,
            Self::Alone(cost) => cost,
            Self::Part(part, own, _) => units(part, own, kind).0,
        }
    }

    /// The units to charge: those that the check names for this limit, or the limit's cost for each
    /// request. A reservation is at most what its limit gives to one request.
    pub(super) fn units(self, limit: &Limit, algorithm: &Algorithm) -> u64 {
        let (requests, capacity) = (self.cost(&limit.name, algorithm.kind()), algorithm.limit());
        let Self::By(check, _) = self else {
            return match limit.response_price() {
                None => requests.saturating_mul(limit.cost),
                Some(_) => requests,
            };
        };
        let own = check.costs.iter().find(|cost| cost.limit == limit.name);
        let settled = check.skip.contains(&limit.name);
        match (own.filter(|_| !settled), limit.response_price()) {
            (Some(own), Some(price)) if own.reserve => price.reserve.capped(own.units, capacity),
            (Some(own), _) => own.units,
            (None, _) => requests.saturating_mul(limit.units_of(&check.descriptor, capacity)),
        }
    }

    /// Units admitted earlier, and the calendar window that they were admitted in.
    pub(super) fn debit(self, limit: &Limit, kind: Kind) -> (u64, Option<u64>) {
        let check = match self {
            // A slot that was given elsewhere is held elsewhere.
            Self::By(..) if kind == Kind::Concurrency => return (0, None),
            Self::By(check, _) => check,
            Self::Alone(_) => return (0, None),
            Self::Part(part, own, _) => {
                let (_, units) = units(part, own, kind);
                return (units.saturating_mul(limit.cost), None);
            }
        };
        let debits = { check.debits.iter() }.filter(|debit| debit.limit == limit.name);
        let serial = debits.clone().filter_map(|debit| debit.serial).max();
        // Only debits of the last window count: the others are past.
        let debits = debits.filter(|debit| debit.serial.is_none() || debit.serial == serial);
        let units = debits.fold(0, |sum: u64, debit| sum.saturating_add(debit.units));
        (units, serial)
    }

    /// Denials that proxies decided from their caches.
    pub(super) fn denied(self, limit: &Limit) -> u64 {
        let Self::By(check, _) = self else {
            return 0;
        };
        let denied = check.denied.iter().filter(|of| of.limit == limit.name);
        denied.fold(0, |sum: u64, of| sum.saturating_add(of.count))
    }

    pub(super) fn free(self, limit: &Limit, kind: Kind) -> Vec<Freed> {
        let Self::By(check, _) = self else {
            return Vec::new();
        };
        let free = check.free.iter().filter(|free| free.limit == limit.name);
        let freed = free.map(|free| Freed {
            slot: QueueSlot {
                start_ms: free.slot.start_ms,
                parts: free.slot.parts,
                since_ms: free.slot.since_ms,
                turn: free.slot.turn,
            },
            units: match kind {
                Kind::Concurrency => act(free, limit),
                _ => free.units,
            },
        });
        freed.collect()
    }

    /// The limit's algorithm, or one with a shorter maximum delay.
    pub(super) fn algorithm(self, algorithm: &Algorithm) -> Algorithm {
        let algorithm = match self {
            Self::By(Check { slot: Some(id), .. }, _) => algorithm.for_request(*id),
            Self::Part(_, _, Some(id)) => algorithm.for_request(id),
            _ => *algorithm,
        };
        match self {
            Self::By(
                Check {
                    max_delay_ms: Some(ms),
                    ..
                },
                _,
            ) => algorithm.within_delay(*ms),
            // That service cannot hold a request.
            Self::Part(..) => algorithm.within_delay(0),
            _ => algorithm,
        }
    }

    pub(super) fn lease(self, limit: &Limit, algorithm: &Algorithm) -> Option<Box<Lease>> {
        let lease = match self {
            Self::By(check, _) => Lease::of(check, limit, algorithm),
            Self::Alone(_) => Some(Lease::question(limit, algorithm)),
            Self::Part(..) => None,
        };
        lease.map(Box::new)
    }
}

/// The action on a slot of a request in flight. 0 (none) if it cannot be such a slot, or if the
/// limit was reset since it was given: then it is not entered again. After an edit it is, because
/// its request still runs.
fn act(free: &Free, limit: &Limit) -> u64 {
    let slot = InFlightSlot {
        id: SlotId {
            stamp: free.slot.start_ms,
            secret: free.slot.parts,
        },
        ttl_ms: free.slot.since_ms,
    };
    let old = free.units == SlotAct::Enter as u64 && free.slot.turn < limit.reset_generation;
    if slot.is_valid() && !old {
        free.units
    } else {
        0
    }
}

/// A descriptor's cost at one limit, and its units that are charged whatever is left.
fn units(part: &ServicePart, own: Option<OwnUnits>, kind: Kind) -> (u64, u64) {
    match own {
        // A slot is either given or not: there is no charge beyond the limit.
        Some(OwnUnits::Charge(units)) if kind == Kind::Concurrency => (units, 0),
        Some(OwnUnits::Charge(units) | OwnUnits::GiveBack(units)) => (0, units),
        // A fixed window counts beyond its limit, so a cost of 0 shows whether it did; the others
        // have nothing left then, not even 1.
        Some(OwnUnits::Look) => (u64::from(kind != Kind::FixedWindow), 0),
        Some(OwnUnits::Fitting) | None => (part.cost, 0),
    }
}

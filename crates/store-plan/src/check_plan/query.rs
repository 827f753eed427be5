//! What a check asks of one limit.

use algorithms::{Algorithm, InFlightSlot, Kind, SlotAct, SlotId, SlotOp};
use policy::Limit;
use protocol::{Check, LimitRequest, OwnUnits, ServicePart};

use super::{costs::Seal, lease::Lease};

/// A query to a limit.
#[derive(Clone, Copy)]
pub(super) enum Query<'c> {
    /// A check, what it says about this limit, and what seals its reservations.
    Check(&'c Check, Option<&'c LimitRequest>, Option<&'c Seal>),
    /// Whether so many requests would pass.
    Peek(u64),
    /// A check of one descriptor of Envoy's rate limit service.
    ServiceDescriptor(&'c ServicePart, Option<OwnUnits>, Option<SlotId>),
}

impl<'c> Query<'c> {
    fn entry(self) -> Option<&'c LimitRequest> {
        match self {
            Self::Check(_, entry, _) => entry,
            Self::Peek(_) | Self::ServiceDescriptor(..) => None,
        }
    }

    /// The number of requests; 0 at a limit that the check skips.
    pub(super) fn cost(self, kind: Kind) -> u64 {
        match self {
            Self::Check(_, Some(LimitRequest { skip: true, .. }), _) => 0,
            Self::Check(check, ..) => check.cost,
            Self::Peek(cost) => cost,
            Self::ServiceDescriptor(part, own, _) => units(part, own, kind).0,
        }
    }

    /// The units to charge: those that the check names for this limit, or the limit's cost for each
    /// request. A reservation is at most what its limit gives to one request.
    pub(super) fn units(self, limit: &Limit, algorithm: &Algorithm) -> u64 {
        let (requests, capacity) = (self.cost(algorithm.kind()), algorithm.limit());
        let Self::Check(check, entry, _) = self else {
            return match limit.response_price() {
                None => requests.saturating_mul(limit.cost),
                Some(_) => requests,
            };
        };
        let own = entry.filter(|entry| !entry.skip).and_then(|e| e.cost);
        match (own, limit.response_price()) {
            (Some(own), Some(price)) if own.reserve => price.reserve.capped(own.units, capacity),
            (Some(own), _) => own.units,
            (None, _) => requests.saturating_mul(limit.units_of(&check.descriptor, capacity)),
        }
    }

    /// Units admitted earlier, and the calendar window that they were admitted in.
    pub(super) fn debit(self, limit: &Limit, kind: Kind) -> (u64, Option<u64>) {
        match self {
            // A slot that was given elsewhere is held elsewhere.
            Self::Check(..) if kind == Kind::Concurrency => (0, None),
            Self::Check(..) => { self.entry().and_then(|entry| entry.debit) }
                .map_or((0, None), |debit| (debit.units, debit.serial)),
            Self::Peek(_) => (0, None),
            Self::ServiceDescriptor(part, own, _) => {
                let (_, units) = units(part, own, kind);
                (units.saturating_mul(limit.cost), None)
            }
        }
    }

    /// Denials that proxies decided from their caches.
    pub(super) fn denied(self) -> u64 {
        self.entry().map_or(0, |entry| entry.denied)
    }

    /// The operations on slots that the limit can have. What cannot be a slot of its kind is left out:
    /// only a client that makes up names sends such operations.
    pub(super) fn slots(self, limit: &Limit, kind: Kind) -> Vec<SlotOp> {
        let ops = self.entry().into_iter().flat_map(|entry| &entry.slots);
        let known = ops.filter(|op| match kind {
            Kind::Concurrency => is_known(op, limit),
            _ => matches!(op.act, SlotAct::Free(_)),
        });
        known.copied().collect()
    }

    /// The limit's algorithm, or one with a shorter maximum delay.
    pub(super) fn algorithm(self, algorithm: &Algorithm) -> Algorithm {
        let (id, max_delay_ms) = match self {
            Self::Check(check, ..) => (check.slot, check.max_delay_ms),
            Self::Peek(_) => (None, None),
            // That service cannot hold a request.
            Self::ServiceDescriptor(_, _, id) => (id, Some(0)),
        };
        let algorithm = id.map_or(*algorithm, |id| algorithm.for_request(id));
        max_delay_ms.map_or(algorithm, |ms| algorithm.within_delay(ms))
    }

    pub(super) fn lease(self, limit: &Limit, algorithm: &Algorithm) -> Option<Box<Lease>> {
        let lease = match self {
            Self::Check(check, entry, _) => {
                Lease::from_request(entry?.lease.as_ref()?, check.proxy, limit, algorithm)
            }
            Self::Peek(_) => Some(Lease::question(limit, algorithm)),
            Self::ServiceDescriptor(..) => None,
        };
        lease.map(Box::new)
    }
}

/// Whether a slot can be one of a request in flight at this limit. It is not entered again if the limit was
/// reset since it was given; after an edit it is, because its request still runs.
fn is_known(op: &SlotOp, limit: &Limit) -> bool {
    let old = op.act == SlotAct::Enter && op.slot.turn < limit.reset_generation;
    InFlightSlot::from(op.slot).is_valid() && !old
}

/// A descriptor's cost at one limit, and its units that are charged whatever is left.
fn units(part: &ServicePart, own: Option<OwnUnits>, kind: Kind) -> (u64, u64) {
    match own {
        // A slot is either given or not: there is no charge beyond the limit.
        Some(OwnUnits::Charge(units)) if kind == Kind::Concurrency => (units, 0),
        Some(OwnUnits::Charge(units) | OwnUnits::Refund(units)) => (0, units),
        // A fixed window counts beyond its limit, so a cost of 0 shows whether it did; the others
        // have nothing left then, not even 1.
        Some(OwnUnits::Look) => (u64::from(kind != Kind::FixedWindow), 0),
        Some(OwnUnits::Fitting) | None => (part.cost, 0),
    }
}

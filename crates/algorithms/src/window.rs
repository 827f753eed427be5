//! The numbers that the windows share, and the grants of their counts.
//!
//! `lua/lib/granted.lua` and `lease_window.lua` are the twins of the grants.

use crate::{
    Numbers, ParameterError, Parameters,
    integers::{COUNT_MAX, PRODUCT_MAX},
    lease::{Lease, LeaseRequest, Settlement, marks},
};

/// A grant is at most the room divided by the number of proxies and by this. Nothing refills a
/// window before its end: units stranded on one proxy are denied to others, and the smaller the
/// last grants, the fewer these are.
const SHARES: u64 = 8;

/// N units per W milliseconds, validated. N may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    /// N.
    pub limit: u64,
    /// W, in milliseconds, at least 1.
    pub length_ms: u64,
}

/// Outstanding grants of the current count and of the one before it, named by the start of their
/// count. A state never has 0 for both.
///
/// A grant ends with the window or sub-window that it was charged to, so that units are counted
/// where they are used, and the counts alone keep the limit. Units that are not settled yet are
/// tracked for other changes of a count: `reset` and `credit` must not make units available that may
/// still be used, and a return is accepted only as far as units are outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Granted {
    /// Units of the current count, which is never less.
    pub current: u64,
    /// Units of the count before: all of them have expired, and may still be returned.
    pub previous: u64,
    /// The proxies with grants of the current count: one bit for each mark.
    pub seen: u64,
    /// The proxies with grants of the count before.
    pub seen_before: u64,
}

impl Window {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let (limit, length_ms) = (parameters.rate.units, parameters.rate.period_ms);
        let largest = PRODUCT_MAX / length_ms;
        if limit > largest {
            return Err(ParameterError::RateTooLarge { largest });
        }
        Ok(Self { limit, length_ms })
    }

    /// As [`Window::new`], for windows that never multiply by the length.
    pub fn counting(parameters: &Parameters) -> Result<Self, ParameterError> {
        let (limit, length_ms) = (parameters.rate.units, parameters.rate.period_ms);
        if limit > COUNT_MAX {
            return Err(ParameterError::RateTooLarge { largest: COUNT_MAX });
        }
        Ok(Self { limit, length_ms })
    }

    /// The numbers as the Lua twin takes them, for the algorithm `kind`.
    pub const fn numbers(&self, kind: u8) -> Numbers {
        Numbers {
            kind,
            limit: self.limit,
            x: self.length_ms,
            y: 0,
            z: 0,
        }
    }

    /// The start of the aligned window that `now_ms` is in.
    pub const fn aligned_start_ms(&self, now_ms: u64) -> u64 {
        now_ms - now_ms % self.length_ms
    }

    /// The longest ttl of a lease from a count of so many milliseconds.
    pub const fn lease_max_ms(counted_ms: u64) -> u64 {
        counted_ms / 4
    }

    /// Units left of the limit; `None` beyond it.
    pub const fn room(&self, used: u64) -> Option<u64> {
        self.limit.checked_sub(used)
    }

    /// A stored time as it counts for a caller at `now_ms`: moved to `now_ms` if it lies more than
    /// a window ahead. Also returns whether it was moved.
    pub const fn reconcile(&self, newest_ms: u64, now_ms: u64) -> (u64, bool) {
        if newest_ms.saturating_sub(now_ms) > self.length_ms {
            (now_ms, true)
        } else {
            (newest_ms, false)
        }
    }
}

impl Granted {
    /// The grants after the current count became the one before.
    #[must_use]
    pub(crate) const fn rolled(self) -> Self {
        Self {
            current: 0,
            previous: self.current,
            seen: 0,
            seen_before: self.seen,
        }
    }

    /// The grants as a state stores them.
    pub(crate) fn kept(self) -> Option<Self> {
        (self.current > 0 || self.previous > 0).then_some(self)
    }

    /// The grants after a reset of the counts.
    pub(crate) fn after_reset(self) -> Option<Self> {
        let previous = 0;
        Self { previous, ..self }.kept()
    }

    /// Grants the units wanted, up to a fair share of the room, from the count that started at
    /// `epoch`.
    pub(crate) fn grant(
        &mut self,
        request: &LeaseRequest<'_>,
        room: Option<u64>,
        epoch: u64,
        ttl_ms: u64,
    ) -> Option<Lease> {
        let (seen, proxies) = marks(self.seen, self.seen_before, request.proxy);
        self.seen = seen;
        let units = request.want.min(room.unwrap_or(0) / (SHARES * proxies));
        self.current += units;
        (units > 0).then_some(Lease {
            units,
            epoch,
            ttl_ms,
        })
    }
}

/// The ttl of a grant from a count that ends after `end_after_ms`; `None`: nothing is granted. It
/// ends a millisecond before the count, because the clock is read in whole milliseconds.
pub(crate) fn grant_ttl_ms(request: &LeaseRequest<'_>, end_after_ms: u64) -> Option<u64> {
    let ttl_ms = request.ttl_ms.min(end_after_ms.saturating_sub(1));
    (ttl_ms > 0 && request.want > 0).then_some(ttl_ms)
}

/// Applies settlements of the count that started at `epoch`; `used` are the units of that count,
/// `out` those of its grants. Returns whether any were outstanding.
pub(crate) fn settle(
    epoch: u64,
    used: &mut u64,
    out: &mut u64,
    settlements: &[Settlement],
) -> bool {
    let before = *out;
    for settlement in settlements.iter().filter(|of| of.epoch == epoch) {
        *out -= settlement.spent.min(*out);
        let returned = settlement.returned.min(*out);
        *out -= returned;
        *used = used.saturating_sub(returned);
    }
    *out < before
}

/// Removes units from a count, but none that are `out`; returns how many.
pub(crate) fn lower(used: &mut u64, out: u64, units: u64) -> u64 {
    let taken = units.min(used.saturating_sub(out));
    *used -= taken;
    taken
}

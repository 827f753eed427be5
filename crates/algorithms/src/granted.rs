//! The grants of a window's counts.
//!
//! A grant ends with the window or sub-window that it was charged to, so that units are counted
//! where they are used, and the counts alone keep the limit. What nobody has accounted for yet is
//! known for the sake of those who change a count otherwise: `reset` and `credit` must not give
//! away again what may still be used, and a return is believed only as far as something is out.

use crate::lease::{Lease, LeaseAsk, Settlement, marks};

/// How many times over the room is divided among the proxies. Nothing refills a window before its
/// end: what one worker has at hand when nothing is left, others lack, and the smaller the last
/// grants the less that is.
const SHARES: u64 = 8;

/// Grants of the count of now and of the one before it that nobody has accounted for. They are
/// named by the start of their count. Never both numbers are 0 in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Granted {
    /// Units of the count of now. It is never less than these.
    pub current: u64,
    /// Units of the count before: all of them are past their time, and may be returned.
    pub previous: u64,
    /// Who was granted some in the count of now: one bit for each mark.
    pub seen: u64,
    /// Who was in the one before.
    pub seen_before: u64,
}

impl Granted {
    /// As they are when the count of now has become the one before.
    #[must_use]
    pub(crate) const fn rolled(self) -> Self {
        Self {
            current: 0,
            previous: self.current,
            seen: 0,
            seen_before: self.seen,
        }
    }

    /// What a state remembers of them.
    pub(crate) fn kept(self) -> Option<Self> {
        (self.current > 0 || self.previous > 0).then_some(self)
    }

    /// What is left of them when the counts are made unused.
    pub(crate) fn after_reset(self) -> Option<Self> {
        let previous = 0;
        Self { previous, ..self }.kept()
    }

    /// Grants what is wanted, up to a fair part of the room, of the count that started at `epoch`.
    pub(crate) fn grant(
        &mut self,
        ask: &LeaseAsk<'_>,
        room: Option<u64>,
        epoch: u64,
        ttl_ms: u64,
    ) -> Option<Lease> {
        let (seen, proxies) = marks(self.seen, self.seen_before, ask.proxy);
        self.seen = seen;
        let units = ask.want.min(room.unwrap_or(0) / (SHARES * proxies));
        self.current += units;
        (units > 0).then_some(Lease {
            units,
            epoch,
            ttl_ms,
        })
    }
}

/// For how long units of a count may be used that goes on for so long; `None`: nothing is granted. A
/// millisecond less, because the clock that was read had not its fraction.
pub(crate) fn ttl_ms(ask: &LeaseAsk<'_>, end_after_ms: u64) -> Option<u64> {
    let ttl_ms = ask.ttl_ms.min(end_after_ms.saturating_sub(1));
    (ttl_ms > 0 && ask.want > 0).then_some(ttl_ms)
}

/// Hears what became of grants of the count that started at `epoch`; `used` are the units of that
/// count, `out` those of its grants. Says whether anything was out.
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

/// Takes units off a count, but none that are `out`; returns how many those were.
pub(crate) fn lower(used: &mut u64, out: u64, units: u64) -> u64 {
    let taken = units.min(used.saturating_sub(out));
    *used -= taken;
    taken
}

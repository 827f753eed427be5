//! Units reserved for requests whose responses state what they cost.
//!
//! A reservation is charged like any cost. When its request has ended, the true cost replaces it: a
//! surplus is given back, an excess is charged whatever is left. A bucket gives back at most its
//! least debt since the reservation, because the rest has drained and would be used twice. A window
//! gives back what it still counts. A record for each reservation makes its settlement count once.
//!
//! `lua/lib/reservations.lua` is the twin.

use crate::quota::{Loaded, Quota};
use crate::{Numbers, check::Stored};

/// Bound: reservations of a bucket that have a record. Beyond it, an older one gives nothing back,
/// and its excess is charged.
pub const RESERVATIONS_MAX: u64 = 1000;
/// Bound: milliseconds for which a reservation has a record. Beyond it, it gives nothing back, and
/// its excess is charged.
pub const SETTLE_WITHIN_MS: u64 = 600_000;

/// The reservations of one bucket. Absent means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// The generation of the limit that last wrote the bucket's state with them.
    pub generation: u64,
    /// The unit that the bucket counts in; reservations in another unit are void.
    unit: [u64; 3],
    /// How many were ever made, which is the number of the latest.
    count: u64,
    /// Reservations up to this number are void: the bucket forgave debt, or its clock was wrong.
    void: u64,
    /// The least debt since each of them that has a record, in parts: oldest first, both numbers rising.
    /// One that is absent has the least debt of the one before. The script stores the differences, most
    /// of which an operation need not read.
    leasts: Vec<Least>,
    /// The latest, each at its number modulo [`RESERVATIONS_MAX`].
    records: Vec<Record>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Least {
    number: u64,
    debt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    number: u64,
    secret: u64,
    units: u64,
    at_ms: u64,
    settled: bool,
}

/// The name of the units that a check reserved in a bucket. Only the bucket interprets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// A random number, drawn before they were reserved.
    pub secret: u64,
    /// The bucket's count of reservations, including this one: [`Reserved::number`].
    pub number: u64,
    /// How many units.
    pub units: u64,
    /// Proves to a limiter that the store's limiters gave this reservation (`Seal` of the crate `store`); a
    /// bucket does not read it.
    pub seal: u64,
}

/// The true cost of a request whose check reserved units. Unused units are refunded as far as they
/// still count; an excess is charged whatever is left. A repetition changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSettlement {
    /// What was reserved.
    pub reservation: Reservation,
    /// What the request cost, in units.
    pub units: u64,
}

/// What a check reserves and settles in a bucket with reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReserveRequest {
    /// The cost is a reservation with this secret.
    pub secret: Option<u64>,
    /// True costs of earlier ones: applied first, whatever the decision.
    pub settle: Vec<CostSettlement>,
    /// Add up what is reserved and not settled yet, which reads every record.
    pub count_open: bool,
}

/// What a check reserved and settled, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// The number of the reservation that was made; 0: none.
    pub number: u64,
    /// Given back.
    pub given_back: u64,
    /// Charged beyond what was reserved.
    pub excess: u64,
    /// Reserved and not settled yet, where that was asked for.
    pub open: u64,
}

/// What settlements changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The usage.
    pub usage: bool,
    /// Records: they are stored even if the usage is not.
    pub records: bool,
}

/// The unit in which a limit counts.
const fn unit(numbers: &Numbers) -> [u64; 3] {
    let y = match numbers.kind {
        Numbers::SLIDING_WINDOW_BUCKETS_STRICT | Numbers::SLIDING_WINDOW_BUCKETS_LOOSE => numbers.y,
        _ => 0,
    };
    [numbers.kind as u64, numbers.x, y]
}

impl Reservations {
    /// The reservations of a bucket, adjusted to the usage that was just read.
    pub(crate) fn read<Q: Quota>(
        quota: &Q,
        loaded: &Loaded<'_, Q>,
        stored: Option<&Stored>,
    ) -> Self {
        let unit = unit(&quota.numbers());
        let reservations = stored.and_then(|stored| stored.reservations.as_deref());
        let mut read = reservations.cloned().unwrap_or_default();
        let debt = quota.debt(&loaded.usage);
        let other = stored.is_some_and(|of| ![0, read.generation].contains(&of.generation));
        let cut = debt.is_some_and(|debt| debt.cut);
        if read.unit != unit || other || cut || loaded.shifted.is_some() {
            (read.void, read.unit) = (read.count, unit);
            read.leasts.clear();
        }
        if let Some(debt) = debt {
            read.lower(debt.parts);
        }
        read
    }

    /// Whether there is anything to store.
    pub(crate) const fn is_used(&self) -> bool {
        self.count > 0
    }

    /// Lowers the stored least debts to the current debt.
    fn lower(&mut self, debt: u64) {
        let kept = self.leasts.partition_point(|least| least.debt < debt);
        self.leasts.truncate(kept + 1);
        if let Some(last) = self.leasts.get_mut(kept) {
            last.debt = debt;
        }
    }

    /// Records a reservation that was just charged; returns its number.
    pub(crate) fn add<Q: Quota>(
        &mut self,
        quota: &Q,
        usage: &Q::Usage<'_>,
        now_ms: u64,
        secret: u64,
        units: u64,
    ) -> u64 {
        self.count += 1;
        let number = self.count;
        if let Some(debt) = quota.debt(usage) {
            let debt = debt.parts;
            self.leasts.push(Least { number, debt });
        }
        // Nothing asks for the least debt since a reservation without a record.
        let forgotten = number.saturating_sub(RESERVATIONS_MAX);
        let older = |least: &Least| least.number <= forgotten + 1;
        let needless = self.leasts.partition_point(older).saturating_sub(1);
        self.leasts.drain(..needless);
        let record = Record {
            number,
            secret,
            units,
            at_ms: now_ms,
            settled: false,
        };
        match self.place(number) {
            Some(place) => *place = record,
            None => self.records.push(record),
        }
        number
    }

    fn place(&mut self, number: u64) -> Option<&mut Record> {
        let place = number.checked_sub(1)? % RESERVATIONS_MAX;
        self.records.get_mut(usize::try_from(place).ok()?)
    }

    /// Replaces reservations by true costs.
    pub(crate) fn settle<Q: Quota>(
        &mut self,
        quota: &Q,
        usage: &mut Q::Usage<'_>,
        now_ms: u64,
        settle: &[CostSettlement],
    ) -> (Reserved, Settled) {
        let (mut reserved, mut changed) = (Reserved::default(), Settled::default());
        for settlement in settle {
            let void = self.void;
            let of = &settlement.reservation;
            let known = { self.place(of.number) }
                .filter(|record| (record.number, record.secret) == (of.number, of.secret));
            let excess = match known {
                Some(record) if record.settled => 0,
                // One that is void or too old gives nothing back, but its excess is charged once.
                Some(record) => {
                    record.settled = true;
                    changed.records = true;
                    let (number, units, at_ms) = (record.number, record.units, record.at_ms);
                    let open = number > void && now_ms < at_ms.saturating_add(SETTLE_WITHIN_MS);
                    let rest = units.checked_sub(settlement.units).filter(|rest| *rest > 0);
                    if let Some(rest) = rest.filter(|_| open) {
                        let (back, lowered) =
                            self.give_back(quota, usage, (now_ms, at_ms), number, rest);
                        reserved.given_back += back;
                        changed.usage |= lowered;
                    }
                    settlement.units.saturating_sub(units)
                }
                None => settlement.units.saturating_sub(of.units),
            };
            reserved.excess = reserved.excess.saturating_add(excess);
        }
        if reserved.excess > 0 {
            let before = quota.debt(usage);
            changed.usage |= quota.overcharge(usage, reserved.excess);
            // A bucket owes only so much: the rest is not charged.
            if let (Some(before), Some(after)) = (before, quota.debt(usage)) {
                reserved.excess = (after.parts - before.parts) / after.per_unit;
            }
        }
        (reserved, changed)
    }

    /// Gives back what is left of a reservation, as far as it still counts; returns how many whole
    /// units, and whether it was anything.
    fn give_back<Q: Quota>(
        &mut self,
        quota: &Q,
        usage: &mut Q::Usage<'_>,
        (now_ms, at_ms): (u64, u64),
        number: u64,
        units: u64,
    ) -> (u64, bool) {
        let Some(debt) = quota.debt(usage) else {
            let back = if at_ms <= now_ms {
                quota.uncount(usage, at_ms, units)
            } else {
                0
            };
            return (back, back > 0);
        };
        let known = self.leasts.partition_point(|least| least.number <= number);
        let known = known.checked_sub(1).and_then(|at| self.leasts.get(at));
        let Some(least) = known.map(|least| least.debt) else {
            return (0, false);
        };
        let parts = units.saturating_mul(debt.per_unit).min(least);
        quota.forgive(usage, parts);
        for other in &mut self.leasts {
            other.debt = if other.number > number {
                other.debt - parts
            } else {
                other.debt.min(least - parts)
            };
        }
        self.leasts
            .dedup_by(|younger, older| younger.debt <= older.debt);
        (parts / debt.per_unit, parts > 0)
    }

    /// Units that are reserved and not settled yet.
    pub(crate) fn open(&self, now_ms: u64) -> u64 {
        let open = self.records.iter().filter(|record| {
            !record.settled
                && record.number > self.void
                && now_ms < record.at_ms.saturating_add(SETTLE_WITHIN_MS)
        });
        open.map(|record| record.units).sum()
    }
}

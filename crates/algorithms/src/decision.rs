//! The decision of one limit on one check, made from the functions that every algorithm has
//! ([`Quota`]). `lua/check.lua` makes the same decision from functions of the same names.

use crate::{
    AdaptiveState, BucketRequest, Debits, Lease, Pace, PenaltyStatus, State,
    quota::{Loaded, Quota},
    reservations::{Reservations, Reserved},
};

/// When the same cost would be admitted, if no other request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// It was admitted.
    Now,
    /// After this many milliseconds, at least 1 and not one more than needed.
    Millis(u64),
    /// The cost is above what the limit can ever hold.
    Never,
}

impl RetryAfter {
    /// The later of two: never is later than any time.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Millis(a), Self::Millis(b)) => Self::Millis(a.max(b)),
            (Self::Now, later) | (later, Self::Now) => later,
        }
    }

    /// Milliseconds, 0 for now; `None` for never.
    pub const fn millis(self) -> Option<u64> {
        match self {
            Self::Now => Some(0),
            Self::Millis(ms) => Some(ms),
            Self::Never => None,
        }
    }

    /// The reverse of [`Self::millis`].
    pub const fn from_millis(ms: Option<u64>) -> Self {
        match ms {
            Some(0) => Self::Now,
            Some(ms) => Self::Millis(ms),
            None => Self::Never,
        }
    }
}

/// The answer of one limit to one check. Times count from the caller's `now_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether `cost` fits: `used + cost <= limit`.
    pub allowed: bool,
    /// The largest cost, in units, that would be admitted at this instant after this decision.
    pub remaining: u64,
    /// When the same cost would be admitted.
    pub retry_after: RetryAfter,
    /// Milliseconds until the bucket is completely unused, if nothing else comes.
    pub reset_after_ms: u64,
    /// Milliseconds an admitted request is held before it starts (queues only, else 0).
    pub delay_ms: u64,
}

impl Default for Decision {
    /// Admitted at once.
    fn default() -> Self {
        Self {
            allowed: true,
            remaining: 0,
            retry_after: RetryAfter::Now,
            reset_after_ms: 0,
            delay_ms: 0,
        }
    }
}

/// What one limit decided on a check, and what it took for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitVerdict {
    /// Its own decision, regardless of the other limits of the check.
    pub decision: Decision,
    /// Units taken by the check's cost; a debit is not counted here.
    pub charged: u64,
    /// The surplus granted; `None`: none was granted or wanted.
    pub lease: Option<Lease>,
    /// The slot that a queue gave the request, or that it holds in flight; [`SlotAct`] says what may be
    /// done with it. If nothing was charged and slots were renewed: which of them are missing, encoded as
    /// [`Missing`](crate::Missing).
    pub slot: Option<Slot>,
    /// The bucket's penalty, which only a whole [check](crate::check::check) knows.
    pub penalty: PenaltyStatus,
    /// Outstanding lease units, this grant included. Windows do not count them separately.
    pub leased: u64,
    /// What was reserved and settled.
    pub reserved: Reserved,
    /// The limit itself, in thousandths of a slot, where it is adaptive.
    pub limit_milli: Option<u64>,
    /// How that was found: only of a peek, and once an answer came.
    pub adaptive: Option<Box<AdaptiveState>>,
}

/// The name of an admitted request's slot in a queue, or of a request in flight
/// ([`InFlightSlot`](crate::InFlightSlot)). Only its bucket interprets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Its start by the bucket's clock, in whole milliseconds, rounded down.
    pub start_ms: u64,
    /// What was rounded off, in parts.
    pub parts: u64,
    /// Since when the bucket has accepted such names.
    pub since_ms: u64,
    /// How often this time was freed and given to another request before.
    pub turn: u64,
}

/// An operation on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotOp {
    /// Which.
    pub slot: Slot,
    /// What to do with it.
    pub act: SlotAct,
}

/// What to do with a slot. Only slots of requests in flight are renewed and entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotAct {
    /// Its request, which was charged this many units, does not need it. Freeing a slot again changes
    /// nothing.
    Free(u64),
    /// As [`Self::Free`], for a request in flight whose service answered, or did not: an adaptive limit
    /// follows it.
    Answered(Pace),
    /// It lives another ttl; if it is gone, it is [missing](crate::Missing).
    Renew,
    /// It is missing, and its request still runs: it is held again, above the limit if need be.
    Enter,
}

impl SlotOp {
    /// Frees the slot of a request that was charged this many units.
    pub const fn free(slot: Slot, units: u64) -> Self {
        Self {
            slot,
            act: SlotAct::Free(units),
        }
    }
}

impl SlotAct {
    /// Whether the slot is free afterwards.
    pub const fn frees(self) -> bool {
        matches!(self, Self::Free(_) | Self::Answered(_))
    }
}

/// A verdict and the state to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub verdict: LimitVerdict,
    /// The reservations to store with the state; `None`: unchanged.
    pub reservations: Option<Box<Reservations>>,
    /// Whether more than the cost was stored: a debit, a grant, a settlement, or a freed slot.
    pub changed: bool,
    /// The state to store; `None`: unchanged.
    pub write: Option<State>,
}

/// A charge that may have to be refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Charged {
    /// When, in milliseconds: the caller's time of that evaluation.
    pub at_ms: u64,
    /// How much.
    pub units: u64,
    /// The limit's ttl for leases, in milliseconds; 0 if it has none.
    pub lease_ttl_ms: u64,
    /// The slot, for a queue.
    pub slot: Option<Slot>,
}

/// A cost tested against one limit, to be charged or left.
pub(crate) struct Evaluated<'a, Q: Quota> {
    quota: &'a Q,
    /// The state as it was, of whichever algorithm.
    state: Option<&'a State>,
    loaded: Loaded<'a, Q>,
    request: BucketRequest<'a>,
    now_ms: u64,
    /// What was reserved and settled, and the reservations to store.
    reserved: Reserved,
    reservations: Option<Box<Reservations>>,
    /// Whether the usage is to be stored even if the cost is not charged.
    changed: bool,
    /// Whether the reservations are, even if the usage is not: a settlement that changed nothing else
    /// leaves the state as it was, so that it opens no window and forgets no entries.
    settled: bool,
    fits: bool,
}

impl<'a, Q: Quota> Evaluated<'a, Q> {
    pub fn new(
        quota: &'a Q,
        state: Option<&'a State>,
        now_ms: u64,
        request: BucketRequest<'a>,
    ) -> Self {
        let mut loaded = quota.load(state.and_then(Q::own), now_ms, request.lease.ttl_ms);
        if request.edited {
            quota.edited(&mut loaded.usage);
        }
        let mut settled = quota.settle(&mut loaded.usage, request.lease.settle);
        let freed = quota.free(&mut loaded.usage, request.free);
        let (mut reserved, mut reservations) = (Reserved::default(), None);
        let mut records = false;
        if let Some(asked) = &request.reserve {
            let mut read = Reservations::read(quota, &loaded, request.stored);
            let changed;
            (reserved, changed) = read.settle(quota, &mut loaded.usage, now_ms, &asked.settle);
            settled |= changed.usage;
            records = changed.records;
            reservations = Some(Box::new(read));
        }
        let debited = request.debit > 0 && Self::debit(quota, &mut loaded.usage, &request);
        let tested = Self::test(quota, loaded, request, settled || freed || debited);
        Self {
            state,
            now_ms,
            reserved,
            reservations,
            settled: records,
            ..tested
        }
    }

    /// As [`Self::new`], for a bucket without leases.
    pub fn local(
        quota: &'a Q,
        state: Option<&'a State>,
        now_ms: u64,
        cost: u64,
        debit: u64,
    ) -> Self {
        let mut loaded = quota.load(state.and_then(Q::own), now_ms, 0);
        let request = BucketRequest {
            cost,
            debit,
            ..BucketRequest::default()
        };
        let debited = debit > 0 && quota.charge(&mut loaded.usage, debit);
        Self::test(quota, loaded, request, debited)
    }

    /// Adds the debit, or gives it back; returns whether that changed anything.
    fn debit(quota: &Q, usage: &mut Q::Usage<'_>, request: &BucketRequest<'_>) -> bool {
        match request.debits {
            Debits::Admitted => quota.admitted(usage, request.debit, request.debit_serial),
            Debits::Reported => quota.overcharge(usage, request.debit),
            Debits::Refunded => {
                let used = quota.reset_after_ms(usage) > 0;
                if used {
                    quota.credit(usage, request.debit);
                }
                used
            }
        }
    }

    fn test(
        quota: &'a Q,
        loaded: Loaded<'a, Q>,
        request: BucketRequest<'a>,
        changed: bool,
    ) -> Self {
        let room = quota.room(&loaded.usage);
        let fits = request.cost <= quota.limit() && room.is_some_and(|room| request.cost <= room);
        Self {
            quota,
            state: None,
            loaded,
            request,
            now_ms: 0,
            reserved: Reserved::default(),
            reservations: None,
            changed,
            settled: false,
            fits,
        }
    }

    pub const fn fits(&self) -> bool {
        self.fits
    }

    /// Charges the cost, if it fits and is not 0, then grants the lease units wanted.
    pub fn charge(mut self) -> Outcome {
        if !self.fits {
            return self.leave();
        }
        let (delay_ms, slot) = self.take();
        self.reserve();
        let lease = self
            .quota
            .grant(&mut self.loaded.usage, &self.request.lease);
        self.changed = self.changed || lease.is_some();
        let cost = self.request.cost;
        self.finish(delay_ms, cost, lease, slot)
    }

    /// As [`Self::charge`] or, without `charge`, [`Self::leave`], for a bucket without leases and reservations:
    /// the decision, the slot, and the state to store.
    pub fn decide_local(mut self, charge: bool) -> (Decision, Option<Slot>, Option<State>) {
        let (mut delay_ms, mut charged, mut slot) = (0, 0, None);
        if self.fits && charge {
            (delay_ms, slot) = self.take();
            charged = self.request.cost;
        } else if self.fits {
            delay_ms = self.quota.delay_ms(&self.loaded.usage, self.request.cost);
        }
        let decision = self.decision(delay_ms);
        let write = if self.changed || charged > 0 {
            Some(self.quota.save(self.loaded.usage))
        } else {
            self.loaded.shifted
        };
        (decision, slot, write.map(Q::wrap))
    }

    /// Charges a cost that fits; returns how long its request is held, and its slot.
    fn take(&mut self) -> (u64, Option<Slot>) {
        let (usage, cost) = (&mut self.loaded.usage, self.request.cost);
        let delay_ms = self.quota.delay_ms(usage, cost);
        let slot = (cost > 0).then(|| self.quota.take(usage, cost)).flatten();
        (delay_ms, slot)
    }

    /// Records the cost that was taken as a reservation.
    fn reserve(&mut self) {
        let secret = self.request.reserve.and_then(|request| request.secret);
        let (Some(secret), Some(reservations)) = (secret, &mut self.reservations) else {
            return;
        };
        if self.request.cost > 0 {
            let (usage, cost) = (&self.loaded.usage, self.request.cost);
            let number = reservations.add(self.quota, usage, self.now_ms, secret, cost);
            self.reserved.number = number;
        }
    }

    /// Charges nothing.
    pub fn leave(self) -> Outcome {
        let delay_ms = if self.fits {
            self.quota.delay_ms(&self.loaded.usage, self.request.cost)
        } else {
            0
        };
        self.finish(delay_ms, 0, None, None)
    }

    fn decision(&self, delay_ms: u64) -> Decision {
        let (quota, usage, cost) = (self.quota, &self.loaded.usage, self.request.cost);
        let retry_after = if self.fits {
            RetryAfter::Now
        } else if cost > quota.limit() {
            RetryAfter::Never
        } else {
            RetryAfter::Millis(quota.wait_ms(usage, cost).max(1))
        };
        Decision {
            allowed: self.fits,
            remaining: quota.room(usage).unwrap_or(0),
            retry_after,
            reset_after_ms: quota.reset_after_ms(usage),
            delay_ms,
        }
    }

    fn finish(
        self,
        delay_ms: u64,
        charged: u64,
        lease: Option<Lease>,
        slot: Option<Slot>,
    ) -> Outcome {
        let decision = self.decision(delay_ms);
        let (quota, usage) = (self.quota, self.loaded.usage);
        let leased = quota.leased(&usage);
        let (limit_milli, adaptive) = quota.adaptive(&usage);
        let slot = slot.or_else(|| quota.missing(&usage));
        let write = if self.changed || charged > 0 {
            Some(Q::wrap(quota.save(usage)))
        } else {
            let shifted = self.loaded.shifted.map(Q::wrap);
            shifted.or_else(|| self.state.filter(|_| self.settled).cloned())
        };
        let writes = write.is_some();
        let mut reserved = self.reserved;
        let reservations = self.reservations.filter(|read| read.is_used());
        if self
            .request
            .reserve
            .is_some_and(|request| request.count_open)
        {
            let open = |read: &Reservations| read.open(self.now_ms);
            reserved.open = reservations.as_deref().map_or(0, open);
        }
        let verdict = LimitVerdict {
            decision,
            charged,
            lease,
            slot,
            leased,
            limit_milli,
            adaptive,
            reserved,
            penalty: PenaltyStatus::default(),
        };
        Outcome {
            verdict,
            reservations: reservations.filter(|_| writes),
            changed: self.changed,
            write,
        }
    }
}

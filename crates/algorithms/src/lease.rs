//! Leases: units granted in advance to proxies, for later requests.
//!
//! A *grant* takes units out of a bucket before they are used; the proxy spends them without a
//! check, within the grant's ttl. A [`Settlement`] of what was spent and what is returned arrives
//! later, or never.
//!
//! Grants are counted by epoch. An epoch is at least as long as the ttl of the grants before it, so
//! all grants of one epoch have expired before the next one ends. Two counts are therefore enough:
//! outstanding units belong to the current epoch or the one before. While they are outstanding, the
//! bucket must not refill below them; see [`Leases::floor`].
//!
//! `lua/lib/lease.lua` and `marks.lua` are the twins; docs/leases.md has the argument.

use crate::bucket::Bucket;

/// The shortest ttl of a lease, in milliseconds: a round trip takes a good part of a shorter one.
pub const LEASE_TTL_MIN_MS: u64 = 10;
/// The longest, in milliseconds: units of a proxy that died are missing for two of these.
pub const LEASE_TTL_MAX_MS: u64 = 60_000;
/// Bound: marks by which a bucket counts the proxies that lease from it. Beyond it, further proxies
/// are estimated.
pub const PROXY_MARKS: u8 = 64;

/// The lease query of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest<'a> {
    /// The limit's ttl, in milliseconds; 0: it does not lease. (What was leased while it did
    /// still counts.)
    pub ttl_ms: u64,
    /// Units wanted beside the cost.
    pub want: u64,
    /// A hash of the proxy, below [`PROXY_MARKS`].
    pub proxy: u8,
    /// Settlements of earlier grants.
    pub settle: &'a [Settlement],
}

/// What a proxy did with granted units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settlement {
    /// The grant's [`Lease::epoch`].
    pub epoch: u64,
    /// Units that requests used.
    pub spent: u64,
    /// Units returned unused.
    pub returned: u64,
}

/// Units granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// How many.
    pub units: u64,
    /// The name of the grant in settlements; for a window, the start of the count that was charged.
    pub epoch: u64,
    /// For how long they may be used, in milliseconds from the sending of the check.
    pub ttl_ms: u64,
}

/// A bucket's outstanding grants. The two counts are never both 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    /// The name of the current epoch; the one before has the number before. The first is the time
    /// of the first grant, so that no name repeats.
    pub epoch: u64,
    /// When the current epoch ends, in milliseconds.
    pub edge_ms: u64,
    /// The ttl of its grants, in milliseconds.
    pub ttl_ms: u64,
    /// Units of its grants.
    pub current: u64,
    /// Units of the grants of the epoch before.
    pub previous: u64,
    /// The proxies with queries in this epoch: one bit for each mark.
    pub seen: u64,
    /// The proxies with queries in the epoch before.
    pub seen_before: u64,
}

impl Leases {
    /// Those of a bucket at its first grant.
    pub(crate) const fn starting(now_ms: u64, ttl_ms: u64) -> Self {
        Self {
            epoch: now_ms,
            edge_ms: now_ms + ttl_ms,
            ttl_ms,
            current: 0,
            previous: 0,
            seen: 0,
            seen_before: 0,
        }
    }

    /// Units that may still be used.
    pub(crate) const fn outstanding(&self) -> u64 {
        self.current.saturating_add(self.previous)
    }

    /// When the epoch after this one ends, given the ttl now in force.
    fn second_edge_ms(&self, ttl_ms: u64) -> u64 {
        self.edge_ms.saturating_add(self.ttl_ms.max(ttl_ms))
    }

    /// The least debt of the bucket at `now_ms`, in parts.
    ///
    /// All outstanding units count until the edge, when the older ones have expired, and the rest
    /// until the second edge. Each drains only from its edge on: the time before does not count,
    /// because a unit may be spent at the last moment, and nothing has refilled it by then.
    pub(crate) fn floor(&self, bucket: &Bucket, now_ms: u64, ttl_ms: u64) -> u64 {
        let all = bucket.owed(self.outstanding());
        let present = bucket.owed(self.current);
        let since = |edge_ms: u64| now_ms.saturating_sub(edge_ms);
        let second_ms = self.second_edge_ms(ttl_ms);
        bucket
            .drained(all, since(self.edge_ms))
            .max(bucket.drained(present, since(second_ms)))
    }

    /// The time from `now_ms` until the [floor](Self::floor) is at most `parts`.
    pub(crate) fn wait_ms(&self, bucket: &Bucket, parts: u64, now_ms: u64, ttl_ms: u64) -> u64 {
        let until = |edge_ms: u64, units: u64| match bucket.owed(units).checked_sub(parts) {
            None | Some(0) => 0,
            Some(excess) => edge_ms.saturating_sub(now_ms) + bucket.drain_ms(excess),
        };
        let all = until(self.edge_ms, self.outstanding());
        all.max(until(self.second_edge_ms(ttl_ms), self.current))
    }

    /// As they are at `now_ms`, after the edges that have passed; `None` if no unit is left.
    pub(crate) fn at(self, now_ms: u64, ttl_ms: u64) -> Option<Self> {
        if now_ms < self.edge_ms {
            return Some(self);
        }
        let second_ms = self.second_edge_ms(ttl_ms);
        (now_ms < second_ms && self.current > 0).then_some(Self {
            epoch: self.epoch.saturating_add(1),
            edge_ms: second_ms,
            // If leasing was switched off, nothing is granted; switched on again, the old ttl still
            // holds.
            ttl_ms: if ttl_ms > 0 { ttl_ms } else { self.ttl_ms },
            current: 0,
            previous: self.current,
            seen: 0,
            seen_before: self.seen,
        })
    }

    /// The same, after the bucket's clock was moved back.
    #[must_use]
    pub(crate) const fn moved_back(self, by_ms: u64) -> Self {
        Self {
            edge_ms: self.edge_ms.saturating_sub(by_ms),
            ..self
        }
    }

    /// Removes units from the epoch of that name, as far as it has them; a dropped epoch has none.
    pub(crate) fn take(&mut self, epoch: u64, units: u64) -> u64 {
        let slot = if epoch == self.epoch {
            &mut self.current
        } else if epoch.checked_add(1) == Some(self.epoch) {
            &mut self.previous
        } else {
            return 0;
        };
        let taken = units.min(*slot);
        *slot -= taken;
        taken
    }

    /// Records a proxy's query, and estimates how many proxies had one in this epoch and the one
    /// before.
    pub(crate) fn see(&mut self, proxy: u8) -> u64 {
        let (seen, proxies) = marks(self.seen, self.seen_before, proxy);
        self.seen = seen;
        proxies
    }
}

/// A bucket's debt at `now_ms`, after every edge that has passed by then, and the outstanding grants
/// that it must not refill below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// The debt in parts; more than the capacity only with leases from before it was lowered.
    pub debt: u64,
    /// Outstanding grants.
    pub leases: Option<Leases>,
    /// The bucket's time, in milliseconds.
    pub now_ms: u64,
    /// The limit's ttl, in milliseconds; 0: it does not lease.
    ttl_ms: u64,
}

impl Level {
    /// `debt` is the debt without leases.
    pub fn new(
        bucket: &Bucket,
        debt: u64,
        leases: Option<Leases>,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Self {
        let floor = leases.map_or(0, |leases| leases.floor(bucket, now_ms, ttl_ms));
        Self {
            debt: debt.max(floor),
            leases: leases.and_then(|leases| leases.at(now_ms, ttl_ms)),
            now_ms,
            ttl_ms,
        }
    }

    /// Whole units left; `None` beyond the capacity.
    pub fn room(&self, bucket: &Bucket) -> Option<u64> {
        let left = bucket.full().checked_sub(self.debt)?;
        Some(left / bucket.parts_per_unit)
    }

    /// Adds units, at most up to the capacity; returns whether any fitted.
    pub fn charge(&mut self, bucket: &Bucket, units: u64) -> bool {
        let before = self.debt;
        self.debt = before.max(bucket.owing(before, units));
        self.debt > before
    }

    /// Adds units, also beyond the capacity, up to [`Bucket::debt_max`]: what does not fit into the capacity
    /// is added to `over`, too. Returns whether that changed anything.
    pub fn overcharge(&mut self, bucket: &Bucket, units: u64, over: &mut u64) -> bool {
        let before = self.debt;
        let owing = before.saturating_add(bucket.owed(units));
        // An edit that lowers the capacity forgives nothing, so the debt may be larger already.
        self.debt = before.max(owing.min(bucket.debt_max()));
        let fitting = bucket.full().saturating_sub(before);
        *over += (self.debt - before).saturating_sub(fitting);
        self.debt > before
    }

    /// Removes parts, but none that are outstanding.
    pub fn forgive(&mut self, bucket: &Bucket, parts: u64) {
        let floor = bucket.owed(self.outstanding());
        self.debt = self.debt.saturating_sub(parts).max(floor);
    }

    /// Removes what has not drained of units charged at `charged_at_ms`, in milliseconds; returns
    /// whether that was anything.
    pub fn refund(&mut self, bucket: &Bucket, charged_at_ms: u64, units: u64) -> bool {
        let undrained = bucket.undrained(units, charged_at_ms, self.now_ms);
        let before = self.debt;
        // The debt exceeds a capacity that was lowered after the charge.
        if before <= bucket.full() {
            self.forgive(bucket, undrained);
        }
        self.debt < before
    }

    /// Outstanding units.
    pub fn outstanding(&self) -> u64 {
        self.leases.map_or(0, |leases| leases.outstanding())
    }

    /// Applies settlements; returns whether any grant was still tracked.
    pub fn settle(&mut self, bucket: &Bucket, settlements: &[Settlement]) -> bool {
        let before = self.outstanding();
        for settlement in settlements {
            let Some(leases) = &mut self.leases else {
                break;
            };
            leases.take(settlement.epoch, settlement.spent);
            let returned = leases.take(settlement.epoch, settlement.returned);
            if leases.outstanding() == 0 {
                self.leases = None;
            }
            self.forgive(bucket, bucket.owed(returned));
        }
        self.outstanding() != before
    }

    /// Grants the units wanted, up to a fair share of what is left.
    pub fn grant(&mut self, bucket: &Bucket, request: &LeaseRequest<'_>) -> Option<Lease> {
        if request.want == 0 || request.ttl_ms == 0 {
            return None;
        }
        let known = self.leases;
        let mut leases = known.unwrap_or(Leases::starting(self.now_ms, request.ttl_ms));
        let proxies = leases.see(request.proxy);
        let units = request
            .want
            .min(self.room(bucket).unwrap_or(0) / (2 * proxies));
        leases.current += units;
        if units > 0 || known.is_some() {
            self.leases = Some(leases);
        }
        self.debt += units * bucket.parts_per_unit;
        (units > 0).then_some(Lease {
            units,
            epoch: leases.epoch,
            ttl_ms: leases.ttl_ms,
        })
    }

    /// From the bucket's time until the debt is at most `parts`.
    pub fn wait_ms(&self, bucket: &Bucket, parts: u64) -> u64 {
        let drain_ms = bucket.drain_ms(self.debt.saturating_sub(parts));
        let floor_ms = self.leases.map_or(0, |leases| {
            leases.wait_ms(bucket, parts, self.now_ms, self.ttl_ms)
        });
        drain_ms.max(floor_ms)
    }
}

/// Adds a proxy to the marks, and estimates how many proxies these and the earlier marks stand for:
/// if there are many, some share a mark.
pub(crate) fn marks(seen: u64, before: u64, proxy: u8) -> (u64, u64) {
    let seen = seen | 1 << (proxy % PROXY_MARKS);
    let marks = u64::from((seen | before).count_ones());
    (
        seen,
        marks + marks * marks / (2 * u64::from(PROXY_MARKS) - marks),
    )
}

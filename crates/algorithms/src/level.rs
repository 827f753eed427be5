//! The debt of a bucket at one instant, and the outstanding grants that it must not refill below.

use crate::bucket::Bucket;
use crate::lease::{Lease, LeaseAsk, Leases, Settlement};

/// A bucket's debt at `now_ms`, after every edge that has passed by then.
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
    pub fn grant(&mut self, bucket: &Bucket, ask: &LeaseAsk<'_>) -> Option<Lease> {
        if ask.want == 0 || ask.ttl_ms == 0 {
            return None;
        }
        let known = self.leases;
        let mut leases = known.unwrap_or(Leases::starting(self.now_ms, ask.ttl_ms));
        let proxies = leases.see(ask.proxy);
        let units = ask.want.min(self.room(bucket).unwrap_or(0) / (2 * proxies));
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

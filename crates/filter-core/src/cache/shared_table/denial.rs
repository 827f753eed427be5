//! Denials that still hold.

use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// A denial of the limiter that still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedDenial {
    /// Until when it is cached.
    pub(crate) until_us: u64,
    /// The least cost that was denied; a smaller one may pass.
    pub(crate) least_cost: u64,
    /// When to retry by the limiter's answer, which may be later than the denial is cached;
    /// `u64::MAX`: never.
    pub(crate) retry_at_us: u64,
}

impl CachedDenial {
    /// The longest that a denial is cached.
    pub(crate) const MAX_MS: u64 = 1000;
    /// The longest that a denial by a queue is cached: a request that leaves makes room.
    pub(crate) const QUEUE_MS: u64 = 100;

    /// A denial with a `retry_after_ms`, counted from the moment its check was sent. The limiter
    /// read its clock later, but in whole milliseconds, so a millisecond less is never too long.
    /// `most_ms`, at most [`Self::MAX_MS`], bounds how long it is cached.
    pub(crate) fn new(sent: Now, retry_after_ms: Option<u64>, most_ms: u64, cost: u64) -> Self {
        let sure_ms = retry_after_ms.map_or(u64::MAX, |ms| ms.saturating_sub(1));
        let cached_ms = sure_ms.min(most_ms);
        Self {
            until_us: sent.after_ms(cached_ms),
            least_cost: cost,
            retry_at_us: retry_after_ms.map_or(u64::MAX, |ms| sent.after_ms(ms)),
        }
    }

    /// Whether the denial still holds for a cost. One that claims to hold longer than
    /// [`Self::MAX_MS`] was written by another plugin, and holds for nothing.
    pub(crate) fn denies(&self, cost: u64, now: Now) -> bool {
        let left_ms = now.millis_until(self.until_us);
        (1..=Self::MAX_MS).contains(&left_ms) && cost >= self.least_cost
    }

    /// When to retry, in milliseconds from now; `None`: never.
    pub(crate) fn retry_after_ms(&self, now: Now) -> Option<u64> {
        (self.retry_at_us != u64::MAX).then(|| now.millis_until(self.retry_at_us))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.until_us);
        out.put_u64(self.least_cost);
        out.put_u64(self.retry_at_us);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            until_us: reader.u64()?,
            least_cost: reader.u64()?,
            retry_at_us: reader.u64()?,
        })
    }
}

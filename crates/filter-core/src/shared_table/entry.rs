//! One bucket as the proxy knows it.

use protocol::LimitAnswer;

use crate::{
    codec::{Put, Reader},
    lease::SharedLease,
    time::Now,
};

/// The longest state of an algorithm that fits an entry, in bytes: a queue's.
pub(crate) const MAX_STATE_LEN: usize = algorithms::STATE_BYTES_MAX;

/// What is kept of one bucket. Everything in it may be absent.
///
/// Moments are on the monotonic clock, in microseconds: a step of the wall clock must not lock
/// a bucket, nor free it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Until when the limiter would deny it.
    pub(crate) denial: Option<Denial>,
    /// What the limiter last said of it.
    pub(crate) status: Option<BucketStatus>,
    /// The bucket itself, where it is decided in the proxy.
    pub(crate) local: Option<LocalState>,
    /// What was admitted while no limiter answered, and the limiter does not know of.
    pub(crate) debt: Debt,
    /// Units granted in advance.
    pub(crate) shared_lease: Option<Box<SharedLease>>,
}

/// A denial that is worth remembering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// Its end.
    pub(crate) until_us: u64,
    /// The least cost that was denied; a smaller one may pass.
    pub(crate) least_cost: u64,
    /// When the limiter said to try again, which may be later than this is remembered;
    /// `u64::MAX`: never.
    pub(crate) retry_at_us: u64,
}

impl Denial {
    /// The longest that a denial is remembered.
    pub(crate) const MAX_MS: u64 = 1000;
    /// The longest that a queue's is, which makes room when somebody leaves.
    pub(crate) const QUEUE_MS: u64 = 100;

    /// Remembers a denial from the moment its check was sent: the limiter read its clock later,
    /// but in whole milliseconds, so a millisecond less is never too long. `most_ms`, at most
    /// [`Self::MAX_MS`], is how long it is worth it.
    pub(crate) fn new(sent: Now, retry_after_ms: Option<u64>, most_ms: u64, cost: u64) -> Self {
        let sure_ms = retry_after_ms.map_or(u64::MAX, |ms| ms.saturating_sub(1));
        let remembered_ms = sure_ms.min(most_ms);
        Self {
            until_us: sent.after_ms(remembered_ms),
            least_cost: cost,
            retry_at_us: retry_after_ms.map_or(u64::MAX, |ms| sent.after_ms(ms)),
        }
    }

    /// Whether a cost is known to be denied. No denial is remembered so long that a value
    /// another plugin wrote could deny for ever.
    pub(crate) fn denies(&self, cost: u64, now: Now) -> bool {
        let left_ms = now.millis_until(self.until_us);
        (1..=Self::MAX_MS).contains(&left_ms) && cost >= self.least_cost
    }

    /// When to try again, in milliseconds; `None`: never.
    pub(crate) fn retry_after_ms(&self, now: Now) -> Option<u64> {
        (self.retry_at_us != u64::MAX).then(|| now.millis_until(self.retry_at_us))
    }
}

/// What the limiter said of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketStatus {
    /// When.
    pub(crate) at_us: u64,
    /// The quota in units, overrides included; `None`: unlimited.
    pub(crate) limit: Option<u64>,
    /// The time in which an empty quota comes back whole.
    pub(crate) window_ms: u64,
    /// Units left then.
    pub(crate) remaining: u64,
    /// From then until the bucket is unused.
    pub(crate) reset_after_ms: u64,
}

impl BucketStatus {
    /// What an answer says that has just come.
    pub(crate) fn new(now: Now, answer: &LimitAnswer) -> Self {
        Self {
            at_us: now.mono_us,
            limit: answer.limit,
            window_ms: answer.window_ms,
            remaining: answer.remaining,
            reset_after_ms: answer.reset_after_ms,
        }
    }
}

impl Entry {
    /// Takes over what the limiter says, unless something newer is known. A stand-in that was
    /// not used since has served: the next outage starts from what is said now.
    pub(crate) fn update_status(&mut self, status: BucketStatus) -> bool {
        if self.status.is_some_and(|known| known.at_us >= status.at_us) {
            return false;
        }
        self.status = Some(status);
        self.local.take_if(|local| local.touched_us < status.at_us);
        true
    }
}

/// An algorithm's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalState {
    /// As the algorithm writes it.
    pub(crate) bytes: Vec<u8>,
    /// When it was last decided by.
    pub(crate) touched_us: u64,
    /// When the bucket will be unused. Until then it may not be forgotten without a trace.
    pub(crate) unused_at_us: u64,
}

/// Units admitted locally, over two spans of one horizon each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// When the current span began.
    pub(crate) since_us: u64,
    /// Units in the current span.
    pub(crate) current: u64,
    /// Units in the span before it.
    pub(crate) previous: u64,
    /// When the bucket itself has forgiven all of it.
    pub(crate) until_us: u64,
}

impl Debt {
    /// Adds what was admitted now. `span_us` is the time a full bucket takes to be unused:
    /// what was admitted before that has been forgiven by the bucket itself.
    pub(crate) fn add(&mut self, units: u64, span_us: u64, now_us: u64) {
        self.roll(span_us, now_us);
        self.current = self.current.saturating_add(units);
        self.until_us = now_us.saturating_add(span_us);
    }

    /// What was admitted in the last span, the older of the two weighted by its share of it.
    pub(crate) fn units(mut self, span_us: u64, now_us: u64) -> u64 {
        self.roll(span_us, now_us);
        let left_us = span_us.saturating_sub(now_us.saturating_sub(self.since_us));
        let weighted = u128::from(self.previous) * u128::from(left_us);
        let previous = weighted.div_ceil(u128::from(span_us.max(1)));
        self.current
            .saturating_add(u64::try_from(previous).unwrap_or(u64::MAX))
    }

    fn roll(&mut self, span_us: u64, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us >= span_us.saturating_mul(2) {
            *self = Self {
                since_us: now_us,
                ..Self::default()
            };
        } else if elapsed_us >= span_us {
            self.since_us = self.since_us.saturating_add(span_us);
            self.previous = std::mem::take(&mut self.current);
        }
    }
}

const DENIAL: u8 = 1;
const TOLD: u8 = 2;
const LOCAL: u8 = 4;
const OWED: u8 = 8;
const UNLIMITED: u8 = 16;
const POOL: u8 = 32;

impl Entry {
    /// Appends the entry to a value.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let flag = |bit: u8, set: bool| if set { bit } else { 0 };
        out.put_u8(
            flag(DENIAL, self.denial.is_some())
                | flag(TOLD, self.status.is_some())
                | flag(LOCAL, self.local.is_some())
                | flag(OWED, self.debt != Debt::default())
                | flag(UNLIMITED, self.status.is_some_and(|t| t.limit.is_none()))
                | flag(POOL, self.shared_lease.is_some()),
        );
        if let Some(denial) = self.denial {
            out.put_u64(denial.until_us);
            out.put_u64(denial.least_cost);
            out.put_u64(denial.retry_at_us);
        }
        if let Some(status) = self.status {
            out.put_u64(status.at_us);
            out.put_u64(status.limit.unwrap_or(0));
            out.put_u64(status.window_ms);
            out.put_u64(status.remaining);
            out.put_u64(status.reset_after_ms);
        }
        if let Some(local) = &self.local {
            out.put_u64(local.touched_us);
            out.put_u64(local.unused_at_us);
            out.put_u8(local.bytes.len().try_into().unwrap_or(u8::MAX));
            out.extend_from_slice(&local.bytes);
        }
        if self.debt != Debt::default() {
            out.put_u64(self.debt.since_us);
            out.put_u64(self.debt.current);
            out.put_u64(self.debt.previous);
            out.put_u64(self.debt.until_us);
        }
        if let Some(shared_lease) = &self.shared_lease {
            shared_lease.write(out);
        }
    }

    /// Reads an entry; `None` if this is not one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        let mut entry = Self::default();
        if flags & DENIAL != 0 {
            entry.denial = Some(Denial {
                until_us: reader.u64()?,
                least_cost: reader.u64()?,
                retry_at_us: reader.u64()?,
            });
        }
        if flags & TOLD != 0 {
            let at_us = reader.u64()?;
            let limit = reader.u64()?;
            entry.status = Some(BucketStatus {
                at_us,
                limit: (flags & UNLIMITED == 0).then_some(limit),
                window_ms: reader.u64()?,
                remaining: reader.u64()?,
                reset_after_ms: reader.u64()?,
            });
        }
        if flags & LOCAL != 0 {
            let touched_us = reader.u64()?;
            let unused_at_us = reader.u64()?;
            let len = usize::from(reader.u8()?);
            if len > MAX_STATE_LEN {
                return None;
            }
            entry.local = Some(LocalState {
                bytes: reader.take(len)?.to_vec(),
                touched_us,
                unused_at_us,
            });
        }
        if flags & OWED != 0 {
            entry.debt = Debt {
                since_us: reader.u64()?,
                current: reader.u64()?,
                previous: reader.u64()?,
                until_us: reader.u64()?,
            };
        }
        if flags & POOL != 0 {
            entry.shared_lease = Some(Box::new(SharedLease::read(&mut reader)?));
        }
        reader.is_empty().then_some(entry)
    }

    /// Until when something would be lost with the entry that must not be.
    pub(crate) fn in_use_until_us(&self) -> u64 {
        let local_us = self.local.as_ref().map_or(0, |local| local.unused_at_us);
        local_us.max(self.debt.until_us)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// Whatever fields a pool has, they are so many numbers.
        fn any_pool()(numbers in any::<[u64; 19]>()) -> SharedLease {
            let mut bytes = Vec::new();
            for number in numbers {
                bytes.put_u64(number);
            }
            SharedLease::read(&mut Reader::new(&bytes)).unwrap()
        }
    }

    prop_compose! {
        pub(crate) fn any_entry()(
            denial in proptest::option::of(any::<[u64; 3]>()),
            status in proptest::option::of((any::<[u64; 4]>(), any::<Option<u64>>())),
            local in proptest::option::of((proptest::collection::vec(any::<u8>(), 0..=MAX_STATE_LEN), any::<[u64; 2]>())),
            debt in any::<[u64; 4]>(),
            shared_lease in proptest::option::of(any_pool()),
        ) -> Entry {
            Entry {
                denial: denial.map(|[until_us, least_cost, retry_at_us]| Denial { until_us, least_cost, retry_at_us }),
                status: status.map(|([at_us, window_ms, remaining, reset_after_ms], limit)| BucketStatus {
                    at_us, limit, window_ms, remaining, reset_after_ms,
                }),
                local: local.map(|(bytes, [touched_us, unused_at_us])| LocalState { bytes, touched_us, unused_at_us }),
                debt: Debt { since_us: debt[0], current: debt[1], previous: debt[2], until_us: debt[3] },
                shared_lease: shared_lease.map(Box::new),
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(entry in any_entry()) {
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            prop_assert_eq!(Entry::read(&bytes), Some(entry));
        }

        #[test]
        fn anything_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Entry::read(&bytes);
        }
    }

    #[test]
    fn a_debt_fades_within_two_spans() {
        let mut debt = Debt::default();
        debt.add(10, 1000, 50_000);
        assert_eq!(debt.units(1000, 50_000), 10);
        assert_eq!(debt.units(1000, 50_999), 10);
        assert_eq!(debt.units(1000, 51_000), 10);
        assert_eq!(debt.units(1000, 51_500), 5);
        assert_eq!(debt.units(1000, 51_999), 1);
        assert_eq!(debt.units(1000, 52_000), 0);
        debt.add(3, 1000, 51_500);
        assert_eq!(debt.units(1000, 51_500), 8);
    }
}

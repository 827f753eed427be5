//! The entry of a bucket that this proxy caches or decides.

use super::{CachedDenial, Debt, Record};
use crate::{
    cache::BucketStatus,
    codec::{Put, Reader},
};

/// The longest state of an algorithm that fits an entry, in bytes: a queue's.
pub(crate) const MAX_STATE_LEN: usize = algorithms::STATE_BYTES_MAX;

/// The entry of a bucket in the roles `Global`, `Proxy` and `Precheck`. Any field may be absent.
///
/// Times are on the monotonic clock, in microseconds: a step of the wall clock must neither lock a
/// bucket nor free it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketEntry {
    /// The limiter's last denial.
    pub(crate) denial: Option<CachedDenial>,
    /// The last status.
    pub(crate) status: Option<BucketStatus>,
    /// The bucket itself, where this proxy decides it.
    pub(crate) local: Option<LocalState>,
    /// Units admitted while no limiter answered.
    pub(crate) debt: Debt,
}

/// The state of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalState {
    /// In the algorithm's encoding.
    pub(crate) bytes: Vec<u8>,
    /// When it last decided a request.
    pub(crate) touched_us: u64,
    /// When the bucket will be unused. Until then it must not be evicted.
    pub(crate) unused_at_us: u64,
}

impl BucketEntry {
    /// Stores a status unless a newer one is stored; returns whether it did. A fallback bucket that was
    /// not used since is dropped: the next outage starts from this status.
    pub(crate) fn update_status(&mut self, status: BucketStatus) -> bool {
        if self.status.is_some_and(|known| known.at_us >= status.at_us) {
            return false;
        }
        self.status = Some(status);
        self.local.take_if(|local| local.touched_us < status.at_us);
        true
    }
}

const DENIAL: u8 = 1;
const STATUS: u8 = 2;
const LOCAL: u8 = 4;
const DEBT: u8 = 8;
/// The denial is by a penalty.
const PENALTY: u8 = 16;

impl Record for BucketEntry {
    fn write(&self, out: &mut Vec<u8>) {
        let flag = |bit: u8, set: bool| if set { bit } else { 0 };
        let in_debt = self.debt != Debt::default();
        out.put_u8(
            flag(DENIAL, self.denial.is_some())
                | flag(STATUS, self.status.is_some())
                | flag(LOCAL, self.local.is_some())
                | flag(DEBT, in_debt)
                | flag(
                    PENALTY,
                    self.denial.is_some_and(|denial| denial.is_penalty()),
                ),
        );
        if let Some(denial) = self.denial {
            denial.write(out);
        }
        if let Some(status) = self.status {
            status.write(out);
        }
        if let Some(local) = &self.local {
            out.put_u64(local.touched_us);
            out.put_u64(local.unused_at_us);
            out.put_u8(local.bytes.len().try_into().unwrap_or(u8::MAX));
            out.extend_from_slice(&local.bytes);
        }
        if in_debt {
            self.debt.write(out);
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        let mut entry = Self::default();
        if flags & DENIAL != 0 {
            entry.denial = Some(CachedDenial::read(&mut reader, flags & PENALTY != 0)?);
        }
        if flags & STATUS != 0 {
            entry.status = Some(BucketStatus::read(&mut reader)?);
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
        if flags & DEBT != 0 {
            entry.debt = Debt::read(&mut reader)?;
        }
        reader.is_empty().then_some(entry)
    }

    fn in_use_until_us(&self) -> u64 {
        let local_us = self.local.as_ref().map_or(0, |local| local.unused_at_us);
        local_us.max(self.debt.until_us)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn any_entry()(
            denial in proptest::option::of((any::<[u64; 3]>(), proptest::option::of(1..u64::MAX))),
            status in proptest::option::of((any::<[u64; 4]>(), any::<Option<u64>>())),
            local in proptest::option::of((proptest::collection::vec(any::<u8>(), 0..=MAX_STATE_LEN), any::<[u64; 2]>())),
            debt in any::<[u64; 4]>(),
        ) -> BucketEntry {
            BucketEntry {
                denial: denial.map(|([until_us, least_cost, retry_at_us], penalty)| CachedDenial {
                    until_us, least_cost, retry_at_us, penalty_us: penalty.unwrap_or(0),
                }),
                status: status.map(|([at_us, window_ms, remaining, reset_after_ms], limit)| BucketStatus {
                    at_us, limit, window_ms, remaining, reset_after_ms,
                }),
                local: local.map(|(bytes, [touched_us, unused_at_us])| LocalState { bytes, touched_us, unused_at_us }),
                debt: Debt { since_us: debt[0], current: debt[1], previous: debt[2], until_us: debt[3] },
            }
        }
    }

    proptest! {
        #[test]
        fn a_bucket_entry_round_trips_through_bytes(entry in any_entry()) {
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            prop_assert_eq!(BucketEntry::read(&bytes), Some(entry));
        }

        #[test]
        fn reading_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BucketEntry::read(&bytes);
        }
    }
}

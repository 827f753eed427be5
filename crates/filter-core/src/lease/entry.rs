//! The shared lease of a bucket as an entry of the shared table.

use super::SharedLease;
use crate::{
    cache::{BucketStatus, Record},
    codec::Reader,
};

/// The entry of a bucket in the role `Lease`. It may be evicted at any time: units that are lost
/// with it are never used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseEntry {
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    pub(crate) lease: SharedLease,
}

impl LeaseEntry {
    /// Stores a status unless a newer one is stored.
    pub(crate) fn update_status(&mut self, status: BucketStatus) {
        if self.status.is_none_or(|known| known.at_us < status.at_us) {
            self.status = Some(status);
        }
    }
}

impl Record for LeaseEntry {
    fn write(&self, out: &mut Vec<u8>) {
        self.lease.write(out);
        if let Some(status) = &self.status {
            status.write(out);
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let lease = SharedLease::read(&mut reader)?;
        let status = if reader.is_empty() {
            None
        } else {
            Some(BucketStatus::read(&mut reader)?)
        };
        reader.is_empty().then_some(Self { status, lease })
    }

    fn in_use_until_us(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::Put;

    proptest! {
        #[test]
        fn a_lease_entry_round_trips_through_bytes(
            numbers in any::<[u64; 19]>(),
            status in proptest::option::of((any::<[u64; 4]>(), any::<Option<u64>>())),
        ) {
            let mut bytes = Vec::new();
            for number in numbers {
                bytes.put_u64(number);
            }
            let entry = LeaseEntry {
                lease: SharedLease::read(&mut Reader::new(&bytes)).unwrap(),
                status: status.map(|([at_us, window_ms, remaining, reset_after_ms], limit)| {
                    BucketStatus { at_us, limit, window_ms, remaining, reset_after_ms }
                }),
            };
            let mut written = Vec::new();
            entry.write(&mut written);
            prop_assert_eq!(LeaseEntry::read(&written), Some(entry));
        }

        #[test]
        fn reading_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = LeaseEntry::read(&bytes);
        }
    }
}

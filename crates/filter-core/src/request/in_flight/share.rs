//! This proxy's share of a limit on requests in flight, while no limiter answers.

use crate::{
    cache::{BucketEntry, BucketKey, LocalState, Role, Room, Table, Update},
    host::{Contended, Host},
    time::Now,
    worker::Worker,
};

/// The share is counted under every revision of its limit: what is in flight stays so.
const GENERATION: u64 = 0;
/// For how long a count is kept that no request changes, in milliseconds.
const KEPT_MS: u64 = 3_600_000;

/// A place in the share of one bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    key: BucketKey,
}

impl Share {
    /// In the bucket with this key, of [`Role::Global`].
    pub(crate) fn of(key: BucketKey) -> Self {
        Self {
            key: key.in_role(Role::InFlight),
        }
    }

    /// How many there may be at this proxy: a part of the limit, but at least one.
    pub(crate) fn size(limit: u64, proxies: u64) -> u64 {
        (limit / proxies.max(1)).max(1).min(limit)
    }

    /// Takes a place if fewer than `size` are taken, or only looks; returns whether there is one.
    pub(crate) fn take(
        self,
        table: &Table,
        host: &impl Host,
        now: Now,
        size: u64,
        peek: bool,
    ) -> Result<bool, Contended> {
        self.change(table, host, now, |count| {
            let fits = count < size;
            (fits, (fits && !peek).then_some(count + 1))
        })
    }

    fn free(self, table: &Table, host: &impl Host, now: Now) -> Result<bool, Contended> {
        self.change(table, host, now, |count| (true, count.checked_sub(1)))
    }

    /// Changes the count, of which a worker's requests are one part.
    fn change(
        self,
        table: &Table,
        host: &impl Host,
        now: Now,
        change: impl Fn(u64) -> (bool, Option<u64>),
    ) -> Result<bool, Contended> {
        table.update::<BucketEntry, _>(host, self.key, GENERATION, now, |found| {
            let local = match found.room {
                Room::Own => &mut found.entry.local,
                Room::Overflow | Room::None => &mut found.overflow,
            };
            let bytes = local.as_ref().map(|local| local.bytes.as_slice());
            let count = bytes.and_then(|bytes| bytes.try_into().ok());
            let (result, count) = change(count.map_or(0, u64::from_le_bytes));
            let Some(count) = count else {
                return Update::Keep(result);
            };
            *local = (count > 0).then(|| LocalState {
                bytes: count.to_le_bytes().to_vec(),
                touched_us: now.mono_us,
                unused_at_us: now.after_ms(KEPT_MS),
            });
            Update::Write(result)
        })
    }
}

impl Worker {
    /// Gives a place of the share back.
    pub(super) fn free_share(&self, host: &impl Host, now: Now, share: &Share) {
        if let Some(shared) = self.process.shared() {
            // Contended: the place stays taken until the count is forgotten.
            let _ = share.free(&shared.table, host, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simulated::SharedData, time::at};

    #[test]
    fn a_share_is_a_part_of_the_limit_and_at_least_one() {
        assert_eq!(Share::size(10, 3), 3);
        assert_eq!(Share::size(2, 5), 1);
        assert_eq!(Share::size(0, 5), 0);
        assert_eq!(Share::size(10, 0), 10);
    }

    #[test]
    fn workers_count_one_share_together() {
        let host = SharedData::default();
        let tables = [0, 1].map(|_| Table::new("shop", 16, [7; 16]));
        let share = |table: &Table| Share::of(table.key("in-flight", std::iter::empty()));
        let take = |table: &Table| share(table).take(table, &host, at(1), 3, false).unwrap();
        let taken: Vec<bool> = tables.iter().cycle().take(5).map(take).collect();
        assert_eq!(taken, [true, true, true, false, false]);
        let [first, second] = &tables;
        assert!(!share(second).take(second, &host, at(1), 3, true).unwrap());
        share(first).free(first, &host, at(2)).unwrap();
        assert!(share(second).take(second, &host, at(2), 3, true).unwrap());
        assert!(take(second));
        assert!(!take(first));
    }
}

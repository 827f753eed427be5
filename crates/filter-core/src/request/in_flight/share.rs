//! This proxy's share of a limit on requests in flight, while no limiter answers.

use crate::{
    cache::{BucketEntry, BucketKey, LocalState, Role, Room, Table, Update},
    codec::{Put, Reader},
    host::{Contended, Host},
    request::grouped,
    time::Now,
    worker::Worker,
};

/// The share is counted across all revisions of its limit, because requests in flight outlast a
/// revision.
const GENERATION: u64 = 0;

/// A place in the share of one bucket. It is counted in the epoch, one slot ttl long, in which it was
/// last [renewed](Share::renew), and in the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    key: BucketKey,
    ttl_us: u64,
    epoch: u64,
}

/// The places that are taken, counted by all workers of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    epoch: u64,
    /// Of this epoch, and of the one before.
    current: u64,
    previous: u64,
}

impl Share {
    /// A place in the bucket with this key, of [`Role::Global`], whose slots have this ttl.
    pub(crate) fn new(key: BucketKey, ttl_ms: u64) -> Self {
        Self {
            key: key.in_role(Role::InFlight),
            ttl_us: ttl_ms.saturating_mul(1000).max(1),
            epoch: 0,
        }
    }

    /// The size of this proxy's share: an equal part of the limit, but at least one place.
    pub(crate) fn size(limit: u64, proxies: u64) -> u64 {
        (limit / proxies.max(1)).max(1).min(limit)
    }

    /// Whether it is in the bucket with this key, of [`Role::Global`].
    pub(super) fn is_of(&self, key: BucketKey) -> bool {
        self.key == key.in_role(Role::InFlight)
    }

    /// Takes a place if fewer than `size` are taken, or with `peek` only looks; returns whether one was
    /// left.
    pub(crate) fn take(
        &mut self,
        table: &Table,
        host: &impl Host,
        now: Now,
        size: u64,
        peek: bool,
    ) -> Result<bool, Contended> {
        self.epoch = self.epoch_of(now);
        self.change(table, host, now, |places| {
            let fits = places.current + places.previous < size;
            places.current += u64::from(fits && !peek);
            fits
        })
    }

    /// Renews `count` places of one bucket and epoch, of which this is one. A module that stops loses
    /// its places within two ttls.
    fn renew(
        &self,
        table: &Table,
        host: &impl Host,
        now: Now,
        count: u64,
    ) -> Result<(), Contended> {
        self.change(table, host, now, |places| {
            places.leave(self.epoch, count);
            places.current += count;
        })
    }

    fn free(self, table: &Table, host: &impl Host, now: Now) -> Result<(), Contended> {
        self.change(table, host, now, |places| places.leave(self.epoch, 1))
    }

    fn epoch_of(&self, now: Now) -> u64 {
        now.mono_us / self.ttl_us
    }

    /// Changes the counts of taken places, which include those of other workers.
    fn change<T>(
        &self,
        table: &Table,
        host: &impl Host,
        now: Now,
        change: impl Fn(&mut Places) -> T,
    ) -> Result<T, Contended> {
        let epoch = self.epoch_of(now);
        table.update::<BucketEntry, _>(host, self.key, GENERATION, now, |found| {
            let local = match found.room {
                Room::Own => &mut found.entry.local,
                Room::Overflow | Room::None => &mut found.overflow,
            };
            let before = local.as_ref().and_then(|local| Places::read(&local.bytes));
            let mut places = before.unwrap_or_default().at(epoch);
            let same = places;
            let result = change(&mut places);
            if places == same {
                return Update::Keep(result);
            }
            let any = places.current + places.previous > 0;
            *local = any.then(|| LocalState {
                bytes: places.write(),
                touched_us: now.mono_us,
                unused_at_us: now.mono_us.saturating_add(2 * self.ttl_us),
            });
            Update::Write(result)
        })
    }
}

impl Places {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            epoch: reader.u64()?,
            current: u64::from(reader.u32()?),
            previous: u64::from(reader.u32()?),
        })
    }

    fn write(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64(self.epoch);
        for count in [self.current, self.previous] {
            bytes.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
        }
        bytes
    }

    /// The counts that still apply in an epoch.
    const fn at(self, epoch: u64) -> Self {
        let (current, previous) = match epoch.checked_sub(self.epoch) {
            Some(0) => (self.current, self.previous),
            Some(1) => (0, self.current),
            _ => (0, 0),
        };
        Self {
            epoch,
            current,
            previous,
        }
    }

    /// Frees places that were counted in an epoch, if they still are.
    const fn leave(&mut self, epoch: u64, count: u64) {
        if epoch == self.epoch {
            self.current = self.current.saturating_sub(count);
        } else if epoch + 1 == self.epoch {
            self.previous = self.previous.saturating_sub(count);
        }
    }
}

impl Worker {
    /// Frees a place of the share.
    pub(super) fn free_share(&self, host: &impl Host, now: Now, share: &Share) {
        if let Some(shared) = self.process.shared() {
            // Contended: the place stays taken for up to two ttls.
            let _ = share.free(&shared.table, host, now);
        }
    }

    /// Renews the places of requests that still run.
    pub(super) fn renew_shares(&mut self, host: &impl Host, now: Now) {
        let Some(shared) = self.process.shared() else {
            return;
        };
        let due = { self.requests.in_flight.shares() }
            .filter(|share| share.epoch != share.epoch_of(now))
            .collect();
        let same =
            |one: &&mut Share, other: &&mut Share| one.key == other.key && one.epoch == other.epoch;
        for together in grouped(due, |share| share.key.hash(), same) {
            let count = u64::try_from(together.len()).unwrap_or(u64::MAX);
            let Some(share) = together.first() else {
                continue;
            };
            // Contended: the next renewal comes before they are lost.
            if share.renew(&shared.table, host, now, count).is_ok() {
                for share in together {
                    share.epoch = share.epoch_of(now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simulated::SharedData, time::at};

    fn share(table: &Table) -> Share {
        Share::new(table.key("in-flight", std::iter::empty()), 1_000)
    }

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

    #[test]
    fn a_place_expires_after_two_ttls_unless_it_is_renewed() {
        let host = SharedData::default();
        let table = Table::new("shop", 16, [7; 16]);
        let (mut lost, mut kept) = (share(&table), share(&table));
        assert!(lost.take(&table, &host, at(500), 2, false).unwrap());
        assert!(kept.take(&table, &host, at(600), 2, false).unwrap());
        for ms in (700..5_000).step_by(300) {
            kept.renew(&table, &host, at(ms), 1).unwrap();
            kept.epoch = kept.epoch_of(at(ms));
            let room = share(&table).take(&table, &host, at(ms), 2, true).unwrap();
            assert_eq!(room, ms >= 2_000, "{ms}");
        }
        // Freeing what is gone takes nobody else's place.
        lost.free(&table, &host, at(5_000)).unwrap();
        assert!(
            !share(&table)
                .take(&table, &host, at(5_000), 1, true)
                .unwrap()
        );
        kept.free(&table, &host, at(5_000)).unwrap();
        assert!(
            share(&table)
                .take(&table, &host, at(5_000), 1, true)
                .unwrap()
        );
    }
}

//! Changes of a bucket's shared lease, each one compare-and-swap in the shared table.

use super::{
    Grant, LeaseDescriptor, LeaseEntry, LeaseQuery, SharedLease, SharedView, Terms, WorkerLease,
};
use crate::{
    cache::{BucketKey, BucketStatus, Role, Table, Update},
    host::{Contended, Host},
    time::Now,
};

/// The result of one change.
pub(super) struct LeaseChange {
    /// Units that this worker took.
    pub(super) grant: Option<Grant>,
    /// The query to send to the limiter.
    pub(super) query: Option<LeaseQuery>,
    /// Units whose deadline passed.
    pub(super) expired: u64,
    /// The shared lease after the change.
    view: SharedView,
    /// The bucket's state in the limiter's last answer.
    status: Option<BucketStatus>,
}

/// Changes the shared lease of a bucket by `act`, which may run several times, and writes it if it
/// differs. `status` is a status that has just arrived. (`act` is dynamic because a copy of this
/// function for each caller would add 2 KB to the module.)
pub(super) fn update_shared(
    host: &impl Host,
    now: Now,
    table: &Table,
    (key, generation): (BucketKey, u64),
    status: Option<BucketStatus>,
    act: &mut dyn FnMut(&mut SharedLease, Option<BucketStatus>) -> LeaseChange,
) -> Result<LeaseChange, Contended> {
    let key = key.in_role(Role::Lease);
    table.update::<LeaseEntry, _>(host, key, generation, now, |found| {
        let entry = &mut found.entry;
        if let Some(status) = status {
            entry.update_status(status);
        }
        let before = entry.lease.clone();
        let change = act(&mut entry.lease, entry.status);
        if entry.lease == before {
            Update::Keep(change)
        } else {
            Update::Write(change)
        }
    })
}

impl LeaseChange {
    pub(super) fn new(
        lease: &SharedLease,
        now: Now,
        terms: &Terms,
        grant: Option<Grant>,
        query: Option<LeaseQuery>,
        expired: u64,
        status: Option<BucketStatus>,
    ) -> Self {
        Self {
            grant,
            query,
            expired,
            view: lease.view(now, terms),
            status,
        }
    }
}

impl WorkerLease<LeaseDescriptor> {
    /// Applies a change of the shared lease to this worker's.
    pub(super) fn apply(&mut self, change: &LeaseChange, now: Now) {
        self.status = change.status;
        if let Some(grant) = change.grant {
            self.receive(grant, now);
        }
        self.apply_view(&change.view, now);
    }
}

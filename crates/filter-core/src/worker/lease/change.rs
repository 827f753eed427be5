//! A look at the units that the workers share.

use super::LeaseDescriptor;
use crate::{
    host::{Contended, Host},
    lease::{Grant, LeaseQuery, SharedLease, SharedView, Terms, WorkerLease},
    shared_table::{BucketKey, BucketStatus, Role, Table, Update},
    time::Now,
};

/// What it came to.
pub(super) struct LeaseChange {
    pub(super) grant: Option<Grant>,
    pub(super) lease_query: Option<LeaseQuery>,
    pub(super) expired: u64,
    /// What is left.
    view: SharedView,
    status: Option<BucketStatus>,
}

/// Changes the shared units of a bucket; they are written if they are not what they were. `told` is
/// what the limiter has just said of it. (One function for whatever is done to them: each way of its
/// own through the table would be 2 KB of the module.)
pub(super) fn change(
    host: &impl Host,
    now: Now,
    table: &Table,
    (key, generation): (BucketKey, u64),
    status: Option<BucketStatus>,
    act: &mut dyn FnMut(&mut SharedLease, Option<BucketStatus>) -> LeaseChange,
) -> Result<LeaseChange, Contended> {
    let key = key.in_role(Role::Lease);
    table.update(host, key, generation, now, |found| {
        if let Some(status) = status {
            found.entry.update_status(status);
        }
        let before = found.entry.shared_lease.take().unwrap_or_default();
        let mut shared_lease = before.clone();
        let change = act(&mut shared_lease, found.entry.status);
        let changed = shared_lease != before;
        found.entry.shared_lease = Some(shared_lease);
        if changed {
            Update::Write(change)
        } else {
            Update::Keep(change)
        }
    })
}

impl LeaseChange {
    #[inline(never)]
    pub(super) fn new(
        shared_lease: &SharedLease,
        now: Now,
        terms: &Terms,
        grant: Option<Grant>,
        lease_query: Option<LeaseQuery>,
        expired: u64,
        status: Option<BucketStatus>,
    ) -> Self {
        Self {
            grant,
            lease_query,
            expired,
            view: shared_lease.view(now, terms),
            status,
        }
    }
}

impl WorkerLease<LeaseDescriptor> {
    /// Takes over what a look at the shared units came to.
    pub(super) fn take_over(&mut self, change: &LeaseChange, now: Now) {
        self.status = change.status;
        if let Some(grant) = change.grant {
            self.receive(grant, now);
        }
        self.apply_view(&change.view, now);
    }
}

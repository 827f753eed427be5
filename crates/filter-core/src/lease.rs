//! Leases: units of a bucket that the limiter grants in advance, and that are spent without a check.
//!
//! For a limit with `lease`, a proxy asks the limiter now and then for more units than one request
//! takes. A grant goes into the [`SharedLease`] of the bucket, which all workers of the process
//! share, and from there in portions into the [`WorkerLeases`] of each worker, so that most requests
//! touch nothing but their own worker's memory. The store has counted granted units as used already.
//! The limit holds because each unit is used once and before its deadline: a unit is in one place
//! only, each move between places is one compare-and-swap, and a move that fails, an entry that is
//! evicted and units of an earlier generation are dropped. That wastes units and never makes any.
//!
//! Lease [`Settlements`] are never retried: whoever takes them out of the shared lease sends them
//! once. A settlement that is lost costs the bucket a little of its rate for two lease times.
//!
//! For a request, `acquire` takes units and `spend` settles or cancels them; `apply_grants` stores
//! what the limiter grants, and `maintain` returns what is left over.

mod acquire;
mod apply_grants;
mod demand;
mod entry;
mod grant;
mod maintain;
mod settlements;
mod shared_lease;
mod shared_update;
mod spend;
mod terms;
mod worker_lease;

use entry::LeaseEntry;
use grant::Grant;
use settlements::Settlements;
pub(crate) use shared_lease::LeaseQuery;
use shared_lease::{SharedLease, SharedView};
pub(crate) use spend::LeaseDescriptor;
use terms::Terms;
use worker_lease::{Portion, WorkerLease};
pub(crate) use worker_lease::{Reservation, WorkerLeases};

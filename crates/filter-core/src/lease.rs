//! Leases: units of a bucket that the limiter grants in advance, and that are spent without a check.
//!
//! For a limit with `lease`, a proxy occasionally queries the limiter for more units than one request
//! takes. A grant goes into the [`SharedLease`] of the bucket, which all workers of the process share.
//! Each worker takes portions of it into its [`WorkerLeases`], so that most requests use only their own
//! worker's memory. The store has counted granted units as used already. The limit holds because each
//! unit is used once and before its deadline: a unit is in one place only, and each move is one
//! compare-and-swap. Units are dropped when a move fails, an entry is evicted, or their generation is
//! outdated. That wastes units and never creates any.
//!
//! Lease [`Settlements`] are never retried: the worker that takes them out of the shared lease sends
//! them once. A lost settlement costs the bucket a little of its rate for two lease times.
//!
//! For a request, `acquire` takes units and `spend` settles or cancels them; `apply_grants` stores
//! grants, and `maintain` returns unused units.

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

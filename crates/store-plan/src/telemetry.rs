//! What limiters report about themselves and their proxies, for operators: who is alive and at
//! which revision, what was decided, and which buckets denied.
//!
//! Each limiter writes its report of a time slot every second, in place of its earlier one, so that a
//! lost or repeated write does no harm. Reports expire, and readers add them up.

mod activity;
mod document;
mod fleet;
mod resolution;

pub use activity::{
    Activity, ActivityReport, ActivitySummary, BucketActivity, Denial, LimitActivity, SlotActivity,
};
pub use fleet::{Fleet, FleetReport, LimiterStatus, ProxyStatus};
pub use resolution::{Resolution, TimeSlot};

pub use resolution::{FLEET_KEPT_MS, FLEET_SLOT_MS, FLEET_SLOTS};

use policy::Name;

/// How long a proxy counts as active after its last request, in milliseconds.
pub const PROXY_LIFE_MS: u64 = 10_000;

/// Bound: limiters whose reports a time slot keeps. Beyond it, the reports of more are not kept.
pub const REPORTS_MAX: usize = 1024;

/// A report of a limiter.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// The limiters and proxies that are alive.
    Fleet(&'a FleetReport),
    /// What was decided in a domain.
    Activity {
        /// The domain.
        domain: &'a Name,
        /// When.
        slot: TimeSlot,
        /// What.
        report: &'a ActivityReport,
    },
}

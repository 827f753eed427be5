//! What limiters tell of themselves and of the proxies that ask them, for people to read: who
//! follows the limits and how far, what was decided, and who was denied.
//!
//! Each limiter keeps a note of what it saw in a stretch of time and writes it anew every second,
//! over what it wrote before: a note that is lost or written twice does no harm. Notes go by
//! themselves, and whoever reads adds them up.

mod activity;
mod document;
mod fleet;
mod resolution;

pub use activity::{
    Activity, ActivityReport, ActivitySummary, BucketActivity, Denial, LimitActivity,
};
pub use fleet::{Fleet, FleetReport, LimiterStatus, ProxyStatus};
pub use resolution::{Resolution, TimeSlot};

pub(crate) use resolution::{FLEET_KEPT_MS, FLEET_SLOT_MS, FLEET_SLOTS};

use policy::Name;

/// Limiters whose notes are kept in one place; the notes of more are not.
pub(crate) const NOTES_MAX: usize = 1024;

/// Something that a limiter writes down.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// Who follows the limits, as far as it knows.
    Fleet(&'a FleetReport),
    /// What was decided in a domain.
    Activity {
        /// The domain.
        domain: &'a Name,
        /// When.
        slot: TimeSlot,
        /// What.
        noted: &'a ActivityReport,
    },
}

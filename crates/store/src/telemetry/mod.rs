//! What limiters tell of themselves and of the proxies that ask them, for people to read: who
//! follows the limits and how far, what was decided, and who was denied.
//!
//! Each limiter keeps a note of what it saw in a stretch of time and writes it anew every second,
//! over what it wrote before: a note that is lost or written twice does no harm. Notes go by
//! themselves, and whoever reads adds them up.

mod activity;
mod document;
mod fleet;
mod stretch;

pub use activity::{Activity, BucketActivity, Denial, LimitActivity, Noted, Observed};
pub use fleet::{Fleet, LimiterSeen, ProxySeen, Sighting};
pub use stretch::{Slot, Stretch};

pub(crate) use stretch::{FLEET_KEPT_MS, FLEET_SLOT_MS, FLEET_SLOTS};

use policy::Name;

/// Limiters whose notes are kept in one place; the notes of more are not.
pub(crate) const NOTES_MAX: usize = 1024;

/// Something that a limiter writes down.
#[derive(Clone, Copy, Debug)]
pub enum Note<'a> {
    /// Who follows the limits, as far as it knows.
    Fleet(&'a Sighting),
    /// What was decided in a domain.
    Activity {
        /// The domain.
        domain: &'a Name,
        /// When.
        slot: Slot,
        /// What.
        noted: &'a Noted,
    },
}

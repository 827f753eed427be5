//! The path of a request to its decision.
//!
//! `decide` decides as much of a request as this proxy can, `admit` carries out the decision, and
//! `hold` keeps requests that a queue delays.

mod admit;
mod claims;
mod decide;
mod denials;
mod descriptor;
mod hold;
mod in_flight;
mod limit_check;
mod limiter_traffic;
mod pending_check;
mod streams;
mod take_local;

pub(crate) use admit::Admission;
pub(crate) use claims::{Claims, LeasedUnits, LocalUnits};
pub(crate) use denials::Denials;
pub(crate) use descriptor::{Extracted, Plan};
pub use descriptor::{NoProperty, Request};
pub(crate) use hold::LimiterSlots;
use hold::{Held, HoldPermit, Holds};
use in_flight::InFlight;
pub(crate) use in_flight::{Described, HeldSlots, Share};
pub(crate) use limit_check::{DenyingLimits, LimitCheck, quota_status};
pub(crate) use pending_check::SlotRelease;
pub(crate) use pending_check::{Attempts, PendingCheck};
pub(crate) use streams::{ByStream, Stream};

use crate::cost::{Metered, RequestBodies};

/// The requests of a worker that have not ended.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) streams: ByStream<Stream>,
    pub(crate) holds: Holds,
    pub(crate) in_flight: InFlight,
    pub(crate) metered: Metered,
    pub(crate) bodies: RequestBodies,
}

impl Requests {
    /// `hold_max` is how many requests may be held at once, `key` random.
    pub(crate) fn new(hold_max: usize, key: [u8; 16]) -> Self {
        Self {
            streams: ByStream::default(),
            holds: Holds::new(hold_max),
            in_flight: InFlight::new(key),
            metered: Metered::default(),
            bodies: RequestBodies::default(),
        }
    }
}

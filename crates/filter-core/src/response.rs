//! What clients see: the headers of a response, and the reply to a denied request.

mod headers;
mod reply;

use policy::Name;

pub use headers::ResponseHeaders;
pub(crate) use headers::{QuotaHeaders, write_headers};
pub(crate) use reply::{Denial, ReplyCache};
pub use reply::{HeaderList, LocalReply};

/// A client's quota at one limit after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    /// The limit.
    pub(crate) limit: Name,
    /// Its quota in units.
    pub(crate) quota: u64,
    /// The time in which an empty quota refills completely, in milliseconds.
    pub(crate) window_ms: u64,
    /// Units left.
    pub(crate) remaining: u64,
    /// The time until the quota is complete, in milliseconds; `None`: waiting does not help.
    pub(crate) reset_after_ms: Option<u64>,
    /// Units that the request costs.
    pub(crate) cost: u64,
    /// Whether the limit denies the request.
    pub(crate) denies: bool,
}

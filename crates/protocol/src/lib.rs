//! The messages that filter, limiter and programs exchange.
//!
//! One meaning ([`Check`], [`Answer`]) has two encodings: [`json`] for people and programs, [`compact`]
//! for the filter. In both, an [`ApiError`] reports what is wrong with a request.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod answer;
mod check;
pub mod compact;
mod error;
pub mod json;
mod stream;

// The words of a decision.
pub use algorithms::{
    AdaptiveState, CostSettlement, Decision, Lease, LimitVerdict, Pace, Reservation, Reserved,
    RetryAfter, Settlement, Slot, SlotAct, SlotId, SlotOp,
};
pub use answer::{Answer, DecidedBy, LimitAnswer, Outcome, Summary};
pub use check::{
    Check, Debit, LeaseRequest, LimitCost, LimitRequest, OwnUnits, ServiceCheck, ServicePart, Took,
};
pub use error::{ApiError, ErrorCode};
pub use policy::{Mode, PenaltyStatus};
pub use stream::{
    ALL_LIMITS, API_HEADER, API_VERSION, CHANGES_CBOR, CHANGES_PARAMETER, CHECK_CBOR, CHECK_JSON,
    CHECK_STREAM, CHECK_STREAM_METHOD, CHECK_STREAM_SERVICE, LIMITS_CBOR, MODULE, PROXIES_HEADER,
    REPORT_CBOR, REVISION_HEADER, StreamAnswer, StreamCall, format_proxies, is_proxy_id,
    parse_proxies,
};

/// Bound: checks of a batch. Beyond it, 400.
pub const MAX_CHECKS: usize = 1024;
/// Bound: slots that one check frees or renews. Beyond it, further ones go in further checks; a
/// program's request is answered by 400.
pub const MAX_FREE: usize = 64;
/// Bound: settlements of a bucket in one check. Beyond it, further ones go in further checks.
pub const MAX_SETTLED: usize = 64;
/// Bound: entries of a descriptor. Beyond it, 400.
///
/// (The limits of a domain name no more.)
pub const MAX_ENTRIES: usize = 128;
/// Limits that one check names, at most.
pub const MAX_LIMITS: usize = 1024;
/// Entries of limits in all checks of one batch, at most: 5 MB of memory.
pub const MAX_BATCH_LIMITS: usize = 32_768;
/// Bound: bytes of a value. Beyond it, the first 64 KiB count at a proxy; a limiter answers 400.
///
/// What Envoy accepts for all headers of a request together.
pub const MAX_VALUE: usize = 65_536;

/// Bound: bytes of a domain's limits as proxies get them. Beyond it, an edit is refused, and a limiter keeps the
/// limits that it has and names the fault.
pub const SNAPSHOT_MAX: usize = 8 << 20;
